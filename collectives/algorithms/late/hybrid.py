"""late_hybrid: for a late rank that comes before the others' reduce-scatter is done: what is done joins late."""

import numpy as np

from lanterne.collectives.algorithms.late.join import add_join, add_owner_reduce, join_template, no_template
from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, late_builder


def late_hybrid_all_reduce(
    world_size: int, late_rank: int, num_chunks: int | None = None, joined: int | None = None
) -> CollectiveSchedule:
    """Late-join the first `joined` chunks, which the early ranks have summed; then an ordinary ring for the others.

    Default chunk count 2 p; `joined` is half of them where it is not given. Without the wait for an unfinished
    reduce-scatter it costs f + (1 - f) 2 (p - 1) / p of the buffer's time for a share f that was done, so it never
    loses to a ring by much.

    Cost (p = world_size, m = num_chunks, c = m // 2): join = c - 1 + ceil(log2(p)) + 2 * (p - 1) if c else 2 * (p - 1);
    join_load = (c - 1 + ceil(log2(p))) * (c > 0) / m + 2 * (p - 1) * ceil((m - c) / p) / m
    """
    early = world_size - 1
    num_chunks = num_chunks or 2 * world_size
    joined = num_chunks // 2 if joined is None else joined
    template = join_template(world_size) if world_size > 3 else None
    note = ""
    if template is None and world_size > 3:
        joined, note = 0, f"{no_template(world_size)}: a ring takes its place"
    build = late_builder("late_hybrid", world_size, num_chunks, late_rank, note=note)
    build.phase("reduce_scatter")
    if joined:
        add_owner_reduce(build, early, joined)
    build.phase("join")
    if joined:
        add_join(build, world_size, joined, template)
    rest = np.arange(joined, num_chunks)
    for first, op in ((1, REDUCE), (0, COPY)):
        for i in range(world_size - 1 if len(rest) else 0):
            holder = (rest + first + i) % world_size
            build.round((holder, (holder + 1) % world_size, rest, op))
    return build.build()
