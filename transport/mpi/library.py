"""Whether the MPI of this process takes addresses of device memory: it is asked, or told so by its own variables."""

import ctypes
import functools
import logging
import os
from contextlib import suppress

from lanterne.errors import InputError

log = logging.getLogger("lanterne.transport")

VARIABLE = "LANTERNE_MPI_CUDA"
QUERY = "MPIX_Query_cuda_support"
# Of MPIs without the query: MVAPICH and Cray's MPICH read these themselves.
SWITCHES = ("MV2_USE_CUDA", "MPICH_GPU_SUPPORT_ENABLED")


@functools.cache
def is_cuda_aware():
    """Whether device arrays go straight into MPI's calls. LANTERNE_MPI_CUDA, 1 or 0, overrides. MPI has to be loaded.

    Raises:
        InputError: the variable is neither.
    """
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
    log.info("mpi: device arrays go %s: %s", "straight into MPI's calls" if aware else "through pinned memory", why)
    return aware


def _query():
    """MPI's function, an extension that not all have; None without it. MPI may be known to its loader alone."""
    paths = []
    with suppress(OSError), open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
    for path in (None, *sorted(paths)):
        with suppress(OSError, AttributeError):
            return getattr(ctypes.CDLL(path), QUERY)
    return None
