"""Scans: rank r ends with the reduction over ranks 0 to r, or, exclusive, over those before it."""

import numpy as np

from lanterne.collectives.algorithms.pipelined_chain import add_chain
from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, ScheduleBuilder


def doubling_scan(world_size: int) -> CollectiveSchedule:
    """Every rank adds what the rank 1, 2, 4, ... places before it has; fewest rounds.

    Cost (p = world_size): rounds = ceil(log2(p)); load = ceil(log2(p))
    Paper: Hillis and Steele 1986.
    """
    build = ScheduleBuilder("scan", "doubling", world_size, 1)
    _doubling(build, 0, world_size)
    return build.build()


def chain_scan(world_size: int, num_chunks: int | None = None) -> CollectiveSchedule:
    """Pieces flow through all ranks in a row, and each adds its own; fewest bytes.

    Cost (p = world_size, m = num_chunks): rounds = (m + p - 2) * (p > 1); load = rounds / m
    """
    build = ScheduleBuilder("scan", "chain", world_size, num_chunks or world_size)
    add_chain(build, np.arange(world_size - 1), num_chunks or world_size, REDUCE)
    return build.build()


def doubling_exscan(world_size: int) -> CollectiveSchedule:
    """Everybody hands its buffer to the next rank; then the scan of all but rank 0.

    Cost (p = world_size): rounds = (p > 1) + ceil(log2(p - (p > 1))); load = rounds
    """
    build = ScheduleBuilder("exscan", "doubling", world_size, 1)
    _shift(build, world_size, 1)
    _doubling(build, 1, world_size)
    return build.build()


def chain_exscan(world_size: int, num_chunks: int | None = None) -> CollectiveSchedule:
    """As doubling_exscan, with the scan along the chain.

    Cost (p = world_size, m = num_chunks): rounds = (p > 1) + (m + p - 3) * (p > 2); load = (rounds - 1 + m) / m
    """
    num_chunks = num_chunks or world_size
    build = ScheduleBuilder("exscan", "chain", world_size, num_chunks)
    _shift(build, world_size, num_chunks)
    add_chain(build, np.arange(1, world_size - 1), num_chunks, REDUCE)
    return build.build()


def _shift(build: ScheduleBuilder, world_size: int, num_chunks: int) -> None:
    if world_size > 1:
        rank = np.arange(world_size - 1)[:, None]
        build.round((rank, rank + 1, np.arange(num_chunks), COPY))


def _doubling(build: ScheduleBuilder, first: int, world_size: int) -> None:
    """The rounds of a scan of ranks `first` and on."""
    distance = 1
    while first + distance < world_size:
        rank = np.arange(first, world_size - distance)
        build.round((rank, rank + distance, 0, REDUCE))
        distance *= 2
