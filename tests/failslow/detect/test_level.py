"""What a level says of its own noise."""

from math import sqrt

import numpy as np
import pytest

from lanterne.failslow.detect.level import MIN_SCALE, REVIEW_ROWS, Level
from lanterne.failslow.detect.votes import SHIFT


def level_of(values):
    level = Level(64)
    for row, value in enumerate(values):
        level.push(value)
        if row % REVIEW_ROWS == REVIEW_ROWS - 1:
            level.review()
    return level


def autocorrelated(rows, correlation, seed=0):
    rng = np.random.default_rng(seed)
    values, last = [], rng.normal()
    for shock in rng.normal(size=rows):
        last = correlation * last + sqrt(1 - correlation**2) * shock
        values.append(last)
    return np.array(values)


@pytest.mark.parametrize("scale", [0.005, 0.05])
def test_scale_and_median(scale):
    level = level_of(1.0 + scale * np.random.default_rng(1).standard_t(2, size=64))
    assert level.median == pytest.approx(1.0, abs=scale)
    assert level.scale == pytest.approx(scale, rel=0.5)


def test_a_constant_level_has_the_least_spread():
    assert level_of([1.0] * 64).scale == MIN_SCALE


@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.7])
def test_autocorrelation(correlation):
    assert level_of(autocorrelated(3000, correlation)).correlation == pytest.approx(correlation, abs=0.2)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_error_of_a_difference_of_medians(correlation):
    """Against what 200 pairs of medians of 16 really differ by; a Gaussian's quartiles are those of a t of 0.826."""
    values = 0.02 * autocorrelated(6400, correlation)
    medians = np.median(values.reshape(-1, 16), axis=1)
    real = np.std(medians[::2] - medians[1::2])
    assert level_of(values).error(16, 16) == pytest.approx(real, rel=0.5)


def test_suspects_must_have_moved_by_more_than_noise_explains():
    level = level_of(0.02 * autocorrelated(640, 0.0))
    assert level.moved([level.median + 0.2] * 8) == pytest.approx(0.2)
    assert level.moved([level.median + 0.02] * 8) == 0.0


def test_a_shift_that_a_few_rows_can_tell():
    assert level_of([1.0] * 64).shift == SHIFT
    noisy = level_of(1.0 + 0.1 * autocorrelated(64, 0.0))
    assert noisy.shift == 2 * noisy.scale > SHIFT


def test_medians_of_alternating_rows_err_less():
    alternating, mixed = (
        level_of([1.0 + 0.3 * (row // rows % 2) + 0.001 * (row % 5) for row in range(640)]) for rows in (1, 2)
    )
    assert alternating.scale == pytest.approx(mixed.scale, rel=0.1)
    assert alternating.correlation == 0.0
    assert 2 * alternating.error(8, 64) < mixed.error(8, 64)


def test_rows_as_high_as_those_of_the_level_are_explained_in_any_number_that_meets_by_chance():
    level = level_of([1.0, 1.5, 1.0, 1.0, 1.5, 1.5] * 20)
    assert level.explains([1.5] * 8, 0.5)
    assert not level.explains([1.5] * 20, 0.5)
    assert not level.explains([2.2] * 6, 1.2)


def test_a_shift_below_the_least_is_explained():
    level = level_of(0.05 * autocorrelated(640, 0.0))
    least = level.least(6)
    suspects = [level.median + 10 * least] * 6
    assert level.least(64) == level.least(16) < least
    assert level.explains(suspects, 0.99 * least)
    assert not level.explains(suspects, 1.01 * least)


def test_spikes_that_pile_up_hardly_widen_the_core():
    rng = np.random.default_rng(3)
    level = level_of(0.01 * rng.standard_t(2, size=256).clip(-3))
    known = level.core_scale
    for row in range(64):
        level.push(0.5 if row % 3 == 0 else 0.01 * rng.standard_t(2))
        if row % REVIEW_ROWS == REVIEW_ROWS - 1:
            level.review()
    assert level.scale > 5 * known
    assert level.core_scale < 2 * known


def test_a_new_level_has_the_noise_of_the_old_one():
    old = level_of(0.05 * autocorrelated(640, 0.5))
    new = Level(64, [1.0] * 5, old)
    assert (new.median, new.scale, new.correlation) == (1.0, old.scale, old.correlation)


@pytest.mark.parametrize("lasting", [0.0, 0.4])
def test_the_scale_of_steps_is_that_of_the_noise_whatever_the_level_does(lasting):
    noise = 0.01 * np.random.default_rng(3).standard_t(2, size=64)
    level = level_of(noise)
    there = noise + lasting * (np.arange(64) >= 40)
    assert level.scale_of_steps(list(there)) == pytest.approx(level.scale, rel=0.6)
