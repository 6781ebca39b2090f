"""Pairwise exchange: an all-to-all in which every part goes straight to its owner. Fewest bytes, one port."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, ScheduleBuilder


def pairwise_all_to_all(world_size: int) -> CollectiveSchedule:
    """In round i every rank sends to the rank i + 1 places to its right.

    Cost (p = world_size): rounds = p - 1; load = (p - 1) / p
    """
    build = ScheduleBuilder("all_to_all", "pairwise", world_size, world_size**2)
    ranks = np.arange(world_size)
    for distance in range(1, world_size):
        peers = (ranks + distance) % world_size
        build.round((ranks, peers, ranks * world_size + peers, COPY))
    return build.build()
