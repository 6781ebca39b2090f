"""All pairs: every rank exchanges with every other at once. Fewest rounds and bytes, p - 1 messages at each port."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, Ints, ScheduleBuilder


def allpairs_all_reduce(world_size: int) -> CollectiveSchedule:
    """Everybody sends each owner its chunk, the owners add and send the sums to everybody.

    Cost (p = world_size): rounds = 2 * min(1, p - 1); load = 2 * (p - 1) / p
    Paper: MSCCL (Cowan et al. 2023); StragglAR (arXiv 2505.23523), appendix F.
    """
    build = _builder("all_reduce", world_size, world_size)
    build.phase("reduce_scatter")
    _to_owners(build, world_size)
    build.phase("all_gather")
    _from_owners(build, world_size)
    return build.build()


def allpairs_reduce_scatter(world_size: int) -> CollectiveSchedule:
    """Everybody sends each owner its part at once.

    Cost (p = world_size): rounds = min(1, p - 1); load = (p - 1) / p
    Paper: MSCCL (Cowan et al. 2023).
    """
    build = _builder("reduce_scatter", world_size, world_size)
    _to_owners(build, world_size)
    return build.build()


def allpairs_all_gather(world_size: int) -> CollectiveSchedule:
    """Every owner sends its part to everybody at once.

    Cost (p = world_size): rounds = min(1, p - 1); load = (p - 1) / p
    Paper: MSCCL (Cowan et al. 2023).
    """
    build = _builder("all_gather", world_size, world_size)
    _from_owners(build, world_size)
    return build.build()


def allpairs_all_to_all(world_size: int) -> CollectiveSchedule:
    """Everybody sends everybody its part at once.

    Cost (p = world_size): rounds = min(1, p - 1); load = (p - 1) / p
    """
    build = _builder("all_to_all", world_size, world_size**2)
    if world_size > 1:
        owner, other = _pairs(world_size)
        build.round((owner, other, owner * world_size + other, COPY))
    return build.build()


def _builder(collective: str, world_size: int, num_chunks: int) -> ScheduleBuilder:
    return ScheduleBuilder(collective, "allpairs", world_size, num_chunks, ports=max(1, world_size - 1))


def _pairs(world_size: int) -> tuple[Ints, Ints]:
    """(owner, other) of all ordered pairs, by owner; the others start at its right neighbour."""
    owner = np.repeat(np.arange(world_size), world_size - 1)
    distance = np.tile(np.arange(1, world_size), world_size)
    return owner, (owner + distance) % world_size


def _to_owners(build: ScheduleBuilder, world_size: int) -> None:
    if world_size > 1:
        owner, other = _pairs(world_size)
        build.round((other, owner, owner, REDUCE))


def _from_owners(build: ScheduleBuilder, world_size: int) -> None:
    if world_size > 1:
        owner, other = _pairs(world_size)
        build.round((owner, other, owner, COPY))
