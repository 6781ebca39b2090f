"""What the exports share: where each rank keeps its chunks, in buffers i (input), o (output) and s (scratch).

A chunk that ends at a rank lives in its output; one that is only sent stays in its input; any other gets a scratch
slot. What starts at a rank and does not live in the input is copied there first, so that inputs stay as they are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from lanterne.collectives.schedule.check_schedule import CheckedSchedule
from lanterne.collectives.schedule.chunk_layout import input_chunks, output_chunks
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import CollectiveSchedule
from lanterne.errors import InputError

# A buffer (i, o or s), and the chunk's place there.
Home: TypeAlias = tuple[str, int]
Run: TypeAlias = tuple[int, str, int, int]


@dataclass(frozen=True)
class RankChunks:
    """The chunks of one rank.

    Attributes: `home`: {chunk: (buffer, index)}; `copies`: (input index, buffer, index, count) runs to copy first;
    `inputs`, `outputs`, `scratch`: chunks in each buffer.
    """

    home: dict[int, Home]
    copies: tuple[Run, ...]
    inputs: int
    outputs: int
    scratch: int


def place_chunks(schedule: CollectiveSchedule) -> list[RankChunks]:
    """The RankChunks of every rank, in a list."""
    return [_place(schedule, rank) for rank in range(schedule.world_size)]


def _place(schedule: CollectiveSchedule, rank: int) -> RankChunks:
    inputs, outputs = input_chunks(schedule, rank).tolist(), output_chunks(schedule, rank).tolist()
    written = set(schedule.chunk[schedule.dst == rank].tolist())
    read = np.unique(schedule.chunk[schedule.src == rank]).tolist()
    home = {chunk: ("o", index) for index, chunk in enumerate(outputs)}
    index_in = {chunk: index for index, chunk in enumerate(inputs)}
    scratch = 0
    for chunk in sorted({*written, *read} - home.keys()):
        if chunk in index_in and chunk not in written:
            home[chunk] = ("i", index_in[chunk])
        else:
            home[chunk] = ("s", scratch)
            scratch += 1
    moves = [(index, *home[chunk]) for chunk, index in index_in.items() if home.get(chunk, "i")[0] != "i"]
    return RankChunks(home, tuple(_runs(moves)), len(inputs), len(outputs), scratch)


def _runs(moves: Iterable[tuple[int, str, int]]) -> list[Run]:
    """(input index, buffer, index) triples with neighbours joined: (input index, buffer, index, count)."""
    runs: list[Run] = []
    for source, buffer, index in moves:
        if runs:
            first, last_buffer, first_index, count = runs[-1]
            if (source, buffer, index) == (first + count, last_buffer, first_index + count):
                runs[-1] = (first, buffer, first_index, count + 1)
                continue
        runs.append((source, buffer, index, 1))
    return runs


def lower(
    checked: CheckedSchedule, names: Mapping[str, str], runtime: str
) -> tuple[CollectiveSchedule, str, list[RankChunks]]:
    """What every export begins with: (schedule, what `runtime` calls its collective, the RankChunks of every rank).

    Args:
        checked: a CheckedSchedule.
        names: collective -> its name there.

    Raises:
        InputError: not checked, or that runtime has no such collective.
    """
    if not isinstance(checked, CheckedSchedule):
        raise InputError(f"{runtime}: got {type(checked).__name__}, expected a CheckedSchedule")
    schedule = checked.schedule
    if schedule.collective not in names:
        wanted = ", ".join(name for name in CONTRACTS if name in names)
        raise InputError(f"{schedule.name}: {runtime} cannot run {schedule.collective}, expected one of {wanted}")
    return schedule, names[schedule.collective], place_chunks(schedule)
