"""mpi4py's ways to name a buffer, [array, count, datatype] and its like, as NumPy arrays on the same memory."""

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lanterne.kernels.arrays import numpy_array


class NoVerb(Exception):
    """What lanterne has not: names it."""


class Blocks(NamedTuple):
    """A block for each rank: `counts` elements of `array` from `starts` on."""

    array: NDArray[Any]
    counts: list[int]
    starts: list[int]

    @property
    def packed(self) -> NDArray[Any]:
        """The blocks one after the other; the array itself where they lie so."""
        if self.starts == [0, *accumulate(self.counts)][: len(self.starts)]:
            return self.array[: sum(self.counts)]
        parts = [self.array[start : start + count] for count, start in zip(self.counts, self.starts, strict=True)]
        return np.concatenate(parts)

    def unpack(self, packed: NDArray[Any]) -> None:
        """Put `packed` where the blocks are."""
        at = 0
        for count, start in zip(self.counts, self.starts, strict=True):
            self.array[start : start + count] = packed[at : at + count]
            at += count


def is_in_place(message: Any) -> bool:
    """Whether `message` is MPI.IN_PLACE, or None, which stands for that too."""
    return message is None or (type(message) is type(MPI.IN_PLACE) and message == MPI.IN_PLACE)


def array_of(message: Any, blocks: int = 1) -> NDArray[Any]:
    """The elements that `message` names, (count,); a count in it is that of each of so many blocks.

    Raises:
        NoVerb: a derived datatype.
    """
    raw, counted, datatype = _parts(message)
    array = _flat(raw, datatype)
    if counted is None:
        return array
    if not isinstance(counted, int):
        raise NoVerb("counts where one is meant")
    return array[: counted * blocks]


def blocks_of(message: Any, world_size: int) -> Blocks:
    """The Blocks that the message of a vector verb names."""
    raw, counted, datatype = _parts(message)
    array = _flat(raw, datatype)
    counts, starts = counted if isinstance(counted, tuple) else (counted, None)
    if counts is None:
        counts = [array.size // world_size + (rank < array.size % world_size) for rank in range(world_size)]
    if isinstance(counts, int):
        counts = [counts] * world_size
    if isinstance(starts, int):
        starts = [starts * rank for rank in range(world_size)]
    if starts is None:
        starts = [0, *accumulate(counts)][:world_size]
    return Blocks(array, list(counts), list(starts))


def byte_blocks_of(message: Any, world_size: int) -> Blocks:
    """The Blocks, in bytes, of a message with a datatype for each rank and its block's first byte.

    Raises:
        NoVerb: a derived datatype.
    """
    raw, counted, datatypes = _parts(message)
    if type(raw) is type(MPI.BOTTOM) and raw == MPI.BOTTOM:
        raise NoVerb("addresses from MPI.BOTTOM")
    if not all(datatype.is_predefined for datatype in datatypes):
        raise NoVerb("derived datatypes")
    counts, starts = counted
    sizes = [count * datatype.Get_size() for count, datatype in zip(counts, datatypes, strict=True)]
    return Blocks(_flat(raw, None).view(np.uint8), sizes, list(starts))


def _parts(message: Any) -> tuple[Any, Any, Any]:
    """(memory, count or counts or (counts, starts), datatype) of a message."""
    if not isinstance(message, (tuple, list)):
        return message, None, None
    raw, *rest = message
    datatype = rest.pop() if rest and isinstance(rest[-1], (MPI.Datatype, list)) and _is_type(rest[-1]) else None
    if len(rest) == 2:
        return raw, tuple(rest), datatype
    counted = rest[0] if rest else None
    if isinstance(counted, (tuple, list)) and len(counted) == 2 and isinstance(counted[0], (tuple, list)):
        return raw, (list(counted[0]), None if counted[1] is None else list(counted[1])), datatype
    if isinstance(counted, tuple) and len(counted) == 2:
        return raw, counted, datatype
    return raw, counted, datatype


def _is_type(what: Any) -> bool:
    return isinstance(what, MPI.Datatype) or (all(isinstance(each, MPI.Datatype) for each in what) and bool(what))


def _flat(raw: Any, datatype: Any) -> NDArray[Any]:
    if raw is None:
        return np.empty(0, np.uint8)
    if type(raw) is type(MPI.BOTTOM) and raw == MPI.BOTTOM:
        raise NoVerb("addresses from MPI.BOTTOM")
    if isinstance(datatype, list) or (datatype is not None and not datatype.is_predefined):
        raise NoVerb("derived datatypes")
    memory: Any = raw
    return numpy_array(memory).reshape(-1)
