"""For how long a thread has waited for a core: it could run, and others ran.

Linux counts it of every thread (the second number of /proc/PID/task/TID/schedstat). Standard library only: it is loaded
into watched programs.
"""

from __future__ import annotations

import os
import weakref
from math import inf

# Between two looks: a core is given away for some milliseconds at once. A look costs 1 us.
EVERY_S = 0.002
# The counter goes round after 71 minutes; only what it gains between two calls counts.
ROUND_US = 1 << 32


class CoreWaits:
    """Reads it of one thread of this process.

    Attributes: `waited_us`, what it was at the last look, modulo ROUND_US; `due_s`, of time.monotonic(), from when on
    it is to be read again, never where the system does not tell.
    """

    __slots__ = ("__weakref__", "_file", "due_s", "waited_us")

    def __init__(self, thread: int | None = None) -> None:
        self.waited_us: int = 0
        self.due_s: float = inf
        self._file = -1
        if thread is None:
            return
        try:
            self._file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
        except OSError:
            return
        # At its end the process closes it.
        weakref.finalize(self, os.close, self._file).atexit = False
        self.due_s = -inf

    def read(self, now_s: float) -> int:
        """What the thread has waited up to now."""
        try:
            self.waited_us = int(os.pread(self._file, 64, 0).split()[1]) // 1000 % ROUND_US
            self.due_s = now_s + EVERY_S
        except (OSError, IndexError, ValueError):
            # The thread is gone, or somebody has closed the file.
            self.due_s = inf
        return self.waited_us
