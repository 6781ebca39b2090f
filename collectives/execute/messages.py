"""How the rounds of a schedule become messages: chunks cut into cells, cells grouped by peer. Both ends must cut alike.

A *cell* is one segment of a chunk. A message is one cell of a large chunk, or several small chunks of one round, peer
and op: up to a segment, and if they are no neighbours, of at most PACK_NBYTES each. All follows from the schedule and
the sizes alone.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.schedule.chunk_layout import PartCount, chunk_counts
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule

# Chunks of this size that are not neighbours share a message all the same: copying one costs less than sending another.
PACK_NBYTES = 16 * 1024


class Cell(NamedTuple):
    """Segment `segment` of chunk `chunk`: elements `start` to `stop` of that chunk."""

    chunk: int
    segment: int
    start: int
    stop: int


class Part(NamedTuple):
    """What one rank sends to or receives from `peer` as one message; `transfers` are the schedule's, one per cell."""

    segment: int
    transfers: tuple[int, ...]
    cells: tuple[Cell, ...]
    sends: bool
    peer: int
    reduces: bool
    num_elements: int


# A transfer of the schedule, its cell, and its op.
Listed: TypeAlias = tuple[int, Cell, int]


class MessageCutter:
    """Cuts the chunks of `schedule` for parts (schedule/contracts.py) of `part_count` elements of `itemsize` bytes."""

    def __init__(
        self, schedule: CollectiveSchedule, part_count: PartCount, itemsize: int, segment_nbytes: int, align: int = 1
    ) -> None:
        self.schedule = schedule
        self.align = align
        self.counts: list[int] = chunk_counts(schedule, part_count, align).tolist()
        self.segment_count: int = max(1, segment_nbytes // itemsize // align) * align
        self.pack_count: int = PACK_NBYTES // itemsize
        self._cells: dict[int, tuple[Cell, ...]] = {}

    def cells(self, chunk: int) -> tuple[Cell, ...]:
        """The cells of `chunk`, as even as possible; none for an empty chunk, unless the collective is a barrier."""
        cells = self._cells.get(chunk)
        if cells is None:
            count = self.counts[chunk]
            number = -(-count // self.segment_count)
            edge = self._edge
            cells = tuple(Cell(chunk, i, edge(count, i, number), edge(count, i + 1, number)) for i in range(number))
            if not count and self.schedule.collective == "barrier":
                cells = (Cell(chunk, 0, 0, 0),)
            self._cells[chunk] = cells
        return cells

    def _edge(self, count: int, index: int, number: int) -> int:
        """Where cell `index` of `number` begins: at a multiple of `align`, but for the end of the chunk."""
        if self.align == 1:
            return count * index // number
        return min(count, index * -(-count // (number * self.align)) * self.align)

    def rounds(self, rank: int) -> Iterator[tuple[int, list[Part]]]:
        """(round, parts) of every round that `rank` takes part in. Parts are sorted as both of their ends sort them."""
        schedule = self.schedule
        mine = np.flatnonzero((schedule.src == rank) | (schedule.dst == rank))
        round_of = np.searchsorted(schedule.offsets, mine, side="right") - 1
        columns = (round_of, mine, schedule.src[mine], schedule.dst[mine], schedule.chunk[mine], schedule.op[mine])
        transfers = zip(*(column.tolist() for column in columns), strict=True)
        for index, group in groupby(transfers, key=lambda transfer: transfer[0]):
            yield index, sorted(self.parts(rank, group))

    def parts(self, rank: int, transfers: Iterable[tuple[int, ...]]) -> Iterator[Part]:
        """The parts of one round's `transfers` of `rank`: (round, transfer, src, dst, chunk, op)."""
        lanes: dict[tuple[bool, int], list[tuple[int, int, int]]] = {}
        for _, transfer, src, dst, chunk, op in transfers:
            lane = (True, dst) if src == rank else (False, src)
            lanes.setdefault(lane, []).append((transfer, chunk, op))
        for (sends, peer), listed in lanes.items():
            small: list[Listed] = []
            for transfer, chunk, op in listed:
                cells = self.cells(chunk)
                if small and not (len(cells) == 1 and self._fits(small, chunk, op)):
                    yield _part(0, small, sends, peer)
                    small = []
                if len(cells) == 1:
                    small.append((transfer, cells[0], op))
                    continue
                for cell in cells:
                    yield _part(cell.segment, [(transfer, cell, op)], sends, peer)
            if small:
                yield _part(0, small, sends, peer)

    def _fits(self, small: list[Listed], chunk: int, op: int) -> bool:
        _, last, last_op = small[-1]
        count = self.counts[chunk]
        if op != last_op or (last.chunk + 1 != chunk and max(count, last.stop) > self.pack_count):
            return False
        return sum(cell.stop for _, cell, _ in small) + count <= self.segment_count


def _part(segment: int, entries: list[Listed], sends: bool, peer: int) -> Part:
    transfers, cells, ops = zip(*entries, strict=True)
    return Part(segment, transfers, cells, sends, peer, ops[0] == REDUCE, sum(cell.stop - cell.start for cell in cells))
