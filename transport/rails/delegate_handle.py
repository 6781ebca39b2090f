"""A delegate as its rank sees it: started, given notes, watched, ended."""

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from lanterne import __file__ as front_door
from lanterne.errors import PeerFailed, TransportError
from lanterne.transport.machine import THIS_MACHINE, Machine, Wakeup
from lanterne.transport.own_python import own_python
from lanterne.transport.rails.delegate_memory import RING_WORDS, Ring, make_memory, map_memory
from lanterne.transport.rails.delegate_process import CLOSE
from lanterne.transport.rails.rail import LOOK_S
from lanterne.transport.timeouts import NOTICE_S, SETUP_S
from lanterne.transport.waiting import never, wait

# How long delegates may take to end.
END_S = 3.0  # chosen: receipts leave within a second


class Child(Protocol):
    """What subprocess.Popen returns."""

    def wait(self, timeout: float | None = ...) -> int: ...
    def kill(self) -> None: ...


# Starts a delegate that shares an arena and a ring, both open files: the process, and what joins it to this one.
StartDelegate: TypeAlias = Callable[[int, int], tuple[Child, socket.socket, Wakeup]]


def start_process(arena_fd: int, ring_fd: int) -> tuple[Child, socket.socket, Wakeup]:
    """A StartDelegate."""
    wakeup = THIS_MACHINE.wakeup()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds = (theirs.fileno(), wakeup.fileno(), arena_fd, ring_fd)
    process = subprocess.Popen(
        [*own_python(), "-m", "lanterne.transport.rails.delegate_process", *map(str, fds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        cwd=Path(front_door).parents[1],
        start_new_session=True,
    )
    theirs.close()
    return process, control, wakeup


class Handle:
    """One delegate as its rank sees it."""

    def __init__(
        self,
        rank: int,
        queue: int,
        arena_fd: int,
        token: str,
        rails: Sequence[str | None],
        machine: Machine = THIS_MACHINE,
        start: StartDelegate = start_process,
    ) -> None:
        self.queue = queue
        self.pid: int | None = None
        self._machine = machine
        ring_fd = make_memory(16 * RING_WORDS)
        words = map_memory(ring_fd, 16 * RING_WORDS).cast("q")
        self._ring = Ring(words[:RING_WORDS])
        self.back: Ring = Ring(words[RING_WORDS:])
        process, control, wakeup = start(arena_fd, ring_fd)
        self._process = process
        self._control = control
        self._wakeup = wakeup
        os.close(ring_fd)
        self._poll = machine.poller()
        self._poll.register(self._control, select.POLLHUP)
        self.say(rank=rank, queue=queue, token=token, rails=rails)

    def say(self, **content: object) -> None:
        """Tell the delegate, while it is set up."""
        with suppress(OSError):  # it has ended; `hear` says so
            self._control.sendall(json.dumps(content).encode())

    def hear(self, check_dead: Callable[[], object]) -> dict[str, Any]:
        """What the delegate says while it is set up.

        Args:
            check_dead: called meanwhile, ends the wait by raising.
        """
        limit_s = 2 * SETUP_S
        until_s = self._machine.now_s() + limit_s
        data: bytes | None = None
        while data is None:
            self._control.settimeout(LOOK_S)
            try:
                data = self._control.recv(1 << 20)
            except TimeoutError:
                check_dead()
                if self._machine.now_s() > until_s:
                    raise TransportError(f"delegate {self.queue}: not ready within {limit_s:g} s") from None
        self._control.settimeout(None)
        if not data:
            raise TransportError(f"delegate {self.queue}: {self._ended()} before it was ready")
        told: dict[str, Any] = json.loads(data)
        if "error" in told:
            raise TransportError(told["error"])
        return told

    def get_ready(self, check_dead: Callable[[], object]) -> None:
        """Return once the delegate has all its rails. Raises what it says; `check_dead` as `hear` has it."""
        try:
            self.pid = self.hear(check_dead)["pid"]
        except PeerFailed:
            raise
        except TransportError:
            # Often the first sign of a death whose notice is on its way.
            wait(never, NOTICE_S, self._machine.pauses(), lambda _now_s: check_dead())
            raise

    def put(self, kind: int, subject: int, first: int = 0, second: int = 0, third: int = 0) -> None:
        """Give the delegate a note, and wake it if it sleeps."""
        self._ring.put(kind, subject, first, second, third)
        if self._ring.sleeps():
            self._wakeup.set()

    def flush(self) -> None:
        """Give it the notes that its ring had no room for: it takes them at once, so it had been stopped."""
        if self._ring.backlog:
            self._ring.flush()
            self._wakeup.set()

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
        """Tell the delegate to end. One that is not ready carries nothing, and may wait for ranks that are dead."""
        if self.pid is None:
            self._process.kill()
        else:
            self._ring.put(CLOSE, 0)
            self._wakeup.set()

    def end(self, deadline_s: float) -> None:
        """Return once it has ended, of itself or killed."""
        try:
            self._process.wait(max(0.0, deadline_s - self._machine.now_s()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()
        self._wakeup.close()
