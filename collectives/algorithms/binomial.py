"""Binomial tree: all that have the data send it on in every round. Fewest rounds, whole buffers."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, Ints, ScheduleBuilder
from lanterne.collectives.schedule.passes import reverse


def binomial_broadcast(world_size: int, root: int, *, only: int | None = None) -> CollectiveSchedule:
    """The number of ranks that have the buffer doubles every round.

    Cost (p = world_size): rounds = ceil(log2(p)); load = ceil(log2(p))
    """
    rank_of = from_root(world_size, root)
    build = ScheduleBuilder("broadcast", "binomial", world_size, 1, rank_of=rank_of, root=root, only=only)
    have = 1
    while have < world_size:
        senders = np.arange(min(have, world_size - have))
        build.round((senders, senders + have, 0, COPY))
        have += len(senders)
    return build.build()


def binomial_reduce(world_size: int, root: int, *, only: int | None = None) -> CollectiveSchedule:
    """The broadcast reversed in time.

    Cost (p = world_size): rounds = ceil(log2(p)); load = ceil(log2(p))
    """
    return reverse(binomial_broadcast(world_size, root, only=only), "reduce")


def from_root(world_size: int, root: int) -> Ints:
    """Ranks by role: role 0 is the root, the others follow around the circle."""
    return (np.arange(world_size) + root) % world_size
