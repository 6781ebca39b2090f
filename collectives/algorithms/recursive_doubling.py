"""Recursive doubling: partners exchange their whole sums. Fewest rounds, many bytes: for small buffers."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, ScheduleBuilder


def recursive_doubling_all_reduce(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Partners at distances 1, 2, 4, ... add each other's sums; beyond a power of two extra ranks use a partner.

    Cost (p = world_size): rounds = floor(log2(p)) + 2 * (p > 2 ** floor(log2(p))); load = rounds
    Paper: Thakur, Rabenseifner and Gropp 2005.
    """
    size = 2 ** (world_size.bit_length() - 1)
    extra = np.arange(size, world_size)
    build = ScheduleBuilder("all_reduce", "recursive_doubling", world_size, 1, only=only)
    build.phase("fold")
    if size < world_size:
        build.round((extra, extra - size, 0, REDUCE))
    build.phase("exchange")
    ranks = np.arange(size)
    for level in range(size.bit_length() - 1):
        build.round((ranks, ranks ^ (1 << level), 0, REDUCE))
    build.phase("unfold")
    if size < world_size:
        build.round((extra - size, extra, 0, COPY))
    return build.build()
