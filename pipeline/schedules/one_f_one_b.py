"""1F1B: each rank starts its backwards as early as it can, so it holds at most stages - rank activations."""

from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.schedules.warmup import alternate


def one_f_one_b(problem: Problem) -> Plan:
    """The 1F1B plan of `problem`, backward fused (BW).

    Cost (no delays, equal stages): makespan (m + p - 1)(F + BW), bubble rate (p - 1) / (m + p - 1); peak activations
    min(p - rank, m).
    Paper: Narayanan et al. 2019 (PipeDream) section 3.2; flushed as in Narayanan et al. 2021 section 2.2.
    """
    p, m = problem.stages, problem.microbatches
    return Plan.from_actions(
        [alternate(stage, m, p - 1 - stage, "BW") for stage in range(p)], unidirectional(p), m, "1f1b"
    )
