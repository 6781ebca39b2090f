"""Gather and scatter: parts straight between root and owner, or along a binomial tree, which takes fewest rounds."""

import numpy as np

from lanterne.collectives.algorithms.binomial import from_root, handed_on
from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, Ints, ScheduleBuilder


def direct_gather(world_size: int, root: int) -> CollectiveSchedule:
    """Everybody sends the root its part at once.

    Cost (p = world_size): rounds = min(1, p - 1); load = (p - 1) / p
    """
    build = _direct("gather", world_size, root)
    others = _others(world_size, root)
    if world_size > 1:
        build.round((others, root, others, COPY))
    return build.build()


def direct_scatter(world_size: int, root: int) -> CollectiveSchedule:
    """The root sends everybody its part at once.

    Cost (p = world_size): rounds = min(1, p - 1); load = (p - 1) / p
    """
    build = _direct("scatter", world_size, root)
    others = _others(world_size, root)
    if world_size > 1:
        build.round((root, others, others, COPY))
    return build.build()


def binomial_scatter(world_size: int, root: int) -> CollectiveSchedule:
    """In every round each rank that holds parts of others hands half of them on.

    Cost (p = world_size): rounds = ceil(log2(p)); load = (p - 1) / p
    """
    build = _binomial("scatter", world_size, root)
    for (near, far), part in reversed(handed_on(world_size)):
        build.round((near, far, from_root(world_size, root)[part], COPY))
    return build.build()


def binomial_gather(world_size: int, root: int) -> CollectiveSchedule:
    """The scatter reversed in time.

    Cost (p = world_size): rounds = ceil(log2(p)); load = (p - 1) / p
    """
    build = _binomial("gather", world_size, root)
    for (near, far), part in handed_on(world_size):
        build.round((far, near, from_root(world_size, root)[part], COPY))
    return build.build()


def _direct(collective: str, world_size: int, root: int) -> ScheduleBuilder:
    return ScheduleBuilder(collective, "direct", world_size, world_size, root=root, ports=max(1, world_size - 1))


def _binomial(collective: str, world_size: int, root: int) -> ScheduleBuilder:
    return ScheduleBuilder(
        collective, "binomial", world_size, world_size, rank_of=from_root(world_size, root), root=root
    )


def _others(world_size: int, root: int) -> Ints:
    return np.delete(np.arange(world_size), root)
