"""ZB-H1: 1F1B with the backward split, W put off until it fills a gap, in the memory of 1F1B's first rank."""

from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.schedules.warmup import alternate


def zb_h1(problem: Problem) -> Plan:
    """The ZB-H1 plan of `problem`: the warm-up of 1F1B, and rank r puts W off by r microbatches.

    Cost (no delays, equal stages, F >= W): bubbles (p - 1)(F + B - W) on each rank, a third of 1F1B's where F = B = W;
    peak activations min(p, m) on every rank.
    Paper: Qi et al. 2023 (zero bubble), section 2.1.
    """
    p, m = problem.stages, problem.microbatches
    ranks = [alternate(stage, m, p - 1 - stage, "B", weight_lag=stage) for stage in range(p)]
    return Plan.from_actions(ranks, unidirectional(p), m, "zb_h1")
