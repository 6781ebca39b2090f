"""Scatter, then all-gather: a broadcast that moves each byte about twice and takes few rounds."""

import numpy as np

from lanterne.collectives.algorithms.binomial import from_root, handed_on
from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, ScheduleBuilder
from lanterne.collectives.schedule.passes import reverse


def scatter_allgather_broadcast(world_size: int, root: int) -> CollectiveSchedule:
    """A binomial tree gives every rank its part, then Bruck's all-gather; nobody receives a part twice.

    Cost (p = world_size): rounds = 2 * ceil(log2(p)); load = 2 * (p - 1) / p
    Paper: Barnett et al. 1994 (van de Geijn).
    """
    build = ScheduleBuilder(
        "broadcast", "scatter_allgather", world_size, world_size, rank_of=from_root(world_size, root), root=root
    )
    has = np.eye(world_size, dtype=bool)
    has[0] = True
    build.phase("scatter")
    for (near, far), part in reversed(handed_on(world_size)):
        build.round((near, far, part, COPY))
        has[far, part] = True
    build.phase("all_gather")
    for level in range((world_size - 1).bit_length()):
        held = 2**level
        role = np.arange(world_size)[:, None]
        sender, part = np.broadcast_arrays(role, (role + np.arange(min(held, world_size - held))) % world_size)
        receiver = (sender - held) % world_size
        new = ~has[receiver, part]
        build.round((sender[new], receiver[new], part[new], COPY))
        has[receiver, part] = True
    return build.build()


def scatter_allgather_reduce(world_size: int, root: int) -> CollectiveSchedule:
    """The broadcast reversed in time: reduce-scatter, then gather.

    Cost (p = world_size): rounds = 2 * ceil(log2(p)); load = 2 * (p - 1) / p
    Paper: Rabenseifner 2004.
    """
    return reverse(scatter_allgather_broadcast(world_size, root), "reduce")
