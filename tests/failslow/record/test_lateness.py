"""Matching the calls of all ranks: what it says of many calls at once is what it says of each by itself."""

import random
from statistics import median

import numpy as np
import pytest
from call_logs import new_calls
from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.record.adapters import DDP_FORWARD
from lanterne.failslow.record.lateness import MAX_LATE, MAX_RATE_PER_S, Matcher

# Communicators and their ranks.
GROUPS = {0: (0, 1, 2, 3), 7: (1, 3), 9: (0, 2)}


def job(seed, calls):
    """{rank: calls}, and the calls: [{rank: (start, end)}]; some ranks come at the same time."""
    rng = random.Random(seed)
    logs, made, now_s = {rank: [] for rank in range(4)}, [], 1.0
    for _ in range(calls):
        communicator = rng.choice([*GROUPS])
        ranks = GROUPS[communicator]
        starts = {rank: now_s + rng.choice([0.0, 0.0, rng.random()]) for rank in ranks}
        now_s = max(starts.values()) + 0.1
        made.append({rank: (starts[rank], now_s + 0.01 * rng.random()) for rank in ranks})
        for rank, times in made[-1].items():
            logs[rank].append(("a", len(ranks), communicator, 8, *times))
    return logs, made


def judged_by_hand(call):
    """(when the last rank came, what the call then took, {late rank: by how much}, the last rank) of a call."""
    came = sorted((start_s, rank) for rank, (start_s, _) in call.items())
    early = max(len(came) // 2, 1)
    middle_s = median(start_s for start_s, _ in came[:early])
    late = {rank: pytest.approx(start_s - middle_s) for start_s, rank in came[early:][-MAX_LATE:]}
    last_s, last = came[-1]
    return last_s, pytest.approx(max(0.0, min(end_s for _, end_s in call.values()) - last_s)), late, last


def matcher_of(ranks=4, clocks=None):
    matcher = Matcher()
    for rank in range(ranks):
        matcher.add_rank(rank, (clocks or {}).get(rank, "b"))
    return matcher


def take(matcher):
    """{when its last rank came: (what it then took, {late rank: by how much})} of each call."""
    found = {}
    for calls in matcher.take():
        late = [*zip(calls.late_at_s.tolist(), calls.late_rank.tolist(), calls.late_s.tolist(), strict=True)]
        for start_s, transfer_s in zip(calls.start_s.tolist(), calls.transfer_s.tolist(), strict=True):
            found[start_s] = transfer_s, {rank: late_s for at_s, rank, late_s in late if at_s == start_s}
    return found


@given(seed=st.integers(0, 999), calls=st.integers(0, 60), data=st.data())
def test_many_calls_at_once_are_judged_as_each_by_itself(seed, calls, data):
    """In whatever pieces the logs are read."""
    logs, made = job(seed, calls)
    matcher, read, found = matcher_of(), dict.fromkeys(logs, 0), {}
    while any(read[rank] < len(log) for rank, log in logs.items()):
        ends = {rank: read[rank] + data.draw(st.integers(0, 30)) for rank in logs}
        matcher.add(new_calls({rank: log[read[rank] : ends[rank]] for rank, log in logs.items()}))
        read = ends
        found |= take(matcher)
    told = [judged_by_hand(call) for call in made]
    assert found == {start_s: (transfer_s, late) for start_s, transfer_s, late, _ in told}
    assert matcher.last == {rank: sum(last == rank for *_, last in told) for rank in range(4)}
    waited_s = {rank: sum(max(call.values())[0] - call[rank][0] for call in made if rank in call) for rank in range(4)}
    assert matcher.waited_s == pytest.approx(waited_s)
    assert matcher.calls == len(made) == sum(map(len, matcher.delays_s().values()))


def test_who_reports_nothing_any_more_is_not_waited_for():
    """Calls of all ranks are judged without it, those of others wait on; what it said before counts."""
    matcher = matcher_of(3)
    calls = [("a", 3, 0, 8, i + 0.1, i + 0.5) for i in range(10)]
    matcher.add(new_calls({0: calls, 1: calls, 2: calls[:4]}))
    matcher.add(new_calls({0: [("a", 2, 5, 8, 11.0, 11.5)]}))
    assert (matcher.calls, matcher.last) == (4, {0: 0, 1: 0, 2: 4})
    matcher.lose(2)
    matcher.add(new_calls({2: calls[6:]}))
    matcher.find_silent(3)
    assert (matcher.calls, matcher.last) == (10, {0: 0, 1: 6, 2: 4})


@pytest.mark.parametrize("skew_s", [0.0, 1e6])
def test_clocks_are_aligned_by_the_ends_of_calls(skew_s):
    matcher = matcher_of(2, {1: "c"})
    early, late = (
        [("a", 2, 0, 8, i + late_s + ahead_s, i + 0.5 + ahead_s) for i in range(40)]
        for late_s, ahead_s in ((0.1, 0.0), (0.3, skew_s))
    )
    matcher.add(new_calls({0: early, 1: late}))
    found = take(matcher)
    # The first calls tell how far the clocks are apart.
    assert len(found) == 40 - 15
    assert all(late == {1: pytest.approx(0.2, abs=1e-6)} for _, late in found.values())


@pytest.mark.parametrize("pieces", [1, 20])
def test_of_many_calls_a_sample_stands_for_all(pieces):
    """Whole blocks of them, whichever rank is read first, and however often."""
    matcher, count = matcher_of(2), 20_000
    matcher.set_spacing(10)
    rate_per_s = 10 * MAX_RATE_PER_S
    calls = [("a", 2, 0, 8, i / rate_per_s, (i + 0.5) / rate_per_s) for i in range(count)]
    weight = matched = 0.0
    for at in range(0, count, count // pieces):
        part = calls[at : at + count // pieces]
        matcher.add(new_calls({0: part, 1: [(*call[:4], call[4] + 1e-5, call[5]) for call in part]}))
        for found in matcher.take():
            matched += len(found.start_s)
            weight += found.late_s.sum() / 1e-5
    assert matched < count / 5 and weight == pytest.approx(count, rel=0.3)


def late_by(matcher):
    """(rank, ms that it is late of itself, and by waiting for a core) of what was matched, the latest ranks only."""
    return [
        (int(rank), round(own_s * 1e3), round(core_s * 1e3))
        for found in matcher.take()
        for rank, own_s, core_s in zip(found.late_rank, found.late_s, found.core_s, strict=True)
        if own_s + core_s > 1e-3
    ]


def test_how_long_the_rank_that_waited_longest_for_a_core_did_so_between_calls():
    """What it waits in a call may be how it waits for others."""
    matcher = matcher_of(3)
    calls = {rank: [("a", 3, 0, 8, 1.0, 1.5), ("a", 3, 0, 8, 2.0, 2.5)] for rank in range(3)}
    matcher.add(new_calls(calls, {1: [(0, 90_000), (95_000, 99_000)], 2: [(0, 0), (8_000, 8_000)]}))
    assert np.concatenate([found.starved_s for found in matcher.take()]) == pytest.approx([0.0, 8e-3])


@pytest.mark.parametrize("read_at_once", [True, False])
def test_what_a_rank_waits_for_a_core_is_not_its_own_lateness(read_at_once):
    """Rank 2 comes 30 ms late to its second call, of which it waited 20 for a core; waits in calls excuse nobody.

    The count has gone round in between.
    """
    matcher = matcher_of(3)
    calls = {rank: [("a", 3, 0, 8, 1.0, 1.5), ("a", 3, 0, 8, 2.0, 2.5)] for rank in range(3)}
    calls[2][1] = ("a", 3, 0, 8, 2.03, 2.5)
    end_us = 2**32 - 5_000
    waited_us = {2: [(end_us - 70_000, end_us), (15_000, 15_000)]}
    if read_at_once:
        matcher.add(new_calls(calls, waited_us))
    else:
        for at in (0, 1):
            part = {rank: one[at : at + 1] for rank, one in calls.items()}
            matcher.add(new_calls(part, {2: waited_us[2][at : at + 1]}))
    assert late_by(matcher) == [(2, 10, 20)]


@pytest.mark.parametrize(("between", "own_ms", "core_ms"), [(False, 5, 15), (True, 20, 0)])
@pytest.mark.parametrize("read_at_once", [True, False])
def test_who_left_a_call_late_since_it_waited_for_a_core_is_late_by_that(read_at_once, between, own_ms, core_ms):
    """By no more than it left late, and not where another call has brought its ranks together since."""
    matcher = matcher_of(3)
    calls = {rank: [("a", 3, 0, 8, 1.0, 1.5), ("a", 3, 0, 8, 2.0, 2.5)] for rank in range(3)}
    calls[2] = [("a", 3, 0, 8, 1.0, 1.515), ("a", 3, 0, 8, 2.02, 2.5)]
    waited_us = {rank: [(0, 60_000), (60_000, 60_000)] for rank in range(3)}
    if between:
        for rank in (0, 2):
            calls[rank].insert(1, ("b", 2, 9, 8, 1.6, 1.7))
            waited_us[rank].insert(1, (60_000, 60_000))
    for part in [slice(None)] if read_at_once else [slice(at, at + 1) for at in range(3)]:
        told = {rank: calls[rank][part] for rank in calls}
        matcher.add(new_calls(told, {rank: waited_us[rank][part] for rank in calls}))
    assert late_by(matcher) == [(2, own_ms, core_ms)]


def test_what_all_wait_alike_for_a_core_excuses_nobody():
    matcher = matcher_of(4)
    calls = {rank: [("a", 4, 0, 8, 1.0, 1.5), ("a", 4, 0, 8, 2.0 + 0.03 * (rank == 2), 2.5)] for rank in range(4)}
    matcher.add(new_calls(calls, {rank: [(0, 0), (50_000, 50_000)] for rank in range(4)}))
    assert late_by(matcher) == [(2, 30, 0)]


def test_a_forward_whose_backward_is_not_seen_comes_at_its_end_with_what_it_waited_until_then():
    matcher = matcher_of(3)
    calls = {rank: [(DDP_FORWARD, 3, 0, 8, 1.0, 1.5), (DDP_FORWARD, 3, 0, 8, 2.0, 2.5)] for rank in range(3)}
    calls[2][1] = (DDP_FORWARD, 3, 0, 8, 2.0, 2.53)
    matcher.add(new_calls(calls, {2: [(0, 0), (10_000, 20_000)]}))
    assert late_by(matcher) == [(2, 10, 20)]


@pytest.mark.parametrize("end_us", [7_000, 40_000])
def test_a_count_that_does_not_go_on_excuses_nobody(end_us):
    """As of calls on a device: their ends are written when another thread sees them."""
    matcher = matcher_of(3)
    calls = {rank: [("a", 3, 0, 8, 1.0, 1.5), ("a", 3, 0, 8, 2.0 + 0.03 * (rank == 2), 2.5)] for rank in range(3)}
    matcher.add(new_calls(calls, {2: [(0, end_us), (7_000, 7_000)]}))
    assert late_by(matcher) == [(2, 30, 0)]
