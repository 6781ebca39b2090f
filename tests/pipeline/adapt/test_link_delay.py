"""Latency and occupancy from when messages left and came: exact where they were seen, bounds where they were not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.pipeline.adapt.estimate import delay_of
from lanterne.pipeline.adapt.link_delay import link_delay


def arrivals(left_s, latency_s, occupancy_s):
    """When messages come through a link that serves one after the other."""
    came_s, free_s = [], -np.inf
    for left in left_s:
        free_s = max(left, free_s) + occupancy_s
        came_s.append(free_s + latency_s)
    return np.array(came_s)


@given(
    st.lists(st.floats(0, 0.05), min_size=1, max_size=30),
    st.floats(0, 0.1),
)
def test_latency_that_was_seen(gaps_s, latency_s):
    left_s = np.cumsum(gaps_s)
    came_s = left_s + latency_s
    delay = link_delay(left_s, left_s, came_s, came_s)
    assert delay.is_seen and delay.num_seen == len(left_s) and delay.occupancy_s == 0
    assert delay.low_s == pytest.approx(latency_s, abs=1e-9)


@given(st.floats(0, 0.05), st.floats(0.012, 0.05), st.integers(6, 30))
def test_queueing_tells_occupancy_from_latency(latency_s, occupancy_s, count):
    left_s = np.arange(count) * 0.010
    came_s = arrivals(left_s, latency_s, occupancy_s)
    delay = link_delay(left_s, left_s, came_s, came_s)
    assert delay.occupancy_s == pytest.approx(occupancy_s, rel=1e-6)
    assert delay.latency_s == pytest.approx(latency_s, abs=1e-6)


def test_an_occupancy_is_assumed_where_too_few_were_seen():
    left_s = np.arange(8) * 0.010
    came_s = arrivals(left_s, 0.002, 0.020)
    after_s = np.full(8, -np.inf)
    after_s[3:7] = came_s[3:7]
    delay = link_delay(left_s, left_s, after_s, came_s, assumed_s=0.020)
    assert (delay.low_s, delay.occupancy_s, delay.num_seen) == (pytest.approx(0.022), pytest.approx(0.020), 4)
    healed = link_delay(left_s, left_s, after_s, left_s + 0.001, assumed_s=0.020)
    assert healed.high_s < 0.002


def test_ends_that_are_held_up_only_widen_the_bounds():
    """A link of 5 ms: senders that go on 3 ms late, receivers that look 4 ms late, but for one message."""
    given_s = np.arange(8) * 0.010
    came_s = given_s + 0.005
    late = np.arange(8) != 3
    delay = link_delay(given_s, given_s + 0.003 * late, came_s - 0.0005 * late, came_s + 0.004 * late)
    assert delay.low_s == pytest.approx(0.0015) and delay.high_s == pytest.approx(0.009)
    free = link_delay(given_s, given_s + 0.003 * late, given_s - 0.001 * late, given_s + 0.008 * late)
    assert free.low_s < 0


@pytest.mark.parametrize(("in_order", "within"), [(False, 0.95), (True, 0.8)])
def test_delays_on_a_crowded_machine_are_those_of_the_link(in_order, within):
    """Ranks that are held up for 20 ms in a tenth of what they do see 40 ms, by three iterations, within a fifth."""
    rng = np.random.default_rng(0)

    def held_up_s(count):
        return (rng.random(count) < 0.1) * rng.exponential(20e-3, count)

    def iteration(latency_s=40e-3, gap_s=10e-3, count=12):
        given_s = np.cumsum(rng.uniform(0.8, 1.3, count) * gap_s)
        gone_s = given_s + 3e-5 + held_up_s(count)
        came_s, free_s = [], 0.0
        for left_s in given_s + rng.random(count) * (gone_s - given_s):
            came_s.append(max(left_s, free_s if in_order else 0.0) + latency_s)
            free_s = came_s[-1]
        # While it waits a receiver looks often, while it computes not at all.
        naps_s = np.where(rng.random(4000) < 0.7, 2e-4, gap_s * rng.uniform(0.3, 1.0, 4000)) + held_up_s(4000)
        looks_s = np.cumsum(naps_s)
        at = np.searchsorted(looks_s, came_s)
        return link_delay(given_s, gone_s, looks_s[at - 1], looks_s[at])

    found_s = np.array([sum(delay_of([iteration() for _ in range(3)], 0.0, 0.0, 0.0)) for _ in range(100)])
    assert np.mean(np.abs(found_s / 40e-3 - 1) <= 0.2) >= within
