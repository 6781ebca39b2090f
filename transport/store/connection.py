"""Frames on a connection to the store: each is sent whole, or the connection is lost; they arrive in order."""

import errno
import select
import socket
from typing import NoReturn

from lanterne.errors import TransportError
from lanterne.transport import wire
from lanterne.transport.machine import Lock, Machine
from lanterne.transport.pauses import Woken
from lanterne.transport.waiting import MOVED, Moved, wait

# The end of the error where no other store takes over.
ADVICE = "; the host of the job's store is lost, or the store was killed: name a Redis in LANTERNE_STORE to outlive it"
# Errors of the kernel where nothing answers.
CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class StoreLost(TransportError):
    """The store has ended, or this process does not reach it. No rank is to blame."""

    rank_unknown: bool = True


class StoreConnection:
    """Connected, non-blocking socket for frames; once it is lost, every use raises the reason.

    Args:
        seals: for sealed frames; None: frames are not sealed.
        where: the other end, for errors.

    Attributes: `sock`, `seals`; `until_readable`, the pauses of a wait for data; `advice`, the end of the error once it
    is lost.
    """

    def __init__(self, machine: Machine, sock: socket.socket, seals: wire.FrameSeals | None, where: str) -> None:
        self.sock: socket.socket = sock
        self.seals: wire.FrameSeals | None = seals
        self._machine = machine
        self.advice: str = ADVICE
        self._where = where
        self._inbox = bytearray()
        self._lost: StoreLost | None = None
        self._sending: Lock = machine.lock()
        self.until_readable: Woken = _woken(machine, sock, select.POLLIN)
        self._until_writable: Woken = _woken(machine, sock, select.POLLOUT)

    def take(self) -> wire.Frame | None:
        """The first frame of what was received, or None."""
        try:
            return wire.take_frame(self._inbox, self.seals)
        except wire.WireError as error:
            self.lose(str(error))

    def receive(self) -> bool:
        """Have what has arrived; False if nothing has.

        Raises:
            StoreLost: the connection is lost.
        """
        self._check_open()
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError as error:
            self._lose(error)
        if not data:
            self.lose("the store has ended or dropped this client")
        self._inbox += data
        return True

    def send(self, frame: bytes, deadline_s: float) -> None:
        """Send a frame; several threads may. `deadline_s`, of the machine's clock.

        Raises:
            StoreLost: the connection is lost; or it is now, since only a part was sent in time.
        """
        with self._sending:
            self._send_all(frame + self.seals.out.of_frame(frame) if self.seals else frame, deadline_s)

    def _send_all(self, frame: bytes, deadline_s: float) -> None:
        self._check_open()
        view = memoryview(frame)

        def look() -> bool | Moved:
            nonlocal view
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                return False
            except OSError as error:
                self._lose(error)
            return MOVED if view else True

        if not wait(look, deadline_s - self._machine.now_s(), self._until_writable):
            # Half a frame is out: what follows could not be understood.
            self.lose("it took no more data in time")

    def lose(self, reason: str | None) -> NoReturn:
        """Raise StoreLost because of `reason`, now and whenever the connection is used."""
        self._lost = StoreLost(f"{self._where}: connection lost: {reason}{self.advice}")
        raise self._lost

    def _lose(self, error: OSError) -> NoReturn:
        self.lose(f"{error.strerror}{'; the host of the store or this one is cut off' * (error.errno in CUT)}")

    def close(self) -> None:
        """Close it; a second call does nothing."""
        self.sock.close()

    def _check_open(self) -> None:
        if self._lost is not None:
            raise StoreLost(str(self._lost))
        if self.sock.fileno() < 0:
            raise TransportError(f"{self._where}: this client is closed")


def _woken(machine: Machine, sock: socket.socket, events: int) -> Woken:
    """The pauses of waits for `events` of `sock`."""
    poll = machine.poller()
    poll.register(sock, events)
    return Woken(machine, lambda limit_s: poll.poll(limit_s * 1e3 + 1))
