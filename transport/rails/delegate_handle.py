"""A delegate as its rank sees it: started, given notes, watched, ended."""

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lanterne import __file__ as front_door
from lanterne.errors import TransportError
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.own_python import own_python
from lanterne.transport.rails.delegate_memory import RING_WORDS, Ring, make_memory, map_memory
from lanterne.transport.rails.delegate_process import CLOSE, SETUP_S

# How long delegates may take to end.
END_S = 3.0


class Handle:
    """One delegate as its rank sees it."""

    def __init__(self, rank: int, queue: int, arena_fd: int, token: str, rails: Sequence[str | None]) -> None:
        self.queue = queue
        self.pid: int | None = None
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        ring_fd = make_memory(16 * RING_WORDS)
        words = map_memory(ring_fd, 16 * RING_WORDS).cast("q")
        self._ring = Ring(words[:RING_WORDS])
        self.back: Ring = Ring(words[RING_WORDS:])
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (theirs.fileno(), self._wakeup, arena_fd, ring_fd)
        self._process = subprocess.Popen(
            [*own_python(), "-m", "lanterne.transport.rails.delegate_process", *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            cwd=Path(front_door).parents[1],
            start_new_session=True,
        )
        theirs.close()
        os.close(ring_fd)
        self._poll = THIS_MACHINE.poller()
        self._poll.register(self._control, select.POLLHUP)
        self.say(rank=rank, queue=queue, token=token, rails=rails)

    def say(self, **content: object) -> None:
        """Tell the delegate, while it is set up."""
        with suppress(OSError):  # it has ended; `hear` says so
            self._control.sendall(json.dumps(content).encode())

    def hear(self) -> dict[str, Any]:
        """What the delegate says while it is set up."""
        self._control.settimeout(2 * SETUP_S)
        try:
            data = self._control.recv(1 << 20)
        except TimeoutError:
            raise TransportError(f"delegate {self.queue}: not ready within {2 * SETUP_S:g} s") from None
        if not data:
            raise TransportError(f"delegate {self.queue}: {self._ended()} before it was ready")
        told: dict[str, Any] = json.loads(data)
        if "error" in told:
            raise TransportError(told["error"])
        return told

    def put(self, kind: int, subject: int, first: int = 0, second: int = 0, third: int = 0) -> None:
        """Give the delegate a note, and wake it if it sleeps."""
        self._ring.put(kind, subject, first, second, third)
        if self._ring.sleeps():
            self._wake()

    def flush(self) -> None:
        """Give it the notes that its ring had no room for: it takes them at once, so it had been stopped."""
        if self._ring.backlog:
            self._ring.flush()
            self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup, 1)

    def check(self, rank: int) -> None:
        """Raise TransportError if the delegate has died."""
        if self._poll.poll(0):
            raise TransportError(f"rank {rank}: its delegate {self.queue} {self._ended()}")

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(END_S)
            if code >= 0:
                return f"ended with code {code}"
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return "does not answer"

    def close(self) -> None:
        """Tell the delegate to end."""
        if self.pid is None:
            self._control.close()
        else:
            self._ring.put(CLOSE, 0)
            self._wake()

    def end(self, deadline_s: float) -> None:
        """Return once it has ended, of itself or killed."""
        try:
            self._process.wait(max(0.0, deadline_s - THIS_MACHINE.now_s()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()
        os.close(self._wakeup)
