"""When each action of a plan starts if a message moves only once its receiver waits for it, or for a later one.

As `simulate`, but a message takes its link when it was sent, the one before it of the same pair has left the link, and
its receive is posted: when the rank that waits for it, or for a later message of the same sender, has ended the action
before. A rank that computes posts nothing; sends never keep a rank from computing.
"""

import numpy as np

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.precedence import Precedences
from lanterne.pipeline.simulate.program import program_of
from lanterne.pipeline.simulate.simulate import Timeline


def simulate_rendezvous(checked: CheckedPlan, problem: Problem) -> Timeline:
    """The Timeline of a CheckedPlan under `problem`, which has no shared links and no data parallelism.

    Cost: some 5 us per action.
    """
    plan, table = checked.plan, costs(problem, checked.plan.placement)
    operations = program_of(plan, table).operations
    duration, latency, occupancy = (
        each.tolist() for each in (operations.duration, operations.latency, operations.occupancy)
    )
    sender, rank_of = operations.source.tolist(), plan.rank_of.tolist()
    made, firsts = Precedences(), set(plan.offsets.tolist())
    for column in range(len(rank_of)):
        made.add(duration[column], *([] if column in firsts else [column - 1]))
    # Pair of ranks -> (column that sends, column that waits), in the order of sending.
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for receiver, source in sorted(enumerate(sender), key=lambda pair: pair[1]):
        if source >= 0 and rank_of[source] != rank_of[receiver]:
            pairs.setdefault((rank_of[source], rank_of[receiver]), []).append((source, receiver))
        elif source >= 0:
            made.wait(receiver, source)
    moves: dict[int, int] = {}
    arrivals: dict[int, int] = {}
    for pair in pairs.values():
        waits = np.minimum.accumulate([receiver for _, receiver in pair][::-1])[::-1].tolist()
        before = None
        for (source, receiver), first in zip(pair, waits, strict=True):
            posts = None if first in firsts else first - 1
            before = moves[source] = made.add(occupancy[source], source, before, posts)
            arrivals[receiver] = made.add(latency[source], before)
            made.wait(receiver, arrivals[receiver])
    starts, ends = made.times()
    count = len(rank_of)
    arrival, sent = np.zeros(count), np.full(count, np.nan)
    for receiver, source in enumerate(sender):
        if source >= 0:
            arrival[receiver] = ends[arrivals.get(receiver, source)]
    for source, move in moves.items():
        if occupancy[source] or latency[source]:
            sent[source] = starts[move]
    end = ends[:count]
    return Timeline(plan, problem, starts[:count], end, arrival, sent, (), float(end.max()), True)
