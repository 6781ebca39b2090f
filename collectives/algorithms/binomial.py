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


def handed_on(world_size: int) -> list[tuple[tuple[Ints, Ints], Ints]]:
    """Per distance 1, 2, 4, ...: ((roles nearer to the root, roles further away), roles whose parts go between)."""
    rounds = []
    for level in range((world_size - 1).bit_length()):
        part = np.arange(world_size)
        part = part[part >> level & 1 == 1]
        far = part >> level << level
        rounds.append(((far - 2**level, far), part))
    return rounds


def from_root(world_size: int, root: int) -> Ints:
    """Ranks by role: role 0 is the root, the others follow around the circle."""
    return (np.arange(world_size) + root) % world_size
