"""Where connections are let in, of the store, rails and tcp: side by side, and each proves the job's token first.

Nothing that a stranger says is looked at but the proof, whose length is fixed. Who has not proven it after proof_s, or
is the oldest of more than max_strangers, is dropped; the others are not kept waiting by it.
"""

import logging
import selectors
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from lanterne.transport import wire
from lanterne.transport.machine import THIS_MACHINE, Machine

# Who was let in, the numbers of its greeting, and the seals of its frames, if it wants them sealed.
Guest: TypeAlias = tuple[socket.socket, tuple[int, ...], wire.FrameSeals | None]

log: logging.Logger = logging.getLogger(__name__)


PROOF_S = 5.0  # chosen: a handshake takes milliseconds
MAX_STRANGERS = 128  # chosen: a few ranks at once, and a flood
# Of one listener before others have their turn.
TURN = 64


class Stranger:
    """Who has connected and not yet proven the token, or not yet said all of its greeting."""

    def __init__(self, sock: socket.socket, nonce: bytes, until_s: float) -> None:
        self.sock = sock
        self.nonce = nonce
        self.until_s = until_s
        self.data: bytearray = bytearray()
        self.needs: int = wire.ANSWER_NBYTES
        self.proven = False
        self.seals: wire.FrameSeals | None = None


class Door:
    """Lets in who knows `token`. For one thread.

    Args:
        listeners: sockets that listen, which stay the caller's.
        greeting: what who has proven the token says first; None: nothing.
        selector: where to register what is waited for, with a function of the events as its data, which whoever uses
            the selector calls; None: one of its own, for `look`.
        has_room: asked before who has proven the token is let in.

    Attributes: `refused`, how many connections were, by the reason.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        token: str,
        machine: Machine = THIS_MACHINE,
        greeting: struct.Struct | None = None,
        selector: selectors.BaseSelector | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._key = wire.check_token(token)
        self._machine = machine
        self._greeting = greeting
        self._has_room = has_room
        self._shared = selector is not None
        self._selector = selector or machine.selector()
        self._strangers: dict[Stranger, None] = {}  # insertion order is age
        self._guests: list[Guest] = []
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, lambda _events, at=listener: self._accept(at))

    def fileno(self) -> int:
        """Readable once there is something to do for `look`; on the real machine."""
        selector: Any = self._selector
        fd: int = selector.fileno()
        return fd

    @property
    def patience_s(self) -> float | None:
        """After which time `look` or `take` has to be called although nothing is readable; None: never."""
        oldest = next(iter(self._strangers), None)
        return None if oldest is None else max(0.0, oldest.until_s - self._machine.now_s())

    def look(self, wait_s: float) -> list[Guest]:
        """Serve who is there, and return who has been let in, after at most about `wait_s` seconds."""
        limits_s = [wait_s] if self.patience_s is None else [wait_s, self.patience_s]
        for key, events in self._selector.select(min(limits_s)):
            key.data(events)
        return self.take()

    def take(self) -> list[Guest]:
        """Drop who has been silent for too long, and return who has been let in since the last call."""
        while self.patience_s == 0.0:
            self._refuse(next(iter(self._strangers)), "silent")
        guests, self._guests = self._guests, []
        return guests

    def close(self) -> None:
        """Drop who is not in yet, and say how many were refused."""
        for stranger in list(self._strangers):
            self._refuse(stranger, "not in time")
        if not self._shared:
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
            self._selector.register(sock, selectors.EVENT_READ, lambda _events, of=stranger: self._hear(of))
            self._say(stranger, challenge)

    def _make_room(self) -> None:
        if self._strangers:
            self._refuse(next(iter(self._strangers)), "too many at once")

    def _say(self, stranger: Stranger, data: bytes) -> None:
        # It fits the buffer of a new connection.
        with suppress(OSError):
            stranger.sock.send(data)

    def _hear(self, stranger: Stranger) -> None:
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
            assert self._greeting is not None
            self._let_in(stranger, self._greeting.unpack(data))
        else:
            self._judge(stranger, data)

    def _judge(self, stranger: Stranger, answer: bytes) -> None:
        verdict, stranger.seals = wire.judge_answer(self._key, stranger.nonce, answer)
        why = "wrong secret"
        if verdict.startswith(wire.ACCEPTED) and not self._has_room():
            verdict, why = wire.REFUSED + bytes(wire.PROOF_NBYTES), "too many clients"
        self._say(stranger, verdict)
        if not verdict.startswith(wire.ACCEPTED):
            self._refuse(stranger, why)
        elif self._greeting is None:
            self._let_in(stranger, ())
        else:
            stranger.proven, stranger.needs = True, self._greeting.size

    def _let_in(self, stranger: Stranger, said: tuple[int, ...]) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger.sock)
        self._guests.append((stranger.sock, said, stranger.seals))

    def _refuse(self, stranger: Stranger, why: str) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger.sock)
        stranger.sock.close()
        self.refused[why] += 1
        if self.refused[why] == 1:
            log.info("lanterne: a connection was refused: %s", why)
