"""Where rails are let in: connections are taken side by side, and each proves the job's token before anything else.

Nothing that a stranger says is looked at but the proof, whose length is fixed. Who has not proven it after PROOF_S, or
is the oldest of more than MAX_STRANGERS, is dropped; the others are not kept waiting by it.
"""

import logging
import selectors
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from lanterne.transport import wire
from lanterne.transport.machine import THIS_MACHINE, Machine

PROOF_S = 5.0
MAX_STRANGERS = 128
GREETING = struct.Struct("<qqq")
# Of one listener before others have their turn.
TURN = 64


class Greeting(NamedTuple):
    """What who connects says once it is proven: its rank, the rail's index, and how often that was made before."""

    rank: int
    rail: int
    life: int = 0


# Who was let in.
Guest: TypeAlias = tuple[socket.socket, Greeting]

log: logging.Logger = logging.getLogger(__name__)


class Stranger:
    """Who has connected and not yet proven the token, or not yet said all of its greeting."""

    def __init__(self, sock: socket.socket, nonce: bytes, until_s: float) -> None:
        self.sock = sock
        self.nonce = nonce
        self.until_s = until_s
        self.data = bytearray()
        self.needs = wire.ANSWER_NBYTES
        self.proven = False


class Door:
    """Lets in who knows `token`. For one thread.

    Args:
        listeners: sockets that listen, which stay the caller's.

    Attributes: `refused`, how many connections were, by the reason.
    """

    def __init__(self, listeners: Sequence[socket.socket], token: str, machine: Machine = THIS_MACHINE) -> None:
        self.refused: Counter[str] = Counter()
        self._key = wire.check_token(token)
        self._machine = machine
        self._selector = machine.selector()
        self._strangers: dict[Stranger, None] = {}  # insertion order is age
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)

    def fileno(self) -> int:
        """Readable once there is something to do for `look`; on the real machine."""
        selector: Any = self._selector
        fd: int = selector.fileno()
        return fd

    @property
    def patience_s(self) -> float | None:
        """After which time `look` has to be called although nothing is readable; None: never."""
        oldest = next(iter(self._strangers), None)
        return None if oldest is None else max(0.0, oldest.until_s - self._machine.now_s())

    def look(self, wait_s: float) -> list[Guest]:
        """Serve who is there, and return who has been let in, after at most about `wait_s` seconds."""
        limits_s = [wait_s] if self.patience_s is None else [wait_s, self.patience_s]
        guests: list[Guest] = []
        for key, _ in self._selector.select(min(limits_s)):
            if isinstance(key.data, Stranger):
                self._hear(key.data, guests)
            else:
                listener: Any = key.fileobj
                self._accept(listener)
        now_s = self._machine.now_s()
        for stranger in [stranger for stranger in self._strangers if stranger.until_s <= now_s]:
            self._refuse(stranger, "silent")
        return guests

    def close(self) -> None:
        """Drop who is not in yet, and say how many were refused."""
        for stranger in list(self._strangers):
            self._refuse(stranger, "not in time")
        self._selector.close()
        if self.refused:
            log.warning("lanterne: %d connections were refused (%s)", self.refused.total(), wire.in_words(self.refused))

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(TURN):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone again, or out of file descriptors
                self._make_room()
                return
            sock.setblocking(False)
            if len(self._strangers) >= MAX_STRANGERS:
                self._make_room()
            challenge, nonce = wire.make_challenge()
            stranger = Stranger(sock, nonce, self._machine.now_s() + PROOF_S)
            self._strangers[stranger] = None
            self._selector.register(sock, selectors.EVENT_READ, stranger)
            self._say(stranger, challenge)

    def _make_room(self) -> None:
        if self._strangers:
            self._refuse(next(iter(self._strangers)), "too many at once")

    def _say(self, stranger: Stranger, data: bytes) -> None:
        # It fits the buffer of a new connection.
        with suppress(OSError):
            stranger.sock.send(data)

    def _hear(self, stranger: Stranger, guests: list[Guest]) -> None:
        if stranger not in self._strangers:
            return
        try:
            data = stranger.sock.recv(stranger.needs - len(stranger.data))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._refuse(stranger, "hung up")
            return
        stranger.data += data
        if len(stranger.data) < stranger.needs:
            return
        data, stranger.data = bytes(stranger.data), bytearray()
        if stranger.proven:
            del self._strangers[stranger]
            self._selector.unregister(stranger.sock)
            guests.append((stranger.sock, Greeting(*GREETING.unpack(data))))
        else:
            self._judge(stranger, data)

    def _judge(self, stranger: Stranger, answer: bytes) -> None:
        verdict = wire.judge_answer(self._key, stranger.nonce, answer)
        self._say(stranger, verdict)
        if not verdict.startswith(wire.ACCEPTED):
            self._refuse(stranger, "wrong secret")
            return
        stranger.proven, stranger.needs = True, GREETING.size

    def _refuse(self, stranger: Stranger, why: str) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger.sock)
        stranger.sock.close()
        self.refused[why] += 1
        if self.refused[why] == 1:
            log.info("lanterne: a connection was refused: %s", why)
