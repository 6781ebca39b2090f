"""How ranks over tcp get their connections: made, proven, and sealed or encrypted where others could be on the path."""

import hmac
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from lanterne.errors import InputError, TransportError
from lanterne.transport.networks import ENCRYPT, is_encrypted, is_trusted
from lanterne.transport.rails.rail_names import connect_rails
from lanterne.transport.rank_group import Group
from lanterne.transport.seal import Seal
from lanterne.transport.timeouts import SETUP_S
from lanterne.transport.tls import TlsSocket, encrypt
from lanterne.transport.wire import FrameSeals, configure

NONCE_NBYTES = 32


class PeerSocket(NamedTuple):
    """One end of a connection between two ranks; no seals: nothing is digested, or it is encrypted."""

    sock: socket.socket | TlsSocket
    seals: FrameSeals | None


class Protection(NamedTuple):
    """What ranks of several hosts do about who else is on the path: neither, `sealed` or `encrypted`.

    Attributes: `nonces`, of all ranks; `secret`, the job's.
    """

    sealed: bool
    encrypted: bool
    nonces: Sequence[bytes]
    secret: bytes

    def secret_of(self, source: int, target: int, index: int) -> bytes:
        """Of one direction of a connection."""
        ends = self.nonces[source] + self.nonces[target] + struct.pack("<qqq", source, target, index)
        return hmac.digest(self.secret, ends, "sha256")

    def seal(self, source: int, target: int, index: int) -> Seal:
        """Of one direction of a connection."""
        return Seal(self.secret_of(source, target, index))


def connections(group: Group, *, sealed: bool) -> dict[tuple[int, int], PeerSocket]:
    """The connections to all others, by rank and index. All ranks make them together.

    Args:
        sealed: whether what hosts say to each other is, unless all ranks trust the network.

    Raises:
        InputError: some ranks want encryption, others do not; the same on all of them.
        TransportError: a rank did not come, or is not of this job.
    """
    agreement = _agree(group, sealed=sealed) if len(set(group.hosts)) > 1 else None
    meeting, found = connect_rails(
        group.rank,
        ("tcp",) * (1 if agreement is None else 2),
        lambda told: group.exchange("lanterne/tcp", told),
        group.machine,
        group.check_peers,
        group.secret(b"lanterne/tcp").hex(),
        group.reached_from,
        repeated=True,
        seals=False,
    )
    meeting.close()
    made: dict[tuple[int, int], PeerSocket] = {}
    # In the order of the pairs, so that two ranks that wait for each other are at the same one.
    for (peer, index), proven in sorted(found.items()):
        configure(proven.sock, may_stand=True)
        among_hosts = agreement if group.hosts[peer] != group.hosts[group.rank] else None
        try:
            made[peer, index] = _close_to_others(proven.sock, among_hosts, group.rank, peer, index)
        except TransportError as error:
            socks: list[socket.socket | TlsSocket] = [each.sock for each in found.values()]
            for sock in socks + [each.sock for each in made.values()]:
                sock.close()
            raise TransportError(f"tcp rank {group.rank}: the connection to rank {peer}: {error}") from error
    return made


def _agree(group: Group, *, sealed: bool) -> Protection:
    nonce = os.urandom(NONCE_NBYTES)
    mine = bytes((not sealed or is_trusted(), is_encrypted()))
    told = group.exchange("lanterne/tcp-seals", nonce + mine)
    trusts, encrypts = zip(*(each[NONCE_NBYTES:] for each in told), strict=True)
    if any(encrypts) != all(encrypts):
        wants, lacks = encrypts.index(1), encrypts.index(0)
        raise InputError(f"{ENCRYPT}: got 1 on rank {wants} and 0 on rank {lacks}, expected the same on all ranks")
    nonces = [each[:NONCE_NBYTES] for each in told]
    nonces[group.rank] = nonce  # whatever came back
    is_sealed = not all(trusts) and not all(encrypts)
    return Protection(is_sealed, all(encrypts), nonces, group.secret(b"lanterne/tcp-seals"))


def _close_to_others(sock: socket.socket, agreement: Protection | None, here: int, peer: int, index: int) -> PeerSocket:
    """The PeerSocket that is made of `sock`."""
    if agreement is not None and agreement.encrypted:
        secret = agreement.secret_of(min(here, peer), max(here, peer), index)
        return PeerSocket(encrypt(sock, secret, is_client=here < peer, limit_s=SETUP_S), None)
    if agreement is None or not agreement.sealed:
        return PeerSocket(sock, None)
    return PeerSocket(sock, FrameSeals(agreement.seal(here, peer, index), agreement.seal(peer, here, index)))
