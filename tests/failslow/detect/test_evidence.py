"""The weighing of suspects: agreement speaks for a level, different heights speak for bursts."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.failslow.detect.bursts import Bursts, noise_density
from lanterne.failslow.detect.evidence import Weighing, back_vote, is_abrupt, level_start, log_odds
from lanterne.failslow.detect.level import Level


def bursts(share=0.0):
    """Of a job of which nothing is known, or which had 100 rows, `share` of them single spikes of many heights."""
    seen = Bursts()
    for i in range(100 if share else 0):
        seen.see(0.1 * (1 + i % 17) if i % round(1 / share) == 0 else 0.0, 0.001)
        seen.pass_rows(1)
    return seen


def odds(suspects, scale=0.01, correlation=0.0, share=0.0, ignored=0.0):
    return log_odds(suspects, scale, correlation, bursts(share), ignored)


def test_too_few_rows():
    assert odds([0.3] * 4) == (-inf, 0)


@pytest.mark.parametrize("height", [0.12, 0.3, 1.0])
def test_one_level_against_two_bursts_of_three(height):
    level, _ = odds([height] * 6)
    bursts, _ = odds([height] * 3 + [2 * height] * 3)
    assert level > 6.0
    assert bursts < level - 5.0
    assert bursts < 2.0


def test_every_row_of_a_level_adds_what_a_burst_would_cost():
    found = [odds([0.3] * rows)[0] for rows in range(5, 12)]
    assert found == sorted(found)
    assert found[-1] - found[0] > 6.0


def test_the_level_begins_where_the_noise_ends():
    assert odds([0.01, -0.02, 0.3, 0.31, 0.29, 0.3, 0.31, 0.3])[1] == 2


def test_noise_is_no_level():
    assert odds([0.02, -0.01, 0.01, 0.02, -0.02, 0.03, 0.0])[0] < 0.0


def test_what_weakens_the_evidence():
    rows = [0.12, 0.10, 0.13, 0.11, 0.12, 0.12]
    plain = odds(rows)[0]
    assert odds(rows, share=0.2)[0] < plain
    assert odds(rows, scale=0.04)[0] < plain
    assert odds(rows, scale=0.04, correlation=0.7)[0] < odds(rows, scale=0.04)[0]
    assert odds(rows, scale=0.04, ignored=0.05)[0] < odds(rows, scale=0.04)[0]


def test_one_spike_inside_a_level_costs_no_more_than_a_row():
    assert odds([0.3] * 4 + [2.0] + [0.3] * 4)[0] > odds([0.3] * 6)[0]


@pytest.mark.parametrize("before", [[0.0] * 16, [0.16, -0.03, 0.94, -0.03, 3.1], [0.01, -0.01, 0.02, 1.2, 0.0, 0.4]])
def test_spikes_before_a_level_are_not_its_beginning(before):
    level = [0.11, 0.14, 0.16, 0.23, 0.13, 0.14]
    assert level_start(before + level, 0.0, 0.01, 0.1) - len(before) in ({-1, 0} if before[-1] > 0.1 else {0})


def test_a_level_begins_where_it_was_reached_not_where_rows_were_a_little_high():
    rows = [0.01, -0.01, 0.02, 0.05, 0.03, 0.11, 0.04, 0.13, 0.05, 0.09]
    assert level_start([*rows, 0.32, 0.28, 0.29, 0.42, 0.26], 0.0, 0.024, 0.02) == len(rows)


@settings(max_examples=60, deadline=None)
@given(
    suspects=st.lists(st.floats(-700, 700), min_size=5, max_size=64),
    scale=st.floats(0.003, 1.0),
    correlation=st.floats(0.0, 0.8),
)
def test_any_suspects_have_finite_odds(suspects, scale, correlation):
    found, first = odds(suspects, scale, correlation, ignored=0.03)
    assert -inf < found < inf
    assert 0 <= first <= len(suspects) - 5


@pytest.mark.parametrize(
    ("y", "low", "high"), [(0.0, 2.0, 10.0), (0.01, 2.0, 10.0), (0.3, -9.0, -2.0), (0.15, -9.0, -1.0)]
)
def test_votes_on_a_relief(y, low, high):
    """Rows at the old level speak for it, those at the incident's or between the two against it."""
    noise = noise_density(0.01, 0.0)
    assert low < back_vote(y, y, (0.0, noise), (0.3, noise), 0.03) < high


def test_a_burst_is_no_evidence_on_a_relief():
    noise = noise_density(0.01, 0.0)
    assert abs(back_vote(2.0, 0.0, (0.0, noise), (0.3, noise), 0.1)) < 1.1


# -- Weighing


@pytest.fixture
def level():
    return Level(64, [0.01 * (row % 3 - 1) for row in range(64)])


def test_many_suspects_are_weighed_less_often():
    weighing = Weighing()
    assert [rows for rows in range(1, 41) if weighing.is_due(rows, 100 + rows)] == [
        *range(5, 17), 18, 20, 22, 24, 27, 30, 33, 37,
    ]  # fmt: skip


@pytest.mark.parametrize("height", [0.12, 0.5])
def test_weighing_a_level_above_and_where_it_begins(level, height):
    rows = [height + 0.005 * (row % 2) for row in range(8)]
    assert Weighing().slower(rows, level, 0.0) == 0
    assert Weighing().slower([0.0, -0.01, *rows], level, 0.0) == 2
    assert not Weighing().is_faster(rows, level, 0.0)


def test_weighing_bursts_of_two_heights_are_no_level(level):
    assert Weighing().slower([0.3] * 3 + [0.6] * 3, level, 0.0) is None


def test_weighing_a_level_below(level):
    assert Weighing().is_faster([-0.2 + 0.005 * (row % 2) for row in range(16)], level, 0.0)
    assert not Weighing().is_faster([0.01 * (row % 3 - 1) for row in range(16)], level, 0.0)


@pytest.mark.parametrize(
    ("before", "after", "abrupt"),
    [
        ([0.3] * 24, [0.0] * 8, True),
        ([0.3 - 0.01 * i for i in range(24)], [0.06 - 0.01 * i for i in range(8)], False),
        ([0.3] * 24, [0.2, 0.18, 0.15, 0.12, 0.09, 0.06, 0.03, 0.0], False),
        ([0.3] * 8, [0.0] * 8, False),
    ],
    ids=["at once", "slope", "slope after", "too short"],
)
def test_what_falls_at_once_was_slow_and_what_slopes_warms_up(before, after, abrupt):
    assert is_abrupt(before, after, 0.005) == abrupt
