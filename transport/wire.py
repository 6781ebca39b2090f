"""The store's language: frames, their fields, the handshake that opens every connection, and the socket's options.

A frame is a header (body length, kind, request id) and a body of fields whose types each kind fixes beforehand: int64
or bytes. Nothing that is received is ever unpickled or evaluated. The handshake proves to both sides that the other
knows the job token, without sending it, and says whether a digest follows each frame (FrameSeal), as it does between
hosts; nothing is encrypted.
"""

import enum
import hashlib
import hmac
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from lanterne.errors import InputError, TransportError
from lanterne.transport.timeouts import SILENT_S

MAX_BODY_NBYTES = 16 << 20
MAX_KEY_NBYTES = 512
MIN_TOKEN_CHARS = 16
HEADER = struct.Struct("<IHI")
_INT = struct.Struct("<q")
_LENGTH = struct.Struct("<I")
RANK_NBYTES = 4

MAGIC = b"lanterne"
NONCE_NBYTES = 32
PROOF_NBYTES = 32
CHALLENGE_NBYTES = len(MAGIC) + NONCE_NBYTES
ANSWER_NBYTES = CHALLENGE_NBYTES + PROOF_NBYTES
VERDICT_NBYTES = 1 + PROOF_NBYTES
ACCEPTED, REFUSED = b"+", b"-"
# By whether what the client says from then on is sealed.
CLIENTS = {False: b"client", True: b"sealed client"}
SEAL_NBYTES = 16
# A host that answers nothing for as long is lost.
LOST_MS = round(SILENT_S * 1e3)
# Probes of an idle connection that Linux sends at most.
MOST_KEEPALIVES = 127
_COUNT = struct.Struct("<q")


# (kind, request id, body).
Frame: TypeAlias = tuple[int, int, bytes]
Fields: TypeAlias = Sequence[int | bytes]


class Kind(enum.IntEnum):
    """What a frame is. Requests first, then the store's replies, then what the store sends unasked."""

    SET = 1
    GET = 2
    ADD = 3
    DELETE = 4
    GATHER = 5
    ABSENT = 6
    JOIN = 7
    GUARD = 8
    WATCH = 9
    LEAVE = 10
    ENDED = 11
    FAULT = 12
    END = 13
    ARRIVE = 14
    GIVE_UP = 15
    REPORT = 16
    REFUSED = 17
    READY = 18
    MEET = 19
    REPLY = 20
    ERROR = 21
    APPLY = 22
    GROW = 23
    ENTER = 24
    RESTART = 25
    PROGRESS = 26
    DIED_NOTICE = 40
    LEFT_NOTICE = 41
    ENDED_NOTICE = 42
    FINISHED_NOTICE = 43
    FAULT_NOTICE = 44
    RECORD_NOTICE = 45
    GOES_ON_NOTICE = 46
    WAITING_NOTICE = 47
    RESTART_NOTICE = 48
    LOST_NOTICE = 49


class WireError(TransportError):
    """The other side does not speak this language."""


class FrameSeal:
    """Digests of the frames of one direction of a connection, keyed BLAKE2b; both ends go through it in the same order.

    The count of a frame goes into its digest, so what comes twice, late or not at all does not fit.

    Args:
        secret: that both ends know, for this direction of this connection only.

    Cost: some 1.5 us a frame, and 1 ns a byte.
    """

    def __init__(self, secret: bytes) -> None:
        keys = (hmac.digest(secret, purpose, "sha256") for purpose in (b"frames", b"records"))
        self._frame, self._record = (hashlib.blake2b(key=key, digest_size=SEAL_NBYTES) for key in keys)
        self._frames = self._records = 0

    def of_frame(self, frame: bytes | bytearray | memoryview) -> bytes:
        """Return the digest, of SEAL_NBYTES, of the next frame."""
        self._frames += 1
        return self._digest(self._frame, self._frames, frame)

    def of_record(self, record: memoryview) -> bytes:
        """Return the digest, of SEAL_NBYTES, of the next record of a message."""
        self._records += 1
        return self._digest(self._record, self._records, record)

    def _digest(self, key: "hashlib.blake2b", count: int, data: bytes | bytearray | memoryview) -> bytes:
        digest = key.copy()
        digest.update(_COUNT.pack(count))
        digest.update(data)
        return digest.digest()


class FrameSeals(NamedTuple):
    """Those of one end of a connection: of what it says, and of what it hears."""

    out: FrameSeal
    into: FrameSeal


def pack_frame(kind: int, request_id: int, fields: Iterable[int | bytes] = ()) -> bytes:
    """The bytes of one frame; `fields` are int (64 bits, signed) or bytes."""
    parts: list[bytes] = []
    for field in fields:
        if isinstance(field, int):
            parts.append(_INT.pack(field))
        else:
            parts += [_LENGTH.pack(len(field)), field]
    body = b"".join(parts)
    if len(body) > MAX_BODY_NBYTES:
        raise InputError(f"store: got a message of {len(body)} bytes, expected at most {MAX_BODY_NBYTES}")
    return HEADER.pack(len(body), kind, request_id) + body


def unpack_fields(body: bytes, types: str) -> list[Any]:
    """The fields of `body`. `types` has a letter for each, i for int or b for bytes; a last * repeats one.

    Raises:
        WireError: the body does not hold exactly these fields.
    """
    fields: list[Any] = []
    offset = 0
    repeated = types[-2] if types.endswith("*") else None
    letters = iter(types[:-2] if repeated else types)
    while True:
        letter = next(letters, None) or (repeated if offset < len(body) else None)
        if letter is None:
            break
        field, offset = _unpack_field(body, offset, letter)
        fields.append(field)
    if offset != len(body):
        raise WireError(f"frame: got {len(body)} bytes, expected {offset}")
    return fields


def _unpack_field(body: bytes, offset: int, letter: str) -> tuple[int | bytes, int]:
    try:
        if letter == "i":
            return _INT.unpack_from(body, offset)[0], offset + _INT.size
        (nbytes,) = _LENGTH.unpack_from(body, offset)
    except struct.error as error:
        raise WireError(f"frame: got {len(body)} bytes, expected more") from error
    start = offset + _LENGTH.size
    if nbytes > len(body) - start:
        raise WireError(f"frame: got a field of {nbytes} bytes, expected at most {len(body) - start}")
    return bytes(body[start : start + nbytes]), start + nbytes


def take_frame(buffer: bytearray, seals: FrameSeals | None = None) -> Frame | None:
    """Remove the first frame from the bytearray `buffer`: (kind, request_id, body), or None while it is incomplete.

    Args:
        seals: a digest follows the frame.

    Raises:
        WireError: the frame is larger than MAX_BODY_NBYTES, or its digest does not fit.
    """
    if len(buffer) < HEADER.size:
        return None
    nbytes, kind, request_id = HEADER.unpack_from(buffer)
    if nbytes > MAX_BODY_NBYTES:
        raise WireError(f"frame: got {nbytes} bytes, expected at most {MAX_BODY_NBYTES}")
    end = HEADER.size + nbytes
    whole = end + (SEAL_NBYTES if seals else 0)
    if len(buffer) < whole:
        return None
    frame = bytes(memoryview(buffer)[:whole])
    if seals and not hmac.compare_digest(seals.into.of_frame(frame[:end]), frame[end:]):
        raise WireError("frame: it was changed, added, repeated or moved on its way")
    del buffer[:whole]
    return kind, request_id, frame[HEADER.size : end]


def pack_ranks(ranks: Iterable[int]) -> bytes:
    """The bytes that stand for `ranks`."""
    each = tuple(ranks)
    return struct.pack(f"<{len(each)}i", *each)


def unpack_ranks(data: bytes) -> tuple[int, ...]:
    """The ranks that `data` stands for.

    Raises:
        WireError: it stands for none.
    """
    if len(data) % RANK_NBYTES:
        raise WireError(f"frame: got ranks of {len(data)} bytes, expected {RANK_NBYTES} for each")
    return struct.unpack(f"<{len(data) // RANK_NBYTES}i", data)


def check_token(token: str) -> bytes:
    """`token` as a key for proofs.

    Raises:
        InputError: it is too short to keep strangers out.
    """
    if len(token) < MIN_TOKEN_CHARS:
        raise InputError(
            f"LANTERNE_TOKEN: got {len(token)} characters, expected {MIN_TOKEN_CHARS} or more, "
            "the same on all ranks (python3 -c 'import secrets; print(secrets.token_hex(16))' makes one)"
        )
    return token.encode()


def make_challenge() -> tuple[bytes, bytes]:
    """What the store says first: (the bytes to send, its nonce)."""
    nonce = os.urandom(NONCE_NBYTES)
    return MAGIC + nonce, nonce


def answer_challenge(key: bytes, challenge: bytes, *, sealed: bool = False) -> tuple[bytes, bytes, FrameSeals | None]:
    """What a client answers: (the bytes to send, the verdict that only a store with the same token can give, and its
    seals from then on, if frames are to be `sealed`).

    Raises:
        WireError: `challenge` is none of a store's.
    """
    if not challenge.startswith(MAGIC):
        raise WireError("what answers there is not a lanterne store")
    nonces = challenge[len(MAGIC) :] + os.urandom(NONCE_NBYTES)
    answer = MAGIC + nonces[NONCE_NBYTES:] + _proof(key, CLIENTS[sealed], nonces)
    return answer, ACCEPTED + _proof(key, b"store", nonces), _seals(key, nonces) if sealed else None


def judge_answer(key: bytes, nonce: bytes, answer: bytes) -> tuple[bytes, FrameSeals | None]:
    """The store's verdict on a client's answer, which starts with ACCEPTED or REFUSED; and its seals from then on."""
    nonces = nonce + answer[len(MAGIC) : CHALLENGE_NBYTES]
    for sealed, side in CLIENTS.items():
        if hmac.compare_digest(answer[CHALLENGE_NBYTES:], _proof(key, side, nonces)) and answer.startswith(MAGIC):
            seals = FrameSeals(*reversed(_seals(key, nonces))) if sealed else None
            return ACCEPTED + _proof(key, b"store", nonces), seals
    return REFUSED + bytes(PROOF_NBYTES), None


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


def _seals(key: bytes, nonces: bytes) -> FrameSeals:
    """The client's."""
    return FrameSeals(*(FrameSeal(_proof(key, side, nonces)) for side in (b"to the store", b"from the store")))


def in_words(refused: Mapping[str, int]) -> str:
    """How many connections were refused for which reason, the commonest first."""
    return ", ".join(f"{why} {count}" for why, count in sorted(refused.items(), key=lambda item: -item[1]))


class Sender(Protocol):
    """A connection that parts of messages are written to; see socket.socket."""

    def send(self, data: memoryview, /) -> int: ...
    def sendmsg(self, parts: Sequence[memoryview], /) -> int: ...


def send_parts(sock: Sender, parts: deque[memoryview], most: int) -> int:
    """Write what the connection takes of the first `most` of `parts`, and remove it there: how many bytes.

    Raises:
        BlockingIOError: it takes nothing now.
        OSError: it is dead.
    """
    sent = sock.send(parts[0]) if len(parts) == 1 else sock.sendmsg([parts[i] for i in range(min(len(parts), most))])
    left = sent
    while left:
        part = parts[0]
        if left < part.nbytes:
            parts[0] = part[left:]
            break
        left -= part.nbytes
        parts.popleft()
    return sent


def keepalive(lost_ms: int) -> tuple[int, int]:
    """Return (number of probes, seconds between two) with which an idle connection to a lost host ends in `lost_ms`."""
    every_s = max(1, math.ceil(lost_ms / 1e3 / MOST_KEEPALIVES))
    return max(1, round(lost_ms / 1e3 / every_s) - 1), every_s


def configure(sock: socket.socket, *, lost_ms: int | None = None, may_stand: bool = False) -> None:
    """Send small frames without delay, and let the kernel end the connection to a host that is lost.

    Args:
        lost_ms: how long that may answer nothing; None is LOST_MS.
        may_stand: the other end may be alive and read nothing for longer than that. While much waits to be sent, the
            kernel then tells nothing: somebody has to look (tcp_info.py).
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    lost_ms = LOST_MS if lost_ms is None else lost_ms
    probes, every_s = keepalive(lost_ms)
    limit_ms = 0 if may_stand else lost_ms
    options = (("KEEPIDLE", every_s), ("KEEPINTVL", every_s), ("KEEPCNT", probes), ("USER_TIMEOUT", limit_ms))
    for option, value in options:
        if hasattr(socket, name := f"TCP_{option}"):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
