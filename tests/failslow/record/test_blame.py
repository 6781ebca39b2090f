"""Who is blamed for a slow spell: sets of ranks, by most iterations, over time; and nobody without evidence."""

import random
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from lanterne.failslow.detect.events import LevelEvent
from lanterne.failslow.record.blame import LATEST, Arrivals, Blame, LateArrivals, Latecomer, Latecomers, attribute
from lanterne.failslow.record.bounds import KEPT
from lanterne.failslow.record.lateness import Matched

RANKS = 8


def by_rank(late):
    """A row of an Arrivals, of {rank: seconds}."""
    return [dict(late).get(rank, 0.0) for rank in range(RANKS)]


def arrivals_in(index, late_s, core_s=(), transfer_s=0.001, starved_s=0.0):
    """The Arrivals of iterations; {rank: seconds} of each, or of all, and seconds of each, or of all."""
    count = len(index)
    core_s = [by_rank(core_s)] * count
    columns = [np.broadcast_to(column, count) for column in (transfer_s, starved_s)]
    return Arrivals(np.array(index), np.array([*map(by_rank, late_s)]), np.array(core_s), *columns)


def rows(first, count, late=(), transfer_s=0.001, noise_s=2e-4, seed=0, **more):
    """Iterations of which each rank of `late` ({rank: seconds}) is late, beside noise of rank 0."""
    rng = random.Random(seed + first)
    late_s, transfers_s = [], []
    for _ in range(count):
        late_s.append({0: noise_s * rng.random(), **dict(late)})
        transfers_s.append(transfer_s + noise_s * rng.random())
    return arrivals_in(range(first, first + count), late_s, transfer_s=transfers_s, **more)


def joined(*parts):
    """Arrivals one after another."""
    return Arrivals(*map(np.concatenate, zip(*parts, strict=True)))


def part(arrivals, end):
    """The first of them."""
    return Arrivals(*(column[:end] for column in arrivals))


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
    late_s = [{2: 0.016, **{r: others_s * heights[(i + r) % 5] for r in range(3, 8)}} for i in range(40, 55)]
    assert attribute(HEALTHY, arrivals_in(range(40, 55), late_s), 0.02).ranks == ranks


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
    during = rows(40, 6, transfer_s=transfer_s, core_s={2: 0.05, 1: 0.02})
    cause = attribute(HEALTHY, during, 0.05)
    assert (cause.kind, cause.ranks, cause.rank) == ("host", (), None)
    assert "rank 2 50 ms, rank 1 20 ms an iteration more" in cause.evidence


@pytest.mark.parametrize(("starved_s", "kind"), [(0.02, "host"), (0.004, "calls")])
def test_calls_that_take_longer_beside_ranks_that_wait_for_cores_are_not_blamed(starved_s, kind):
    """Seen in two of 14 healthy jobs beside busy processes: the last rank to come waited for a core in the call."""
    during = rows(40, 6, transfer_s=0.06, starved_s=starved_s)
    cause = attribute(HEALTHY, during, 0.05)
    assert (cause.kind, cause.ranks) == (kind, ())
    assert "now one, now another, 20 ms an iteration" in cause.evidence or kind == "calls"


@pytest.mark.parametrize(
    ("waits_s", "own_s", "kind"),
    [(0.02, 0.0, "calls"), (0.02, 0.016, "calls"), (0.03, 0.0, "host"), (0.02, 0.03, "host")],
    ids=["as before", "who leaves late", "longer than before", "mostly one"],
)
def test_a_link_of_ranks_that_share_cores(waits_s, own_s, kind):
    """Seen in 7 of 7 jobs of lanterne with a slow link and more ranks than cores: all were put down to the host."""
    before, during = rows(0, 40, starved_s=0.02), rows(40, 6, transfer_s=0.06, starved_s=waits_s, core_s={2: own_s})
    assert attribute(before, during, 0.05).kind == kind


@pytest.mark.parametrize(
    ("waits", "kinds", "at"),
    [(range(40, 46), ["host", "calls"], [57]), (range(56, 64), ["calls"], []), (range(40, 100), ["host"], [])],
    ids=["at first", "for a while", "always"],
)
def test_all_iterations_of_a_spell_tell_a_link_from_a_busy_host(waits, kinds, at):
    """Six of them may show either."""
    blame = blame_of(transfer_at=lambda i: 0.1 if i >= 40 else 0.001, starved_at=lambda i: 0.05 if i in waits else 0.02)
    begin(blame)
    assert [i for i, _ in follow(blame)] == at
    assert [cause.kind for cause in blame.causes[40]] == kinds


def test_who_is_late_by_more_than_it_waits_for_a_core_is_named():
    assert attribute(HEALTHY, rows(40, 6, {2: 0.03}, core_s={2: 0.02}), 0.05).ranks == (2,)


def test_a_few_large_waits_blame_nobody():
    """Whatever their mean: a rank that waits for a disk in one iteration of six is not why all are slow."""
    during = joined(rows(40, 5), rows(45, 1, {2: 3.0}))
    assert attribute(HEALTHY, during, 0.05).kind == "unknown"


def test_large_waits_before_acquit_nobody():
    """The mean of the iterations before would be above that of the slow ones."""
    before = joined(part(HEALTHY, 38), rows(38, 2, {2: 4.0}))
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
    [
        (part(HEALTHY, 0), part(HEALTHY, 0), 1.0),
        (HEALTHY, part(HEALTHY, 0), 1.0),
        (part(HEALTHY, 1), rows(40, 6, {2: 1.0}), 1.0),
        (HEALTHY, rows(40, 6), -1.0),
    ],
)
def test_no_evidence_no_blame(before, during, extra_s):
    assert attribute(before, during, extra_s).kind == "unknown"


def test_calls_that_vary_more_than_they_have_grown_excuse_nobody():
    during = rows(40, 6, {2: 0.1})
    during = during._replace(transfer_s=during.transfer_s + np.tile((0.0, 0.3, 0.15), 2))
    assert attribute(HEALTHY, during, 0.15).ranks == (2,)


def test_all_slow_alike():
    assert attribute(HEALTHY, rows(40, 6), 0.05).kind == "unknown"


def matched(*calls):
    """Calls of (when the last rank came, what it then took, {late rank: seconds}).

    And, where it matters, {rank: seconds that it came late by waiting for a core}, seconds of the longest such wait.
    """
    late = []
    for start_s, _, late_s, *waits in calls:
        late += [(start_s, rank, by_s, 0.0) for rank, by_s in late_s.items()]
        late += [(start_s, rank, 0.0, by_s) for rank, by_s in (waits[0] if waits else {}).items()]
    late_at_s, late_rank, late_s, core_s = np.array(late).reshape(-1, 4).T
    starts_s, transfers_s = np.array([call[:2] for call in calls]).T
    starved_s = np.array([call[4] if len(call) > 4 else 0.0 for call in calls])
    return Matched(starts_s, transfers_s, starved_s, late_at_s, late_rank.astype(int), late_s, core_s)


def arrivals_of(late_at, core_at=lambda i: {}, transfer_at=lambda i: 1e-3, starved_at=lambda i: 0.0):
    """Arrivals of 100 iterations of 1 s; each is a function from the iteration, of {rank: seconds} or seconds."""
    arrivals = LateArrivals()
    for i in range(100):
        arrivals.add([matched((i + 0.5, transfer_at(i), late_at(i), core_at(i), starved_at(i)))])
        arrivals.end(i, float(i + 1))
    return arrivals


def test_calls_may_be_told_of_before_and_after_their_iteration_ends():
    arrivals = LateArrivals()
    arrivals.end(0, 0.0)
    arrivals.add([matched((0.5, 1e-3, {1: 0.2}), (-0.5, 1e-3, {1: 18.0}))])
    arrivals.end(1, 1.0)
    arrivals.end(2, 2.0)
    arrivals.add([matched((0.7, 2e-3, {1: 0.1})), matched((1.5, 1e-3, {2: 0.3}))])
    found = arrivals.between(0)
    assert found.numbers.tolist() == [1, 2] and found.transfer_s == pytest.approx([3e-3, 1e-3])
    assert found.late_s == pytest.approx(np.array([[0.0, 0.3, 0.0], [0.0, 0.0, 0.3]]))


def test_the_call_that_ends_an_iteration_is_of_the_next_whoever_comes_last_to_it():
    """Of two slow ranks one is the lead, whose coming ends the iteration: now it is the last, now the other."""
    arrivals = LateArrivals()
    for i in range(10):
        arrivals.end(i, float(i))
        arrivals.add([matched((i + (1e-4 if i % 3 else 0.0), 1e-3, {0: 0.1, 2: 0.1}), (i + 0.5, 1e-3, {}))])
    found = arrivals.between(1)
    assert found.late_s.tolist() == [[0.1, 0.0, 0.1]] * 9 and found.transfer_s.tolist() == [2e-3] * 9


def test_rows_are_the_same_whenever_they_are_asked_for():
    rng, asked, unasked = random.Random(0), LateArrivals(), LateArrivals()
    for arrivals in (asked, unasked):
        arrivals.end(5, 5.0)
        arrivals.add([matched((4.5, 1e-3, {1: 9.0}))])
        arrivals.clear()
    end = 100
    for begin in range(100, 100 + 3 * KEPT, 40):
        calls = [(begin - 20 + 0.15 * (k + rng.random()), 1e-3, {rng.randrange(4): rng.random()}) for k in range(400)]
        for i in range(begin, begin + 40):
            end = i + 1
            asked.end(i, float(end))
            unasked.end(i, float(end))
        asked.add([matched(*calls)])
        unasked.add([matched(*calls)])
        assert asked.between(end - 1).numbers.tolist() == [end - 1], f"iterations from {begin} on"
    of_both = asked.between(0), unasked.between(0)
    assert all((one == other).all() for one, other in zip(*of_both, strict=True))
    assert of_both[0].numbers.tolist() == [*range(of_both[0].numbers[0], end)]
    assert KEPT <= len(of_both[0].numbers) <= 2 * KEPT


def blame_of(late_at=lambda i: {}, time_at=lambda i: 1.0 if i < 40 else 1.1, **more):
    """A Blame of 100 iterations, by functions from the iteration."""
    iterations = deque((i, float(i + 1), time_at(i)) for i in range(100))
    matcher = SimpleNamespace(silent=(), last=dict.fromkeys(range(RANKS)))
    return Blame(iterations, arrivals_of(late_at, **more), matcher, 0)


def begin(blame, onset=40, last=44, ratio=1.1):
    """The Cause of a spell that is told at iteration `last`."""
    return blame.judge(LevelEvent("onset", onset, onset, last, ratio), last, slow=True)


def follow(blame, late=None, first=45):
    return [(i, cause) for i in range(first, 100) if (cause := blame.follow(i, late)) is not None]


def test_the_slow_one_moves():
    """Told within six iterations, once, and kept: what is said live is what the report says."""
    blame = blame_of(lambda i: {1: 0.1} if 40 <= i < 60 else {3: 0.1} if i >= 60 else {})
    first = begin(blame)
    ((told, second),) = follow(blame)
    assert (first.ranks, second.ranks) == ((1,), (3,))
    assert 60 + LATEST / 2 <= told <= 60 + 6
    assert [cause["ranks"] for cause in blame.of(40, None)] == [[1], [3]]


def test_a_second_one_joins():
    blame = blame_of(lambda i: {1: 0.1} if 40 <= i < 60 else {1: 0.1, 2: 0.08} if i >= 60 else {})
    begin(blame)
    assert [set(cause.ranks) for _, cause in follow(blame)] == [{1, 2}]


@pytest.mark.parametrize(("late_s", "latest_s", "told"), [(0.03, 1.05, []), (0.06, 1.1, [(0,)])])
def test_of_what_is_left_of_a_spell_that_is_all_but_over_nobody_is_blamed(late_s, latest_s, told):
    """By less than a twentieth of an iteration."""
    slow = lambda i: 1.0 if i < 40 else 1.2 if i < 45 else latest_s  # noqa: E731
    blame = blame_of(lambda i: {0: late_s} if i >= 40 else {}, slow)
    assert begin(blame).kind == "unknown"
    assert [cause.ranks for _, cause in follow(blame, first=50)] == told


def test_the_same_one_is_told_of_once():
    blame = blame_of(lambda i: {1: 0.1 + 0.02 * (i % 3)} if i >= 40 else {})
    begin(blame)
    assert follow(blame) == []


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
    blame = blame_of(lambda i: {1: 0.1} if 40 <= i < 60 else {3: 0.1} if i >= 60 else {})
    begin(blame)
    told = blame.follow(63, Latecomer(frozenset({3}), 60))
    assert told is not None and told.ranks == (3,)


@pytest.mark.parametrize(("first_s", "kinds"), [(0.1, ["rank"]), (0.0, ["host", "rank"])])
def test_a_slow_rank_stays_the_cause_where_ranks_wait_for_cores_for_a_while(first_s, kinds):
    """Seen in a job of 8 ranks on one core; where the host was the cause, a rank that becomes slow is another."""
    late = lambda i: {1: first_s} if 40 <= i < 60 else {1: 0.1} if i >= 75 else {}  # noqa: E731
    blame = blame_of(late, core_at=lambda i: {2: 0.1} if 40 <= i < 75 and (first_s == 0.0 or i >= 60) else {})
    begin(blame)
    follow(blame)
    assert [cause.kind for cause in blame.causes[40]] == kinds


def test_who_becomes_late_while_the_host_is_busy_need_not_explain_what_that_costs():
    """Iterations took 0.6 s, beside other work 1 s, and 1.1 since a rank is late by 0.1."""
    blame = blame_of(
        lambda i: {1: 0.1} if i >= 75 else {},
        lambda i: 0.6 if i < 40 else 1.0 if i < 75 else 1.1,
        core_at=lambda i: {2: 0.4} if i >= 40 else {},
    )
    assert begin(blame).kind == "host"
    told = blame.follow(79, Latecomer(frozenset({1}), 75))
    assert told is not None and told.ranks == (1,)


def test_since_when_those_who_were_late_are_so_no_more():
    blame = blame_of(lambda i: {1: 0.1 + 0.02 * (i % 3)} if 40 <= i < 60 or i == 63 else {1: 0.02 * (i % 2)})
    assert blame.gone(67) is None
    begin(blame)
    assert [blame.gone(last) for last in (45, 59, 65)] == [None] * 3
    assert blame.gone(67) == 60


def test_who_was_slow_from_the_start():
    blame = blame_of(lambda i: {2: 0.5} if i < 50 else {}, lambda i: 1.5 if i < 50 else 1.0)
    assert blame.judge(LevelEvent("relief", 50, 50, 58, 0.67), 58, slow=False).ranks == (2,)
    assert [cause["ranks"] for cause in blame.of(0, 50)] == [[2]]


def test_a_spell_of_which_nothing_was_said():
    (cause,) = blame_of().of(5, None)
    assert (cause["kind"], cause["ranks"]) == ("unknown", [])
