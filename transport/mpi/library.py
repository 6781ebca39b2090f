"""MPI beside its calls: whether it takes addresses of device memory, and the memory that MPICH leaves behind."""

import ctypes
import functools
import os
from collections.abc import Callable
from contextlib import suppress

from lanterne.errors import InputError

VARIABLE = "LANTERNE_MPI_CUDA"
QUERY = "MPIX_Query_cuda_support"
# Of MPIs without the query: MVAPICH and Cray's MPICH read these themselves.
SWITCHES = ("MV2_USE_CUDA", "MPICH_GPU_SUPPORT_ENABLED")


@functools.cache
def is_cuda_aware() -> bool:
    """Whether device arrays go straight into MPI's calls. LANTERNE_MPI_CUDA, 1 or 0, overrides. MPI has to be loaded.

    Raises:
        InputError: the variable is neither.
    """
    import logging  # 8 ms, which a guard need not wait for

    told = os.environ.get(VARIABLE)
    if told is not None:
        if told not in ("0", "1"):
            raise InputError(f"{VARIABLE}: got {told!r}, expected 0 or 1")
        aware, why = told == "1", f"{VARIABLE}={told}"
    elif (query := _query()) is not None:
        aware, why = bool(query()), f"{QUERY} says so"
    else:
        switches = [name for name in SWITCHES if os.environ.get(name) == "1"]
        aware, why = bool(switches), f"{switches[0]}=1" if switches else f"this MPI has no {QUERY}"
    way = "straight into MPI's calls" if aware else "through pinned memory"
    logging.getLogger("lanterne.transport").info("mpi: device arrays go %s: %s", way, why)
    return aware


def _query() -> Callable[[], int] | None:
    """MPI's function, an extension that not all have; None without it. MPI may be known to its loader alone."""
    for path in (None, *sorted(_mapped("self", "/libmpi"))):
        with suppress(OSError, AttributeError):
            found: Callable[[], int] = getattr(ctypes.CDLL(path), QUERY)
            return found
    return None


def unlink_segments(pid: int | str = "self") -> None:
    """Remove the names of MPICH's shared memory that process `pid` has opened; it stays until nobody has it any more.

    MPICH does so in MPI_Finalize only, so that jobs with a death would fill the memory.
    """
    for path in _mapped(pid, "/dev/shm/mpich_shm_"):
        with suppress(OSError):
            os.unlink(path)


def _mapped(pid: int | str, part: str) -> set[str]:
    """The paths with `part` in them that process `pid` has mapped, as far as we may know."""
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        return {line.split(maxsplit=5)[-1].strip() for line in maps if part in line}
    return set()
