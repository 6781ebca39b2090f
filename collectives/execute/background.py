"""The engine of a transport: one thread that advances the calls that were started while their users compute.

It is made when the first call is started over a transport that other threads may advance (Transport.background_s), and
sleeps when nothing is under way: on the descriptors of the transport else, so that what arrives wakes it. Whoever waits
takes over, for all communicators of the transport, and hands back what is left; a blocking call wakes nobody. Once
there was a call with a root, it also reads the control lane every second while this rank is in no call (`attend`). All
that touches a transport does so under its lock. What goes wrong here ends the communicator, and the next call or wait
of the user's raises it; the engine looks for deaths, timeouts are those of waits.
"""

import logging
import os
import select
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from lanterne.collectives.auto.tuning import Tuning
from lanterne.collectives.execute.control import READ_EVERY_S
from lanterne.errors import LanterneError, TransportError
from lanterne.transport.base import Transport
from lanterne.transport.machine import Descriptor, Lock, Machine, Running, Wakeup
from lanterne.transport.pauses import Pauses
from lanterne.transport.waiting import Pausing

if TYPE_CHECKING:
    from lanterne.collectives.execute.communicator_base import CommunicatorBase
    from lanterne.collectives.execute.requests import CollectiveRequest

log: logging.Logger = logging.getLogger("lanterne.collectives")


# After it was woken and that was not enough, the thread, or a wait, lets more arrive for so long at most: each look
# costs as much, however much there is. The thread does so after each wake while the program computes.
GATHER_S = 1e-3  # each look costs as much, however much there is
# Where a connection takes no more for now, it looks again after this: far less than what was taken needs to leave.
FULL_S = 1e-4  # chosen: what a full connection holds takes longer to leave
# How often it looks for deaths.
DEATHS_S = 0.05
# How long the end of a process waits for it.
STOP_S = 1.0
# While calls are under way, so long at most a thread that runs Python code keeps the interpreter from it.
SWITCH_S = 5e-4  # Python's own is 5 ms
# A wait for what wakes it yields so long before it sleeps, and naps no shorter: waking up costs some 30 us.
SPIN_S = 50e-6  # as the waits of one message: waking costs 30 us
# A wait that sleeps on descriptors looks at the latest after this: another thread of the process may have taken
# what would have woken it.
LISTEN_S = 5e-3  # chosen: 200 looks a second are 1 % of a core
# What woke it and was not enough, as the first part of a message, is followed by more: so long it lets that come,
# as part of its wait so far, and at most.
# 8 hosts at 25 MB/s, 16 MiB: late_join 1.07 of s/rate and a tenth less CPU time, with 0.1 after each 1.11
GATHER_PART = 0.5
# A wait whose last parts were long is not over soon: it yields no longer than this part of what they lasted.
SPIN_PART = 0.1  # chosen; 2 hosts at 25 MB/s, ring, yields for a gigabyte 17,000 to 5,000
# The program computes where its other threads take more than this part of a core.
COMPUTES_PART = 0.2  # chosen: a thread that waits takes less, one that computes all it gets
# How often it looks whether the program computes.
COMPUTES_S = 0.01  # chosen: 1 us a look


class Descriptors:
    """Sleeps until one of a changing set of descriptors is readable."""

    def __init__(self, machine: Machine) -> None:
        self._poll = machine.poller()
        self._watched: Sequence[Descriptor] = ()

    def readable(self, watched: Sequence[Descriptor], limit_s: float | None) -> bool:
        """Whether one of `watched` is within `limit_s` seconds; None: however long it takes."""
        if watched != self._watched:
            for gone in set(self._watched) - set(watched):
                self._poll.unregister(gone)
            for new in set(watched) - set(self._watched):
                self._poll.register(new, select.POLLIN)
            self._watched = watched
        return bool(self._poll.poll(None if limit_s is None else limit_s * 1e3))


class Lull:
    """Since when nothing has moved for who waits, and how often it was woken in vain since.

    The first wake is looked at once: a message that is short has come whole. What was not enough is followed by more.
    (To let more come at the first wake, too, for three quarters of what lulls last, takes a sixth less of a core, and
    loses: 3 hosts at 25 MB/s, 6 MiB, one late by 1.1, 4 buckets 1.10 of s/rate became 1.30, one call 1.11 1.19.)
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._since_s: float | None = None
        # What lulls have lasted, the last ones above all, with what was done after each.
        self._usual_s = 0.0
        self._wakes = 0

    def begin(self, now_s: float) -> None:
        """Something has moved, or a wait begins."""
        if self._since_s is not None:
            self._usual_s += (now_s - self._since_s - self._usual_s) / 2
        self._since_s = now_s
        self._wakes = 0

    def spins(self, now_s: float) -> bool:
        """Whether it has just begun, and others were so short that what comes may come at once."""
        return self._lasts(now_s) < SPIN_S and SPIN_PART * self._usual_s < SPIN_S

    def gather(self) -> None:
        """It was woken: let more come first, where that has not been enough before."""
        if self._wakes:
            more_s = min(GATHER_S, GATHER_PART * self._lasts(self._machine.now_s()))
            if more_s > SPIN_S:
                self._machine.sleep(more_s)
        self._wakes += 1

    def _lasts(self, now_s: float) -> float:
        """For how many seconds."""
        return 0.0 if self._since_s is None else now_s - self._since_s


class Computing:
    """Whether the program computes, in the eyes of one thread of its process."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._at_s = machine.now_s()
        self._others_s = machine.others_cpu_s()
        self._computes = False

    def look(self) -> bool:
        """Whether other threads take a core, or much of it, since about `computes_s`."""
        now_s = self._machine.now_s()
        if now_s >= self._at_s + COMPUTES_S:
            others_s = self._machine.others_cpu_s()
            self._computes = others_s - self._others_s > COMPUTES_PART * (now_s - self._at_s)
            self._at_s, self._others_s = now_s, others_s
        return self._computes


class Listening:
    """The pauses of a wait on a transport that `wakes`: they yield a little, then sleep until something has come.

    Where several threads of the process wait, each with looks that take what wakes the others, they are `naps`, and
    where calls are of device arrays: what a device has done wakes nobody.
    """

    def __init__(self, engine: "Engine", transport: Transport, naps: Pauses) -> None:
        self.machine: Machine = transport.machine
        self._engine = engine
        self._transport = transport
        self._naps = naps
        self._descriptors = Descriptors(self.machine)
        self._lull = Lull(self.machine)

    def pause(self, idle: int, due_s: float = inf) -> bool:
        """See Pauses.pause. True after a sleep."""
        now_s = self.machine.now_s()
        if idle == 1:
            self._lull.begin(now_s)
        if self._lull.spins(now_s):
            self.machine.give_way()
            return False
        if not self._engine.is_woken:
            return self._naps.pause(idle, due_s)
        with self._transport.lock:
            ready = None if self._transport.closed else self._transport.watch()
        if ready is None:
            # Something has moved that the next look finds, or a connection is full.
            if idle > 2:
                self.machine.sleep(FULL_S)
            return False
        if self._descriptors.readable(ready, max(0.0, min(LISTEN_S, due_s - now_s))):
            self._lull.gather()
        return True


class Engine:
    """Advances the calls of all communicators of `transport`, of this rank.

    Attributes: `busy`, the communicators with calls under way, in the order in which they began; `over`, requests that
    are over and whose users are to be told (`tell`), oldest first.
    """

    def __init__(self, transport: Transport) -> None:
        self.busy: dict[CommunicatorBase, None] = {}
        self.over: deque[CollectiveRequest] = deque()
        self._members: weakref.WeakSet[CommunicatorBase] = weakref.WeakSet()
        self._transport = transport
        # A thing for each thread that waits: a list, since threads change it without a lock.
        self._waiters: list[None] = []
        self._thread: Running | None = None
        self._wakes: Wakeup | None = None
        self._stopping = False
        self._attends = False
        self._deaths_s = 0.0
        _engines.add(self)

    def join(self, communicator: "CommunicatorBase") -> None:
        """`communicator` is one of this transport's."""
        self._members.add(communicator)

    # -- whoever waits

    @property
    def is_woken(self) -> bool:
        """Whether all that calls under way wait for wakes the one thread that waits."""
        return len(self._waiters) == 1 and all([communicator.in_background for communicator in self.busy])

    def pauses(self, naps: Pauses) -> Pausing:
        """What a wait for calls does between looks; `naps`: where nothing wakes it."""
        return Listening(self, self._transport, naps) if self._transport.wakes else naps

    def take_over(self) -> None:
        """A thread begins to wait, and advances the calls from now on."""
        self._waiters.append(None)

    def hand_back(self) -> None:
        """That thread waits no longer."""
        self._waiters.pop()
        if self.busy and not self._waiters:
            self.serve()

    def advance_others(self, communicator: "CommunicatorBase") -> bool:
        """Advance all but `communicator`; True if something has moved."""
        return any([self._advance(other) for other in list(self.busy) if other is not communicator])

    def tell(self) -> None:
        """Tell users of requests that are over. Without the transport's lock: they may begin calls, and wait."""
        while self.over:
            try:
                request = self.over.popleft()
            except IndexError:
                return  # Another thread was quicker.
            request._tell()

    # -- the thread

    def wake(self) -> None:
        """There is something to tell."""
        if self._wakes is not None and not self._stopping:
            self._wakes.set()

    def serve(self) -> None:
        """Calls are under way that nobody waits for; under the transport's lock, or by who waited for them."""
        if self._transport.background_s is not None and not self._waiters:
            self._rouse()

    def attend(self, tuning: Tuning) -> None:
        """Read what others tell, from now on, while this rank is in no call: there are calls with a root.

        It may be through one while others are in another call. Those before there is a model in `tuning` do not count.
        """
        if not self._attends and tuning.model is not None:
            self._attends = True
            self._rouse()

    def _rouse(self) -> None:
        """Have the thread look what there is to do."""
        if self._stopping:
            return
        if self._wakes is None:
            machine = self._transport.machine
            self._wakes = wakes = machine.wakeup()
            self._thread = machine.thread("lanterne", lambda: self._run(wakes))
            machine.at_exit(self.stop)
        else:
            self._wakes.set()

    def stop(self) -> None:
        """End the thread; calls that are under way are named in the log."""
        left = [communicator.describe() for communicator in self.busy if communicator.busy]
        if left and not self._stopping:
            log.warning("the end has come before that of %s", "; ".join(left))
            self._transport.membership.ends_soon = True
        self._stopping = True
        if self._thread is not None and self._wakes is not None:
            self._transport.machine.not_at_exit(self.stop)
            self._wakes.set()
            self._thread.join(STOP_S)
            if not self._thread.is_alive():
                self._wakes.close()
            self._thread = self._wakes = None

    def _run(self, wakes: Wakeup) -> None:
        transport, lock = self._transport, self._transport.lock
        machine = transport.machine
        descriptors = Descriptors(machine)
        lull = Lull(machine)
        computing = Computing(machine)
        usual_s = 0.0
        while not self._stopping:
            serving = self._is_serving()
            usual_s = _switch_soon(serving, usual_s)
            watched: tuple[int, ...] = ()
            limit_s = READ_EVERY_S if self._attends else None
            self.tell()
            if serving:
                with lock:
                    moved = any([self._advance(communicator) for communicator in list(self.busy)])
                    self._look_for_deaths()
                    ready = None if moved else self._watch()
                self.tell()
                if moved:
                    lull.begin(machine.now_s())
                if ready is None:
                    if moved:
                        machine.give_way()
                    else:
                        machine.sleep(FULL_S)
                    continue
                watched, limit_s = ready, min(transport.background_s or DEATHS_S, DEATHS_S)
            if not serving:
                lull = Lull(machine)
            if descriptors.readable((wakes, *watched), limit_s):
                wakes.clear()
                if serving and computing.look():
                    # Each look would take the core, or the interpreter, from the program.
                    machine.sleep(GATHER_S)
                elif serving:
                    lull.gather()
            elif not serving:
                self._hear()
        _switch_soon(False, usual_s)

    def _is_serving(self) -> bool:
        if self._waiters or self._transport.background_s is None:
            return False
        return any(communicator.in_background for communicator in self.busy)

    def _hear(self) -> None:
        """Read what others tell, unless a thread is in a call and does so."""
        if not self._waiters and self._transport.lock.acquire(blocking=False):
            try:
                for communicator in [] if self._transport.closed else list(self._members):
                    with suppress(LanterneError):
                        communicator.look()
            finally:
                self._transport.lock.release()

    def _watch(self) -> tuple[int, ...] | None:
        return None if self._transport.closed else self._transport.watch()

    def _advance(self, communicator: "CommunicatorBase") -> bool:
        """Advance one communicator; what goes wrong ends it, and its user hears of it."""
        if not communicator.in_background:
            return False
        try:
            return communicator.progress()
        except LanterneError:
            self.busy.pop(communicator, None)
        except Exception as error:
            log.exception("a call failed in the background")
            communicator.fail(TransportError(f"{type(error).__name__} in the background: {error}"))
            self.busy.pop(communicator, None)
        return False

    def _look_for_deaths(self) -> None:
        now_s = self._transport.machine.now_s()
        if now_s < self._deaths_s:
            return
        self._deaths_s = now_s + DEATHS_S
        for communicator in list(self.busy):
            try:
                communicator.look()
            except LanterneError:
                self.busy.pop(communicator, None)

    def forget(self) -> None:
        """This process is a fork of the one that has the thread and the connections."""
        self._thread = self._wakes = None
        self._stopping = True
        self.busy.clear()
        for communicator in self._members:
            communicator.end(TransportError("this process is a fork of the one that called init; only that can go on"))


def _switch_soon(serving: bool, usual_s: float) -> float:
    """While `serving` is true, have threads hand over the interpreter soon; the usual interval, 0 where it is set."""
    if serving and not usual_s:
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_S, usual_s))
    elif not serving and usual_s:
        sys.setswitchinterval(usual_s)
        usual_s = 0.0
    return usual_s


# So that no lock is held in a child by a thread that it does not have.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_held: list[Lock] = []


def _before_fork() -> None:
    for engine in list(_engines):
        _held.append(engine._transport.lock)
        _held[-1].acquire()


def _after_fork() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    _after_fork()
    for engine in list(_engines):
        engine.forget()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
