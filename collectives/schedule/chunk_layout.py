"""Where the chunks of a schedule lie in the arrays of a rank: pure index arithmetic for executors and exporters.

The input array of a rank is the concatenation, in index order, of the chunks that start at it, the output array that of
the chunks that end at it. A chunk that a rank handles without either (in a Bruck all-to-all, say) needs scratch of its
own, as does every received chunk that is to be reduced.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from lanterne.collectives.schedule.contracts import CONTRACTS, EVERY, ends_at, starts_at
from lanterne.collectives.schedule.ir import CollectiveSchedule, Ints

# Elements of a part, or where parts differ, of every one.
PartCount: TypeAlias = int | Sequence[int]


def chunk_counts(schedule: CollectiveSchedule, part_count: PartCount, align: int = 1) -> Ints:
    """Elements of every chunk: (num_chunks,) int64, for parts of `part_count` elements each.

    A part is cut into its chunks as evenly as possible, the longer ones first; a chunk may be empty. With `align` above
    1 they are of the least multiple of `align` elements that will do; what is left for the last ones is less.
    """
    pieces = schedule.num_chunks // CONTRACTS[schedule.collective].parts(schedule.world_size)
    index = np.arange(schedule.num_chunks, dtype=np.int64) % pieces
    counts = np.asarray(part_count, np.int64)
    if counts.ndim:
        counts = np.repeat(counts, pieces)
    if align > 1:
        count = -(-counts // (pieces * align)) * align
        return np.clip(counts - index * count, 0, count)
    return counts // pieces + (index < counts % pieces)


def uneven_parts(collective: str, rank: int, counts: Sequence[int]) -> Sequence[int]:
    """Elements of every part of `collective`, as far as `rank` knows them, the others 0.

    Args:
        counts: of the parts in order; of all_to_all those of the input array of `rank`, then those of the output array.
    """
    if collective != "all_to_all":
        return counts
    world_size = len(counts) // 2
    parts = np.zeros((world_size, world_size), np.int64)
    parts[rank], parts[:, rank] = counts[:world_size], counts[world_size:]
    return parts.reshape(-1).tolist()


def is_direct(schedule: CollectiveSchedule) -> bool:
    """Whether every part goes straight from where it starts to where it ends: nobody else need know its size."""
    starts, ends = starts_at(schedule, schedule.chunk), ends_at(schedule, schedule.chunk)
    return bool(((schedule.src == starts) & (schedule.dst == ends)).all())


def input_chunks(schedule: CollectiveSchedule, rank: int) -> Ints:
    """The chunks that make up the input array of `rank`, in order: int64 array, empty where it gives nothing."""
    return _chunks_at(starts_at, schedule, rank)


def output_chunks(schedule: CollectiveSchedule, rank: int) -> Ints:
    """The chunks that make up the output array of `rank`, in order: int64 array, empty where it gets nothing."""
    prefix = CONTRACTS[schedule.collective].prefix
    if prefix is not None and rank + prefix == 0:
        return np.zeros(0, np.int64)
    return _chunks_at(ends_at, schedule, rank)


def _chunks_at(where: Callable[[CollectiveSchedule, Ints], Ints], schedule: CollectiveSchedule, rank: int) -> Ints:
    at = where(schedule, np.arange(schedule.num_chunks))
    return np.flatnonzero((at == rank) | (at == EVERY))
