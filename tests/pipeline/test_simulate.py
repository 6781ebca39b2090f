"""The simulator against golden numbers."""

import json
from pathlib import Path

import pytest

from lanterne.pipeline.check import check
from lanterne.pipeline.problem import Problem
from lanterne.pipeline.schedulers import plan
from lanterne.pipeline.simulate import makespan, simulate

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "data" / "cases.json").read_text())["cases"]}
PUBLISHED = {"1f1b": "1F1B", "zb_h1": "ZB-H1", "zb_h2": "ZB-H2"}


@pytest.mark.parametrize("scheduler", PUBLISHED)
@pytest.mark.parametrize("case", CASES)
def test_static_schedules_take_as_long_as_published(case, scheduler):
    problem = Problem.from_dict(CASES[case])
    made = plan(problem, scheduler)
    assert simulate(made, problem).makespan == CASES[case]["makespan_of"][PUBLISHED[scheduler]]
    assert makespan(made, problem) == simulate(made, problem).makespan


@pytest.mark.parametrize("scheduler", PUBLISHED)
@pytest.mark.parametrize("case", CASES)
def test_peak_memory_says_whether_a_plan_fits(case, scheduler):
    problem = Problem.from_dict(CASES[case])
    peaks = check(plan(problem, scheduler), problem, memory=False).peak_memory
    fits = all(peak <= capacity for peak, capacity in zip(peaks, problem.limits.capacity, strict=True))
    assert fits == CASES[case]["within_memory"][PUBLISHED[scheduler]]
