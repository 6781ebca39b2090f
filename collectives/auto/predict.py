"""What the algorithms of a collective are predicted to take, and how predictions are corrected by trials."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lanterne.collectives.algorithms.catalogue import Algorithm, algorithms_for, best_num_chunks, make_schedule
from lanterne.collectives.schedule.cost import CostModel, price
from lanterne.collectives.schedule.ir import CollectiveSchedule, LateRank

# Pipelined algorithms are cut no finer: every message costs the executor some 10 us of Python.
MIN_CHUNK_NBYTES = 16 << 10


class Factor(NamedTuple):
    """An algorithm on buffers of `nbytes` took `factor` times what was predicted."""

    collective: str
    algorithm: str
    nbytes: int
    factor: float


class Prediction(NamedTuple):
    """An algorithm, its num_chunks (None: its own), and the seconds that it is predicted to take."""

    algorithm: str
    num_chunks: int | None
    time_s: float


@functools.cache
def candidates(collective: str, world_size: int) -> tuple[Algorithm, ...]:
    """The registry lines that `auto` chooses from."""
    return tuple(line for line in algorithms_for(collective) if not line.late and not line.refuses(world_size))


@functools.lru_cache(64)
def priced_schedule(
    collective: str, algorithm: str, world_size: int, num_chunks: int | None, late_rank: LateRank = None
) -> CollectiveSchedule:
    """The schedule of a registered algorithm, unchecked, cached."""
    return make_schedule(collective, algorithm, world_size, num_chunks, late_rank=late_rank)


def predictions(collective: str, world_size: int, nbytes: int, model: CostModel) -> list[Prediction]:
    """What every candidate takes by `model`, cheapest first."""
    rows = []
    for line in candidates(collective, world_size):
        chunks = best_num_chunks(line, world_size, nbytes, model, MIN_CHUNK_NBYTES)
        cost = price(priced_schedule(collective, line.name, world_size, chunks), nbytes, model)
        rows.append(Prediction(line.name, chunks, cost.makespan_s))
    return sorted(rows, key=lambda row: row.time_s)


def correction(factors: Iterable[Factor], collective: str, algorithm: str, nbytes: int) -> float:
    """What to multiply a prediction by: interpolated in log(nbytes) between the sizes tried; 1 where none was.

    Larger sizes were not tried because they take long: there the seconds above the prediction stay as they were, since
    they are those of rounds and of the trials' disturbances, not of bytes.
    """
    tried = sorted((row.nbytes, row.factor) for row in factors if row[:2] == (collective, algorithm))
    if not tried:
        return 1.0
    sizes, values = np.array(tried).T
    beyond = max(1.0, nbytes / sizes[-1])
    return float(1 + (np.interp(np.log(max(nbytes, 1)), np.log(sizes), values) - 1) / beyond)


def corrected(rows: Iterable[Prediction], factors: Sequence[Factor], collective: str, nbytes: int) -> list[Prediction]:
    """`rows` with their seconds corrected by trials, cheapest first."""
    rows = [row._replace(time_s=row.time_s * correction(factors, collective, row.algorithm, nbytes)) for row in rows]
    return sorted(rows, key=lambda row: row.time_s)
