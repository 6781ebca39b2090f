"""Pipelined chain: pieces flow through all ranks in a row, one rank a round. Fewest bytes for long buffers."""

import numpy as np

from lanterne.collectives.algorithms.binomial import from_root
from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, Ints, ScheduleBuilder
from lanterne.collectives.schedule.passes import reverse


def chain_broadcast(world_size: int, root: int, num_chunks: int | None = None) -> CollectiveSchedule:
    """Root to neighbour to neighbour; every rank sends one piece and receives the next in the same round.

    Cost (p = world_size, m = num_chunks): rounds = (m + p - 2) * (p > 1); load = rounds / m
    """
    num_chunks = num_chunks or world_size
    build = ScheduleBuilder(
        "broadcast", "chain", world_size, num_chunks, rank_of=from_root(world_size, root), root=root
    )
    add_chain(build, np.arange(world_size - 1), num_chunks, COPY)
    return build.build()


def add_chain(build: ScheduleBuilder, links: Ints, num_chunks: int, op: int) -> None:
    """Rounds in which pieces flow along `links`, consecutive ranks (or roles) each of which sends to the next."""
    for i in range(num_chunks + len(links) - 1 if len(links) else 0):
        active = np.arange(max(0, i - num_chunks + 1), min(i + 1, len(links)))
        build.round((links[active], links[active] + 1, i - active, op))


def chain_reduce(world_size: int, root: int, num_chunks: int | None = None) -> CollectiveSchedule:
    """The broadcast reversed in time: partial sums flow to the root.

    Cost (p = world_size, m = num_chunks): rounds = (m + p - 2) * (p > 1); load = rounds / m
    """
    return reverse(chain_broadcast(world_size, root, num_chunks), "reduce")
