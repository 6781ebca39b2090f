"""Simulation of messages that move only once their receiver waits for them, or for a later one.

As `simulate`, but a message takes its link when it was sent, the one before it of the same pair has left the link, and
its receive is posted: when the rank that waits for it, or for a later message of the same sender, has ended the action
before. A rank that computes posts nothing; sends never keep a rank from computing.
"""

import numpy as np

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.precedence import PlanPrecedences
from lanterne.pipeline.simulate.program import program_of
from lanterne.pipeline.simulate.simulate import Timeline, timeline_of


def simulate_rendezvous(checked: CheckedPlan, problem: Problem) -> Timeline:
    """Return the Timeline of a CheckedPlan under `problem`, which has no shared links and no data parallelism.

    Cost: some 5 us per action.
    """
    plan = checked.plan
    operations = program_of(plan, costs(problem, plan.placement)).operations
    lane, source = operations.lane.tolist(), operations.source.tolist()
    made, firsts = PlanPrecedences(operations), set(plan.offsets.tolist())
    # Pair of ranks -> (column that sends, column that waits), in the order of sending.
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for receiver, sender in sorted(enumerate(source), key=lambda pair: pair[1]):
        if sender >= 0 and lane[sender] != lane[receiver]:
            pairs.setdefault((lane[sender], lane[receiver]), []).append((sender, receiver))
    for pair in pairs.values():
        waits = np.minimum.accumulate([receiver for _, receiver in pair][::-1])[::-1].tolist()
        before = None
        for (sender, _), first in zip(pair, waits, strict=True):
            made.send(sender, sender, before, None if first in firsts else first - 1)
            before = made.moves[sender]
    start, arrival = made.starts_and_arrivals()
    return timeline_of(plan, problem, operations, start, arrival, in_order=True)
