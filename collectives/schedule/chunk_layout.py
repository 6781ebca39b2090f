"""Where the chunks of a schedule lie in the arrays of a rank: pure index arithmetic for executors and exporters.

The input array of a rank is the concatenation, in index order, of the chunks that start at it, the output array that of
the chunks that end at it. A chunk that a rank handles without either (in a Bruck all-to-all, say) needs scratch of its
own, as does every received chunk that is to be reduced.
"""

from collections.abc import Callable

import numpy as np

from lanterne.collectives.schedule.contracts import CONTRACTS, EVERY, ends_at, starts_at
from lanterne.collectives.schedule.ir import CollectiveSchedule, Ints


def chunk_counts(schedule: CollectiveSchedule, part_count: int, align: int = 1) -> Ints:
    """Elements of every chunk: (num_chunks,) int64, for parts of `part_count` elements each.

    A part is cut into its chunks as evenly as possible, the longer ones first; a chunk may be empty. With `align` above
    1 they are of the least multiple of `align` elements that will do; what is left for the last ones is less.
    """
    pieces = schedule.num_chunks // CONTRACTS[schedule.collective].parts(schedule.world_size)
    index = np.arange(schedule.num_chunks, dtype=np.int64) % pieces
    if align > 1:
        count = -(-part_count // (pieces * align)) * align
        return np.clip(part_count - index * count, 0, count)
    return part_count // pieces + (index < part_count % pieces)


def input_chunks(schedule: CollectiveSchedule, rank: int) -> Ints:
    """The chunks that make up the input array of `rank`, in order: int64 array, empty where it gives nothing."""
    return _chunks_at(starts_at, schedule, rank)


def output_chunks(schedule: CollectiveSchedule, rank: int) -> Ints:
    """The chunks that make up the output array of `rank`, in order: int64 array, empty where it gets nothing."""
    return _chunks_at(ends_at, schedule, rank)


def _chunks_at(where: Callable[[CollectiveSchedule, Ints], Ints], schedule: CollectiveSchedule, rank: int) -> Ints:
    at = where(schedule, np.arange(schedule.num_chunks))
    return np.flatnonzero((at == rank) | (at == EVERY))
