"""The list scheduler by itself: no deadlock whatever the rule, memory, rounding, data-parallel communication."""

from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import placements, problems

from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.list_schedule import list_schedule
from lanterne.pipeline.planners.words import B, F, W
from lanterne.pipeline.simulate.check_plan import check


def by_priority(*kinds):
    """The rule that takes the first of `kinds` that can start."""

    def choose(state, rank):
        options = [(kind, stage) for kind in kinds for stage in state.stages[rank]]
        return next((o for o in options if state.available(*o) and state.fits(*o)), None)

    return choose


@settings(deadline=None, max_examples=50)
@given(st.data(), problems(stages=5, microbatches=9), st.permutations((F, B, W)), st.integers(1, 3))
def test_no_order_of_choices_ends_in_a_deadlock(data, problem, kinds, weight_parts):
    placement = data.draw(placements(problem))
    ranks = list_schedule(problem, placement, by_priority(*kinds), weight_parts)
    check(Plan.from_actions(ranks, placement, problem.microbatches), problem)


def test_times_that_differ_by_rounding_are_one_instant():
    """Ten times 0.1 is not 1.0: a W that is ready must not slip in before a B that is due at the same moment."""
    exact = Problem(3, 10, [1, 2, 3], [3, 2, 1], [2, 2, 2], [1, 3])
    tenth = Problem(3, 10, [0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.2, 0.2], [0.1, 0.3])
    rule = by_priority(B, F, W)
    assert list_schedule(exact, unidirectional(3), rule) == list_schedule(tenth, unidirectional(3), rule)
