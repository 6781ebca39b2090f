"""The level and the noise of a series, and the test of what persists."""

import random
from math import inf, log
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.evidence.persistence import LIKELY, VoteRun
from lanterne.failslow.evidence.series import MIN_SCALE, REVIEW_ROWS, SHIFT, Level


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=60), capacity=st.integers(1, 20))
def test_the_median_is_that_of_the_latest_values(values, capacity):
    level = Level(capacity)
    for number, value in enumerate(values, start=1):
        level.push(value)
        assert level.median == median_low(values[:number][-capacity:])
    assert list(level.values) == values[-capacity:]


def noisy(scale, *, correlation=0.0, spikes=0.0, seed=1):
    """A Level of 400 values of Gaussian noise."""
    draw, level, last = random.Random(seed), Level(64), 0.0
    for row in range(1, 401):
        last = correlation * last + scale * draw.gauss(0, (1 - correlation**2) ** 0.5)
        level.push(last + (0.8 if draw.random() < spikes else 0.0))
        if row % REVIEW_ROWS == 0:
            level.review()
    return level


def test_noise_is_told_without_its_spikes():
    assert noisy(1e-5).scale == MIN_SCALE
    assert noisy(0.02).scale == pytest.approx(0.0165, rel=0.5) and noisy(0.02).shift == SHIFT
    assert noisy(0.02, spikes=0.2).core_scale == pytest.approx(0.02, rel=0.5)
    assert noisy(0.02, correlation=0.6).correlation == pytest.approx(0.6, abs=0.25)
    assert noisy(0.02, correlation=0.6).error(8, 64) > 1.5 * noisy(0.02).error(8, 64)
    assert noisy(0.2).shift > 0.2


def test_few_values_beyond_all_others_do_not_meet_by_chance():
    level = noisy(0.02)
    assert level.odds_beyond([0.2] * 5, 1) > LIKELY and level.odds_beyond([-0.2] * 5, -1) > LIKELY
    assert level.odds_beyond([0.0] * 5, 1) < 5 and level.odds_beyond([0.2] * 5, -1) < 1


def test_no_vote_counts_for_more_than_its_cap_and_one_against_takes_as_much_back():
    run = VoteRun(0.1)
    assert run.cap == pytest.approx(log(10))
    for row, (vote, score) in enumerate([(-inf, 0), (inf, 1), (inf, 2), (-inf, 1), (-inf, 0), (-inf, 0)]):
        run.add(vote, row)
        assert run.score == pytest.approx(score * log(10)), row
    for row in range(10, 40):
        run.add(inf, row)
    assert run.start == 10 and run.suspected in (11, 12)
    assert run.score == pytest.approx(LIKELY + 4 * run.cap)
