"""Where two levels part."""

import pytest

from lanterne.failslow.votes import best_split, split


@pytest.mark.parametrize("at", [4, 9, 16])
@pytest.mark.parametrize("new", [1.1, 0.9])
def test_both_find_where_a_level_begins(at, new):
    values = [1.0 + 0.01 * (row % 3) for row in range(at)] + [new + 0.01 * (row % 3) for row in range(20 - at)]
    assert split(values, 1.0, new) == at
    assert best_split(values, 1.0, new, 0.03) == at


def test_spikes_before_a_level_are_not_its_beginning():
    values = [1.0] * 4 + [2.5, 3.0, 2.0, 1.6] + [1.0] * 8 + [1.15] * 6
    assert best_split(values, 1.0, 1.15, 0.01) == 16


def test_the_level_before_need_not_be_the_one_told():
    assert best_split([1.06] * 12 + [1.12] * 6, 1.0, 1.12, 0.01) == 12
