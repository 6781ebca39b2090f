"""The arrival board's state machine: every order of events for few ranks, and what each record says."""

import pickle
from collections import deque

import pytest

from lanterne.transport.board import sequencer as board
from lanterne.transport.board.late_policy import ANY, Option, Policy, Start
from lanterne.transport.board.sequencer import ABORT, JOIN, NORMAL, SEEN, SPREAD, WITHOUT, Sequencer

POLICY = Policy(1.0, (Option("late_join/4", 0.6, 0.6),))
WINDOW_S = 0.2
# A call so short that asking is a good part of it.
SHORT = Policy(0.01, (Option("late_join/4", 0.006, 0.006),))


class Group:
    """`n` ranks that each make `calls` calls, one event at a time; what `Ranks` of the library do, without any data.

    An event: a rank arrives at its next call, a rank takes its next record, the window's timer rings, a rank that is
    impatient (by default all) gives up waiting, a rank that is mortal (by default none) dies.
    """

    def __init__(self, n, signatures=None, mortal=(), impatient=None, calls=2, make=Sequencer, policy=POLICY):
        self.n, self.calls, self.mortal = n, calls, frozenset(mortal)
        self.impatient = frozenset(range(n) if impatient is None else impatient)
        self.signatures = signatures or {}
        self.sequencer, self.policy = make(n), policy
        self.free = [0] * n  # calls that need not be asked about, as this rank knows it
        self.unasked = [[] for _ in range(n)]
        self.inboxes = [deque() for _ in range(n)]
        self.call = [0] * n  # the call a rank is in, or has made
        self.state = ["out"] * n  # out: of any call; asked; early: began without the late rank; dead
        self.gave_up = [False] * n  # in this call
        self.taken = [[] for _ in range(n)]
        self.history = []  # (number, verdict) as they were issued first

    def events(self):
        for rank in range(self.n):
            state = self.state[rank]
            if state == "out" and self.call[rank] < self.calls:
                yield "arrive", rank
                if rank in self.mortal:
                    yield "die", rank
            if self.inboxes[rank]:
                yield "take", rank
            waits = state in ("asked", "early") and not self.inboxes[rank]
            if waits and rank in self.impatient and not self.gave_up[rank]:
                yield "give_up", rank
        if self.sequencer.deadline_s() is not None:
            yield "ring", -1

    def apply(self, event):
        kind, rank = event
        if kind == "arrive":
            self.call[rank] += 1
            if self.free[rank]:
                self.free[rank] -= 1
                self.unasked[rank].append(self.call[rank])
                self.deliver(self.sequencer.report(rank, 0.0, [(0.0, "f")], 0.0))
                return
            self.state[rank], self.gave_up[rank] = "asked", False
            signature = self.signatures.get((rank, self.call[rank]), "f")
            self.deliver(self.sequencer.arrive(rank, self.call[rank], signature, self.policy, 0.0))
        elif kind == "take":
            record = self.inboxes[rank].popleft()
            if record.verdict != SEEN:
                self.take(rank, record)
        elif kind == "give_up":
            self.gave_up[rank] = True
            self.deliver(self.sequencer.give_up(rank, self.call[rank]))
        elif kind == "ring":
            told = self.sequencer.expire(2 * WINDOW_S)
            assert told
            self.deliver(told)
        else:
            self.state[rank] = "dead"
            self.deliver(self.sequencer.lose(rank, "killed"))

    def deliver(self, told):
        for rank, record in told:
            if self.state[rank] != "dead":
                self.inboxes[rank].append(record)

    def take(self, rank, record):
        assert record.number == self.call[rank], "a record of another call"
        assert self.state[rank] in ("asked", "early"), "a record after the last one of its call"
        if record.verdict == WITHOUT:
            assert self.state[rank] == "asked"
            assert str(rank) not in late_ranks(record)
            self.state[rank] = "early"
        else:
            if record.verdict == NORMAL:
                assert self.state[rank] == "asked"
            if record.verdict in (NORMAL, JOIN):
                # Only now do transfers with the last rank start, which must have come.
                assert self.call[record.rank] >= record.number
                assert all(call >= record.number for call in self.call), "begun without a rank that nobody named"
            self.state[rank] = "out"
            self.free[rank] = record.free
        self.taken[rank].append(record)

    def key(self):
        calls = {
            number: (tuple(sorted(call.arrivals)), call.decision, call.outcome, call.deadline_s, call.late)
            for number, call in self.sequencer._calls.items()
        }
        return (
            tuple(self.call),
            tuple(self.state),
            tuple(self.gave_up),
            tuple(tuple(inbox) for inbox in self.inboxes),
            tuple(map(tuple, self.taken)),
            tuple(self.free),
            tuple(map(tuple, self.unasked)),
            tuple(sorted(calls.items())),
        )

    def check_end(self):
        """Nothing can happen any more."""
        for rank in range(self.n):
            assert self.state[rank] == "dead" or (self.state[rank] == "out" and self.call[rank] == self.calls), rank
        alive = [rank for rank in range(self.n) if self.state[rank] != "dead"]
        assert len({tuple(self.unasked[rank]) for rank in alive}) <= 1, "some asked, some did not"
        for number in range(1, self.calls + 1):
            ends = {r for taken in self.taken for r in taken if r.number == number and r.verdict != WITHOUT}
            starts = {r for taken in self.taken for r in taken if r.number == number and r.verdict == WITHOUT}
            assert len(ends) <= 1, f"call {number}: two ranks were told differently"
            assert len(starts) <= 1, number
            for end in ends:
                assert not starts or end.verdict in (JOIN, ABORT), (number, end)
                assert all(start.choice == end.choice for start in starts), (number, end)
                assert end.verdict != JOIN or end.choice, (number, end)


def late_ranks(record):
    _, _, several = record.choice.partition("@")
    return several.split(",") if several else [str(record.rank)]


def explore(group):
    """Every state that can be reached; the number of them and the verdicts seen."""
    seen, verdicts, stack = set(), set(), [group]
    while stack:
        current = stack.pop()
        key = current.key()
        if key in seen:
            continue
        seen.add(key)
        verdicts.update((record.verdict, record.cause) for taken in current.taken for record in taken)
        events = list(current.events())
        if not events:
            current.check_end()
        # A copy for each event but the last, by pickle, which is much faster than a deep copy.
        saved = pickle.dumps(current) if len(events) > 1 else b""
        for event in events:
            following = current if event is events[-1] else pickle.loads(saved)
            following.apply(event)
            stack.append(following)
    return len(seen), verdicts


@pytest.mark.parametrize(("n", "calls", "least"), [(2, 2, 50), (3, 2, 1000), (4, 1, 300)])
def test_every_order(n, calls, least):
    states, verdicts = explore(Group(n, calls=calls))
    assert states > least
    assert verdicts == {(NORMAL, 0), (WITHOUT, 0), (JOIN, 0), (ABORT, board.TIMEOUT)}


@pytest.fixture
def several(monkeypatch):
    """The board begins without one rank, and without two."""
    found = {late: (Start(WINDOW_S, Option("late/4", 0.6, 0.6, late)),) for late in (1, 2)}
    monkeypatch.setattr(board, "starts", lambda policy, *past: found)


@pytest.mark.parametrize(
    ("n", "calls", "mortal", "impatient"), [(3, 2, (), (0,)), (4, 1, (), None), (3, 1, (1, 2), None)]
)
def test_every_order_with_several_late_ranks(several, n, calls, mortal, impatient):
    group = Group(n, calls=calls, mortal=mortal, impatient=impatient)
    states, verdicts = explore(group)
    assert states > 100
    assert {(NORMAL, 0), (WITHOUT, 0), (JOIN, 0), (ABORT, board.TIMEOUT)} <= verdicts


def test_several_late_ranks_join_together(several):
    sequencer = Sequencer(4)
    together(sequencer, 1, [0, 2])
    told = sequencer.expire(1.0)
    assert {record for _, record in told} == {board.Record(1, WITHOUT, 1, choice="late/4@1,3")}
    assert together(sequencer, 1, [3], 2.0) == []
    told = together(sequencer, 1, [1], 2.5)
    assert sorted(rank for rank, _ in told) == [0, 1, 2, 3]
    assert {record for _, record in told} == {
        board.Record(1, JOIN, 1, 0.5, choice="late/4@1,3", arrivals="0 2500000000 0 2000000000")
    }


@pytest.fixture
def by_place(monkeypatch):
    """The board begins without rank 0 or rank 1, each by an algorithm of its own, and never without another."""
    places = [Option(f"late/{ranks[0] + 4}", 0.6, 0.6, 1, ranks) for ranks in ((0,), (1,))]
    monkeypatch.setattr(board, "starts", lambda policy, *past: {1: tuple(Start(WINDOW_S, each) for each in places)})


@pytest.mark.parametrize(("late", "choice"), [(0, "late/4"), (1, "late/5"), (2, None)])
def test_how_a_call_begins_depends_on_who_is_late(by_place, late, choice):
    sequencer = Sequencer(3)
    together(sequencer, 1, sorted({0, 1, 2} - {late}))
    told = {record for _, record in sequencer.expire(1.0)}
    assert told == ({board.Record(1, WITHOUT, late, choice=choice)} if choice else set())
    assert (sequencer.deadline_s() is None) and len(together(sequencer, 1, [late], 2.0)) == 3


def test_every_order_where_that_depends_on_who_is_late(by_place):
    states, verdicts = explore(Group(3, calls=1))
    assert states > 50
    assert {(NORMAL, 0), (WITHOUT, 0), (JOIN, 0), (ABORT, board.TIMEOUT)} <= verdicts


class Hasty(Sequencer):
    """Lets the first of several late ranks join alone."""

    def _advance(self, number, call, rank, now_s):
        if call.decision is not None and len(call.arrivals) < self.world_size:
            call.outcome = board.Record(number, JOIN, rank, choice=call.choice)
            return self._tell(call, call.outcome)
        return super()._advance(number, call, rank, now_s)


def test_the_model_finds_a_join_without_all(several):
    with pytest.raises(AssertionError, match="begun without a rank"):
        explore(Group(3, make=Hasty))


def test_every_order_of_a_death():
    _, verdicts = explore(Group(3, mortal=[2]))
    assert (ABORT, board.DIED) in verdicts


def test_every_order_of_a_mismatch():
    _, verdicts = explore(Group(3, signatures={(1, 1): "g"}))
    assert (ABORT, board.MISMATCH) in verdicts
    assert (WITHOUT, 0) in verdicts


@pytest.fixture
def soon_free(monkeypatch):
    """One punctual call frees one."""
    monkeypatch.setattr(board, "PUNCTUAL_CALLS", 1)
    monkeypatch.setattr(board, "FREE_CALLS", 1)


@pytest.mark.parametrize(
    ("n", "mortal", "impatient"), [(2, (), None), pytest.param(3, (), (0,), marks=pytest.mark.slow), (2, (1,), None)]
)
def test_every_order_with_free_calls(soon_free, n, mortal, impatient):
    group = Group(n, calls=3, policy=SHORT, mortal=mortal, impatient=impatient)
    _, verdicts = explore(group)
    assert {(NORMAL, 0), (JOIN, 0), (ABORT, board.TIMEOUT)} <= verdicts


class Partial(Sequencer):
    """Frees the next call for some only."""

    def _tell(self, call, record):
        return [
            (rank, record._replace(free=0) if rank == 0 else record) for rank, record in super()._tell(call, record)
        ]


def test_the_model_finds_calls_that_only_some_ask_about(soon_free):
    with pytest.raises(AssertionError):
        explore(Group(2, calls=3, policy=SHORT, make=Partial))


class EarlyNormal(Sequencer):
    """Takes the absent rank for arrived."""

    def _advance(self, number, call, rank, now_s):
        if len(call.arrivals) == self.world_size - 1:
            call.outcome = board.Record(number, NORMAL, rank)
            return self._tell(call, call.outcome)
        return super()._advance(number, call, rank, now_s)


class Forgetful(Sequencer):
    """Aborts, and tells only who asked for it."""

    def give_up(self, rank, number):
        return super().give_up(rank, number)[:1]


class Fickle(Sequencer):
    """Calls a call normal that some have begun without the late rank."""

    def _advance(self, number, call, rank, now_s):
        told = super()._advance(number, call, rank, now_s)
        return [(rank, r._replace(verdict=NORMAL) if r.verdict == JOIN else r) for rank, r in told]


@pytest.mark.parametrize("mutant", [EarlyNormal, Forgetful, Fickle])
def test_the_model_finds(mutant):
    with pytest.raises(AssertionError):
        explore(Group(3, make=mutant))


def together(sequencer, number, ranks, at_s=0.0, policy=POLICY):
    told = []
    for rank in ranks:
        told += sequencer.arrive(rank, number, "f", policy, at_s)
    return told


def test_delay_is_between_the_last_two():
    sequencer = Sequencer(3)
    together(sequencer, 1, [2], 1.0)
    together(sequencer, 1, [0], 2.5)
    told = together(sequencer, 1, [1], 2.625)
    assert sorted(rank for rank, _ in told) == [0, 1, 2]
    assert {record for _, record in told} == {board.Record(1, NORMAL, 1, 0.125, arrivals="1500000000 1625000000 0")}


def test_window_learns_from_delays():
    """The first call waits for the critical delay; after some with a long one, nobody waits any more."""
    sequencer = Sequencer(3)
    windows_s = []
    for number in range(1, 6):
        together(sequencer, number, [0, 2], 10.0 * number)
        windows_s.append(sequencer.deadline_s() - 10.0 * number)
        ((rank, record), _) = sequencer.expire(10.0 * number + 1)
        assert (rank, record.verdict, record.rank, record.choice) == (0, WITHOUT, 1, "late_join/4"), number
        told = together(sequencer, number, [1], 10.0 * number + 2)
        assert {record for _, record in told} == {
            board.Record(number, JOIN, 1, 2.0, choice="late_join/4", arrivals="0 2000000000 0")
        }, number
    assert windows_s == pytest.approx([0.2, 0.01, 0.01, 0.01, 0.01])


def test_delays_of_the_first_call_are_those_of_a_start():
    """They count for the second; the third does not wait for a rank to come as late as in the first."""
    sequencer = Sequencer(3)
    starts = []
    for number, delay_s in enumerate([0.05, 2.0, 2.0], 1):
        together(sequencer, number, [0, 2], 10.0 * number)
        starts.append(list(sequencer._gaps.of("f")))
        sequencer.expire(10.0 * number + delay_s)
        together(sequencer, number, [1], 10.0 * number + delay_s)
    assert [[gaps_s[0] for gaps_s in past] for past in starts] == [[], [pytest.approx(0.05)], [2.0]]


@pytest.mark.parametrize(
    ("late_s", "after"),
    [(0.003, board.FREE_CALLS), (0.006, 0)],
    ids=["asking would have cost more than it had saved", "asking would have paid"],
)
def test_calls_are_free_after_some_punctual_ones_and_not_after_a_late_one(late_s, after):
    sequencer, freed = Sequencer(3), []
    for turn in range(1, 8):
        # After those that are free.
        number, delay_s = turn * (board.MAX_FREE_CALLS + 1), late_s if turn == 6 else 1e-4
        together(sequencer, number, [0, 1], 1.0 * number, SHORT)
        told = together(sequencer, number, [2], 1.0 * number + delay_s, SHORT)
        (record,) = {record for _, record in told}
        assert record.verdict == NORMAL, turn
        freed.append(record.free)
    # The first call's delays are forgotten.
    assert freed == [0, 0, *[board.FREE_CALLS] * 3, after, after]


def test_long_calls_are_never_free():
    sequencer = Sequencer(3)
    told = [together(sequencer, number, range(3), 1.0 * number) for number in range(1, 20)]
    assert {record.free for records in told for _, record in records} == {0}


def test_reports_make_delays_whatever_the_clocks_say():
    """Rank 1 came 50 ms after rank 0, by a clock that is 100 s ahead; its first report took a second, the next none."""
    sequencer = Sequencer(2)
    assert sequencer.report(0, 10.0, [(8.0, "f"), (9.0, "")], 10.0) == []
    told = sequencer.report(1, 109.5, [(108.05, "f")], 10.5)
    assert [rank for rank, _ in told] == [0, 1]
    assert told[0][1] == board.Record(0, SEEN, text="1 1050000000")
    ((_, record), _) = sequencer.report(1, 110.0, [(109.05, "")], 10.0)
    assert record.text == "1 50000000"
    assert sequencer._gaps.of("f") and not sequencer._gaps.of("")


@pytest.mark.parametrize("drift", [-5e-5, 5e-5])
def test_reports_make_delays_although_clocks_drift(drift):
    """For three hours, both ranks come at once; the clock of rank 1 goes wrong by up to 0.54 s."""
    sequencer = Sequencer(2)
    for now_s in range(0, 10_000, 10):
        sequencer.report(0, now_s, [(now_s, "f")], now_s)
        its_now_s = now_s * (1 + drift)
        told = sequencer.report(1, its_now_s, [(its_now_s, "f")], now_s)
    assert int(told[0][1].text.split()[1]) < 1e6


def test_reports_of_ranks_that_disagree_are_bounded():
    sequencer = Sequencer(2)
    for report in range(1000):
        assert sequencer.report(0, 0.0, [(0.0, "")] * 64, 0.0) == [], report
    assert len(sequencer._reports._waiting[0]) <= board.MAX_REPORTS


def test_without_options_nobody_starts_alone():
    sequencer = Sequencer(3)
    together(sequencer, 1, [0, 1], policy=Policy(1.0))
    assert sequencer.deadline_s() is None
    assert sequencer.expire(1e9) == []


def test_memory_is_bounded():
    """A rank that never comes: old calls are forgotten, and it is told so when it comes after all."""
    sequencer = Sequencer(2)
    for number in range(1, 3 * board.MAX_OPEN_CALLS):
        sequencer.arrive(0, number, f"f{number}", POLICY, float(number))
        sequencer.give_up(0, number)
    assert len(sequencer._calls) == board.MAX_OPEN_CALLS
    ((_, record),) = sequencer.arrive(1, 1, "f1", POLICY, 1e6)
    assert (record.verdict, record.cause) == (ABORT, board.FORGOTTEN)
    ((_, record),) = sequencer.arrive(1, 3 * board.MAX_OPEN_CALLS - 1, "f", POLICY, 1e6)
    assert (record.verdict, record.cause) == (ABORT, board.TIMEOUT)


def test_past_gaps_are_those_of_the_signatures_used_last(monkeypatch):
    monkeypatch.setattr(board, "MAX_SIGNATURES", 2)
    monkeypatch.setattr(board, "MAX_DELAYS", 2)
    gaps = board.PastGaps()
    assert gaps.note("a", {0: 0.0, 1: 3.0, 2: 1.0}) == 2.0 and gaps.note("", {0: 0.0, 1: 5.0}) == 5.0
    for signature, times_s in (("b", [0.0]), ("a", [1.0, 2.0]), ("a", [1.0, 4.0]), ("c", [0.0, 0.5])):
        gaps.note(signature, dict(enumerate(times_s)))
    assert [[*gaps.of(signature)] for signature in ("a", "b", "c", "")] == [[(1.0,), (3.0,)], [], [(0.5,)], []]


def test_gaps_between_ports_are_those_of_the_last_rank_of_each():
    gaps = board.PastGaps()
    gaps.share_ports((0, 0, 1))
    gaps.note("a", {0: 0.0, 1: 0.25, 2: 0.5})
    assert [*gaps.of_ports("a")] == [(0.25,)] and [*gaps.of("a")] == [(0.25, 0.25)]
    gaps.note("a", {0: 0.5, 1: 0.0, 2: 0.25})
    assert [*gaps.of_ports("a")] == [(0.25,)] and [*gaps.of("a")] == [(0.25, 0.25)]


def test_the_board_goes_by_the_ports_of_a_policy():
    """Of each call the last rank of both ports comes at the same time: to the ports nobody is late."""
    sequencer, policy = Sequencer(4), POLICY._replace(port_of=(0, 0, 1, 1))
    for number in (1, 2):
        for rank, at_s in enumerate((0.0, 0.5, 0.25, 0.5)):
            sequencer.arrive(rank, number, "f", policy, 10.0 * number + at_s)
    assert [*sequencer._gaps.of_ports("f")] == [(0.0,)] and len(sequencer._gaps.of("f")[0]) == 3
    with pytest.raises(ValueError, match="policy: got ports of 3 ranks, expected 4"):
        sequencer.arrive(0, 3, "f", POLICY._replace(port_of=(0, 1, 1)), 99.0)


def test_a_call_is_reported_once_all_have():
    reports = board.Reports(2)
    assert not [*reports.add(0, [(1.0, "f"), (2.0, "g")])]
    assert [*reports.add(1, [(1.5, "f")])] == [("f", [1.0, 1.5])]
    assert [*reports.add(1, [(2.5, "g"), (3.5, "h")])] == [("g", [2.0, 2.5])]


@pytest.fixture
def spread(monkeypatch):
    """The board begins with two of four ranks, and grants four rounds more than the slowest has done."""
    option = Option("any_arrival/64/4", 1.0, 1.0, ANY)
    monkeypatch.setattr(board, "starts", lambda policy, *past: {2: (Start(WINDOW_S, option),)})


def spread_of(told):
    """By rank, what the SPREADs of `told` say: the joins, and how many rounds are granted."""
    assert all(record.verdict == SPREAD for _, record in told)
    return {rank: (record.text, record.late) for rank, record in told}


def test_ranks_are_taken_in_from_the_first_round_that_nobody_can_have_begun(spread):
    sequencer = Sequencer(4)
    assert not [each for rank in (3, 1) for each in arrive_prepared(sequencer, rank)]
    assert spread_of(sequencer.expire(1.0)) == dict.fromkeys((1, 3), ("3 0 1 0", 4))
    # Only what the slowest has done counts, and no more than is granted.
    assert not sequencer.progress(3, 1, 2) and not sequencer.progress(1, 1, 9)
    assert spread_of(sequencer.progress(1, 1, 1)) == dict.fromkeys((1, 3), ("3 0 1 0", 5))
    assert spread_of(arrive_prepared(sequencer, 0)) == dict.fromkeys((0, 1, 3), ("3 0 1 0 0 5", 6))
    last = arrive_prepared(sequencer, 2)
    assert spread_of(last) == dict.fromkeys(range(4), ("3 0 1 0 0 5 2 6", -1))
    assert {record.rank for _, record in last} == {2} and not sequencer.progress(1, 1, 3)


@pytest.mark.parametrize("end", ["give up", "die"])
def test_ranks_that_were_taken_in_hear_of_the_end(spread, end):
    sequencer = Sequencer(4)
    for rank in range(2):
        arrive_prepared(sequencer, rank)
    sequencer.expire(1.0)
    told = sequencer.give_up(0, 1) if end == "give up" else sequencer.lose(3, "killed")
    assert {rank for rank, _ in told} == {0, 1}
    assert {(record.verdict, record.cause) for _, record in told} == {
        (ABORT, board.TIMEOUT if end == "give up" else board.DIED)
    }
    assert not sequencer.progress(0, 1, 1)


def test_who_is_not_prepared_is_asked_to_prepare():
    policy = Policy(1.75, (Option("late_join/4", 0.8, 1.0), Option("any_arrival/64/4", 1.0, 1.0, ANY)))
    sequencer = Sequencer(4)
    verdicts = []
    for number in range(1, 5):
        told = []
        for rank in range(4):
            told += sequencer.arrive(
                rank, number, "f", policy, number * 9 + rank * 0.4, prepared=number > 2 or rank > 0
            )
            told += sequencer.expire(number * 9 + rank * 0.4 + 0.3)
        verdicts.append([(record.verdict, record.text) for rank, record in told if rank == 0][-1])
    # The first call knows nothing, the second would have gained by it, the others do.
    assert verdicts[0][1] == "" and verdicts[1][1] == board.WANTED
    assert [verdict for verdict, _ in verdicts[2:]] == [SPREAD, SPREAD]


def test_calls_that_took_longer_than_predicted_are_begun_otherwise():
    """Joins took four times what was predicted: known after two calls, when all ranks have come to the third."""
    sequencer, took, without = Sequencer(3), [], []
    for number in range(1, 5):
        told = []
        for rank in range(3):
            now_s = number * 9 + (rank == 2) * 1.0
            told += sequencer.arrive(rank, number, "f", POLICY, now_s, took=took)
            told += sequencer.expire(now_s + 0.7)
        without.append(any(record.verdict == WITHOUT for _, record in told))
        took = [(number, 4 * 0.6)]
    assert without == [True, True, True, False]


def test_what_calls_took_counts_for_as_many_calls_of_a_signature():
    """Others between them do not age it; options of one choice are told apart by the late ranks that they are for."""
    took = board.Took(2)
    for number in range(1, 300):
        took.expect(number, "often" if number % 30 else "seldom", "a", 1.0)
        for rank in range(2):
            took.note(rank, number, 2.0 + rank)
    assert took.factors("seldom") == took.factors("often") == {"a": 3.0}
    for number in range(300, 301 + board.TOOK_CALLS):
        took.expect(number, "seldom", "b", 1.0)
    assert took.factors("seldom") == {} and took.factors("often") == {"a": 3.0}


def test_a_policy_that_no_rank_would_send_does_not_raise():
    sequencer = Sequencer(3)
    policy = Policy(0.4, (Option("x/1", 0.0, 0.1, 4), Option("x/1", 0.0, 0.1, 1)))
    told = []
    for rank in range(3):
        told += sequencer.arrive(rank, 1, "f", policy, rank * 1.0)
        told += sequencer.expire(rank * 1.0 + 0.9)
    assert {record.verdict for _, record in told} == {WITHOUT, JOIN}


def arrive_prepared(sequencer, rank):
    return sequencer.arrive(rank, 1, "f", POLICY, 0.0, prepared=True)
