"""How a loop that waits for messages gives way to others: it yields first, then naps.

A yield hands a core over in 3 us, but where other programs compute each of them may cost a time slice (0.8 to 4 ms); a
nap takes 50 us and, since the kernel prefers those that slept, hardly more there. So a wait yields some times, then
naps; and once a yield was slow, all waits of this process nap at once for a while. The longer a wait has napped the
longer are its naps: where messages take milliseconds, as on a slow network, looking each 50 us costs a core half of its
time and gains nothing. From action to action of a pipeline it does, and its waits take naps that grow less.
"""

import os
import time
from math import inf

# Yields before the first nap: where each rank has a core, and to be shared by the ranks of a core where they have not.
YIELDS, YIELDS_SHARED, YIELDS_LEAST = 2000, 400, 20
# The kernel's timer slack makes 50 us of it.
NAP_S = 1e-6
# Each nap is longer than the one before by this part of 50 us; so a wait lasts at most some tenth longer for its naps.
LONGER_S, MAX_NAP_S = 6e-6, 300e-6
FINER_S = 1e-6
# When a wait is known to end at an instant, the last part of it yields.
SPIN_S = 200e-6
# A yield of this length went to somebody who computes. After it, naps for CROWDED_S, then one more try.
SLOW_YIELD_S = 500e-6
CROWDED_S = 0.05


class Pauses:
    """The pauses of all waits of a process or thread, one of `ranks_here` ranks of the job on this host.

    Args:
        longer_s: by how much a nap is longer than the one before.

    Attributes: `shared`, whether these ranks are more than the cores; `yields`, before the first nap.
    """

    __slots__ = ("_nap_until_s", "_ranks_here", "longer_s", "shared", "yields")

    def __init__(self, ranks_here: int = 1, longer_s: float = LONGER_S) -> None:
        self._ranks_here = ranks_here
        self.longer_s: float = longer_s
        cores = os.cpu_count() or 1
        self.shared: bool = ranks_here > cores
        self.yields: int = max(YIELDS_LEAST, YIELDS_SHARED * cores // ranks_here) if self.shared else YIELDS
        self._nap_until_s = 0.0

    def finer(self) -> "Pauses":
        """Pauses of the same ranks, for waits whose lateness counts."""
        return Pauses(self._ranks_here, FINER_S)

    def pause(self, idle: int, due_s: float = inf) -> bool:
        """Pause between two polls; `idle` counts those that found nothing since something last moved. True after a nap.

        Args:
            due_s: of time.monotonic(), when it will be found; inf where nobody knows.

        Cost: 0.3 us besides the yield.
        """
        before_s = time.monotonic()
        left_s = due_s - SPIN_S - before_s
        if left_s > 0 and (idle >= self.yields or before_s < self._nap_until_s):
            time.sleep(min(NAP_S + self.longer_s * max(0, idle - self.yields), MAX_NAP_S, left_s))
            return True
        os.sched_yield()
        now_s = time.monotonic()
        if now_s - before_s > SLOW_YIELD_S:
            self._nap_until_s = now_s + CROWDED_S
        return False
