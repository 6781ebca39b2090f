"""ZB-H2: twice the warm-up of 1F1B, so that no rank waits between its first and its last action."""

from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.schedules.warmup import alternate


def zb_h2(problem: Problem) -> Plan:
    """The ZB-H2 plan of `problem`: rank r warms up with 2 (p - r) - 1 forwards and puts W off by 2 r microbatches.

    Cost (no delays, equal stages, F = B = W, m >= 2 p - 1): no bubbles once a rank has begun; peak activations 2 p - 1.
    Paper: Qi et al. 2023 (zero bubble), section 2.2.
    """
    p, m = problem.stages, problem.microbatches
    ranks = [alternate(stage, m, 2 * (p - 1 - stage), "B", weight_lag=2 * stage) for stage in range(p)]
    return Plan.from_actions(ranks, unidirectional(p), m, "zb_h2")
