"""Words that go on for more microbatches: by a period that is repeated, and by a search from few."""

import dataclasses

import numpy as np
import pytest

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import make_placement
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.annealing import orders_of, scratch, simulate_words
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.growth.growing import Growth, shorter
from lanterne.pipeline.planners.growth.periods import repeat_period
from lanterne.pipeline.planners.words import (
    NONE,
    letters_of,
    plan_of,
    starts_of,
    with_message_words,
    word_length,
    words_of,
)
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

F, B, W = range(3)
SHARED = {"link_bandwidth": 1, "message_nbytes": 60, "shared_links": [[[0, 1], [1, 2]], [[1, 0], [2, 1]]]}


def starts(words, letters):
    times, progress = scratch(letters)
    simulate_words(letters, orders_of(words), 0, times, progress)
    return starts_of(words, letters, times.begun)


def test_one_rank_repeats_the_stretch_that_has_each_letter_once():
    few, many = (letters_of(costs(Problem(1, count, 1, 1, 1), make_placement("unidirectional", 1))) for count in (3, 5))
    words = np.array([[F, F, B, W, F, B, W, B, W]])
    longer = np.full((1, word_length(many)), NONE, np.int64)
    span = repeat_period(words, starts(words, few), many, 1, 2, longer)
    assert span == 15
    assert longer.tolist() == [[F, *[F, B, W] * 2, F, B, W, F, B, W, B, W]]


def test_no_period_no_words():
    few, many = (letters_of(costs(Problem(1, count, 1, 1, 1), make_placement("unidirectional", 1))) for count in (3, 4))
    words = np.array([[F, F, F, B, B, B, W, W, W]])
    longer = np.full((1, word_length(many)), NONE, np.int64)
    assert repeat_period(words, starts(words, few), many, 1, 1, longer) == 1e300
    assert (longer == NONE).all()


def growth_of(placement, **options):
    """The problem, its Costs and a Growth, and what it begins with: CrossPipe's words for fewer microbatches."""
    problem = Problem(3, 16, [100, 120, 90], 113, 87, [50, 170], max_inflight_activations=4, **options)
    table = costs(problem, make_placement(placement, 3))
    letters, routes = letters_of(table), table.placement.num_routes
    growth = Growth(letters, 4 // routes, kept=2, actions=3e3, heat=100.0, blocks=0.3, seed=7)

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


def test_shorter_letters_are_those_of_fewer_microbatches():
    placement = make_placement("wave", 3)
    many, few = (letters_of(costs(Problem(3, count, 100, 110, 80), placement)) for count in (9, 5))
    # Runs stay numbered as for all microbatches.
    alike = few._replace(operations=few.operations._replace(first=many.operations.first))
    for one, other in zip(shorter(many, 4), alike, strict=True):
        assert all(map(np.array_equal, one, other)) if isinstance(one, tuple) else np.array_equal(one, other), one
