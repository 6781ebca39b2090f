"""Words that go on for more microbatches: by a period that is repeated, and by a search from few."""

import dataclasses

import pytest

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import make_placement
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.growth.growing import Growth
from lanterne.pipeline.planners.words import (
    letters_of,
    plan_of,
    with_message_words,
    words_of,
)
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

F, B, W = range(3)
SHARED = {"link_bandwidth": 1, "message_nbytes": 60, "shared_links": [[[0, 1], [1, 2]], [[1, 0], [2, 1]]]}


def growth_of(placement, **options):
    """The problem, its Costs and a Growth, and what it begins with: CrossPipe's words for fewer microbatches."""
    problem = Problem(3, 16, [100, 120, 90], 113, 87, [50, 170], max_inflight_activations=4, **options)
    table = costs(problem, make_placement(placement, 3))
    letters, routes = letters_of(table), table.placement.num_routes
    growth = Growth(letters, 4 // routes, kept=2, actions=3e3, heat=100.0, seed=7)

    def begin(few):
        part = dataclasses.replace(problem, microbatches=int(few.total.max()) * routes)
        words = words_of(crosspipe(part, placement=table.placement, weight_parts=1), few)
        return [(1.0, with_message_words(words, few))]

    return problem, table, growth, begin


@pytest.mark.parametrize(
    ("placement", "options"),
    [("wave", {}), ("loop", {}), ("bidirectional", {}), ("wave", SHARED)],
    ids=["wave", "loop", "bidirectional", "wave-shared"],
)
def test_grown_words_are_plans_of_all_microbatches(placement, options):
    problem, table, growth, begin = growth_of(placement, **options)
    found = growth.grown(begin)
    assert found and found == sorted(found, key=lambda pair: pair[0])
    for span, words in found:
        plan = plan_of(words, table, "words")
        assert simulate(check(plan, problem), problem).makespan == pytest.approx(span), span
