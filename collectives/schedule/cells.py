"""What the checker knows of a schedule while it runs: which contributions every touched (rank, chunk) holds.

Sets are rows of 64-bit words, kept only for the cells that some transfer touches. Where a part starts on one rank, one
bit says all there is to say.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.contracts import EVERY, Contract, ends_at, starts_at
from lanterne.collectives.schedule.ir import CollectiveSchedule, Ints

# Words of sets, a row for each.
Sets: TypeAlias = NDArray[np.uint64]


class Cells:
    """The touched (rank, chunk) cells, sorted by key = rank * num_chunks + chunk, and the set that each holds."""

    def __init__(self, schedule: CollectiveSchedule, contract: Contract):
        count = schedule.num_transfers
        from_keys = schedule.src.astype(np.int64) * schedule.num_chunks + schedule.chunk
        to_keys = schedule.dst.astype(np.int64) * schedule.num_chunks + schedule.chunk
        keys, places = number_keys(np.concatenate([from_keys, to_keys]), schedule.world_size * schedule.num_chunks)
        self.keys: Ints = keys
        self.src: Ints = places[:count]
        self.dst: Ints = places[count:]
        self.rank: Ints = keys // schedule.num_chunks
        self.chunk: Ints = keys % schedule.num_chunks
        self.starts: Ints = starts_at(schedule, self.chunk)
        self.ends: Ints = ends_at(schedule, self.chunk)
        full = full_set(schedule.world_size if contract.reduces else 1)
        # What a result has to be: a row for all cells, or one for each.
        self.full: Sets = full if contract.prefix is None else _first_ranks(self.rank + contract.prefix, len(full))
        self.sets: Sets = np.zeros((len(self.keys), len(full)), np.uint64)
        held = np.flatnonzero((self.starts == EVERY) | (self.starts == self.rank))
        bit = self.rank[held] if contract.reduces else np.zeros_like(held)
        self.sets[held, bit // 64] = np.uint64(1) << (bit % 64).astype(np.uint64)
        # Of each cell that holds some contribution twice, the transfer that added it so, else -1; None: no cell does.
        self.spoilt: Ints | None = None
        # Those transfers, and what each added twice.
        self.doubled: list[tuple[Ints, Sets]] = []

    def spoil(self, cells: Ints, transfers: Ints, twice: Sets) -> None:
        """Note that `transfers` added to `cells` what `twice` names, which these held."""
        if self.spoilt is None:
            self.spoilt = np.full(len(self.keys), -1)
        self.spoilt[cells] = np.where(self.spoilt[cells] < 0, transfers, self.spoilt[cells])
        self.doubled.append((transfers, twice))

    def contributors(self, cell: "int | np.integer[Any]", words: Sets) -> list[int]:
        """The ranks whose contributions the set `words` of `cell` names, ascending."""
        if self.starts[cell] != EVERY:
            return [int(self.starts[cell])]
        return [64 * i + bit for i, word in enumerate(words.tolist()) for bit in range(64) if word >> bit & 1]


def number_keys(keys: Ints, limit: int) -> tuple[Ints, Ints]:
    """(distinct keys ascending, place of each key among them), as np.unique gives them; keys are below `limit`."""
    if limit > 8 * len(keys):
        return np.unique(keys, return_inverse=True)
    # Most cells are touched: marking them is several times faster than sorting.
    place = np.zeros(limit, np.int64)
    place[keys] = 1
    distinct = np.flatnonzero(place)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[keys]


def full_set(size: int) -> Sets:
    """The words of the set of all ranks below `size`."""
    full = np.full((size + 63) // 64, ~np.uint64(0))
    if size % 64:
        full[-1] = (np.uint64(1) << np.uint64(size % 64)) - np.uint64(1)
    return full


def _first_ranks(counts: Ints, words: int) -> Sets:
    """The words of the sets of all ranks below each of `counts`: a row for each."""
    bits = np.clip(counts[:, None] - 64 * np.arange(words), 0, 64).astype(np.uint64)
    # A shift by 64 bits does nothing.
    return np.where(bits == 0, np.uint64(0), ~np.uint64(0) >> (np.uint64(64) - np.maximum(bits, np.uint64(1))))
