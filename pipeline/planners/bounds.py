"""Proved lower bounds on the makespan of every plan of a problem on a placement, whatever its order, parts and fusing.

Heads. Consider the k-th F, B or W *to end* on a stage. When it ends, k pieces of that kind have ended there, so have k
of each kind they need, there and on other stages; and the rank has worked on all of these that are its own. So it ends
no earlier than the earliest time by which one machine can do those, each after its release, even if it may interrupt
them. The release of a k-th piece is the end of the k-th of what it needs, after the message; with memory for C
activations that of the k-th F is also the end of the (k - C)-th W, by when the rank has done the work of those W too.
Microbatches need not pass in one order for that, only be counted. (heads.py)

Tails. The same with time reversed: what must follow the k-th last piece.

Bound. On each rank, the pieces with their heads and tails are a one-machine problem; its preemptive optimum (Jackson's
rule) is at most the makespan. So is that of the messages on each link, and of a rank's data-parallel communication.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lanterne.pipeline.plan.action import KINDS
from lanterne.pipeline.plan.costs import Costs, Ints, costs
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.problem import TIMES, Problem
from lanterne.pipeline.planners.heads import MessageChain, memory_coupling, releases_of, reversed_chain

F, B, W = (KINDS.index(kind) for kind in ("F", "B", "W"))

# (head, duration, tail)
Job: TypeAlias = tuple[float, float, float]


class Bounds(NamedTuple):
    """What limits a problem on a placement; `lower_bound` is the largest of them.

    Attributes:
        work: (num_ranks,) by rank: heads, all its work, tails; memory is in the heads and tails.
        link: (num_links,) the same for the messages of each link that takes time.
        lane: (num_ranks,) the same for the data-parallel communication of each rank.
    """

    work: tuple[float, ...]
    link: tuple[float, ...]
    lane: tuple[float, ...]

    @property
    def lower_bound(self) -> float:
        return max(*self.work, *self.link, *self.lane)


def lower_bound(problem: Problem, placement: Placement) -> float:
    """A makespan that no plan of `problem` on `placement` can be below."""
    return bounds(problem, placement).lower_bound


@lru_cache(maxsize=64)
def bounds(problem: Problem, placement: Placement) -> Bounds:
    """The Bounds of `problem` on `placement`.

    Cost: some 5 ms for 8 ranks x 32 microbatches, 0.5 s for 64 x 256.
    """
    if problem.microbatch_lengths is not None:
        return _of_unequal_lengths(problem, placement, problem.microbatch_lengths)
    table = costs(problem, placement)
    work: list[list[Job]] = [[] for _ in range(placement.num_ranks)]
    link: list[list[Job]] = [[] for _ in range(table.num_links)]
    lane: list[list[Job]] = [[] for _ in range(placement.num_ranks)]
    for route in range(placement.num_routes):
        stages = np.arange(placement.route_length) + route * placement.route_length
        count = len(placement.microbatches_of(stages[0], problem.microbatches))
        if count:
            _add_route(table, stages, count, work, link, lane)
    return Bounds(*(tuple(map(preemptive_makespan, jobs)) for jobs in (work, link, lane)))


def _of_unequal_lengths(problem: Problem, placement: Placement, lengths: Sequence[float]) -> Bounds:
    """As if all microbatches were as short as the shortest; and each rank works for as long as it must, once the first
    microbatch can have come to it.
    """
    shortest = min(lengths)
    times: dict[str, Any] = {key: tuple(shortest * time for time in getattr(problem, key)) for key in TIMES}
    again = problem.recompute and problem.recompute._replace(time=tuple(shortest * t for t in problem.recompute.time))
    even = replace(problem, **times, recompute=again, microbatch_lengths=None)
    least, table = bounds(even, placement), costs(even, placement)
    head, busy, came = np.full(placement.num_ranks, inf), np.zeros(placement.num_ranks), 0.0
    for stage in range(placement.num_stages):
        rank, sent = placement.stage_to_rank[stage], table.id(F, stage, 0)
        if stage % placement.route_length == 0:
            came = 0.0
        head[rank] = min(head[rank], came)
        came += float(table.duration[sent] + table.occupancy[sent] + table.latency[sent])
        own = sum(lengths[each] for each in placement.microbatches_of(stage, problem.microbatches)) / shortest
        busy[rank] += own * sum(float(table.duration[table.id(kind, stage, 0)]) for kind in (F, B, W))
    return least._replace(work=tuple(np.maximum(least.work, head + busy).tolist()))


def _add_route(
    table: Costs, stages: Ints, count: int, work: list[list[Job]], link: list[list[Job]], lane: list[list[Job]]
) -> None:
    """Append the Jobs of all pieces and messages of one route to the lists of their rank or link."""
    at = {kind: table.id(kind, stages, 0) for kind in (F, B, W)}
    duration = {kind: table.duration[at[kind]] for kind in at}
    occupancy, latency = ({kind: column[at[kind]] for kind in (F, B)} for column in (table.occupancy, table.latency))
    up, down = MessageChain(+1, occupancy[F], latency[F]), MessageChain(-1, occupancy[B], latency[B])
    levels, rank = [(duration[F], up), (duration[B], down), (duration[W], None)], table.stage_rank[stages]
    ahead = releases_of(
        levels, table.all_gather[stages], memory_coupling(table, stages, count, is_reversed=False), rank, count
    )
    # Reversed, W comes first and F last, and messages go the other way, each kept by the stage that now sends it.
    back_up, back_down = reversed_chain(down), reversed_chain(up)
    levels = [(duration[W], None), (duration[B], back_up), (duration[F], back_down)]
    behind = releases_of(
        levels, table.reduce[stages], memory_coupling(table, stages, count, is_reversed=True), rank, count
    )
    for level, kind in enumerate((F, B, W)):
        heads, tails = ahead[level], behind[2 - level][:, ::-1]
        for i, stage in enumerate(stages.tolist()):
            holder = table.stage_rank[stage]
            work[holder] += zip(heads[i].tolist(), [float(duration[kind][i])] * count, tails[i].tolist(), strict=True)
            if kind == F:
                lane[holder].append((0.0, float(table.all_gather[stage]), float(duration[F][i] + tails[i, 0])))
            if kind == W:
                lane[holder].append((float(heads[i, -1] + duration[W][i]), float(table.reduce[stage]), 0.0))
    for kind, step in ((F, 1), (B, -1)):
        for i, stage in enumerate(stages.tolist()):
            used = table.link[table.id(kind, stage, 0)]
            if used >= 0:
                heads = ahead[kind][i] + duration[kind][i]
                tails = behind[2 - kind][i + step, ::-1] + duration[kind][i + step] + latency[kind][i]
                link[used] += zip(heads.tolist(), [float(occupancy[kind][i])] * count, tails.tolist(), strict=True)


def preemptive_makespan(jobs: Iterable[Job]) -> float:
    """The least possible largest end + tail on one machine that may interrupt its jobs; exact, by Jackson's rule.

    Cost: O(n log n).
    Paper: Carlier 1982, section 2.
    """
    ordered = sorted(jobs)
    now, best, coming = 0.0, 0.0, 0
    waiting: list[tuple[float, float]] = []
    while waiting or coming < len(ordered):
        if not waiting:
            now = max(now, ordered[coming][0])
        while coming < len(ordered) and ordered[coming][0] <= now:
            _, duration, tail = ordered[coming]
            heappush(waiting, (-tail, duration))
            coming += 1
        minus_tail, left = waiting[0]
        until = ordered[coming][0] if coming < len(ordered) else inf
        if now + left > until:
            heapreplace(waiting, (minus_tail, left - (until - now)))
            now = until
        else:
            heappop(waiting)
            now += left
            best = max(best, now - minus_tail)
    return best
