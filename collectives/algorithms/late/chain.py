"""late_chain: one pipelined ring through the late rank, for long delays; one flow at each port, so nothing collides."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, ScheduleBuilder, late_builder


def late_chain_all_reduce(
    world_size: int, late_rank: int, num_chunks: int | None = None, *, only: int | None = None
) -> CollectiveSchedule:
    """The early ranks reduce, pipelined, to one; then pieces flow from the late rank to it, where they add, and around.

    Default chunk count 4 (p - 1).

    Cost (p = world_size, m = num_chunks): rounds = (m + p - 3) * (p > 2) + m + p - 1; join = m + p - 1; join_load =
    join / m
    """
    early = world_size - 1
    num_chunks = num_chunks or 4 * early
    build = late_builder("late_chain", world_size, num_chunks, late_rank, only=only)
    add_chain_reduce(build, early, num_chunks)
    add_chain_join(build, early, num_chunks)
    return build.build()


def add_chain_reduce(build: ScheduleBuilder, early: int, num_chunks: int) -> None:
    """Append phase "reduce", num_chunks + early - 2 rounds: from role to role down to 0, which then holds all sums."""
    build.phase("reduce")
    mine = build.mine(early)
    hops = np.union1d(early - 1 - mine, early - 2 - mine)
    hop, chunk = hops[(hops >= 0) & (hops < early - 1)][:, None], np.arange(num_chunks)
    count = num_chunks + early - 2 if early > 1 else 0
    build.rounds(hop + chunk, early - 1 - hop, early - 2 - hop, chunk, REDUCE, count=count)


def add_chain_join(build: ScheduleBuilder, early: int, num_chunks: int) -> None:
    """Append phase "join", num_chunks + early rounds: late role to role 0, which adds, to role 1, ..., back again."""
    build.phase("join")
    mine = build.mine(early + 1)
    hop, chunk = np.union1d(mine, (mine + 1) % (early + 1))[:, None], np.arange(num_chunks)
    op = np.where(hop == 0, REDUCE, COPY)
    build.rounds(hop + chunk, (hop - 1) % (early + 1), hop, chunk, op, count=num_chunks + early)
