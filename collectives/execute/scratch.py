"""Scratch: slots of it for a program at compile time, and the memory that all programs of a communicator share."""

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from lanterne.collectives.execute.rank_program import SCRATCH, BufferPlace
from lanterne.transport.base import Region, Transport

SLOT_ALIGNMENT = 64
# (round, segment).
SlotKey: TypeAlias = tuple[int, int]


class Slots:
    """Scratch, cut into slots. A slot is free for keys (round, segment) above the one up to which it is used.

    Slots are of a few sizes, powers of two. Of each size twice as many as any segment of a round needs are taken before
    one is used again, so that receiving overlaps with folding.

    Args:
        received: per segment of each round, the bytes of the messages that land in scratch to be folded.
    """

    def __init__(self, received: Iterable[Iterable[int]]) -> None:
        self.nbytes: int = 0
        self._starts: list[int] = []
        # By size: slots to take at least, slots taken, heap of (key up to which one is used, place).
        self._least: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        self._used: dict[int, list[tuple[SlotKey, BufferPlace]]] = {}
        for segment_nbytes in received:
            for size, count in Counter(map(_size, segment_nbytes)).items():
                self._least[size] = max(self._least[size], 2 * count)

    @property
    def least_nbytes(self) -> int:
        """Return the bytes of all slots that are taken before one is used again."""
        return sum(size * count for size, count in self._least.items())

    def take(self, nbytes: int, key: SlotKey, last_key: SlotKey) -> BufferPlace:
        """The BufferPlace of a slot of at least `nbytes` that is free at `key`; it is used up to `last_key`."""
        size = _size(nbytes)
        used = self._used.setdefault(size, [])
        if self._taken[size] >= self._least[size] and used and used[0][0] < key:
            place = heapq.heappop(used)[1]
        else:
            place = BufferPlace(SCRATCH, self.nbytes)
            self._starts.append(self.nbytes)
            self._taken[size] += 1
            self.nbytes += size
        heapq.heappush(used, (last_key, place))
        return place

    def index(self, place: BufferPlace) -> int:
        """Number of the slot that scratch place `place` lies in."""
        return bisect_right(self._starts, place.offset) - 1


def _size(nbytes: int) -> int:
    return max(SLOT_ALIGNMENT, 1 << max(0, nbytes - 1).bit_length())


class Scratch:
    """The scratch memory of a communicator, lent to one call at a time; kept between calls.

    Attributes: `lent_nbytes`, to calls under way.
    """

    def __init__(self, transport: Transport) -> None:
        self.lent_nbytes: int = 0
        self._transport = transport
        self._free: list[Region] = []  # smallest first

    def lend(self, nbytes: int) -> Region:
        """A Region of at least `nbytes`, until `give_back`."""
        for index, region in enumerate(self._free):
            if region.nbytes >= nbytes:
                del self._free[index]
                break
        else:
            # A larger one takes the place of the largest that is free.
            del self._free[-1:]
            region = self._transport.register(np.empty(nbytes, np.uint8))
        self.lent_nbytes += region.nbytes
        return region

    def give_back(self, region: Region) -> None:
        """Nobody uses `region` any more."""
        self.lent_nbytes -= region.nbytes
        self._free.append(region)
        self._free.sort(key=lambda region: region.nbytes)
