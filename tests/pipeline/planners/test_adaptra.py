"""ADAPTRA against the papers' figures as re-done (golden numbers), its theorem, and its limits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import (
    adapted_warmups,
    adaptra,
    clip_warmups,
    initial_warmups,
    max_inflight,
    warmups_of,
)
from lanterne.pipeline.schedules.alternating import alternating
from lanterne.pipeline.schedules.zb_h1 import zb_h1
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

# Makespans of figure 8: slack -> by delay 0, 10, ... 60 ms on the first link.
FIGURE_8 = {
    1: (930, 1210, 1490, 1770, 2050, 2330, 2610),
    2: (930, 940, 1100, 1280, 1460, 1640, 1820),
    3: (930, 940, 950, 1050, 1170, 1290, 1410),
    4: (930, 940, 950, 960, 1040, 1140, 1240),
    5: (930, 940, 950, 960, 970, 1030, 1110),
    6: (930, 940, 950, 960, 970, 980, 1020),
}


def four_stages(microbatches, delay, memory=None):
    """F = B = W = 10 ms on four stages, `delay` on the first link."""
    return Problem(4, microbatches, 10, 10, 10, [delay, 0, 0], max_inflight_activations=memory)


@pytest.mark.parametrize(("delay", "makespan"), [(0, 390), (10, 400), (20, 440), (30, 500)])
def test_the_order_planned_for_no_delay(delay, makespan):
    for plan in (
        alternating(four_stages(12, 0), warmups=(7, 5, 3, 1)),
        adaptra(four_stages(12, 0), warmups=(7, 5, 3, 1)),
    ):
        assert simulate(plan, four_stages(12, delay)).makespan == makespan, plan


@pytest.mark.parametrize("slack", FIGURE_8)
def test_figure_8(slack):
    plan = alternating(four_stages(30, 0), slack=slack)
    found = tuple(simulate(plan, four_stages(30, delay)).makespan for delay in range(0, 70, 10))
    assert found == FIGURE_8[slack]


@pytest.mark.parametrize(
    ("stages", "microbatches", "memory", "warmups"),
    [
        (4, 12, 7, (7, 5, 3, 1)),
        (4, 12, 9, (9, 6, 3, 1)),
        (4, 2, None, (2, 1, 1, 1)),
        (4, 12, 1, (1, 1, 1, 1)),
        (1, 5, None, (5,)),
    ],
)
def test_initial_warmups(stages, microbatches, memory, warmups):
    assert initial_warmups(Problem(stages, microbatches, 1, 2, 3, 0, max_inflight_activations=memory)) == warmups


@given(
    st.lists(st.integers(-3, 20), min_size=5, max_size=5),
    st.integers(1, 12),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
)
def test_clipped_counts_are_feasible_and_stay(warmups, microbatches, memory):
    problem = Problem(5, microbatches, 1, 2, 3, 0, max_inflight_activations=memory)
    clipped = clip_warmups(warmups, problem)
    assert list(clipped) == sorted(clipped, reverse=True)
    assert all(1 <= count <= min(microbatches, max_inflight(problem, i)) for i, count in enumerate(clipped))
    assert clip_warmups(clipped, problem) == clipped
    done = warmups_of(adaptra(problem, warmups=clipped))
    assert all(count >= wanted for count, wanted in zip(done, clipped, strict=True))


@pytest.mark.parametrize("warmups", [(1, 2), (3, 2, 1), (9, 1), (2, 0), "most", "2,1"])
def test_bad_warmups(warmups):
    with pytest.raises(InputError, match="warm-up counts: got"):
        adaptra(Problem(2, 4, 1, 2, 3), warmups=warmups)


def equal(stages, microbatches, memory, delays):
    """F = B = W = 10 ms, links by number."""
    links = [delays.get(link, 0) for link in range(stages - 1)]
    return Problem(stages, microbatches, 10, 10, 10, links, max_inflight_activations=memory)


@pytest.mark.parametrize(
    ("stages", "microbatches", "quiet", "slow", "printed"),
    [(4, 12, 390, 470, (410, 530)), (8, 32, 1030, 1210, (1050, 1330))],
)
def test_in_the_memory_of_1f1b_slack_is_kept(stages, microbatches, quiet, slow, printed):
    """As printed, plans for no delay take longer than ZB-H1, and far longer once the middle link has 10 ms more."""
    free, late = (equal(stages, microbatches, stages, {stages // 2 - 1: delay}) for delay in (0, 10))
    made, static, old = (
        [simulate(check(plan, free), problem).makespan for problem in (free, late)]
        for plan in (adaptra(free), zb_h1(free), adaptra(free, printed=True))
    )
    assert made[0] == quiet and made[1] <= slow
    assert static == [quiet, slow] and tuple(old) == printed
    assert simulate(adaptra(late), late).makespan < slow


@settings(deadline=None)
@given(problems(stages=5, microbatches=9, data_parallel=False), st.integers(1, 8))
def test_within_a_memory_limit_never_behind_zb_h1(problem, memory):
    problem = replace(problem, memory=None, max_inflight_activations=memory)
    made = check(adaptra(problem), problem)
    try:
        static = simulate(check(zb_h1(problem), problem), problem).makespan
    except ScheduleError:
        return
    limited = min(max_inflight(problem, stage) for stage in range(problem.stages)) < problem.microbatches
    assert simulate(made, problem).makespan <= static * (1 + 1e-9) or not limited


def test_the_printed_algorithms_can_be_chosen():
    problem = equal(4, 12, 8, {0: 60})
    # Slacks of (20 + 120) / 20 on the first link, then 2; printed, at most 12 - 2 x 4.
    assert adapted_warmups(problem) == (8, 5, 3, 1)
    assert adapted_warmups(problem, printed=True) == (8, 5, 3, 1)
    roomy = equal(4, 12, 12, {0: 60})
    few = equal(4, 8, None, {0: 60})
    assert adapted_warmups(roomy) == (12, 5, 3, 1)
    assert adapted_warmups(roomy, printed=True) == (9, 5, 3, 1)
    assert warmups_of(adaptra(problem, warmups="initial", printed=True)) == initial_warmups(problem) == (8, 5, 3, 1)
    assert adapted_warmups(few, printed=True) == (1, 1, 1, 1)
