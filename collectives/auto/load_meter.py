"""How busy others keep the machine while something is measured: what its ranks have not used of what was used."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lanterne.collectives.auto.trials import TrialGroup

# Cores that others use from which on times say little, a share of one: what a desktop does at rest stays below.
BUSY_CORES = 0.3


class LoadMeter:
    """Counts, from its birth on, the core time that machines spend, and that of this process and what it started."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._all_s = sum(machine_s())
        self._own_s = time.process_time()
        self._started_s = _started_s()

    @property
    def started_s(self) -> float:
        """Core seconds of processes that this one started and that have ended since."""
        return _started_s() - self._started_s

    def foreign_cores(self, comm: TrialGroup | None = None) -> float:
        """Cores that others have used since, on average.

        Args:
            comm: of a job, all of whose ranks call it: on the machine where others used most.
        """
        lasted_s, all_s = time.monotonic() - self._start_s, sum(machine_s()) - self._all_s
        mine = np.array([_kernel(), lasted_s, all_s, time.process_time() - self._own_s + self.started_s])
        rows = mine[None]
        if comm is not None:
            rows = np.empty((comm.world_size, 4))
            comm.all_gather(mine, rows.reshape(-1), algorithm="ring")
        cores = []
        for one in set(rows[:, 0]):
            here = rows[rows[:, 0] == one]
            cores.append((here[:, 2].max() - here[:, 3].sum()) / here[:, 1].max())
        return max(0.0, *cores)


def _started_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _kernel() -> int:
    """A number of the kernel that runs here: that of this machine, in whichever namespace."""
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return zlib.crc32(os.uname().nodename.encode())


def machine_s() -> tuple[float, float]:
    """(core seconds that this machine has spent on anything, those that its host kept from it), by /proc/stat."""
    user, nice, system, _, _, irq, softirq, stolen = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_s, stolen * tick_s
