"""Pause a running job without its knowing: every rank is trapped before the same collective, and then let go.

A page that all ranks of a machine map says before which call to stop. Rank 0 writes it on its way into the collective
before that one, and no rank leaves a collective in which all wait for all before rank 0 has entered it: so nobody is
past the place when it is named, and nobody waits inside a call for one that is held.

Paper: Wu et al. (GREYHOUND), section 4.3, the suspension of training by trapping its calls; differs: all before one
call, so that nobody is caught in the middle of another, and an end to waiting for a rank that does not come.
"""

import fcntl
import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lanterne.failslow.record.recorder import INTERNAL

# Blocking calls which no rank leaves before all have entered.
SYNCHRONIZING = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")


# How long the others may take to come.
PATIENCE_S = 10.0  # chosen: else the job goes on as if nothing had been
NAP_S = 1e-3  # chosen: a job that is held does nothing else


# Words of the page: how often holding was asked for; before which call; that all have come to it, or have not.
WANTED, AT, GO, OFF, SLOTS = range(5)


class Trap:
    """One rank's end.

    Args:
        path: a file that all ranks map; rank 0 makes it before the others come.
        rank, world_size: of the ranks whose calls are trapped, all of one machine.
        patience_s: how long to wait for the others once held.
        progress: called while waiting: others may need it to come.

    Cost: 0.3 us a call that is not held.
    """

    def __init__(
        self,
        path: str | Path,
        rank: int,
        world_size: int,
        patience_s: float = PATIENCE_S,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        size = 8 * (SLOTS + world_size)
        # What is decided, is so under its lock.
        self._file = open(path, "w+b" if rank == 0 else "r+b")  # noqa: SIM115
        if rank == 0:
            self._file.truncate(size)
        self._map = mmap.mmap(self._file.fileno(), size)
        # Whole words: nobody sees half of a number.
        self._words = memoryview(self._map).cast("Q")
        self._rank = rank
        self._world_size = world_size
        self._patience_s = patience_s
        self._progress = progress
        self._count = self._held = self._asked = 0

    def ask(self) -> None:
        """Have all ranks held as soon as may be; any process or thread may call it."""
        self._words[WANTED] += 1

    def holds(self) -> bool:
        """Count a call that is about to begin; True where all ranks are held before it now, until they return to it.

        Every rank calls it before each blocking call of SYNCHRONIZING in which all ranks take part.
        """
        self._count += 1
        words = self._words
        at = words[AT]
        if self._rank == 0 and words[WANTED] != self._asked and at <= self._held:
            self._asked = words[WANTED]
            words[AT] = self._count + 1
            return False
        if not self._held < at <= self._count:
            return False
        self._held = at
        return self._all_come(at)

    def _all_come(self, at: int) -> bool:
        words = self._words
        words[SLOTS + self._rank] = at
        limit_s = time.monotonic() + self._patience_s * (1 if self._rank == 0 else 2)
        while at not in (words[GO], words[OFF]):
            if self._rank == 0 and all(words[SLOTS + rank] == at for rank in range(self._world_size)):
                self._decide(GO, at)
            elif time.monotonic() >= limit_s:
                self._decide(OFF, at)
            else:
                self._progress()
                time.sleep(NAP_S)
        return words[GO] == at

    def _decide(self, word: int, at: int) -> None:
        """What holds of call `at`, GO or OFF, unless that is decided: a rank that has given up does not come back."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if at not in (self._words[GO], self._words[OFF]):
                self._words[word] = at
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._map.close()
        self._file.close()


def trapped(
    plain: Callable[..., Any], recorded: Callable[..., Any], trap: Trap, pause: Callable[[], None]
) -> Callable[..., Any]:
    """`recorded`, a method of a communicator, before which `trap` may hold this rank: it then calls `pause()`.

    What lanterne itself calls, to make communicators or to validate, is `plain`: no place to be held, nor recorded.
    """
    frame = sys._getframe

    def held(*args: Any, **kwargs: Any) -> Any:
        if str(frame(1).f_globals.get("__name__", "")).startswith(INTERNAL):
            return plain(*args, **kwargs)
        if trap.holds():
            pause()
        return recorded(*args, **kwargs)

    return held
