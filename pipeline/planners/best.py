"""The planner to use: the other schedulers' plans, list rules by the hundred, a search along the critical path."""

import dataclasses
import math
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.placement import Placement, PlacementLike, as_placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.loops import are_compiled, compile_in_background
from lanterne.pipeline.planners.schedulers import ANY, SCHEDULERS, Improvement, Progress, fitting, is_same
from lanterne.pipeline.planners.search import has_little_memory, improve
from lanterne.pipeline.planners.solver import is_whole, least_limit_s, polish
from lanterne.pipeline.planners.words import has_parts
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.simulate import simulate

# Schedulers not asked for a plan to start from: itself, a solver, and those asked with the placement at hand.
LEFT_OUT = ("best", "optimal", "crosspipe", "crosspipe_wave")
# What "any" tries: with this effort at first, then as on that placement alone if it is so near the best of them. Of 80
# drawn problems none was behind the best of one placement; with a tenth at first 1, 3.3 % behind.
TRIED, TRIAL, HOPE = ("unidirectional", "wave", "loop"), 0.3, 0.05
# The effort to plan anew with; where ranks hold several stages, since each of so many searches ends elsewhere; and
# where they hold little memory besides: 24 waves of 8 x 32 were 4.4 % over the best known with 2, 3.2 with 3.
REPLANNED, MANY_STAGES, LITTLE_MEMORY = 0.015, 2.0, 3.0
# Over the bound by no more than this, a plan does not wait for the search to be compiled.
NEAR = 1.01
# With more actions the planners written in Python take most of the time; list rules here do what they do.
LARGE, SLOW = 20_000, ("adaptra",)


def best(
    problem: Problem,
    *,
    placement: PlacementLike = None,
    effort: float | None = None,
    seed: int = 0,
    start: Plan | None = None,
    robust: float | str | None = None,
    jitter: float = 0.5,
    duration_jitter: float = 0.0,
    whole: bool = False,
    time_limit_s: float | None = None,
    wait: bool = True,
    progress: Progress = None,
) -> Plan:
    """Return the best Plan found for `problem` on a placement; no plan is below its `proved_bound`.

    On the placement it is never worse than `start` if that is given; else never worse than any other scheduler whose
    plan fits in memory, the solver aside (and, with one stage per rank and over 20,000 actions, ADAPTRA's and
    CrossPipe's, whose rules it uses itself). The same arguments give the same plan, unless there is a time limit. Where
    it meets the bound it stops: that is optimal.

    Args:
        placement: unidirectional by default; "any" for the best of those on which each rank holds the model once:
            unidirectional, wave and loop with two stages.
        effort: how much to try; 0 only compares. By default 1; 2 on a placement with several stages on each rank, and
            3 with little memory there; and 0.015, to re-plan in 50 ms, with `start`.
        seed: of the search.
        start: a plan to start from instead of the other schedulers', such as the one running when a delay changed.
        robust: plan against jitter: "mean", or a quantile of the makespan in (0, 1], over sampled latencies and
            durations. The plan may then be worse than others without jitter.
        jitter: standard deviation of each link's latency, as a share of it.
        duration_jitter: the same of how long each action takes.
        whole: whole actions only, as others' runtimes have them: no W in pieces.
        wait: False not to wait for the search to be compiled, once per machine, where the best of the other
            schedulers' plans is proved to be within 1 % of the optimum; it is then compiled in the background.
        time_limit_s: what is left of it after the search goes to the solver; a robust plan is made within it.
        progress: called with each Improvement.

    Raises:
        InputError: an option that cannot be; ScheduleError: `start` is not a plan of the problem on the placement.

    Cost: up to half a second for 8 ranks x 32 microbatches, 2.5 s for 64 x 256; with several stages on each rank or
        ANY up to 0.9 and 6.5 s. Compiling, once per machine, takes some 20 s more, and loading that in a process
        half a second.
    Paper: CrossPipe section 8.2 asks for robust planning; the rest is ours.
    """
    is_usual = effort is None and start is None
    effort = effort if effort is not None else 1.0 if start is None else REPLANNED
    quantile = _check_options(effort, seed, robust, (jitter, duration_jitter), time_limit_s)
    began = time.monotonic()
    if placement == ANY:
        options: dict[str, Any] = {"seed": seed, "robust": robust}
        options |= {"jitter": jitter, "duration_jitter": duration_jitter, "whole": whole}
        options |= {"wait": wait, "progress": progress}
        return _best_of_any(problem, None if is_usual else effort, time_limit_s, options)
    placement = as_placement(placement, problem.stages)
    if is_usual and placement.num_stages > placement.num_ranks:
        effort = LITTLE_MEMORY if has_little_memory(problem, placement) else MANY_STAGES
    bound = lower_bound(problem, placement)

    def tell(makespan: float) -> None:
        if progress:
            progress(Improvement(time.monotonic() - began, makespan, bound))

    if whole and start is not None and has_parts(start):
        raise InputError("whole: got a start with actions in pieces, expected whole ones")
    if start is None:
        plans = _given(problem, placement, whole=whole)
    else:
        plans = ((simulate(_checked_start(start, problem, placement), problem).makespan, start),)
    made, plan = min(plans, key=lambda pair: pair[0])
    tell(made)
    target = bound * (1 + 1e-9)
    if quantile is None and target < made <= bound * NEAR and not (wait or are_compiled()):
        compile_in_background()
    elif made > target or quantile is not None:
        given = [each for _, each in plans]
        until_s = math.inf if quantile is None or time_limit_s is None else began + time_limit_s
        limits: dict[str, float] = {"duration_jitter": duration_jitter, "until_s": until_s}
        plan, made = improve(given, (made, plan), problem, target, effort, seed, quantile, jitter, tell, **limits)
    if time_limit_s is not None and quantile is None:
        plan, bound = _polished(
            plan, problem, bound, time_limit_s - (time.monotonic() - began), {"wait": wait, "progress": progress}
        )
    return dataclasses.replace(plan, placement=placement, scheduler="best", proved_bound=bound)


def _best_of_any(problem: Problem, effort: float | None, time_limit_s: float | None, options: dict[str, Any]) -> Plan:
    """Return the best plan over the placements of ANY; those promising in a trial are planned as by themselves."""
    names = TRIED if problem.stages > 1 else TRIED[:1]
    until_s = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    # Robust plans have half of the time to be tried in; without jitter the search is short, and the rest the solver's.
    is_robust = options["robust"] is not None
    limit_s = time_limit_s / (2 * len(names)) if time_limit_s is not None and is_robust else None
    trial = TRIAL * (1.0 if effort is None else effort)
    tried = {name: best(problem, placement=name, effort=trial, time_limit_s=limit_s, **options) for name in names}
    made = {name: simulate(plan, problem).makespan for name, plan in tried.items()}
    for name in sorted(names, key=lambda each: made[each]):
        least = min(made.values())
        if made[name] > least * (1 + HOPE) or tried[name].proved_bound >= least * (1 - 1e-9):
            continue
        if limit_s is not None and time.monotonic() >= until_s:
            break
        left_s = None if limit_s is None else until_s - time.monotonic()
        found = best(problem, placement=name, effort=effort, time_limit_s=left_s, **options)
        span = simulate(found, problem).makespan
        if span < made[name]:
            tried[name], made[name] = found, span
    plan = tried[min(names, key=lambda each: made[each])]
    if time_limit_s is None or is_robust:
        return plan
    found, bound = _polished(plan, problem, plan.proved_bound, until_s - time.monotonic(), options)
    return dataclasses.replace(found, placement=plan.placement, scheduler="best", proved_bound=bound)


def load_search() -> None:
    """Compile what the search runs, once per machine, and load it in this process: else the first plan waits for that.

    Cost: some 20 s the first time, then half a second per process.
    """
    # As much memory as a wave is grown with, and a target that no plan reaches, so that nothing is left out.
    problem = Problem(2, 8, 1.0, 1.0, 1.0, link_latency=0.5, max_inflight_activations=2)
    plan = crosspipe(problem, placement="wave", weight_parts=1)
    improve([plan], (math.inf, plan), problem, 0.0, effort=0.03, seed=0, quantile=None, jitter=0.0, tell=lambda _: None)


def _check_options(
    effort: float, seed: int, robust: float | str | None, jitters: tuple[float, float], time_limit_s: float | None
) -> float | None:
    """Return the quantile that `robust` asks for: None for no jitter, -1 for the mean."""
    for key, value in (("effort", effort), ("jitter", jitters[0]), ("duration_jitter", jitters[1])):
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


@lru_cache(maxsize=4)
def _given(problem: Problem, placement: Placement, *, whole: bool) -> tuple[tuple[float, Plan], ...]:
    """Return (makespan, plan) of the other schedulers on this placement that fit in memory; ANY asks twice."""
    is_large = 3 * placement.route_length * problem.microbatches > LARGE and placement.name == "unidirectional"
    names = [name for name in SCHEDULERS if name not in LEFT_OUT and not (is_large and name in SLOW)]
    found = fitting(names, problem, placement)
    if not (is_large and found):
        pieces = (1,) if whole else (1, 4)
        plans = [crosspipe(problem, placement=placement, weight_parts=parts) for parts in pieces]
        found += [check(plan, problem) for plan in plans]
    return tuple(
        (simulate(checked, problem).makespan, checked.plan)
        for checked in found
        if not (whole and has_parts(checked.plan))
    )


def _checked_start(start: Plan, problem: Problem, placement: Placement) -> CheckedPlan:
    if not is_same(start.placement, placement):
        raise ScheduleError(f"start: got a plan on the {start.placement.name} placement, expected {placement.name}")
    return check(start, problem)


def _polished(
    plan: Plan, problem: Problem, bound: float, time_limit_s: float, options: Mapping[str, Any]
) -> tuple[Plan, float]:
    """Return (plan, bound) after the solver went on from `plan` for the rest of the time."""
    if problem.microbatch_lengths is not None or time_limit_s < least_limit_s(problem, plan.placement):
        return plan, bound
    made, began = simulate(plan, problem).makespan, time.monotonic()
    if made <= bound * (1 + 1e-9):
        return plan, bound
    start = plan if is_whole(plan) else best(problem, placement=plan.placement, whole=True, wait=options["wait"])
    left_s = time_limit_s - (time.monotonic() - began)
    solution = polish(start, problem, time_limit_s=left_s, progress=options["progress"])
    return (solution.plan if solution.makespan < made else plan), max(bound, solution.lower_bound)
