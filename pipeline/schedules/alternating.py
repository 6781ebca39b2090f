"""The schedule of ADAPTRA's theorem: B and F strictly in turn, W last, so that only its slack absorbs delays."""

from dataclasses import replace

from lanterne.errors import InputError
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import frozen


def alternating(problem: Problem, *, slack: int = 2) -> Plan:
    """The plan whose stages warm up with `slack` forwards more than the next one, the last with one.

    Warm-up counts are clipped to the microbatches and the memory; as W is last, peak activations are all microbatches.

    Raises:
        InputError: slack below 0.

    Cost (no delays, F = B = W): makespan (3 m + p - 1) F; a link's delay costs no more than itself up to (slack - 1) F.
    Paper: ADAPTRA, theorem 1 and figure 8.
    """
    if slack < 0:
        raise InputError(f"slack: got {slack}, expected at least 0")
    warmups = [slack * (problem.stages - 1 - stage) + 1 for stage in range(problem.stages)]
    return replace(frozen(problem, warmups), scheduler="alternating")
