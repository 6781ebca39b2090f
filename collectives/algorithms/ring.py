"""Ring: every rank passes one chunk a round to its right neighbour. Fewest bytes, rounds grow with p."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, ScheduleBuilder, distinct


def ring_all_reduce(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Reduce-scatter around the ring, then all-gather around it.

    Cost (p = world_size): rounds = 2 * (p - 1); load = 2 * (p - 1) / p
    Paper: Patarasuk and Yuan 2009; StragglAR (arXiv 2505.23523), appendix F.
    """
    build = ScheduleBuilder("all_reduce", "ring", world_size, world_size, only=only)
    build.phase("reduce_scatter")
    ring_rounds(build, world_size, -1, REDUCE)
    build.phase("all_gather")
    ring_rounds(build, world_size, 0, COPY)
    return build.build()


def ring_reduce_scatter(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Every sum travels once around the ring and ends at its owner.

    Cost (p = world_size): rounds = p - 1; load = (p - 1) / p
    Paper: Patarasuk and Yuan 2009.
    """
    build = ScheduleBuilder("reduce_scatter", "ring", world_size, world_size, only=only)
    ring_rounds(build, world_size, -1, REDUCE)
    return build.build()


def ring_all_gather(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Every part travels once around the ring.

    Cost (p = world_size): rounds = p - 1; load = (p - 1) / p
    Paper: Patarasuk and Yuan 2009.
    """
    build = ScheduleBuilder("all_gather", "ring", world_size, world_size, only=only)
    ring_rounds(build, world_size, 0, COPY)
    return build.build()


def ring_rounds(build: ScheduleBuilder, size: int, first: int, op: int) -> None:
    """Append size - 1 rounds among roles 0 to size - 1; in round i role r sends chunk r + first - i to its right."""
    mine = build.mine(size)
    senders = distinct(mine, (mine - 1) % size)
    i = np.arange(size - 1)[:, None]
    build.rounds(i, senders, (senders + 1) % size, (senders + first - i) % size, op, count=size - 1)
