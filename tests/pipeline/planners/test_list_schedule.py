"""The list scheduler by itself: no deadlock whatever the rule, memory, rounding, data-parallel communication."""

from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import placements, problems

from lanterne.pipeline.plan.action import KINDS
from lanterne.pipeline.plan.placement import unidirectional, wave
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.list_schedule import list_schedule
from lanterne.pipeline.planners.words import B, F, W
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate


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


@settings(deadline=None, max_examples=50)
@given(st.data(), problems(stages=4, microbatches=7))
def test_a_plan_as_the_rule_gives_the_same_plan(data, problem):
    placement = data.draw(placements(problem))
    rule = by_priority(B, F, W)
    plan = Plan.from_actions(list_schedule(problem, placement, rule), placement, problem.microbatches)
    position = [0] * placement.num_ranks

    def choose(state, rank):
        if position[rank] == len(plan.ranks[rank]):
            return None
        action = plan.ranks[rank][position[rank]]
        option = KINDS.index(action.kind), action.stage
        if not (state.available(*option) and state.fits(*option)):
            return None
        position[rank] += 1
        return option

    assert [tuple(rank) for rank in list_schedule(problem, placement, choose)] == list(plan.ranks)


def test_times_that_differ_by_rounding_are_one_instant():
    """Ten times 0.1 is not 1.0: a W that is ready must not slip in before a B that is due at the same moment."""
    exact = Problem(3, 10, [1, 2, 3], [3, 2, 1], [2, 2, 2], [1, 3])
    tenth = Problem(3, 10, [0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.2, 0.2], [0.1, 0.3])
    rule = by_priority(B, F, W)
    assert list_schedule(exact, unidirectional(3), rule) == list_schedule(tenth, unidirectional(3), rule)


def test_all_gathers_open_the_stages():
    """A rank of two stages whose second opens late takes no F of it before that, although its microbatch is there."""
    problem = Problem(1, 3, 2, 2, 2, data_parallel={"kind": "zero1", "reduce_scatter": 0, "all_gather": 8})
    ranks = list_schedule(problem, wave(1), by_priority(B, F, W))
    timeline = simulate(Plan.from_actions(ranks, wave(1), 3), problem)
    # Each stage gathers for 4: the first F of stage 0 starts at 4, those of stage 1 not before 8.
    assert [str(action) for action in ranks[0][:4]] == ["F0.0", "F0.1", "F0.2", "F1.0"]
    assert timeline.start[:4].tolist() == [4, 5, 6, 8]
