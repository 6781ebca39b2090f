"""late_direct: the others finish their sum, and the late rank exchanges with all in one round. For small buffers."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, late_builder


def late_direct_all_reduce(world_size: int, late_rank: int) -> CollectiveSchedule:
    """All-pairs all-reduce of the early ranks; the late one sends its buffer to each, and each a part of the sum to it.

    Everybody then adds two numbers, so that all have the same bits. From the late rank's arrival it takes one start-up
    time, where an all-reduce of all has two at least; its port sends the buffer p - 1 times.

    Cost (p = world_size): join = 1; join_load = p - 1
    """
    early = world_size - 1
    build = late_builder("late_direct", world_size, early, late_rank, ports=early)
    owner = np.arange(early)
    other = (owner[:, None] + np.arange(1, early)) % early
    build.phase("reduce_scatter")
    if early > 1:
        build.round((other, owner[:, None], owner[:, None], REDUCE))
        build.round((owner[:, None], other, owner[:, None], COPY))
    build.phase("join")
    build.round((early, owner[:, None], owner, REDUCE), (owner, early, owner, REDUCE))
    return build.build()
