"""The planner to use: every other scheduler's plan, list rules by the hundred, then a search along the critical path."""

import dataclasses
import math
import time
from typing import NamedTuple

from ..errors import InputError, ScheduleError
from .bounds import lower_bound
from .check import check
from .crosspipe import crosspipe
from .placement import as_placement
from .schedulers import SCHEDULERS, load
from .simulate import simulate

# Schedulers not asked for a plan to start from: itself, a solver, and those asked with the placement at hand.
LEFT_OUT = ("best", "optimal", "crosspipe", "crosspipe_wave")


class Found(NamedTuple):
    """What the planner knew at one moment; times of the plan in the problem's unit."""

    elapsed_s: float
    makespan: float
    lower_bound: float


def best(
    problem, *, placement=None, effort=1.0, seed=0, start=None, robust=None, jitter=0.5, time_limit_s=None, progress=None
):
    """The best Plan found for `problem` on a placement; its `proved_bound` says what none can be below.

    It is never worse than any other scheduler's plan on the placement that fits in memory, CP-SAT's aside, and the same
    for the same arguments unless a time limit is given. Where it meets the bound it stops: it is optimal.

    Args:
        placement: a Placement or the name of one; unidirectional by default.
        effort: 1 searches for about half a second at 8 ranks x 32 microbatches, 0.05 re-plans in 50 ms, 0 only compares.
        seed: of the search.
        start: a Plan to start from too, such as the one running when a delay changed.
        robust: plan against jitter of the link latencies: "mean", or a quantile of the makespan in (0, 1], over sampled
            latencies. The plan may then be worse than others without jitter.
        jitter: standard deviation of each link's latency, as a share of it.
        time_limit_s: what is left of it after the search goes to the solver.
        progress: called with a Found whenever there is an improvement.

    Raises:
        InputError: an option that cannot be; ScheduleError: `start` is not a plan of the problem on the placement.

    Cost: see effort; rules are fewer for large problems, so 64 ranks x 256 microbatches take 2 s.
    Paper: CrossPipe section 8.2 asks for robust planning; the rest is ours.
    """
    quantile = _check_options(effort, seed, robust, jitter, time_limit_s)
    began = time.monotonic()
    placement = as_placement(placement, problem.stages)
    bound = lower_bound(problem, placement)

    def tell(makespan):
        if progress:
            progress(Found(time.monotonic() - began, makespan, bound))

    plans = _given(problem, placement, start)
    made, plan = min(((simulate(checked, problem).makespan, checked.plan) for checked in plans), key=lambda pair: pair[0])
    tell(made)
    target = bound * (1 + 1e-9) if quantile is None else 0.0
    if made > target and problem.microbatches > 1:
        # Here, because Numba takes half a second to import.
        from .search import improve

        plan, made = improve([checked.plan for checked in plans], problem, target, effort, seed, quantile, jitter, tell)
    if time_limit_s is not None and quantile is None:
        plan, bound = _polished(plan, problem, bound, time_limit_s - (time.monotonic() - began), progress)
    return dataclasses.replace(plan, placement=placement, scheduler="best", proved_bound=bound)


def _check_options(effort, seed, robust, jitter, time_limit_s):
    """The quantile that `robust` asks for: None for no jitter, -1 for the mean."""
    for key, value in (("effort", effort), ("jitter", jitter)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise InputError(f"{key}: got {value!r}, expected a number of at least 0")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"seed: got {seed!r}, expected a whole number of at least 0 and below 2**32")
    if time_limit_s is not None and not time_limit_s > 0:
        raise InputError(f"time_limit_s: got {time_limit_s!r}, expected more than 0 seconds")
    if robust is None:
        return None
    if robust == "mean":
        return -1.0
    if isinstance(robust, bool) or not isinstance(robust, int | float) or not 0 < robust <= 1:
        raise InputError(f"robust: got {robust!r}, expected mean or a quantile above 0 and at most 1")
    return float(robust)


def _given(problem, placement, start):
    """The other schedulers' plans that are on this placement and fit in memory, as CheckedPlans; and `start`."""
    plans = []
    for name in SCHEDULERS:
        if name not in LEFT_OUT:
            try:
                plans.append(load(name)(problem))
            except InputError:
                continue
    plans += [crosspipe(problem, placement=placement, weight_parts=parts) for parts in (1, 4)]
    found = [] if start is None else [check(start, problem)]
    if start is not None and not _is_same(start.placement, placement):
        raise ScheduleError(f"start: got a plan on the {start.placement.name} placement, expected {placement.name}")
    for plan in plans:
        if _is_same(plan.placement, placement):
            try:
                found.append(check(plan, problem))
            except ScheduleError:
                continue
    return found


def _is_same(one, other):
    """Whether two placements are the same but for their names."""
    return (one.stage_to_rank, one.num_routes) == (other.stage_to_rank, other.num_routes)


def _polished(plan, problem, bound, time_limit_s, progress):
    """(plan, bound) after the solver went on from `plan` for what is left of the time."""
    from .optimal import solve

    made = simulate(plan, problem).makespan
    whole = not any(action.parts > 1 or action.kind == "BW" for rank in plan.ranks for action in rank)
    if made <= bound * (1 + 1e-9) or time_limit_s <= 0:
        return plan, bound
    solution = solve(
        problem, placement=plan.placement, hint=plan if whole else None, time_limit_s=time_limit_s, progress=progress
    )
    return (solution.plan if solution.makespan < made else plan), max(bound, solution.lower_bound)
