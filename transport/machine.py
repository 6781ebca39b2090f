"""What a rank stands on: the clock, threads, sockets. Everything that waits or connects is handed one.

THIS_MACHINE is the real one. Another, in which a seed decides what happens next, has the same face; so nothing else of
transport/ and collectives/ may call time, select or socket.socket by itself (tests/transport/test_machine.py).
"""

import atexit
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol, TypeAlias, TypeVar

from lanterne.transport.pauses import LONGER_S, Pauses

# Connections that wait to be accepted.
BACKLOG = 1024


class HasFileno(Protocol):
    """A socket, or what stands for one."""

    def fileno(self) -> int: ...


Descriptor: TypeAlias = "int | HasFileno"
Watched = TypeVar("Watched", bound=Descriptor)


class Poller(Protocol):
    """What select.poll() returns."""

    def register(self, fd: Descriptor, eventmask: int = ..., /) -> object: ...
    def modify(self, fd: Descriptor, eventmask: int, /) -> object: ...
    def unregister(self, fd: Descriptor, /) -> object: ...
    def poll(self, timeout_ms: float | None = None, /) -> list[tuple[int, int]]: ...


class DeepPoller(Poller, Protocol):
    """A Poller that can be polled itself: readable while one of its own is ready. A look costs by those that are."""

    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Epoll:
    """select.epoll as a DeepPoller, with times and events as of select.poll."""

    def __init__(self) -> None:
        self._inner = select.epoll()

    def register(self, fd: Descriptor, eventmask: int = select.POLLIN) -> None:
        self._inner.register(fd, eventmask)

    def modify(self, fd: Descriptor, eventmask: int) -> None:
        self._inner.modify(fd, eventmask)

    def unregister(self, fd: Descriptor) -> None:
        self._inner.unregister(fd)

    def fileno(self) -> int:
        return self._inner.fileno()

    def close(self) -> None:
        self._inner.close()

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        return self._inner.poll(None if timeout_ms is None else timeout_ms / 1e3)


class Lock(Protocol):
    """What threading.RLock() returns."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Running(Protocol):
    """What `Machine.thread` returns."""

    def join(self, timeout: float | None = ...) -> None: ...
    def is_alive(self) -> bool: ...


class Wakeup:
    """Wakes another thread, or process, that polls it: readable once it was set, until it is cleared.

    Args: `fd`, an eventfd that another process made; None: a new one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        """Wake whoever polls."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Sleep from now on until it is set again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Give the descriptor back, once nobody polls any more."""
        os.close(self._fd)


class Machine:
    """The machine that this process runs on.

    Attributes: `now_s`, the clock (time.monotonic); `wall_s`, the time of day (time.time); `sleep`, of seconds;
    `give_way`, lets others run who want to (os.sched_yield).
    """

    def __init__(self) -> None:
        self.now_s: Callable[[], float] = time.monotonic
        self.wall_s: Callable[[], float] = time.time
        self.sleep: Callable[[float], None] = time.sleep
        self.give_way: Callable[[], None] = os.sched_yield

    def others_cpu_s(self) -> float:
        """What other threads of this process than the calling one have computed since it began, in seconds."""
        return time.process_time() - time.thread_time()

    def at_exit(self, function: Callable[[], object]) -> None:
        """Call `function` when this process ends in order."""
        atexit.register(function)

    def not_at_exit(self, function: Callable[[], object]) -> None:
        """Do not call `function` any more, of `at_exit`."""
        atexit.unregister(function)

    def lock(self) -> Lock:
        """A lock that the thread that holds it may take again."""
        return threading.RLock()

    def thread(self, name: str, function: Callable[[], object]) -> Running:
        """Run `function` beside this thread, until it returns or the process ends."""
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    def wakeup(self) -> Wakeup:
        """A new Wakeup."""
        return Wakeup()

    def pauses(self, ranks_here: int = 1, longer_s: float = LONGER_S) -> Pauses:
        """The Pauses of waits of one of `ranks_here` ranks of this host; see there."""
        return Pauses(ranks_here, longer_s, self)

    def poller(self) -> Poller:
        """Looks at descriptors, as select.poll does."""
        return select.poll()

    def deep_poller(self) -> DeepPoller:
        """As `poller`, of many descriptors; it can be polled itself."""
        return Epoll()

    def selector(self) -> selectors.BaseSelector:
        """As `poller`, with what to do beside each descriptor."""
        return selectors.DefaultSelector()

    def readable(self, watched: Sequence[Watched], limit_s: float | None) -> list[Watched]:
        """Those of `watched` that have something to read; waits for one, `limit_s` seconds at most (None: for ever)."""
        return select.select(watched, [], [], limit_s)[0]

    def listen(self, host: str, port: int = 0) -> socket.socket:
        """A socket that listens on `host` (a name or an address) only; port 0 for any free one. Raises OSError."""
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)

    def connect(self, address: tuple[str, int], limit_s: float, source: str = "") -> socket.socket:
        """A socket to `address`, made within `limit_s` seconds, from the address `source`. Raises OSError."""
        return socket.create_connection(address, limit_s, (source, 0) if source else None)

    def listen_here(self) -> socket.socket:
        """A socket that processes of this host can connect to, under a name that the kernel picks."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind("")
        sock.listen(BACKLOG)
        return sock

    def connect_here(self, name: bytes, limit_s: float) -> socket.socket:
        """A socket to the one that `listen_here` made. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(limit_s)
        try:
            sock.connect(name)
        except OSError:
            sock.close()
            raise
        return sock


THIS_MACHINE = Machine()
