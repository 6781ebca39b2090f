"""MPICH's shared memory: files that the ranks of a host open while MPI starts."""

import os
from contextlib import suppress


def unlink_segments(pid="self"):
    """Remove the names of those that process `pid` has opened; the memory stays until nobody has it any more.

    MPICH does so in MPI_Finalize only, so that jobs with a death would fill the memory.
    """
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        for path in {line.split(maxsplit=5)[-1].strip() for line in maps if "/dev/shm/mpich_shm_" in line}:
            with suppress(OSError):
                os.unlink(path)
