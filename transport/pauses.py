"""How a loop that waits for messages gives way to others: it yields first, then naps.

A yield hands a core over in 3 us, but where other programs compute each of them may cost a time slice (0.8 to 4 ms); a
nap takes 50 us and, since the kernel prefers those that slept, hardly more there. So a wait yields some times, then
naps; and once a yield was slow, all waits of this process nap at once for a while. The longer a wait has napped the
longer are its naps: where messages take milliseconds, as on a slow network, looking each 50 us costs a core half of its
time and gains nothing. From action to action of a pipeline it does, and its waits take naps that grow less.
"""

import os
from collections.abc import Callable
from math import inf
from typing import Protocol

# Yields before the first nap: where each rank has a core, and to be shared by the ranks of a core where they have
# not.
YIELDS = 2000  # chosen, where each rank has a core
YIELDS_SHARED = 400  # chosen, where ranks share cores
YIELDS_LEAST = 20
# The kernel's timer slack makes 50 us of it.
NAP_S = 1e-6  # the kernel makes 50 us of it
# Each nap is longer than the one before by this part of 50 us; so a wait lasts at most some tenth longer for its
# naps.
LONGER_S = 6e-6  # a wait lasts a tenth longer at most
MAX_NAP_S = 300e-6  # as the above
FINER_S = 1e-6  # pipelines' waits of milliseconds
# When a wait is known to end at an instant, the last part of it yields.
SPIN_S = 200e-6  # naps end up to 0.1 ms late
# Where something wakes a wait, which costs 30 us, it polls so long after the last thing that moved, and then sleeps so
# long at most before it looks for deaths.
WAKE_SPIN_S = 50e-6
WAKE_SLEEP_S = 0.05
# A yield of this length went to somebody who computes. After it, naps for crowded_s, then one more try.
SLOW_YIELD_S = 500e-6  # a time slice is 0.8 ms or more
CROWDED_S = 0.05


class NapClock(Protocol):
    """What pauses need of a Machine (machine.py)."""

    @property
    def now_s(self) -> Callable[[], float]: ...
    @property
    def sleep(self) -> Callable[[float], None]: ...
    @property
    def give_way(self) -> Callable[[], None]: ...
    def pauses(self, ranks_here: int = ..., longer_s: float = ...) -> "Pauses": ...


class Pauses:
    """The pauses of all waits of a process or thread, one of `ranks_here` ranks of the job on this host.

    Args:
        longer_s: by how much a nap is longer than the one before.
        machine: whose `pauses` makes them.

    Attributes: `shared`, whether these ranks are more than the cores; `yields`, before the first nap; `machine`.
    """

    __slots__ = ("_give_way", "_nap_until_s", "_now_s", "_ranks_here", "longer_s", "machine", "shared", "yields")

    def __init__(self, ranks_here: int, longer_s: float, machine: NapClock) -> None:
        self._ranks_here = ranks_here
        self.longer_s: float = longer_s
        self.machine: NapClock = machine
        self._now_s = machine.now_s
        self._give_way = machine.give_way
        cores = os.cpu_count() or 1
        self.shared: bool = ranks_here > cores
        shared = max(YIELDS_LEAST, YIELDS_SHARED * cores // ranks_here)
        self.yields: int = shared if self.shared else YIELDS
        self._nap_until_s = 0.0

    def finer(self) -> "Pauses":
        """Pauses of the same ranks, for waits whose lateness counts."""
        return self.machine.pauses(self._ranks_here, FINER_S)

    def pause(self, idle: int, due_s: float = inf) -> bool:
        """Pause between two polls; `idle` counts those that found nothing since something last moved. True after a nap.

        Args:
            due_s: on the machine's clock, when it will be found; inf where nobody knows.

        Cost: 0.3 us besides the yield.
        """
        before_s = self._now_s()
        left_s = due_s - SPIN_S - before_s
        if left_s > 0 and (idle >= self.yields or before_s < self._nap_until_s):
            self.machine.sleep(min(NAP_S + self.longer_s * max(0, idle - self.yields), MAX_NAP_S, left_s))
            return True
        self._give_way()
        now_s = self._now_s()
        if now_s - before_s > SLOW_YIELD_S:
            self._nap_until_s = now_s + CROWDED_S
        return False


class Woken:
    """The pauses of a wait that something wakes: they yield for `spin_s`, for what comes soon, then sleep until then.

    Args:
        sleep: takes seconds, sleeps that long at most.
    """

    __slots__ = ("_sleep", "_spin_s", "_spin_until_s", "machine")

    def __init__(self, machine: NapClock, sleep: Callable[[float], object], spin_s: float = SPIN_S) -> None:
        self._spin_s = spin_s
        self.machine: NapClock = machine
        self._sleep = sleep
        self._spin_until_s = 0.0

    def pause(self, idle: int, due_s: float = inf) -> bool:
        """See Pauses.pause. True after a sleep."""
        now_s = self.machine.now_s()
        if idle == 1:
            self._spin_until_s = now_s + self._spin_s
        if now_s < self._spin_until_s:
            self.machine.give_way()
            return False
        self._sleep(max(0.0, due_s - now_s))
        return True
