"""Scratch: slots of it for a program at compile time, and the memory that all programs of a communicator share."""

import heapq

import numpy as np

from .program import SCRATCH, Place

SLOT_ALIGNMENT = 64


class Slots:
    """Scratch, cut into slots of one size. A slot is free for keys (round, segment) above the one up to which it is
    used.

    Args:
        slot_nbytes: bytes of a slot; rounded up.
        least: so many slots are taken before one is used again, so that receiving overlaps with folding.
    """

    def __init__(self, slot_nbytes, least):
        self._slot_nbytes = max(SLOT_ALIGNMENT, -(-slot_nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT)
        self._least = least
        self._number = 0
        # (key up to which it is used, slot)
        self._used = []

    @property
    def nbytes(self):
        """Bytes of all slots."""
        return self._number * self._slot_nbytes

    def take(self, key, last_key):
        """The Place of a slot that is free at `key`; it is used up to `last_key`."""
        if self._number >= self._least and self._used and self._used[0][0] < key:
            index = heapq.heappop(self._used)[1]
        else:
            index, self._number = self._number, self._number + 1
        heapq.heappush(self._used, (last_key, index))
        return Place(SCRATCH, index * self._slot_nbytes)

    def index(self, place):
        """Number of the slot that scratch place `place` lies in."""
        return place.offset // self._slot_nbytes


class Scratch:
    """The scratch memory of a communicator: one buffer for all its programs, since its calls run one after the
    other."""

    def __init__(self, transport):
        self._transport = transport
        self._region = None

    def region(self, nbytes):
        """A Region of at least `nbytes`. Whoever had one before must be done with it."""
        if self._region is None or self._region.nbytes < nbytes:
            self._region = self._transport.register(np.empty(nbytes, np.uint8))
        return self._region
