"""CrossPipe's optimal planner: the constraint solver from the plan of `best`, which proves how good its plan is."""

import time
from dataclasses import replace

from lanterne.errors import InputError
from lanterne.pipeline.plan.placement import PlacementLike, as_placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.best import best, load_search
from lanterne.pipeline.planners.loops import are_compiled
from lanterne.pipeline.planners.schedulers import Progress
from lanterne.pipeline.planners.solver import Solution, check_solvable, least_limit_s, polish


def optimal(
    problem: Problem, *, placement: PlacementLike = None, time_limit_s: float = 60.0, progress: Progress = None
) -> Plan:
    """Return the plan of `solve`, which carries the bound that was proved."""
    solution = solve(problem, placement=placement, time_limit_s=time_limit_s, progress=progress)
    return replace(solution.plan, scheduler="optimal", proved_bound=solution.lower_bound)


def solve(
    problem: Problem,
    *,
    placement: PlacementLike = None,
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    progress: Progress = None,
) -> Solution:
    """Return the Solution of least makespan of whole actions on a placement, or the best found and a bound.

    It is never behind the plan of `best` of whole actions on that placement, from which it starts.

    Args:
        placement: unidirectional by default.
        time_limit_s: of `best` and the solver together. Compiling the search of `best`, once per machine, is not in it.
        gap: stop when the plan is proved to be within this share of the optimum.
        progress: called with each Improvement of the solver.

    Raises:
        InputError: microbatches of unequal lengths; or `time_limit_s` is below `least_limit_s`.
    """
    placement = as_placement(placement, problem.stages)
    check_solvable(problem)
    least_s = least_limit_s(problem, placement)
    if time_limit_s < least_s:
        raise InputError(
            f"optimal: got {problem.stages} stages, {problem.microbatches} microbatches and a time limit of "
            f"{time_limit_s:g} s, expected at least {least_s:.3g} s, which the solver's model takes; `best` needs less"
        )
    if not are_compiled():
        load_search()
    began = time.monotonic()
    start = best(problem, placement=placement, whole=True)
    left_s = time_limit_s - (time.monotonic() - began)
    return polish(start, problem, time_limit_s=left_s, gap=gap, progress=progress)
