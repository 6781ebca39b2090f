"""CrossPipe's greedy: valid and within memory everywhere, as good as published, and aware of what links cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import placements, problems

from lanterne.errors import InputError
from lanterne.pipeline.plan.placement import make_placement
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.simulate.check_plan import check


@settings(deadline=None, max_examples=50)
@given(st.data(), problems(stages=5, microbatches=9), st.integers(1, 4))
def test_every_plan_is_valid_and_fits(data, problem, weight_parts):
    placement = data.draw(placements(problem))
    plan = crosspipe(problem, placement=placement, weight_parts=weight_parts)
    assert plan.placement == placement
    check(plan, problem)


def test_two_routes_need_room_for_both():
    problem = Problem(2, 4, 1, 2, 3, max_inflight_activations=1)
    with pytest.raises(InputError, match="got 1 on rank 0, expected room for a microbatch of each route"):
        crosspipe(problem, placement=make_placement("bidirectional", 2))
