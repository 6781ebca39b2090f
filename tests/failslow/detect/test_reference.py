"""What a job is measured against: steps add up, downwards it follows, and an incident ends at the level of before."""

import pytest

from lanterne.failslow.detect.level import Level
from lanterne.failslow.detect.reference import Healthy, Reference


def level_at(median):
    return Level(64, [median - 0.001, median, median + 0.001] * 21)


@pytest.fixture
def reference():
    level = level_at(1.0)
    reference = Reference(Healthy(level, level.noise, 0.03, 0.03))
    reference.drop(1.0)
    return reference


@pytest.mark.parametrize(("rise", "told"), [(0.05, False), (0.09, False), (0.11, True)])
def test_ten_percent_in_all_is_a_rise(reference, rise, told):
    assert reference.rises(level_at(1.0 + rise)) == told


def test_small_steps_leave_the_anchor_where_it_is(reference):
    assert not reference.rises(level_at(1.06))
    assert reference.anchor == 1.0
    assert reference.rises(level_at(1.12))


def test_what_was_told_is_told_again_only_when_there_is_more(reference):
    reference.told = 1.09
    assert not reference.rises(level_at(1.10))
    assert reference.rises(level_at(1.13))


def test_downwards_it_follows(reference):
    assert not reference.rises(level_at(0.9))
    assert reference.anchor == 0.9


def test_what_noise_explains_makes_it_better_known(reference):
    for _ in range(100):
        reference.rises(level_at(1.001))
    assert 1.0 < reference.anchor <= 1.001


@pytest.mark.parametrize(("level", "base"), [(1.05, 1.05), (0.98, 1.0), (1.2, 1.0)])
def test_what_counts_as_recovered(reference, level, base):
    """The level before, a little above the anchor; not one that was slow already."""
    reference.begin(Healthy(level_at(level), level_at(level).noise, 0.03, 0.03))
    assert reference.base == base


@pytest.mark.parametrize(
    ("back", "was_slow", "same"), [(1.001, True, True), (1.06, True, False), (1.001, False, False)]
)
def test_the_level_of_before_counts_again_where_it_is_the_same(reference, back, was_slow, same):
    healthy = level_at(1.0)
    reference.begin(Healthy(healthy, healthy.noise, 0.03, 0.03))
    recovered = reference.recovered(level_at(back), [back] * 8, 64, was_slow=was_slow)
    assert (recovered is healthy) == same
    assert recovered.median == pytest.approx(1.0 if same else back, abs=0.002)
