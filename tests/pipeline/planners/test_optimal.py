"""The solver against brute force, the simulator, the proved optima, and its own promises."""

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import placements, problems

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.best import best
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.optimal import optimal, solve
from lanterne.pipeline.planners.optimal_model import time_scale
from lanterne.pipeline.planners.solver import polish
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data" / "cases.json").read_text())["cases"]
}


def orders_of(stage, microbatches):
    """Every order of a stage's actions in which microbatches go in turn and F, B, W of one follow each other."""
    found = [((), (0, 0, 0))]
    for _ in range(3 * microbatches):
        longer = []
        for order, counts in found:
            for kind in range(3):
                if counts[kind] < (microbatches if kind == 0 else counts[kind - 1]):
                    more = tuple(count + (i == kind) for i, count in enumerate(counts))
                    longer.append(((*order, Action("FBW"[kind], stage, counts[kind])), more))
        found = longer
    return [order for order, _ in found]


def greedy(problem):
    return crosspipe(problem, weight_parts=1)


def gpipe_of_whole_actions(problem):
    """All F, then B and W."""
    ranks = [[Action(kind, s, m) for kind in "FBW" for m in range(problem.microbatches)] for s in range(problem.stages)]
    return Plan.from_actions(ranks, unidirectional(problem.stages), problem.microbatches)


def brute_force(problem):
    """The least makespan of all plans, or None if none fits in memory."""
    best = None
    for ranks in product(*(orders_of(stage, problem.microbatches) for stage in range(problem.stages))):
        plan = Plan.from_actions(ranks, unidirectional(problem.stages), problem.microbatches)
        try:
            found = simulate(check(plan, problem), problem).makespan
        except ScheduleError:
            continue
        best = found if best is None else min(best, found)
    return best


@settings(deadline=None, max_examples=25)
@given(problems(stages=2, microbatches=2))
def test_it_is_the_best_of_all_plans(problem):
    solution = polish(greedy(problem), problem, workers=1)
    assert solution.is_optimal
    assert solution.makespan == pytest.approx(brute_force(problem))


@settings(deadline=None, max_examples=25)
@given(st.data(), problems())
def test_the_simulator_agrees_with_the_solver(data, problem):
    placement = data.draw(placements(problem))
    told = []
    start = crosspipe(problem, placement=placement, weight_parts=1)
    solution = polish(start, problem, workers=1, time_limit_s=0.3, progress=told.append)
    checked = check(solution.plan, problem)
    assert simulate(checked, problem).makespan == solution.makespan
    assert solution.improvements == tuple(told)
    # A solution that is not optimal may hold idle time, which the simulator takes out.
    objective = solution.improvements[-1].makespan
    assert solution.makespan <= objective * (1 + 1e-9)
    assert objective == pytest.approx(solution.makespan) or not solution.is_optimal
    assert solution.lower_bound <= solution.makespan
    assert solution.is_optimal == (solution.lower_bound == pytest.approx(solution.makespan, rel=1e-5))
    assert solution.makespan <= simulate(start, problem).makespan


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_proved(case):
    problem = Problem.from_dict(CASES[case])
    solution = solve(problem, time_limit_s=120)
    assert solution.is_optimal and solution.makespan == solution.lower_bound == CASES[case]["optimum"]
    check(solution.plan, problem)


def test_times_that_are_not_whole():
    problem = Problem(3, 4, [0.1, 0.2, 0.3], [0.21, 0.35, 0.12], [0.3, 0.1, 0.2], [1 / 3, 0.7])
    # 300 to a unit makes all whole; the shortest, 0.1, takes 30.
    assert time_scale(costs(problem, unidirectional(3)), 10.0) == (300, 1)
    # 10 to a unit would do here, of which the shortest takes 1, so each becomes 16.
    assert time_scale(costs(Problem(2, 1, 0.1, 0.2, 0.3), unidirectional(2)), 10.0) == (160, 16)
    tenfold = Problem(3, 4, [30, 60, 90], [63, 105, 36], [90, 30, 60], [100, 210])
    assert polish(greedy(problem), problem, workers=1).makespan == pytest.approx(
        polish(greedy(tenfold), tenfold, workers=1).makespan / 300
    )
    odd = Problem(3, 4, [2**0.5, 3**0.5, 1], 1, 1, [5**0.5, 0.7])
    assert time_scale(costs(odd, unidirectional(3)), 10.0) == (1e6, 1)
    solution = polish(greedy(odd), odd, workers=1)
    assert solution.is_optimal and 0 <= solution.makespan - solution.lower_bound <= 1e-5 * solution.makespan


def test_time_limit_and_start():
    problem = Problem(
        8, 24, [100, 110, 90, 120, 100, 95, 105, 100], 113, 87, [50, 0, 170, 0, 90, 0, 60], max_inflight_activations=9
    )
    start = greedy(problem)
    solution = polish(start, problem, time_limit_s=0.5)
    assert solution.improvements[0].makespan == simulate(start, problem).makespan >= solution.makespan
    assert solution.lower_bound <= solution.makespan
    with pytest.raises(ScheduleError):
        polish(greedy(Problem(8, 23, 1, 1, 1)), problem)
    with pytest.raises(ScheduleError, match="memory"):
        polish(gpipe_of_whole_actions(problem), problem)
    with pytest.raises(InputError, match="expected whole F, B and W"):
        polish(crosspipe(problem, weight_parts=2), problem)
    with pytest.raises(
        InputError, match="got 1000 stages, 1000 microbatches and a time limit of 60 s, expected at least"
    ):
        solve(Problem(1000, 1000, 1, 1, 1))
    with pytest.raises(InputError, match="got microbatch_lengths"):
        solve(Problem(2, 2, 1, 1, 1, microbatch_lengths=[1, 2]))


@pytest.mark.parametrize("placement", ["unidirectional", "wave", "loop"])
@pytest.mark.parametrize("links", [(3,), (1, 3, 5)])
def test_never_behind_best_at_the_size_of_the_papers_tables(links, placement):
    """8 stages x 16 microbatches, CrossPipe's tables 5 and 6: from the greedy's plan a wave ended 17 % behind."""
    latency = [0.076 if link in links else 0.0 for link in range(7)]
    problem = Problem(8, 16, 0.038, 0.038, 0.029, latency, max_inflight_activations=8)
    start = best(problem, placement=placement, whole=True)
    made = optimal(problem, placement=placement, time_limit_s=1.0)
    reached = simulate(check(made, problem), problem).makespan
    assert made.proved_bound <= reached * (1 + 1e-9)
    assert reached <= simulate(start, problem).makespan * (1 + 1e-9)


def test_a_plan_that_meets_the_bound_needs_no_solver():
    """1F1B of equal stages, no delay, fused B and W that cost nothing apart."""
    problem = Problem(2, 2, 1, 1, 0)
    solution = solve(problem, time_limit_s=1.0)
    assert solution.is_optimal and len(solution.improvements) == 1
