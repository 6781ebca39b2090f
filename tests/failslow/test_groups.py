"""Groups are compared by their transfers, not by their waiting; who waits least comes last."""

import random

import pytest

from lanterne.failslow.groups import arrivals, culprit, degraded_groups


def calls_of(late=None, late_s=0.0, transfer=0.01, ranks=range(4), count=20, seed=1):
    """Calls of a group in which rank `late` arrives `late_s` after the others: they wait for it, it does not wait."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        arrival = {rank: rng.uniform(0, 0.001) + (late_s if rank == late else 0.0) for rank in ranks}
        end = max(arrival.values()) + transfer
        found.append({rank: end - at for rank, at in arrival.items()})
    return found


def test_a_slow_rank_makes_its_victims_wait_but_no_group_slow():
    calls = {"a": calls_of(late=2, late_s=0.5), "b": calls_of(), "c": calls_of(), "d": calls_of()}
    assert degraded_groups(calls) == []


@pytest.mark.parametrize("factor", [1.2, 3.0])
def test_a_slow_link_makes_its_group_slow(factor):
    found = degraded_groups({"a": calls_of(transfer=0.01 * factor), "b": calls_of(), "c": calls_of()})
    assert [v.group for v in found] == ["a"]
    assert found[0].ratio == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("calls", [{}, {"a": []}, {"a": calls_of()}, {"a": calls_of(transfer=1.0), "b": []}])
def test_nothing_to_compare_blames_nothing(calls):
    assert degraded_groups(calls) == []


def test_the_late_rank_is_last_and_waits_least():
    table = arrivals(calls_of(late=2, late_s=0.1), total_s=10.0)
    assert (table[0].rank, table[0].last, table[0].calls) == (2, 20, 20)
    assert table[0].wait_max_s == 0.0
    assert all(0.09 < other.wait_min_s <= other.wait_median_s <= other.wait_max_s for other in table[1:])
    assert table[1].wait_share == pytest.approx(20 * 0.1 / 10.0, rel=0.02)
    assert culprit(table, 20) == 2


def test_no_culprit_without_evidence():
    assert culprit(arrivals(calls_of(count=40), total_s=10.0), 40) is None
    assert culprit(arrivals(calls_of(late=1, late_s=0.1, count=3), total_s=1.0), 3) is None
    assert culprit([], 100) is None
