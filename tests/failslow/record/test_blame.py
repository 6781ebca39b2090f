"""Who is blamed for a slow spell: sets of ranks, by most iterations, over time; and nobody without evidence."""

import random

import numpy as np
import pytest

from lanterne.failslow.record.blame import (
    KEPT_ROWS,
    LATEST,
    Blame,
    IterationArrivals,
    LateArrivals,
    Latecomer,
    Latecomers,
    attribute,
)
from lanterne.failslow.record.lateness import Matched


def rows(first, count, late=(), transfer_s=0.001, noise_s=2e-4, seed=0):
    """Iterations of which each rank of `late` ({rank: seconds}) is late, beside noise of rank 0."""
    rng = random.Random(seed + first)

    def noise():
        return noise_s * rng.random()

    return [
        IterationArrivals(i, float(i), {0: noise(), **dict(late)}, transfer_s + noise(), 3)
        for i in range(first, first + count)
    ]


HEALTHY = rows(0, 40)


@pytest.mark.parametrize(
    ("late", "ranks"),
    [({2: 0.05}, (2,)), ({2: 0.05, 3: 0.02}, (2, 3)), ({1: 0.02, 3: 0.05}, (3, 1)), ({2: 0.05, 3: 0.004}, (2,))],
    ids=["one", "two", "the latest first", "not a little one"],
)
def test_the_ranks_that_are_late(late, ranks):
    cause = attribute(HEALTHY, rows(40, 6, late), 0.05)
    assert (cause.kind, cause.ranks, cause.rank, cause.since) == ("rank", ranks, ranks[0], 40)
    assert all(f"rank {rank} by" in cause.evidence for rank in ranks)


@pytest.mark.parametrize(("others_s", "ranks"), [(0.012, ()), (0.003, (2,))])
def test_where_others_come_late_by_nearly_as_much_nobody_is_named(others_s, ranks):
    """As beside as many busy processes as ranks: by chance one or two of them are late in most iterations."""
    heights = (0.0, 0.3, 1.0, 2.0, 2.0)
    during = [
        IterationArrivals(i, float(i), {2: 0.016, **{r: others_s * heights[(i + r) % 5] for r in range(3, 8)}})
        for i in range(40, 55)
    ]
    assert attribute(HEALTHY, during, 0.02).ranks == ranks


@pytest.mark.parametrize(("world_size", "ranks"), [(7, ()), (8, (0, 6, 2, 1)), (None, (0, 6, 2, 1))])
def test_most_ranks_are_no_stragglers(world_size, ranks):
    """Seen in a healthy job of 7 ranks beside a busy machine: all but those that came first were named."""
    during = rows(40, 6, {0: 0.023, 6: 0.0168, 2: 0.0148, 1: 0.0112})
    cause = attribute(HEALTHY, during, 0.023, world_size=world_size)
    assert cause.ranks == ranks
    assert ranks or "most ranks come late" in cause.evidence


def test_of_three_of_unequal_height_the_lowest_does_not_acquit_the_others():
    assert attribute(HEALTHY, rows(40, 6, {1: 0.05, 2: 0.02, 3: 0.014}), 0.05).ranks == (1, 2)


@pytest.mark.parametrize("transfer_s", [0.001, 0.06])
def test_who_waits_for_a_core_is_no_straggler_and_calls_beside_it_are_not_blamed(transfer_s):
    during = rows(40, 6, transfer_s=transfer_s)
    for row in during:
        row.core_s = {2: 0.05, 1: 0.02}
    cause = attribute(HEALTHY, during, 0.05)
    assert (cause.kind, cause.ranks, cause.rank) == ("host", (), None)
    assert "rank 2 50 ms, rank 1 20 ms an iteration more" in cause.evidence


@pytest.mark.parametrize(("starved_s", "kind"), [(0.02, "host"), (0.004, "calls")])
def test_calls_that_take_longer_beside_ranks_that_wait_for_cores_are_not_blamed(starved_s, kind):
    """Seen in two of 14 healthy jobs beside busy processes: the last rank to come waited for a core in the call."""
    during = rows(40, 6, transfer_s=0.06)
    for row in during:
        row.starved_s = starved_s
    cause = attribute(HEALTHY, during, 0.05)
    assert (cause.kind, cause.ranks) == (kind, ())
    assert "now one, now another, 20 ms an iteration" in cause.evidence or kind == "calls"


def shares_cores(rows, waits_s=0.02, own_s=0.0):
    """These iterations, of ranks that wait for cores between calls, and one of which is late by that."""
    for row in rows:
        row.starved_s, row.core_s = waits_s, {2: own_s}
    return rows


@pytest.mark.parametrize(
    ("waits_s", "quick", "own_s", "kind"),
    [
        (0.02, 0, 0.0, "calls"),
        (0.02, 0, 0.016, "calls"),
        (0.03, 0, 0.0, "host"),
        (0.02, 2, 0.0, "host"),
        (0.02, 0, 0.03, "host"),
        (0.52, 0, 0.0, "host"),
    ],
    ids=["as before", "who leaves late", "longer than before", "some calls are quick", "mostly one", "half the time"],
)
def test_a_link_of_ranks_that_share_cores(waits_s, quick, own_s, kind):
    """Seen in 7 of 7 jobs of lanterne with a slow link and more ranks than cores: all were put down to the host."""
    during = rows(40, quick) + rows(40 + quick, 6 - quick, transfer_s=0.06)
    before = shares_cores(rows(0, 40), waits_s if waits_s > 0.5 else 0.02)
    assert attribute(before, shares_cores(during, waits_s, own_s), 0.05).kind == kind


@pytest.mark.parametrize(
    ("waits", "kinds", "at"),
    [(range(40, 46), ["host", "calls"], [57]), (range(56, 64), ["calls"], []), (range(40, 100), ["host"], [])],
    ids=["at first", "for a while", "always"],
)
def test_all_iterations_of_a_spell_tell_a_link_from_a_busy_host(waits, kinds, at):
    """Six of them may show either."""
    arrivals = arrivals_of(lambda i: {})
    for row in arrivals.rows:
        row.end_s += 0.1 * max(row.index - 39, 0)
        row.transfer_s = 0.1 if row.index >= 40 else 0.001
        row.starved_s = 0.05 if row.index in waits else 0.02
    blame = Blame(arrivals)
    blame.begin(0, 40, 44, 0.1)
    assert [i for i, _ in follow(blame, 40, 44, 100)] == at
    assert [cause.kind for cause in blame.causes[40]] == kinds


def test_who_is_late_by_more_than_it_waits_for_a_core_is_named():
    during = rows(40, 6, {2: 0.03})
    for row in during:
        row.core_s = {2: 0.02}
    assert attribute(HEALTHY, during, 0.05).ranks == (2,)


def test_a_few_large_waits_blame_nobody():
    """Whatever their mean: a rank that waits for a disk in one iteration of six is not why all are slow."""
    during = rows(40, 5) + rows(45, 1, {2: 3.0})
    assert attribute(HEALTHY, during, 0.05).kind == "unknown"


def test_large_waits_before_acquit_nobody():
    """The mean of the iterations before would be above that of the slow ones."""
    before = HEALTHY[:38] + rows(38, 2, {2: 4.0})
    assert attribute(before, rows(40, 6, {2: 0.05}), 0.05).ranks == (2,)


def test_calls_that_take_longer():
    cause = attribute(HEALTHY, rows(40, 6, transfer_s=0.06), 0.05)
    assert (cause.kind, cause.rank, cause.ranks) == ("calls", None, ())


def test_those_of_whom_nothing_is_known_are_suspects():
    cause = attribute(HEALTHY, rows(40, 6, transfer_s=0.06), 0.05, (3,))
    assert (cause.kind, cause.ranks) == ("rank", (3,)) and "nothing is known of rank 3" in cause.evidence
    assert attribute(HEALTHY, rows(40, 6, {1: 0.05}), 0.05, (3,)).ranks == (1,)


@pytest.mark.parametrize(
    ("before", "during", "extra_s"),
    [((), (), 1.0), (HEALTHY, (), 1.0), (HEALTHY[:1], rows(40, 6, {2: 1.0}), 1.0), (HEALTHY, rows(40, 6), -1.0)],
)
def test_no_evidence_no_blame(before, during, extra_s):
    assert attribute(before, during, extra_s).kind == "unknown"


def test_calls_that_vary_more_than_they_have_grown_excuse_nobody():
    during = rows(40, 6, {2: 0.1})
    for row, transfer_s in zip(during, (0.0, 0.3, 0.15, 0.0, 0.3, 0.15), strict=True):
        row.transfer_s += transfer_s
    assert attribute(HEALTHY, during, 0.15).ranks == (2,)


def test_all_slow_alike():
    assert attribute(HEALTHY, rows(40, 6), 0.05).kind == "unknown"


def matched(*calls):
    """Calls of (when the last rank came, what it then took, {late rank: seconds})."""
    late = [(start_s, rank, late_s) for start_s, _, late in calls for rank, late_s in late.items()]
    starts_s, transfers_s, _ = zip(*calls, strict=True)
    late_at_s, late_rank, late_s = np.array(late).reshape(-1, 3).T
    starts_s, transfers_s = np.array(starts_s), np.array(transfers_s)
    return Matched(starts_s, transfers_s, 0 * starts_s, late_at_s, late_rank.astype(int), late_s, 0 * late_s)


def arrivals_of(late_at):
    """Arrivals of 100 iterations of 1 s; `late_at` is a function from the iteration to {rank: seconds}."""
    arrivals = LateArrivals()
    for i in range(100):
        arrivals.add([matched((i + 0.5, 1e-3, late_at(i)))])
        arrivals.end(i, float(i + 1))
    return arrivals


def test_calls_may_be_told_of_before_and_after_their_iteration_ends():
    arrivals = LateArrivals()
    arrivals.end(0, 0.0)
    arrivals.add([matched((0.5, 1e-3, {1: 0.2}), (-0.5, 1e-3, {1: 18.0}))])
    arrivals.end(1, 1.0)
    arrivals.end(2, 2.0)
    arrivals.add([matched((0.7, 1e-3, {1: 0.1})), matched((1.5, 1e-3, {2: 0.3}))])
    first, second = arrivals.between(0, None)
    assert first.late_s == {1: pytest.approx(0.3)} and first.calls == 2
    assert second.late_s == {2: pytest.approx(0.3)}


def test_the_call_that_ends_an_iteration_is_of_the_next_whoever_comes_last_to_it():
    """Of two slow ranks one is the lead, whose coming ends the iteration: now it is the last, now the other."""
    arrivals = LateArrivals()
    for i in range(10):
        arrivals.end(i, float(i))
        arrivals.add([matched((i + (1e-4 if i % 3 else 0.0), 1e-3, {0: 0.1, 2: 0.1}), (i + 0.5, 1e-3, {}))])
    assert [(row.calls, row.late_s) for row in arrivals.between(1, None)] == [(2, {0: 0.1, 2: 0.1})] * 9


def test_rows_are_the_same_whenever_they_are_asked_for():
    rng, asked, unasked = random.Random(0), LateArrivals(), LateArrivals()
    for arrivals in (asked, unasked):
        arrivals.end(5, 5.0)
        arrivals.add([matched((4.5, 1e-3, {1: 9.0}))])
        arrivals.clear()
    end = 100
    for begin in range(100, 100 + KEPT_ROWS + 200, 40):
        calls = [(begin - 20 + 60 * rng.random(), 1e-3, {rng.randrange(4): rng.random()}) for _ in range(90)]
        for i in range(begin, begin + 40):
            end = i + 1
            asked.end(i, float(end))
            unasked.end(i, float(end))
        asked.add([matched(*calls)])
        unasked.add([matched(*calls)])
        assert asked.rows[-1].index == end - 1, f"iterations from {begin} on"
    assert unasked.rows == asked.rows
    assert [row.index for row in unasked.rows] == [*range(end - KEPT_ROWS, end)]
    assert sum(row.calls for row in unasked.rows) > KEPT_ROWS and any(len(row.late_s) > 1 for row in unasked.rows)


def follow(blame, onset, last, end):
    return [(i, cause) for i in range(last + 1, end) if (cause := blame.follow(onset, 1.0, 1.1, i)) is not None]


def test_the_slow_one_moves():
    """Told within six iterations, once, and kept: what is said live is what the report says."""
    blame = Blame(arrivals_of(lambda i: {1: 0.1} if 40 <= i < 60 else {3: 0.1} if i >= 60 else {}))
    first = blame.begin(0, 40, 44, 0.1)
    ((told, second),) = follow(blame, 40, 44, 100)
    assert (first.ranks, second.ranks) == ((1,), (3,))
    assert 60 + LATEST / 2 <= told <= 60 + 6
    assert [cause["ranks"] for cause in blame.of(40, None)] == [[1], [3]]


def test_a_second_one_joins():
    blame = Blame(arrivals_of(lambda i: {1: 0.1} if 40 <= i < 60 else {1: 0.1, 2: 0.08} if i >= 60 else {}))
    blame.begin(0, 40, 44, 0.1)
    assert [set(cause.ranks) for _, cause in follow(blame, 40, 44, 100)] == [{1, 2}]


@pytest.mark.parametrize(("late_s", "latest_s", "told"), [(0.03, 1.05, []), (0.06, 1.1, [(0,)])])
def test_of_what_is_left_of_a_spell_that_is_all_but_over_nobody_is_blamed(late_s, latest_s, told):
    """By less than a twentieth of an iteration."""
    blame = Blame(arrivals_of(lambda i: {0: late_s} if i >= 40 else {}))
    assert blame.begin(0, 40, 44, 0.2).kind == "unknown"
    found = [cause for i in range(50, 100) if (cause := blame.follow(40, 1.0, latest_s, i)) is not None]
    assert [cause.ranks for cause in found] == told


def test_the_same_one_is_told_of_once():
    blame = Blame(arrivals_of(lambda i: {1: 0.1 + 0.02 * (i % 3)} if i >= 40 else {}))
    blame.begin(0, 40, 44, 0.1)
    assert follow(blame, 40, 44, 100) == []


def seen(late_at, learned=100):
    """(iteration, Latecomer) of each time that one was found in 100 iterations; none is usual from `learned` on."""
    late = Latecomers(arrivals_of(late_at), 0)
    found = [(i, late.see(i, 1.0, learns=i < learned)) for i in range(100)]
    return [(i, one) for i, one in found if one is not None]


def test_a_rank_that_comes_later_than_any_other_from_some_iteration_on():
    (row, one), *_ = seen(lambda i: {1: 0.03 * (i % 3)} | ({2: 0.2} if i >= 60 else {}))
    assert one == Latecomer(frozenset({2}), 60) and row <= 65


def test_two_ranks_that_come_later_than_any_other_from_some_iteration_on():
    (row, one), *_ = seen(lambda i: {1: 0.2 + 0.06 * (i % 2), 2: 0.22, 3: 0.05} if i >= 60 else {3: 0.05})
    assert one == Latecomer(frozenset({1, 2}), 60) and row <= 65


@pytest.mark.parametrize(
    "late_at",
    [
        lambda i: {2: 0.2},
        lambda i: {2: 0.2} if i % 4 == 0 else {1: 0.2} if i % 4 == 2 else {},
        lambda i: {i % 3: 0.2} if i >= 60 else {},
        lambda i: {1: 0.2, 2: 0.22, 3: 0.12} if i >= 60 else {},
        lambda i: {1: 0.08, 2: 0.09} if i >= 60 else {},
        lambda i: {2: 0.04} if i >= 60 else {},
        lambda i: {2: 3.0} if i in (60, 61, 64) else {},
    ],
    ids=["always", "as often as another", "in turn", "beside others", "two, a little", "a little", "a few times"],
)
def test_no_rank_has_become_late_by_itself(late_at):
    assert seen(late_at) == []


def test_votes_of_before_a_spell_are_forgotten():
    late = Latecomers(arrivals_of(lambda i: {2: 0.2} if i >= 60 else {}), 0)
    assert late.see(62, 1.0, learns=True) is None and late.doubtful
    late.forget()
    assert not late.doubtful
    assert late.see(64, 1.0, learns=False) is None and late.see(70, 1.0, learns=False) == Latecomer(frozenset({2}), 63)


@pytest.mark.parametrize("often", [10, 5])
def test_since_when_a_rank_that_came_late_as_a_rule_does_so_no_more(often):
    """The oftener it did, the fewer iterations tell."""
    late = Latecomers(arrivals_of(lambda i: {2: 0.2} if i < 60 and i % often else {}), 0)
    told = []
    for index in range(100):
        late.see(index, 1.0, learns=True)
        told.append(late.left)
    assert told[:60] == [None] * 60
    after = next(count for count, left in enumerate(told[60:]) if left is not None)
    assert told[60 + after] == 60 and after == {10: 4, 5: 6}[often]


def test_who_has_become_late_is_told_at_once():
    """Whoever comes later than any other need not be seen three times in a row."""
    arrivals = arrivals_of(lambda i: {1: 0.1} if 40 <= i < 60 else {3: 0.1} if i >= 60 else {})
    blame = Blame(arrivals)
    blame.begin(0, 40, 44, 0.1)
    told = blame.follow(40, 1.0, 1.1, 63, late=Latecomer(frozenset({3}), 60))
    assert told is not None and told.ranks == (3,)


@pytest.mark.parametrize(("first_s", "kinds"), [(0.1, ["rank"]), (0.0, ["host", "rank"])])
def test_a_slow_rank_stays_the_cause_where_ranks_wait_for_cores_for_a_while(first_s, kinds):
    """Seen in a job of 8 ranks on one core; where the host was the cause, a rank that becomes slow is another."""
    arrivals = arrivals_of(lambda i: {1: first_s} if 40 <= i < 60 else {1: 0.1} if i >= 75 else {})
    for row in arrivals.rows:
        row.core_s = {2: 0.1} if 40 <= row.index < 75 and (first_s == 0.0 or row.index >= 60) else {}
    blame = Blame(arrivals)
    blame.begin(0, 40, 44, 0.1)
    for last in range(45, 100):
        blame.follow(40, 1.0, 1.1, last)
    assert [cause.kind for cause in blame.causes[40]] == kinds


def test_who_becomes_late_while_the_host_is_busy_need_not_explain_what_that_costs():
    """Iterations took 0.6 s, beside other work 1 s, and 1.1 since a rank is late by 0.1."""
    arrivals = arrivals_of(lambda i: {1: 0.1} if i >= 75 else {})
    for row in arrivals.rows:
        row.core_s = {2: 0.4} if row.index >= 40 else {}
    blame = Blame(arrivals)
    assert blame.begin(0, 40, 44, 0.4).kind == "host"
    told = blame.follow(40, 0.6, 1.1, 79, late=Latecomer(frozenset({1}), 75))
    assert told is not None and told.ranks == (1,)


def test_since_when_those_who_were_late_are_so_no_more():
    blame = Blame(arrivals_of(lambda i: {1: 0.1 + 0.05 * (i % 3)} if 40 <= i < 60 or i == 63 else {1: 0.02 * (i % 2)}))
    blame.begin(0, 40, 44, 0.1)
    assert [blame.gone(40, last) for last in (45, 59, 65)] == [None] * 3
    assert blame.gone(40, 67) == 60 and blame.gone(39, 67) is None


def test_who_was_slow_from_the_start():
    blame = Blame(arrivals_of(lambda i: {2: 0.5} if i < 50 else {}))
    assert blame.recovered(8, 50, 58, 1.0, 1.5).ranks == (2,)
    assert [cause["ranks"] for cause in blame.of(0, 50)] == [[2]]


def test_a_spell_of_which_nothing_was_said():
    (cause,) = Blame(LateArrivals()).of(5, None)
    assert (cause["kind"], cause["ranks"]) == ("unknown", [])
