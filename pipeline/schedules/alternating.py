"""The schedule of ADAPTRA's theorem: B and F strictly in turn, W last, so that only its slack absorbs delays."""

from collections.abc import Iterable

from lanterne.errors import InputError
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import clip_warmups
from lanterne.pipeline.schedules.warmup import alternate


def alternating(problem: Problem, *, slack: int = 2, warmups: Iterable[int] | None = None) -> Plan:
    """Return the plan in which each stage alternates strictly: warm-up F, then B and F, then B and W, then W.

    It is the plan of theorem 1: its order does not react to delays, which shows what the slack absorbs. Warm-up counts
    are clipped to the microbatches and the memory; as W is last, peak activations are all microbatches.

    Args:
        slack: forwards that each stage warms up with more than the next one; the last warms up with one.
        warmups: forwards that each stage warms up with, instead.

    Raises:
        InputError: slack below 0.

    Cost (no delays, F = B = W): makespan (3 m + p - 1) F; a link's delay costs no more than itself up to (slack - 1) F.
    Paper: ADAPTRA, theorem 1 and figures 4, 5 and 8.
    """
    if slack < 0:
        raise InputError(f"slack: got {slack}, expected at least 0")
    count, stages = problem.microbatches, problem.stages
    if warmups is None:
        warmups = (slack * (stages - 1 - stage) + 1 for stage in range(stages))
    clipped = enumerate(clip_warmups(warmups, problem))
    ranks = [alternate(stage, count, warmup - 1, "B", count - warmup) for stage, warmup in clipped]
    return Plan.from_actions(ranks, unidirectional(stages), count, "alternating")
