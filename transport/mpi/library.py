"""MPI beside its calls: which library a launcher needs, whether it takes device memory, what MPICH leaves behind."""

import ctypes
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from lanterne.errors import InputError, Unavailable

VARIABLE = "LANTERNE_MPI_CUDA"
QUERY = "MPIX_Query_cuda_support"
# Of MPIs without the query: MVAPICH and Cray's MPICH read these themselves.
SWITCHES = ("MV2_USE_CUDA", "MPICH_GPU_SUPPORT_ENABLED")

# mpi4py's choice among the MPIs that its wheel can be used with, and the file name that Open MPI's library has.
ABI_VARIABLE, PATH_VARIABLE = "MPI4PY_MPIABI", "MPI4PY_LIBMPI"
OPEN_MPI_FILE = "libmpi.so.40"


def choose_library(family: str, launcher: str) -> None:
    """Have mpi4py load the site's MPI library, where `launcher` needs one of another `family` than it would find.

    Nothing is chosen for an mpi4py that was built for one MPI, nor where the user has chosen, or has loaded it.

    Raises:
        Unavailable: there is no such library.
    """
    chosen = ABI_VARIABLE in os.environ or PATH_VARIABLE in os.environ or "mpi4py.MPI" in sys.modules
    if family != "openmpi" or chosen or find_spec("mpi4py") is None or find_spec("mpi4py._mpiabi") is None:
        return
    path = next(_open_mpi_paths(), None)
    if path is None:
        raise Unavailable(
            f"mpi: started by {launcher}, and found no {OPEN_MPI_FILE}, expected Open MPI's library: set "
            f"{PATH_VARIABLE} to its path, load the site's module of it, or see docs/launching.md"
        )
    os.environ |= {ABI_VARIABLE: "openmpi", PATH_VARIABLE: path}


def _open_mpi_paths() -> Iterator[str]:
    """Where Open MPI's library is: beside its mpirun, where the environment says, where the loader looks."""
    starters = (f"/proc/{os.getppid()}/exe", shutil.which("mpirun"), shutil.which("ompi_info"))
    prefixes = [os.environ["OPAL_PREFIX"]] if "OPAL_PREFIX" in os.environ else []
    for starter in filter(None, starters):
        with suppress(OSError):
            prefixes.append(str(Path(starter).resolve(strict=True).parents[1]))
    folders = [f"{prefix}/{folder}" for prefix in prefixes for folder in ("lib", "lib64")]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for folder in filter(None, folders):
        path = os.path.join(folder, OPEN_MPI_FILE)
        if os.path.exists(path):
            yield path
    with suppress(OSError):
        ctypes.CDLL(OPEN_MPI_FILE)
        yield OPEN_MPI_FILE


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
    for path in segments(pid):
        with suppress(OSError):
            os.unlink(path)


def segments(pid: int | str) -> set[str]:
    """Return the files of MPICH's shared memory that process `pid` has mapped."""
    return _mapped(pid, "/dev/shm/mpich_shm_")


def _mapped(pid: int | str, part: str) -> set[str]:
    """The paths with `part` in them that process `pid` has mapped, as far as we may know."""
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        return {line.split(maxsplit=5)[-1].strip() for line in maps if part in line}
    return set()
