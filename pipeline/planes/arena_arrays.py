"""Arrays in the memory that delegates and ranks share: a rank's own, which it lends, and those of its peers."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from lanterne.pipeline.planes.data_plane import Buffer, Shape
from lanterne.transport.rails.delegate_memory import Arena

Kind: TypeAlias = tuple[Shape, np.dtype[Any]]


class OwnArrays:
    """The arrays that lie in a rank's own arena, and are lent again once they are free.

    Args:
        staged: what each passes through when it is made.

    Attributes: `free`, by shape and dtype; `lent`, {id: (offset, nbytes, array)} of all.
    """

    def __init__(self, arena: Arena, staged: Callable[[Buffer], Buffer]) -> None:
        self.free: dict[Kind, list[Buffer]] = {}
        self.lent: dict[int, tuple[int, int, Buffer]] = {}
        self._arena = arena
        self._staged = staged

    def extend(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        """Make one more.

        Raises:
            InputError: the arena is full.
        """
        nbytes = nbytes_of(shape, dtype)
        offset = self._arena.allocate(nbytes)
        array = self._staged(array_at(self._arena.view, offset, shape, dtype))
        self.lent[id(array)] = offset, nbytes, array
        self.give(array)

    def give(self, array: Buffer) -> None:
        """That one is free."""
        self.free.setdefault((array.shape, array.dtype), []).append(array)


class NearArrays:
    """The arrays of messages that are read where they lie: in the arenas of peers that share memory.

    Args:
        arenas: by peer, as bytes.
    """

    def __init__(self, arenas: Mapping[int, memoryview]) -> None:
        self.arenas = arenas
        # (peer, offset, shape, dtype) -> array; id -> (peer, offset) of those that are read now.
        self._made: dict[tuple[int, int, Shape, np.dtype[Any]], Buffer] = {}
        self._read: dict[int, tuple[int, int]] = {}

    def read(
        self, peer: int, offset: int, shape: Shape, dtype: np.dtype[Any], staged: Callable[[Buffer], Buffer]
    ) -> Buffer:
        """The array at `offset` of a peer's arena; a new one is `staged` first."""
        key = peer, offset, shape, dtype
        array = self._made.get(key)
        if array is None:
            array = self._made[key] = staged(array_at(self.arenas[peer], offset, shape, dtype))
        self._read[id(array)] = peer, offset
        return array

    def take_place(self, buffer: Buffer) -> tuple[int, int] | None:
        """The peer and offset of an array that is not read any more; None if it is none of these."""
        return self._read.pop(id(buffer), None)


def array_at(memory: memoryview, offset: int, shape: Shape, dtype: np.dtype[Any]) -> Buffer:
    """(shape) of dtype at `offset` of a memoryview of bytes."""
    nbytes = nbytes_of(shape, dtype)
    return np.frombuffer(memory, np.uint8, max(nbytes, 1), offset)[:nbytes].view(dtype).reshape(shape)


def nbytes_of(shape: Shape, dtype: np.dtype[Any]) -> int:
    """Of an array."""
    return math.prod(shape) * dtype.itemsize
