"""Where two levels part, and what votes add up to."""

from math import log
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.detect.votes import LEAST_ROWS, PROVISIONAL, VoteRun, best_split, split


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


@given(values=st.lists(st.integers(0, 9), min_size=2 * LEAST_ROWS, max_size=20))
def test_the_best_split_has_the_least_distances_to_two_medians(values):
    def distances(part):
        return sum(abs(value - median(part)) for value in part)

    sums = [distances(values[:i]) + distances(values[i:]) for i in range(LEAST_ROWS, len(values) - LEAST_ROWS + 1)]
    assert sums[best_split(values, 0, 9, 0.0) - LEAST_ROWS] == min(sums)


def test_a_run_in_a_job_whose_every_other_row_looks_shifted():
    run = VoteRun(0.5)
    for row in range(1000):
        run.add(9.0 if row % 2 == 0 else -9.0, row)
        assert run.grew == (row % 2 == 0), row
        assert run.score < PROVISIONAL, row
    for row in range(20):
        run.add(9.0, row)
    assert run.score == pytest.approx(20 * log(0.9 / 0.5))
