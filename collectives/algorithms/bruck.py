"""Bruck: rounds of doubling distance around a circle, for any p. Fewest rounds, mostly also fewest bytes."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, ScheduleBuilder, distinct
from lanterne.collectives.schedule.passes import chain, reverse


def bruck_all_gather(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Every rank hands all that it holds to the rank 1, 2, 4, ... places to its left.

    Cost (p = world_size): rounds = ceil(log2(p)); load = (p - 1) / p
    Paper: Bruck et al. 1997.
    """
    build = ScheduleBuilder("all_gather", "bruck", world_size, world_size, only=only)
    doubling_rounds(build, world_size)
    return build.build()


def bruck_reduce_scatter(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """The all-gather reversed in time.

    Cost (p = world_size): rounds = ceil(log2(p)); load = (p - 1) / p
    Paper: Traeff 2024 (arXiv 2410.14234).
    """
    return reverse(bruck_all_gather(world_size, only=only), "reduce_scatter")


def bruck_all_reduce(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Reduce-scatter, then all-gather: fewest rounds among those that move fewest bytes, for any p.

    Cost (p = world_size): rounds = 2 * ceil(log2(p)); load = 2 * (p - 1) / p
    Paper: Traeff 2024 (arXiv 2410.14234).
    """
    sums, parts = bruck_reduce_scatter(world_size, only=only), bruck_all_gather(world_size, only=only)
    return chain("all_reduce", {"reduce_scatter": sums, "all_gather": parts})


def bruck_all_to_all(world_size: int) -> CollectiveSchedule:
    """In round i every part whose way has bit i set moves 2 ** i places to the right; others pass it on.

    Cost (p = world_size): rounds = ceil(log2(p)); load = sum(bin(way).count("1") for way in range(p)) / p
    Paper: Bruck et al. 1997.
    """
    build = ScheduleBuilder("all_to_all", "bruck", world_size, world_size**2)
    source, way = np.divmod(np.arange(world_size**2), world_size)
    part = source * world_size + (source + way) % world_size
    for bit in range((world_size - 1).bit_length()):
        moving = way >> bit & 1 == 1
        at = source[moving] + way[moving] % 2**bit
        build.round((at % world_size, (at + 2**bit) % world_size, part[moving], COPY))
    return build.build()


def dissemination_barrier(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Every rank learns that all have come, from those it has heard of: Bruck's all-gather of nothing.

    Cost (p = world_size): rounds = ceil(log2(p)); load = 0
    Paper: Hensgen, Finkel and Manber 1988.
    """
    build = ScheduleBuilder("barrier", "dissemination", world_size, world_size, only=only)
    doubling_rounds(build, world_size)
    return build.build()


def doubling_rounds(build: ScheduleBuilder, size: int) -> None:
    """Append the rounds after which every role has the chunks of all: role r holds r, r + 1, ... before each."""
    held = 1
    while held < size:
        count = min(held, size - held)
        mine = build.mine(size)
        roles = distinct(mine, (mine + held) % size)[:, None]
        build.round((roles, (roles - held) % size, (roles + np.arange(count)) % size, COPY))
        held += count
