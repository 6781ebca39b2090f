"""What a job needs of a host before it starts: file descriptors, and shared memory in /dev/shm.

Without enough of them libraries below us do not say so: a rank dies by SIGBUS or SIGSEGV. Measured with MPICH 5.0.2,
UCX 1.21 and tmpfs of 4 to 32 MiB: MPICH maps 1.06 MB for each rank of a host. UCX takes 4.4 MB for each rank from
/dev/shm while some 13 MB are free, else none; where that changes from one rank to the next, ranks crash.
"""

import logging
import os
import resource
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path

from lanterne.errors import Unavailable

SHARED_MEMORY = Path("/dev/shm")
MPICH_RANK_NBYTES = 1_100_000
# The unit of st_blocks.
BLOCK_NBYTES = 512
GIVE_MORE = "give more (mount -o remount,size=..., in a container --shm-size or --ipc=host)"
UCX_RANK_NBYTES, UCX_LEAST_NBYTES = 4_500_000, 14_000_000
# A rank has some 30 files open on one host, and the store two for each rank.
FILES, FILES_PER_RANK = 64, 2

# Values of UCX_TLS that lanterne itself sets for what it starts.
NO_TCP = "^tcp"
NO_POSIX = {None: "^posix", NO_TCP: "^tcp,posix"}

log: logging.Logger = logging.getLogger(__name__)


def make_room_for_files(num_ranks: int) -> None:
    """Let this process, and what it starts, open as many files as a job of `num_ranks` needs, if it may.

    Raises:
        Unavailable: it may not.
    """
    needed = FILES + FILES_PER_RANK * num_ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed and soft != resource.RLIM_INFINITY:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
        if allowed < needed:
            raise Unavailable(
                f"open files: got a limit of {hard}, expected {needed} or more for {num_ranks} ranks; raise it with "
                f"`ulimit -n {needed}`, or in a container with --ulimit nofile={needed}"
            )


def check_shared_memory(
    num_ranks: int, variables: MutableMapping[str, str], *, mpich: bool, segments: Iterable[str] = ()
) -> None:
    """See that `num_ranks` ranks of this host have room in /dev/shm; where UCX would fail, set UCX_TLS to go without.

    Args:
        variables: the environment of the ranks.
        mpich: MPICH's own shared memory is needed.
        segments: files that ranks of the job which were quicker have taken there: all have to decide alike.

    Raises:
        Unavailable: MPICH has too little.
    """
    with suppress(OSError):
        nbytes = _free_nbytes() + sum(os.stat(path).st_blocks * BLOCK_NBYTES for path in segments)
        if mpich and nbytes < (needed := num_ranks * MPICH_RANK_NBYTES):
            raise Unavailable(
                f"shared memory: got {nbytes / 1e6:.3g} MB free in {SHARED_MEMORY}, expected {needed / 1e6:.3g} MB or "
                f"more for {num_ranks} ranks over MPI; {GIVE_MORE}"
            )
    set_so_far = variables.get("UCX_TLS")
    if set_so_far in NO_POSIX and not has_room_for_ucx(num_ranks):
        variables["UCX_TLS"] = NO_POSIX[set_so_far]


def little_shared_memory() -> str:
    """Return words for a full /dev/shm, which kills by SIGBUS what touches a page of its share there; else ""."""
    with suppress(OSError):
        if (nbytes := _free_nbytes()) < MPICH_RANK_NBYTES:
            return f"{SHARED_MEMORY} is full ({nbytes / 1e6:.3g} MB free); {GIVE_MORE}"
    return ""


def _free_nbytes() -> int:
    found = os.statvfs(SHARED_MEMORY)
    return found.f_bavail * found.f_frsize


def has_room_for_ucx(num_ranks: int) -> bool:
    """Whether UCX would use /dev/shm for each of `num_ranks` ranks of this host; where not, a log line says so."""
    try:
        nbytes, needed = _free_nbytes(), UCX_LEAST_NBYTES + num_ranks * UCX_RANK_NBYTES
    except OSError:
        return True
    if nbytes < needed:
        said = "lanterne: %.3g MB free in %s, with %.3g MB UCX would use it; it goes without"
        log.info(said, nbytes / 1e6, SHARED_MEMORY, needed / 1e6)
    return nbytes >= needed
