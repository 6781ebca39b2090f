"""One baton for all threads of a simulated world, and one clock: who has it runs, until it waits; then the next does.

What happens next is decided by whoever gives the baton away, from a heap of instants: wake-ups of threads, and events.
So no thread of its own is needed, and a thread that is next itself goes on without a switch.

Cost: a switch between threads some 10 us.
"""

import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

# A thread that keeps the baton for so many real seconds waits for something outside the world; counted are those looks
# that were in time: where this process was stopped, or got no core, a thread could not have given it away.
ESCAPED_S, LOOKS, IN_TIME = 20.0, 20, 2.0
# What a look at the clock takes: so a loop that only looks at it ends.
LOOK_S = 2e-7
# Steps that a trace keeps.
MAX_TRACE = 200_000


class Killed(BaseException):
    """Raised in the thread of a simulated process that was killed, wherever it is."""


class Escaped(Exception):
    """A simulated process waits for, or asks, something outside its world."""


class Actor:
    """One simulated process, or a thread of one: `process` is what it belongs to.

    Attributes: `threads`, the others of this process, which end with it; `steps`, how often it has given the baton
    away or could have; `stopped_s`, until when it does not run; `at_step`, what is to happen at a step of it: {step:
    functions}; `ready` and `until_s`, what it waits for, and how long; `error`, what its function raised; `go`,
    released when it is its turn; `thread`, which runs its function. Instants are simulated seconds.
    """

    def __init__(self, name: str, function: Callable[[], object], process: "Actor | None" = None) -> None:
        self.name = name
        self.function = function
        self.process: Actor = process or self
        self.threads: list[Actor] = []
        self.steps = 0
        self.stopped_s: float = 0.0
        self.at_step: dict[int, list[Callable[[], object]]] = {}
        self.is_killed = False
        self.has_ended = False
        self.error: BaseException | None = None
        self.exit_functions: list[Callable[[], object]] = []
        self.wakes = 0  # Wake-ups that were set for an earlier wait do not count.
        self.ready: Callable[[], object] | None = None
        self.until_s = inf
        self.go: threading.Lock = threading.Lock()
        self.go.acquire()
        self.thread: threading.Thread = threading.Thread(target=lambda: None)

    def run(self) -> None:
        """Once it is its turn: its function, then what is to be called at its exit."""
        self.go.acquire()
        try:
            if not self.is_killed:
                self.function()
            for function in reversed(self.exit_functions):
                function()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.has_ended = True


# When; among equals as drawn; the event, or whom to wake and for which wait.
_Entry: TypeAlias = tuple[float, float, int, "Callable[[], object] | None", "Actor | None", int]


class EventAgenda:
    """The clock, and what is to happen when: at one instant in an order that is drawn.

    Attributes: `now_s`, simulated seconds since the world began; `random`, of `seed`, what all is drawn from.
    """

    def __init__(self, seed: int) -> None:
        self.now_s: float = 0.0
        self.random: random.Random = random.Random(seed)
        self._heap: list[_Entry] = []
        self._count = 0

    def after(self, delay_s: float, event: Callable[[], object]) -> None:
        """Call `event` in `delay_s` simulated seconds."""
        self._count += 1
        heappush(self._heap, (self.now_s + delay_s, self.random.random(), self._count, event, None, 0))

    def _wake_at(self, actor: Actor, at_s: float) -> None:
        self._count += 1
        heappush(self._heap, (at_s, self.random.random(), self._count, None, actor, actor.wakes))


class Baton(EventAgenda):
    """The order of all that happens: who of the threads runs.

    Args:
        seed: of what is drawn.
        traced: whether `trace` is kept.

    Attributes: `actors`, every thread ever; `current`, who has the baton; `trace`, lines of (seconds, who, what);
    `digest`, equal in two runs exactly if all their steps are; `is_over`, whether what has not ended is to.
    """

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        super().__init__(seed)
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.traced = traced
        self.trace: list[tuple[float, str, str]] = []
        self.digest: int = 0
        self._limit_s = inf
        self._main = threading.Lock()
        self._main.acquire()
        self.is_over: bool = False

    def note(self, what: str, who: str | None = None) -> None:
        """A line of the trace."""
        name = who or (self.current.name if self.current else "world")
        self.digest = hash((self.digest, round(self.now_s * 1e9), len(what), len(name), self._count))
        if self.traced and len(self.trace) < MAX_TRACE:
            self.trace.append((self.now_s, name, what))

    def start(self, name: str, function: Callable[[], object], process: Actor | None = None) -> Actor:
        """A new simulated process, or thread of `process`; it begins soon."""
        actor = Actor(name, function, process)
        if process is not None:
            process.threads.append(actor)
        actor.thread = threading.Thread(target=self._run_actor, args=(actor,), name=f"simulated-{name}", daemon=True)
        self.actors.append(actor)
        self._wake_at(actor, self.now_s + self.random.random() * 1e-3)
        actor.thread.start()
        return actor

    def run(self, limit_s: float) -> list[str]:
        """Run until all processes have ended, or the clock says `limit_s`: where those stand that have not.

        Raises:
            Escaped: one keeps the baton.
        """
        self._limit_s = limit_s
        if self.actors:
            self._pass_on()
            idleness, began_s = _Idleness(), time.perf_counter()
            while not self._main.acquire(timeout=ESCAPED_S / LOOKS):
                ended_s, actor = time.perf_counter(), self.current
                if idleness.look(self._count, ended_s - began_s) and actor is not None:
                    raise Escaped(f"{actor.name} keeps the baton for {ESCAPED_S:g} s: {_place(actor)}")
                began_s = ended_s
        processes = [actor for actor in self.actors if actor.process is actor]
        hanging = [f"{actor.name}: {_place(actor)}" for actor in processes if not actor.has_ended]
        self.is_over = True
        for actor in self.actors:
            if not actor.has_ended:
                actor.is_killed = True
                actor.go.release()
                actor.thread.join(ESCAPED_S)
        return hanging

    # -- for the process that has the baton

    @property
    def here(self) -> Actor:
        """The process that has it."""
        assert self.current is not None
        return self.current.process

    def block(self, until_s: float) -> None:
        """Wait for `wake`, until `until_s` at most, or less: who waits looks again. Raises Killed."""
        actor = self.current
        assert actor is not None
        if self.step():
            return  # What it waits for may have come meanwhile.
        actor.wakes += 1
        if until_s < inf:
            self._wake_at(actor, until_s)
        self._pass_on(actor)
        if actor.is_killed:
            raise Killed

    def wait(self, ready: Callable[[], object], until_s: float) -> None:
        """Wait until `ready`, a pure function for any thread, says so; until `until_s` at most. Raises Killed.

        As a loop around `block`, but the thread gets the baton back only when there is something for it.
        """
        actor = self.current
        assert actor is not None
        while not ready() and self.now_s < until_s:
            actor.ready, actor.until_s = ready, until_s
            try:
                self.block(until_s)
            finally:
                actor.ready = None

    def step(self) -> bool:
        """The process with the baton does what others see, and what is to befall it now does: True if time has passed.

        Raises Killed.
        """
        actor = self.current
        assert actor is not None
        if actor.is_killed:
            raise Killed
        actor.steps += 1
        if actor.steps in actor.at_step:
            for event in actor.at_step.pop(actor.steps):
                event()
            if actor.is_killed:
                raise Killed
        stopped_s = actor.process.stopped_s
        if stopped_s > self.now_s and not self.is_over:
            actor.wakes += 1
            self._wake_at(actor, stopped_s)
            self._pass_on(actor)
            if actor.is_killed:
                raise Killed
            return True
        return False

    def wake(self, process: Actor) -> None:
        """Something has come for `process`: its threads go on soon."""
        draw, current = self.random.random, self.current
        for actor in (process, *process.threads):
            if not actor.has_ended and actor is not current:
                at_s = self.now_s + draw() * 2e-5
                self._wake_at(actor, at_s if at_s > process.stopped_s else process.stopped_s)

    def kill(self, actor: Actor) -> None:
        """`actor` runs no more, nor do its threads."""
        for each in (actor, *actor.threads):
            if not (each.is_killed or each.has_ended):
                each.is_killed = True
                if each is not self.current:
                    self._wake_at(each, self.now_s)

    # -- who is next

    def _pass_on(self, actor: Actor | None = None) -> None:
        """Let happen what is next, until it is a process's turn; return once it is that of `actor`."""
        following = self._next()
        if following is actor and actor is not None:
            return
        if following is None:
            self._main.release()
        else:
            following.go.release()
        if actor is not None:
            actor.go.acquire()

    def _next(self) -> Actor | None:
        """Whose turn it is; None: nobody's, ever."""
        heap = self._heap
        while heap and not self.is_over:
            at_s, _, _, event, actor, wakes = heappop(heap)
            if at_s > self._limit_s:
                break
            if event is not None:
                self.now_s = max(self.now_s, at_s)
                self.current = None
                event()
            elif actor is not None and actor.wakes == wakes and not actor.has_ended:
                if actor.process.stopped_s > at_s and not actor.is_killed:
                    self._wake_at(actor, actor.process.stopped_s)
                    continue
                self.now_s = max(self.now_s, at_s)
                if actor.ready is not None and self._waits_on(actor):
                    continue
                self.current = actor
                return actor
        self.current = None
        return None

    def _waits_on(self, actor: Actor) -> bool:
        """Do what `wait` would, if all that `actor` would do now is to look, and to wait again."""
        assert actor.ready is not None
        if self.now_s >= actor.until_s or actor.is_killed or actor.steps + 1 in actor.at_step or actor.ready():
            return False
        actor.steps += 1
        actor.wakes += 1
        if actor.until_s < inf:
            self._wake_at(actor, actor.until_s)
        return True

    def _run_actor(self, actor: Actor) -> None:
        actor.run()
        for thread in actor.threads:
            self.kill(thread)
        if not self.is_over:
            self._pass_on()


class _Idleness:
    """For how many looks in a row nothing has moved."""

    def __init__(self) -> None:
        self._looks = 0
        self._before = -1

    def look(self, count: int, took_s: float) -> bool:
        """Whether nothing has for LOOKS; `count` says how much has, and this look came after so many real seconds."""
        if count != self._before:
            self._looks, self._before = 0, count
        elif took_s < IN_TIME * ESCAPED_S / LOOKS:
            self._looks += 1
        return self._looks >= LOOKS


def _place(actor: Actor) -> str:
    """Where its thread stands."""
    frame = sys._current_frames().get(actor.thread.ident or 0)
    if frame is None:
        return "nowhere"
    own = [line for line in traceback.extract_stack(frame) if "/simulation/" not in line.filename]
    places = [f"{line.filename.rpartition('/')[2]}:{line.lineno} {line.name}" for line in own[-7:]]
    return " < ".join(reversed(places))
