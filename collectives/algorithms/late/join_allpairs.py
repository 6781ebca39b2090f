"""late_join_allpairs: the late rank exchanges with all owners at once. Few rounds, p - 1 messages at each port."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, late_builder


def late_join_allpairs_all_reduce(world_size: int, late_rank: int, num_chunks: int | None = None) -> CollectiveSchedule:
    """All-pairs reduce-scatter among the early ranks; then round i exchanges slice i and all-gathers slice i - 1.

    A slice has a chunk for every early rank, its owner. Default chunk count 4 (p - 1), so four slices.

    Cost (p = world_size, m = num_chunks): join = ceil(m / (p - 1)) + (p > 2); join_load <= join * (p - 1) / m
    """
    early = world_size - 1
    num_chunks = num_chunks or 4 * early
    build = late_builder("late_join_allpairs", world_size, num_chunks, late_rank, ports=early)
    chunks = np.arange(num_chunks)
    owner = chunks % early
    build.phase("reduce_scatter")
    other = (owner[:, None] + np.arange(1, early)) % early
    if early > 1:
        build.round((other, owner[:, None], chunks[:, None], REDUCE))
    build.phase("join")
    slices = -(-num_chunks // early)
    for stage in range(slices + (early > 1)):
        now, before = chunks[stage * early : (stage + 1) * early], chunks[max(0, stage - 1) * early : stage * early]
        build.round(
            (early, owner[now], now, REDUCE),
            (owner[now], early, now, REDUCE),
            (owner[before][:, None], other[before], before[:, None], COPY),
        )
    return build.build()
