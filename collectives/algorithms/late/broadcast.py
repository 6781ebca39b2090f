"""StragglAR's straggler-aware baseline: finish without the late rank, then add its buffer whole and broadcast."""

import numpy as np

from lanterne.collectives.algorithms.ring import ring_rounds
from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, late_builder


def late_broadcast_all_reduce(world_size: int, late_rank: int) -> CollectiveSchedule:
    """Ring all-reduce among the early ranks; then the late rank and one other exchange whole buffers and broadcast.

    Cost (p = world_size): rounds = 2 * (p - 2) + ceil(log2(p)); load = 2 * (p - 2) / (p - 1) + ceil(log2(p))
    Paper: StragglAR (arXiv 2505.23523), appendix F.
    """
    early = world_size - 1
    build = late_builder("late_broadcast", world_size, early, late_rank)
    build.phase("reduce_scatter")
    ring_rounds(build, early, -1, REDUCE)
    build.phase("all_gather")
    ring_rounds(build, early, 0, COPY)
    build.phase("join")
    chunks = np.arange(early)
    build.round((early, 0, chunks, REDUCE), (0, early, chunks, REDUCE))
    # Roles that have the result: the late one, then 0, 1, 2, ...
    order = np.r_[early, np.arange(early)]
    have = 2
    while have < world_size:
        count = min(have, world_size - have)
        build.round((order[:count, None], order[have : have + count, None], chunks, COPY))
        have += count
    return build.build()
