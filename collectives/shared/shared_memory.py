"""The memory that the ranks of a communicator on one host share, and how they meet in it.

A memfd without a name: when the last process that has it is gone, so is the memory. Each rank has a line with the
number of the last piece that it is done with and a stamp for each of its slots, and the slots. A stamp is the number of
a piece and a digest of the call's signature: who waits sees only who is in the same call. A slot is written again once
all ranks are done with what was in it.
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
from lanterne.kernels.cpu.meet import exchange_function, meet_function, stamp_of
from lanterne.kernels.dtypes import Dtype

log: logging.Logger = logging.getLogger("lanterne.collectives")

SLOTS, SLOT_NBYTES = 4, 128 << 10
# A rank's line: a word for what it is done with, then its stamps; two cache lines, which processors fetch together.
LINE_NBYTES = 128


class SharedMemory:
    """The slots of `world_size` ranks as `rank` sees them.

    Args:
        view: of `nbytes_for(world_size)` bytes, zeros at first.
        shared: whether ranks share cores.

    Attributes: `number`, of the last piece that this rank has stamped; `finished`, that it is done with.
    """

    def __init__(self, view: memoryview, world_size: int, rank: int, shared: bool) -> None:
        self._view = view
        self._world_size = world_size
        base = ctypes.addressof(ctypes.c_char.from_buffer(view))
        self._lines = base
        self._slots = base + _lines_nbytes(world_size)
        self._words = view[: world_size * LINE_NBYTES].cast("q")
        self._line = base + rank * LINE_NBYTES
        self._rank = rank
        self._shared = shared
        self._meet = meet_function(LINE_NBYTES, shared)
        self.number: int = 0
        self.finished: int = 0
        self._free_until = SLOTS

    def has_room(self) -> bool:
        """Whether the slot of the next piece is free: all are done with what was in it."""
        if self.number < self._free_until:
            return True
        done = self._words[:: LINE_NBYTES // 8].tolist()
        done[self._rank] = self.finished
        self._free_until = min(done) + SLOTS
        return self.number < self._free_until

    def will_have_room(self) -> bool:
        """As far as this rank knows, whether the slot after that of the next piece is free, too."""
        return self.number + 1 < self._free_until

    def slots(self, number: int) -> range:
        """The addresses of the slots of all ranks with piece `number`."""
        start = self.slot(0, number)
        return range(start, start + self._world_size * SLOTS * SLOT_NBYTES, SLOTS * SLOT_NBYTES)

    def slot(self, rank: int, number: int) -> int:
        """The address of the slot of `rank` with piece `number`."""
        return self._slots + (rank * SLOTS + number % SLOTS) * SLOT_NBYTES

    def meet(self, digest: int, number: int, first: int, count: int, tells: bool) -> int:
        """How many of the `count` ranks from `first` on have stamped piece `number`, up to the first that has not.

        Args:
            digest: of the call's signature.
            tells: the next piece is in this rank's slot: stamp it first.
        """
        mine = told = 0
        if tells:
            told = self.number = self.number + 1
            mine = self._line + 8 + told % SLOTS * 8
            told = stamp_of(told, digest)
        word = self._lines + first * LINE_NBYTES + 8 + number % SLOTS * 8
        return self._meet(count, word, stamp_of(number, digest), self._line, self.finished, mine, told)

    def exchange(self, op: str, dtype: Dtype) -> Callable[[int, int], int]:
        """See exchange_function."""
        return exchange_function(op, dtype, self._world_size, SLOTS, SLOT_NBYTES, LINE_NBYTES, self._shared)

    def exchange_words(self, nbytes: int, count: int, digest: int) -> list[int]:
        """The words of exchange_function, with no input and output yet."""
        stamps = self._lines + 8, self._line + 8
        return [0, 0, nbytes, count, digest, *stamps, self._line, self._slots, self.slot(self._rank, 0)]

    def all_came(self, number: int) -> None:
        """All ranks are in a call that begins with piece `number`, and so are done with those before it."""
        self.finished = number
        self._free_until = number - 1 + SLOTS

    def missing(self, number: int, digest: int, first: int, count: int) -> list[int]:
        """The ranks of those that have not stamped piece `number`."""
        at, stamp = 1 + number % SLOTS, stamp_of(number, digest)
        return [rank for rank in range(first, first + count) if self._words[rank * LINE_NBYTES // 8 + at] != stamp]

    def behind(self) -> list[int]:
        """The ranks that are not done with what is in the slot of the next piece."""
        done = self._words[:: LINE_NBYTES // 8].tolist()
        return [rank for rank, number in enumerate(done) if rank != self._rank and number + SLOTS <= self.number]


def digest_of(signature: str) -> int:
    """32 bits of what all ranks must agree on, the same in every process."""
    return zlib.crc32(signature.encode())


def nbytes_for(world_size: int) -> int:
    """Bytes of the memory of so many ranks; pages that nobody writes to take none."""
    return _lines_nbytes(world_size) + world_size * SLOTS * SLOT_NBYTES


def _lines_nbytes(world_size: int) -> int:
    return -(-world_size * LINE_NBYTES // 4096) * 4096


# What shares: a communicator, and its collective of this name on two arrays.
Call = Callable[..., None]


def share_memory(group: CommunicatorBase, call: Call) -> SharedMemory | None:
    """The SharedMemory of `group`, on all of its ranks; None, on all, if not all can have it. A collective call.

    Args:
        call: `core.call`.
    """
    n = group.world_size
    if n == 1 or not group.transport.on_one_host(group.ranks):
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
        good = np.array([view is not None], np.int8)
        call("all_reduce", good, good, "min", options=CallOptions("recursive_doubling"))
    finally:
        if mine >= 0:
            os.close(mine)
    if not good[0] or view is None:
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
