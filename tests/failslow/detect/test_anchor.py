"""The anchor: steps add up against it, noise makes it better known, and downwards it follows."""

import pytest

from lanterne.failslow.detect.anchor import Anchor
from lanterne.failslow.detect.level import Level


def level(median):
    return Level(64, [median - 0.001, median, median + 0.001] * 21)


@pytest.fixture
def anchor():
    anchor = Anchor()
    anchor.drop(1.0)
    return anchor


@pytest.mark.parametrize(("rise", "told"), [(0.05, False), (0.09, False), (0.11, True)])
def test_ten_percent_in_all_is_a_rise(anchor, rise, told):
    assert anchor.rises(level(1.0 + rise)) == told


def test_small_steps_leave_the_anchor_where_it_is(anchor):
    assert not anchor.rises(level(1.06))
    assert anchor.value == 1.0
    assert anchor.rises(level(1.12))


def test_what_was_told_is_told_again_only_when_there_is_more(anchor):
    anchor.told = 1.09
    assert not anchor.rises(level(1.10))
    assert anchor.rises(level(1.13))


def test_downwards_it_follows(anchor):
    assert not anchor.rises(level(0.9))
    assert anchor.value == 0.9


def test_what_noise_explains_makes_it_better_known(anchor):
    for _ in range(100):
        anchor.rises(level(1.001))
    assert 1.0 < anchor.value <= 1.001
