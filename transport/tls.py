"""Encrypted connections between ranks: TLS of the standard library; the job's secret proves its ends, no certificates.

The ends agree on keys by a Diffie-Hellman exchange that no certificate signs (TLS 1.2, RFC 5246: DH_anon, in a group of
RFC 7919), so nobody can read later what was recorded, not even who learns the secret. Each then says a keyed digest of
what is only of this connection (tls-unique, RFC 5929): who stands between the ends has another one with each of them,
and cannot make what the other end expects. All that follows is AES-128-GCM, which authenticates, too.
"""

import hmac
import os
import socket
import ssl
from collections.abc import Sequence
from functools import cache

from lanterne.errors import TransportError

CIPHER = "ADH-AES128-GCM-SHA256"
# TLS's own limits of security leave out what has no certificate.
ASKED = f"{CIPHER}:@SECLEVEL=0"
BINDING = "tls-unique"
PROOF_NBYTES = 32
# Of one call: what was not taken has to be said again as it was.
PIECE_NBYTES = 256 << 10
# The group ffdhe2048 of RFC 7919, as `openssl genpkey -genparam -algorithm DH -pkeyopt group:ffdhe2048` prints it.
GROUP = b"""-----BEGIN DH PARAMETERS-----
MIIBCAKCAQEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEoXJf//////////wIBAg==
-----END DH PARAMETERS-----
"""


class TlsSocket:
    """A non-blocking encrypted connection, with the verbs of socket.socket that Duplex uses."""

    def __init__(self, inner: ssl.SSLSocket) -> None:
        self._inner = inner
        inner.setblocking(False)

    def fileno(self) -> int:
        return self._inner.fileno()

    def send(self, data: memoryview) -> int:
        """See socket.send: of the first PIECE_NBYTES."""
        try:
            return self._inner.send(data[:PIECE_NBYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """See socket.sendmsg: of the first part."""
        return self.send(parts[0])

    def recv_into(self, buffer: memoryview) -> int:
        """See socket.recv_into; takes all that is there, and what came before an error."""
        got = 0
        while got < buffer.nbytes:
            try:
                part = self._inner.recv_into(buffer[got:])
            except OSError as error:
                if got:
                    break
                if isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError):
                    raise BlockingIOError from error
                raise
            if not part:
                break
            got += part
        return got

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        """See socket.recvmsg_into: of the first buffer."""
        return (self.recv_into(buffers[0]),)

    def pending(self) -> int:
        """Bytes that have been decrypted and not been read, of which a poll of the connection does not tell."""
        return self._inner.pending()

    def getsockopt(self, level: int, option: int, nbytes: int) -> bytes:
        return self._inner.getsockopt(level, option, nbytes)

    def close(self) -> None:
        self._inner.close()


def encrypt(sock: socket.socket, secret: bytes, *, is_client: bool, limit_s: float) -> TlsSocket:
    """`sock` encrypted; both ends call it, one of them as the client, and `sock` is not to be used any more.

    Args:
        secret: of this connection, which both ends know.

    Raises:
        TransportError: the other end does not know it, or somebody stands between; or it has gone.

    Cost: a handshake of two round trips, some 3 ms of a core.
    """
    sock.settimeout(limit_s)
    try:
        inner = _context(is_client=is_client).wrap_socket(sock, server_side=not is_client)
        binding = inner.get_channel_binding(BINDING)
        if binding is None:
            raise TransportError("tls: this OpenSSL tells nothing that is of the connection only")
        here, there = (hmac.digest(secret, side + binding, "sha256") for side in _sides(is_client=is_client))
        inner.sendall(here)
        heard = b""
        while len(heard) < PROOF_NBYTES and (part := inner.recv(PROOF_NBYTES - len(heard))):
            heard += part
    except OSError as error:
        sock.close()
        raise TransportError(f"tls: the handshake failed ({error}); expected the other end of this job") from error
    if not hmac.compare_digest(heard, there):
        inner.close()
        raise TransportError("tls: who answers does not know the job's secret, or somebody stands between")
    return TlsSocket(inner)


def _sides(*, is_client: bool) -> tuple[bytes, bytes]:
    """What this end's proof is of, and the other's."""
    return (b"client", b"server") if is_client else (b"server", b"client")


@cache
def _context(*, is_client: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_client else ssl.PROTOCOL_TLS_SERVER)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # `encrypt` verifies.
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    try:
        context.set_ciphers(ASKED)
    except ssl.SSLError as error:
        raise TransportError(f"tls: {ssl.OPENSSL_VERSION} has no {CIPHER}, which LANTERNE_ENCRYPT needs") from error
    if not is_client:
        # It is read from a file only.
        file = os.memfd_create("lanterne-group")
        try:
            os.write(file, GROUP)
            context.load_dh_params(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
    return context
