"""The memory that the ranks of a communicator on one host share, and how they meet in it.

A memfd without a name: when the last process that has it is gone, so is the memory. Each rank has a line with the
number of the last piece that it is done with and a stamp for each of its slots, and the slots. A stamp is the number of
a piece and a digest of the signatures of all calls so far: a rank that waits sees only ranks in the same call. A slot
is written again once all ranks are done with what was in it. What goes through it: kernels/cpu/meet.py.
"""

import ctypes
import logging
import mmap
import os
import secrets
import zlib
from collections.abc import Callable

import numpy as np

from lanterne.collectives.execute.arguments import CallOptions
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.kernels.cpu.meet import MEMORY, MeetLayout, stamp_of

log: logging.Logger = logging.getLogger("lanterne.collectives")

# A rank's line is two cache lines, which processors fetch together.
LAYOUT: MeetLayout = MeetLayout(slots=8, slot_nbytes=128 << 10, line_nbytes=128)


class SharedMemory:
    """The slots of `world_size` ranks as `rank` sees them.

    Args:
        view: of `nbytes_for(world_size)` bytes, zeros at first.
        shared: whether ranks share cores.

    Attributes: `words_at`, the address of the words MEMORY of kernels.cpu.meet; `shared`.
    """

    def __init__(self, view: memoryview, world_size: int, rank: int, shared: bool) -> None:
        self._view = view
        self._rank = rank
        self.shared = shared
        lines_at = ctypes.addressof(ctypes.c_char.from_buffer(view))
        self._lines = view[: world_size * LAYOUT.line_nbytes].cast("q")
        slots_at = lines_at + _lines_nbytes(world_size)
        known = [0, 0, LAYOUT.slots, 0, world_size, rank, lines_at, lines_at + rank * LAYOUT.line_nbytes, slots_at]
        self._words = (ctypes.c_int64 * len(MEMORY))(*known)
        self.words_at: int = ctypes.addressof(self._words)

    def missing(self, number: int, first: int, count: int) -> list[int]:
        """The ranks of the `count` from `first` on that have not stamped piece `number` of the call under way."""
        stamp = stamp_of(number, self._words[MEMORY.index("calls")])
        at, words = 1 + number % LAYOUT.slots, LAYOUT.line_nbytes // 8
        return [rank for rank in range(first, first + count) if self._lines[rank * words + at] != stamp]

    def behind(self) -> list[int]:
        """The ranks that are not done with what is in the slot of the next piece."""
        last = self._words[MEMORY.index("number")]
        done = self._lines[:: LAYOUT.line_nbytes // 8].tolist()
        return [rank for rank, number in enumerate(done) if rank != self._rank and number + LAYOUT.slots <= last]


def digest_of(signature: str) -> int:
    """32 bits of what all ranks must agree on, the same in every process."""
    return zlib.crc32(signature.encode())


def nbytes_for(world_size: int) -> int:
    """Bytes of the memory of so many ranks; pages that nobody writes to take none."""
    return _lines_nbytes(world_size) + world_size * LAYOUT.slots * LAYOUT.slot_nbytes


def _lines_nbytes(world_size: int) -> int:
    return -(-world_size * LAYOUT.line_nbytes // 4096) * 4096


# What shares: a communicator, and its collective of this name on two arrays.
Call = Callable[..., None]


def share_memory(group: CommunicatorBase, call: Call) -> SharedMemory | None:
    """The SharedMemory of `group`, on all of its ranks; None, on all, if not all can have it. A collective call.

    Args:
        call: `core.call`.
    """
    n = group.world_size
    if n == 1 or not (group.transport.shares_memory and group.transport.membership.on_one_host(group.ranks)):
        return None
    nbytes = nbytes_for(n)
    mine, view, token = -1, None, secrets.randbits(62)
    told = np.zeros(3, np.int64)
    try:
        if group.rank == 0:
            mine = os.memfd_create("lanterne-shared", os.MFD_CLOEXEC)
            os.ftruncate(mine, nbytes + 8)
            view = memoryview(mmap.mmap(mine, nbytes + 8))
            view[nbytes:].cast("q")[0] = token
            told[:] = os.getpid(), mine, token
    except OSError as error:
        log.info("no shared memory: %s", error)
    try:
        call("broadcast", told, told, root=0, options=CallOptions("binomial"))
        if group.rank != 0 and told[2]:
            view = _open(int(told[0]), int(told[1]), nbytes, int(told[2]))
        have = np.zeros(n, np.int8)
        # Nothing is reduced: that would load the compiler.
        call("all_gather", np.array([view is not None], np.int8), have, options=CallOptions("bruck"))
    finally:
        if mine >= 0:
            os.close(mine)
    if view is None or not have.all():
        log.info("no shared memory between %d ranks of one host: calls go by messages", n)
        return None
    return SharedMemory(view[:nbytes], n, group.rank, group.pauses.shared)


def _open(pid: int, descriptor: int, nbytes: int, token: int) -> memoryview | None:
    """The memory that process `pid` has open; None where that cannot be."""
    try:
        mine = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(mine).st_size != nbytes + 8:
                return None
            view = memoryview(mmap.mmap(mine, nbytes + 8))
        finally:
            os.close(mine)
    except OSError as error:
        log.info("no shared memory: %s", error)
        return None
    return view if view[nbytes:].cast("q")[0] == token else None
