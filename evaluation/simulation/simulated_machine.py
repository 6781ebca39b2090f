"""What simulated processes are handed in place of the real machine, and a guard that sees who goes around it."""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NoReturn

from evaluation.simulation.baton import LOOK_S, Actor, Baton, Escaped
from evaluation.simulation.network import (
    SimulatedEpoll,
    SimulatedNetwork,
    SimulatedPoller,
    SimulatedSelector,
    SimulatedWakeup,
)
from lanterne.transport import wire
from lanterne.transport.machine import THIS_MACHINE, Lock, Machine, Running, Wakeup
from lanterne.transport.pauses import LONGER_S, Pauses

# In simulated jobs.
LOST_MS = 4000

# A nap is so much longer than the one before it, from the first to the longest.
NAP_S, GROWTH, MAX_NAP_S = 1e-5, 1.6, 0.05
# A yield takes between.
YIELD_S = 2e-6, 1e-4
# What a simulated process may not call, where it is looked up when it is called.
FORBIDDEN: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("sleep", "monotonic", "perf_counter")),
    *((select, name) for name in ("select", "poll", "epoll")),
    *((socket, name) for name in ("create_connection", "create_server")),
    (socket.socket, "__init__"),
    (os, "sched_yield"),
    *((THIS_MACHINE, name) for name in ("now_s", "wall_s", "sleep", "give_way")),
    *((Machine, name) for name in ("poller", "deep_poller", "selector", "readable", "listen", "connect")),
)


class SimulatedPauses(Pauses):
    """Naps that grow, on a machine with a core for each rank; what comes for this process ends them."""

    __slots__ = ("_baton",)

    def __init__(self, ranks_here: int, longer_s: float, machine: "SimulatedMachine") -> None:
        super().__init__(ranks_here, longer_s, machine)
        self.shared = False
        self._baton = machine.baton

    def pause(self, idle: int, due_s: float = inf) -> bool:
        baton = self._baton
        nap_s = min(NAP_S * GROWTH ** min(idle, 30), MAX_NAP_S) * (0.5 + baton.random.random())
        baton.block(min(max(due_s, baton.now_s + NAP_S), baton.now_s + nap_s))
        return True


class SimulatedLock:
    """See threading.RLock."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._holder: Actor | None = None
        self._count = 0
        self._waiting: list[Actor] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        baton = self._baton
        actor = baton.current  # None: nothing is simulated yet, or any more.
        while self._holder not in (None, actor):
            if not blocking:
                return False
            assert actor is not None
            self._waiting.append(actor)
            baton.block(inf)
        self._holder = actor
        self._count += 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._holder = None
            waiting, self._waiting = self._waiting, []
            for actor in waiting:
                self._baton.wake(actor)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedThread:
    """See threading.Thread."""

    def __init__(self, machine: "SimulatedMachine", actor: Actor) -> None:
        self._machine = machine
        self._actor = actor

    def is_alive(self) -> bool:
        return not self._actor.has_ended

    def join(self, timeout: float | None = None) -> None:
        until_s = inf if timeout is None else self._machine.baton.now_s + timeout
        while self.is_alive() and self._machine.baton.now_s < until_s:
            self._machine.sleep(NAP_S * 10)


class SimulatedMachine(Machine):
    """A Machine of a simulated world; all its processes share it."""

    def __init__(self, baton: Baton) -> None:
        self.baton = baton
        self.network: SimulatedNetwork = SimulatedNetwork(baton)
        self.now_s: Callable[[], float] = self._now_s
        self.wall_s: Callable[[], float] = self._now_s
        self.sleep: Callable[[float], None] = self._sleep
        self.give_way: Callable[[], None] = self._give_way

    def _now_s(self) -> float:
        self.baton.now_s += LOOK_S
        return self.baton.now_s

    def _sleep(self, seconds: float) -> None:
        until_s = self.baton.now_s + seconds
        while self.baton.now_s < until_s:
            self.baton.block(until_s)

    def _give_way(self) -> None:
        self.baton.block(self.baton.now_s + self.baton.random.uniform(*YIELD_S))

    def others_cpu_s(self) -> float:
        return 0.0

    def at_exit(self, function: Callable[[], object]) -> None:
        if self.baton.current is not None:
            self.baton.here.exit_functions.append(function)

    def not_at_exit(self, function: Callable[[], object]) -> None:
        if self.baton.current is not None:
            kept = self.baton.here.exit_functions
            self.baton.here.exit_functions = [each for each in kept if each != function]

    def lock(self) -> Lock:
        return SimulatedLock(self.baton)

    def thread(self, name: str, function: Callable[[], object]) -> Running:
        process = self.baton.here
        return SimulatedThread(self, self.baton.start(f"{process.name} {name}", function, process))

    def wakeup(self) -> Wakeup:
        return SimulatedWakeup(self.network)

    def pauses(self, ranks_here: int = 1, longer_s: float = LONGER_S) -> Pauses:
        return SimulatedPauses(ranks_here, longer_s, self)

    def poller(self) -> Any:
        return SimulatedPoller(self.network)

    def deep_poller(self) -> Any:
        return SimulatedEpoll(self.network)

    def selector(self) -> Any:
        return SimulatedSelector(self.network)

    def readable(self, watched: Sequence[Any], limit_s: float | None) -> list[Any]:
        poller = SimulatedPoller(self.network)
        for each in watched:
            poller.register(each, select.POLLIN)
        found = {fd for fd, _ in poller.poll(None if limit_s is None else limit_s * 1e3)}
        for each in watched:
            poller.unregister(each)
        return [each for each in watched if each.fileno() in found]

    def listen(self, host: str, port: int = 0) -> Any:
        return self.network.listen(host, port)

    def connect(self, address: tuple[str, int], limit_s: float, source: str = "") -> Any:
        return self.network.connect(address, limit_s)


def _escape(name: str) -> NoReturn:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == socket.__file__:
        frame = frame.f_back
    raise Escaped(
        f"{threading.current_thread().name} calls {name} at {frame.f_code.co_filename}:{frame.f_lineno}, expected "
        "the machine that it was handed"
    )


def _guarded(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name.startswith("simulated-"):
            _escape(name)
        return original(*args, **kwargs)

    return call


@contextmanager
def guard() -> Iterator[None]:
    """While it lasts, a simulated process that calls the real clock, naps or sockets gets Escaped.

    Silent hosts are lost after LOST_MS, so that the time limits of scenarios hold whatever LANTERNE_SILENT_S says.
    """
    lost_ms, wire.LOST_MS = wire.LOST_MS, LOST_MS
    before = [(owner, name, owner.__dict__[name]) for owner, name in FORBIDDEN]
    for owner, name, original in before:
        function = getattr(owner, name)
        call = _guarded(function, f"{getattr(owner, '__name__', 'Machine')}.{name}")
        setattr(owner, name, staticmethod(call) if isinstance(original, staticmethod) else call)
    try:
        yield
    finally:
        wire.LOST_MS = lost_ms
        for owner, name, original in before:
            setattr(owner, name, original)
