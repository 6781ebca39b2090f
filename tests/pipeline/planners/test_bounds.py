"""Lower bounds: never above any plan, and tight where the optimum is known."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import bounds, lower_bound
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data" / "cases.json").read_text())["cases"]
}


@pytest.mark.parametrize("case", CASES)
def test_the_bound_is_the_optimum_of_every_case(case):
    problem = Problem.from_dict(CASES[case])
    assert lower_bound(problem, unidirectional(problem.stages)) == CASES[case]["optimum"]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_no_valid_plan_is_below_the_bound(data):
    problem = data.draw(problems(shared=True))
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement, within_memory=True))
    assume(made is not None)
    checked = check(made, problem)
    found = bounds(problem, placement)
    assert found.lower_bound <= simulate(checked, problem).makespan * (1 + 1e-9)
    assert found.lower_bound > 0 and len(found.work) == problem.stages


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 12 * 30 + 3 * 10),
        ({"link_latency": [20, 0, 0]}, 12 * 30 + 3 * 10 + 20),
        ({"link_bandwidth": 1, "message_nbytes": [50, 1]}, None),
        ({"data_parallel": {"kind": "zero1", "reduce_scatter": 100, "all_gather": 7}}, 7 + 3 * 10 + 12 * 30 + 100),
    ],
)
def test_what_limits_a_pipeline(keys, expected):
    problem = Problem(4, 12, 10, 10, 10, **keys)
    found = bounds(problem, unidirectional(4))
    if expected is None:
        # 12 messages of 50 on the last of three links, after the first got there, and back.
        assert max(found.link) >= 12 * 50 + 2 * 60 + 10
        assert found.lower_bound >= max(found.link)
    else:
        assert found.lower_bound == expected
