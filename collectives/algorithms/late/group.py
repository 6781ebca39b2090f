"""late_group: for several late ranks; the others hold their sums by chunks, and every port has one flow at a time."""

import numpy as np

from lanterne.collectives.algorithms.late.join import add_owner_reduce
from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, LateRank, late_builder, late_set

# Some owners have the last that goes into a sum from the round before it would be sent: a message's start lies between.
SLACK = 1


def late_group_all_reduce(world_size: int, late_rank: LateRank, num_chunks: int | None = None) -> CollectiveSchedule:
    """Reduce-scatter among the early ranks; then the late ones send their chunks to the owners, which send the sums.

    A slice has a chunk for every early rank, its owner. In stage i the late ranks bring those of slice i, and the
    owners send the sums of slice i - 1 to all others, SLACK rounds later than they could. A stage is p - 1 rounds; in
    one, all ranks send equally far around the circle of ranks. Default chunk count 4 slices.

    Args:
        late_rank: one rank, or a tuple of several, in any order; at most p - 1.

    Cost (p = world_size, m = num_chunks): join <= (ceil(m / (p - 1)) + 1) * (p - 1) + 1; join_load = join / m

    That is with one late rank. With k of them and r slices the join's load is (p - 1) / (p - k) times (r + 1) / r, and
    SLACK rounds; no schedule goes below (p - 1 + k) / p, and a ring has 2 (p - 1) / p. (Some come near that, where late
    ranks add for each other and pass sums on, 1.16 for 1.17 of 8 ranks with two late: found round by round they have no
    time for starts, and take 1.37.)
    """
    late = late_set(late_rank)
    early = world_size - len(late)
    num_chunks = num_chunks or 4 * early
    build = late_builder("late_group", world_size, num_chunks, late_rank)
    build.phase("reduce_scatter")
    add_owner_reduce(build, early, num_chunks)
    build.phase("join")
    src, stage = np.arange(world_size), world_size - 1
    for index in range((-(-num_chunks // early) + 1) * stage + SLACK):
        dst = (src + index % stage + 1) % world_size
        brought = index // stage * early + dst
        summed = ((index - SLACK) // stage - 1) * early + src
        brings = (src >= early) & (dst < early) & (brought < num_chunks)
        sends = (src < early) & (summed >= 0) & (summed < num_chunks)
        if brings.any() or sends.any():
            build.round(
                (src[brings], dst[brings], brought[brings], REDUCE), (src[sends], dst[sends], summed[sends], COPY)
            )
    return build.build()
