"""best: the proved optima, never worse than another scheduler, valid, deterministic; robust and re-planning modes."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanterne.pipeline.best import best
from lanterne.pipeline.bounds import lower_bound
from lanterne.pipeline.check import check
from lanterne.pipeline.crosspipe import crosspipe
from lanterne.pipeline.problem import Problem
from lanterne.pipeline.schedulers import SCHEDULERS, plan
from lanterne.pipeline.simulate import simulate

from lanterne.errors import InputError, ScheduleError

from .random_problems import placements, problems

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "data" / "cases.json").read_text())["cases"]}
# One link too slow for the memory: no scheduler that it starts from meets the bound.
HARD = Problem(6, 12, [100, 120, 90, 110, 100, 130], 113, 87, [50, 0, 170, 0, 90], max_inflight_activations=5)


def makespan(made, problem):
    return simulate(check(made, problem), problem).makespan


@pytest.mark.parametrize("case", CASES)
def test_meets_the_proved_optimum(case):
    problem = Problem.from_dict(CASES[case])
    made = best(problem)
    assert made.scheduler == "best" and made.placement.name == "unidirectional"
    assert makespan(made, problem) == made.proved_bound == CASES[case]["optimum"]


@settings(deadline=None, max_examples=60)
@given(st.data(), problems(stages=5, microbatches=9))
def test_valid_and_never_worse_than_any_other(data, problem):
    placement = data.draw(placements(problem))
    made = best(problem, placement=placement, effort=0.1)
    assert made.placement == placement
    found = makespan(made, problem)
    assert lower_bound(problem, placement) <= made.proved_bound <= found * (1 + 1e-9)
    others = [crosspipe(problem, placement=placement, weight_parts=parts) for parts in (1, 4)]
    for name in SCHEDULERS:
        if name not in ("best", "optimal"):
            try:
                other = plan(problem, name)
                check(other, problem)
            except InputError:
                continue
            if other.placement == placement:
                others.append(other)
    assert found <= min(simulate(other, problem).makespan for other in others) * (1 + 1e-9)


def test_the_search_improves_on_all_it_starts_from():
    only_compared, searched = (makespan(best(HARD, effort=effort), HARD) for effort in (0, 1))
    assert searched < only_compared


def test_same_arguments_same_plan():
    first, again = (best(HARD, effort=0.3, seed=7).words() for _ in range(2))
    assert first == again


def test_bad_options():
    for options, message in (
        ({"effort": -1}, "effort: got -1"),
        ({"effort": float("nan")}, "effort: got nan"),
        ({"seed": 1.5}, "seed: got 1.5"),
        ({"jitter": "much"}, "jitter: got 'much'"),
        ({"robust": 0}, "robust: got 0"),
        ({"robust": "median"}, "robust: got 'median', expected mean or a quantile"),
        ({"time_limit_s": 0}, "time_limit_s: got 0"),
        ({"placement": "spiral"}, "placement: got 'spiral'"),
    ):
        with pytest.raises(InputError, match=message):
            best(HARD, **options)
    with pytest.raises(ScheduleError, match="expected the problem's 12"):
        best(HARD, start=crosspipe(Problem(6, 11, 1, 1, 1)))
    with pytest.raises(ScheduleError, match="start: got a plan on the wave placement"):
        best(HARD, start=crosspipe(HARD, placement="wave"))
