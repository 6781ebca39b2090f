"""GPipe: all forwards, then all backwards; the simplest schedule, and the one that holds every activation at once."""

from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem


def gpipe(problem: Problem) -> Plan:
    """The GPipe plan of `problem`, backward fused (BW) and last microbatch first, as back-propagation finds them.

    Cost (no delays, equal stages): makespan (m + p - 1)(F + BW), bubble rate (p - 1) / (m + p - 1); peak activations m.
    Paper: Huang et al. 2019, section 2.3.
    """
    p, m = problem.stages, problem.microbatches
    ranks = [
        [*(Action("F", stage, i) for i in range(m)), *(Action("BW", stage, i) for i in reversed(range(m)))]
        for stage in range(p)
    ]
    return Plan.from_actions(ranks, unidirectional(p), m, "gpipe")
