"""Queues of calls that find out who is late: every order of events for few ranks and calls, board and ranks together.

The Sequencer and the ranks' Turns are the real ones. Letters to the board and records from it travel in order, for as
long as the order of events wants; a rank has posted all messages of what it has begun at any moment afterwards,
and a call ends on a rank once all ranks have begun its last part.
"""

import pickle
import random
from collections import deque

import pytest

from lanterne.collectives.late import turn as turns
from lanterne.collectives.late.turn import ARRIVE, BEGIN, COMPLETE, END, READY, RELEASE, RUN, Turn
from lanterne.transport.board import sequencer as board
from lanterne.transport.board.late_policy import Option, Policy
from lanterne.transport.board.sequencer import ABORT, JOIN, NORMAL, SEEN, WITHOUT, Sequencer

POLICY = Policy(1.0, (Option("late_join/4", 0.6, 0.6),))
# Of what is to be sent.
LEFT = {"early": 1.0, "nearly": 0.1, "last": 1.0}
SHORT = Policy(0.01, (Option("late_join/4", 0.006, 0.006),))


class Rank:
    """One rank: the calls that it has started and that are not over, in order, and how far each is."""

    def __init__(self):
        self.started = 0
        self.turns, self.phases = [], {}  # by number: "", "early", "nearly", "rests", "last", "leaving", "ended"
        self.letters, self.records = deque(), deque()
        self.free_to = 0
        self.gave_up = False
        self.outcomes = []  # of each call: how it ended
        self.chosen = {}  # by number, what its last part is

    def key(self):
        waiting = tuple((t.number, t._state, t.ready, tuple(t._records)) for t in self.turns)
        phases, chosen = tuple(sorted(self.phases.items())), tuple(sorted(self.chosen.items()))
        ends = tuple(self.outcomes)
        return (self.started, waiting, phases, chosen, tuple(self.letters), tuple(self.records), self.gave_up, ends)


class Queue:
    """`n` ranks with `calls` calls each, up to `window` of them started at once."""

    def __init__(self, n, calls, window, impatient=(), make=Sequencer, policy=POLICY):
        self.n, self.calls, self.window, self.policy = n, calls, window, policy
        self.impatient = impatient
        self.sequencer, self.ranks = make(n), [Rank() for _ in range(n)]
        self.rung = False

    def events(self):
        for index, rank in enumerate(self.ranks):
            if rank.started < min(self.calls, len(rank.outcomes) + self.window):
                yield "start", index, 0
            if rank.letters:
                yield "post", index, 0
            if rank.records:
                yield "take", index, 0
            if index in self.impatient and rank.turns and rank.turns[0].waits and not rank.gave_up:
                yield "give_up", index, 0
            for number, phase in rank.phases.items():
                others = [other.phases.get(number, "") for other in self.ranks]
                # Where nothing is behind it nobody sees whether all is posted.
                if phase in ("early", "nearly") or (phase == "last" and number < rank.started):
                    yield "send", index, number
                if phase in ("last", "leaving") and all(other in ("last", "leaving", "ended") for other in others):
                    yield "end", index, number
        if self.sequencer.deadline_s() is not None:
            yield "ring", -1, 0

    def apply(self, event):
        kind, index, number = event
        rank = self.ranks[index]
        if kind == "ring":
            told = self.sequencer.expire(10.0)
            assert told
            self.tell(told)
            return
        if kind == "start":
            rank.started += 1
            turn = Turn(rank.started, "f")
            if turn.number <= rank.free_to:
                turn.free()
                rank.letters.append(("report", turn.number))
            rank.turns.append(turn)
            rank.phases[turn.number] = ""
        elif kind == "post":
            self.post(index, *rank.letters.popleft())
        elif kind == "take":
            self.take(rank, rank.records.popleft())
        elif kind == "give_up":
            rank.gave_up = True
            rank.letters.append(("give_up", rank.turns[0].number))
        else:
            sent = {"early": "nearly", "nearly": "rests", "last": "leaving"}
            rank.phases[number] = sent[rank.phases[number]] if kind == "send" else "ended"
        self.advance(index, rank)

    def post(self, index, what, number):
        sequencer = self.sequencer
        if what == "report":
            self.tell(sequencer.report(index, 0.0, [(0.0, "f")], 0.0))
        elif what == "give_up":
            self.tell(sequencer.give_up(index, number))
        elif what == "ready":
            self.tell(sequencer.be_ready(index, number, 0.0))
        else:
            self.tell(sequencer.arrive(index, number, "f", self.policy, 0.0, what == "arrive ready"))

    def tell(self, told):
        for index, record in told:
            if record.verdict != SEEN:
                self.ranks[index].records.append(record)

    def take(self, rank, record):
        turn = next((turn for turn in rank.turns if turn.number == record.number), None)
        assert turn is not None, "a record of a call that is over"
        turn.take(record)
        if record.free:
            rank.free_to = record.number + record.free
            for other in rank.turns:
                if record.number < other.number <= rank.free_to:
                    other.free()

    def advance(self, index, rank):
        """What a communicator does: its calls in order, those behind the first as far as they go without it."""
        before = COMPLETE
        while rank.turns:
            first = rank.turns[0]
            self.act(index, rank, first, COMPLETE)
            if rank.phases[first.number] != "ended":
                break
            del rank.turns[0]
            rank.gave_up = False
            rank.outcomes.append(rank.chosen[first.number])
        for position, turn in enumerate(rank.turns):
            if position:
                self.act(index, rank, turn, before)
            phase = rank.phases[turn.number]
            before = min(before, turn.progress(LEFT.get(phase, 0.0), phase in ("rests", "ended")))

    def act(self, index, rank, turn, before):
        number = turn.number
        while (step := turn.next(before)) is not None:
            what, record = step
            phase = rank.phases[number]
            if what in (ARRIVE, READY):
                rank.letters.append(("ready" if what == READY else f"arrive{' ready' * turn.ready}", number))
                continue
            assert record.number == number
            if what == BEGIN:
                assert (phase, record.verdict) == ("", WITHOUT) and index != record.rank
                waiting = [its for other, its in rank.phases.items() if other < number]
                assert not {"", "early", "nearly"} & set(waiting), "begun too soon"
                rank.phases[number] = "early"
                continue
            if what == END:
                # What was begun without the late rank ends by itself.
                assert record.verdict == ABORT and phase != "last"
                rank.chosen[number] = "aborted", record.text
                rank.phases[number] = "ended"
                continue
            came = record.rank < 0 or all(other.started >= number for other in self.ranks)
            assert came, "begun without a rank that nobody named"
            assert what == (RELEASE if phase in ("early", "nearly", "rests") else RUN)
            waiting = {its for other, its in rank.phases.items() if other < number}
            assert waiting <= {"leaving", "ended"}, "out of turn"
            joins = {its for other, its in rank.phases.items() if other < number and rank.chosen[other][0] == JOIN}
            assert record.verdict == JOIN or joins <= {"ended"}, "beside a join"
            rank.phases[number], rank.chosen[number] = "last", (record.verdict, record.choice)

    def key(self):
        calls = {
            number: (tuple(sorted(call.arrivals)), tuple(sorted(call.ready)), call.decision, call.outcome)
            for number, call in self.sequencer._calls.items()
        }
        return tuple(rank.key() for rank in self.ranks), tuple(sorted(calls.items())), tuple(self.sequencer._free)

    def check_end(self):
        for rank in self.ranks:
            assert len(rank.outcomes) == self.calls, f"stuck: {rank}"
        for outcomes in zip(*(rank.outcomes for rank in self.ranks), strict=True):
            assert len(set(outcomes)) == 1, f"ranks ended a call differently: {outcomes}"


def explore(queue):
    """Every state that can be reached; the number of them, and the ways in which calls ended."""
    seen, ends, stack = set(), set(), [queue]
    while stack:
        current = stack.pop()
        key = current.key()
        if key in seen:
            continue
        seen.add(key)
        events = list(current.events())
        if not events:
            current.check_end()
            ends.update(tuple(outcome[0] for outcome in rank.outcomes) for rank in current.ranks)
        saved = pickle.dumps(current) if len(events) > 1 else b""
        for event in events:
            following = current if event is events[-1] else pickle.loads(saved)
            following.apply(event)
            stack.append(following)
    return len(seen), ends


def walk(queue, seed):
    """One of the orders of events, drawn from `seed`, to its end."""
    rng = random.Random(seed)
    while events := list(queue.events()):
        # Some orders starve a kind of event.
        weights = [rng.choice((1, 10)) if seed % 3 else 1 + 9 * (event[0] == "start") for event in events]
        queue.apply(rng.choices(events, weights)[0])
    queue.check_end()
    return {outcome[0] for rank in queue.ranks for outcome in rank.outcomes}


@pytest.mark.parametrize(("n", "calls", "window", "impatient"), [(3, 3, 3, ()), (3, 2, 2, (0, 2)), (4, 4, 2, (1,))])
def test_many_orders(n, calls, window, impatient):
    ends = set().union(*(walk(Queue(n, calls, window, impatient), seed) for seed in range(400)))
    assert ends == {NORMAL, JOIN} | ({"aborted"} if impatient else set())


@pytest.mark.parametrize(
    ("n", "calls", "window", "impatient"),
    [
        (2, 2, 2, (0,)),
        pytest.param(2, 2, 2, (0, 1), marks=pytest.mark.slow),
        pytest.param(2, 3, 2, (0,), marks=pytest.mark.slow),
        pytest.param(3, 2, 2, (), marks=pytest.mark.slow),
        pytest.param(2, 3, 3, (0, 1), marks=pytest.mark.slow),
        pytest.param(3, 2, 2, (0,), marks=pytest.mark.slow),
    ],
)
def test_every_order(n, calls, window, impatient):
    states, ends = explore(Queue(n, calls, window, impatient))
    assert states > 500
    assert {verdict for end in ends for verdict in end} == {NORMAL, JOIN} | ({"aborted"} if impatient else set())
    # A rank is late for one call and not for the next, and the other way round.
    assert any(end[:2] == (JOIN, NORMAL) for end in ends) and any(end[:2] == (NORMAL, JOIN) for end in ends)


@pytest.fixture
def free(monkeypatch):
    """Every second call of SHORT is free, if nobody is late."""
    for name in ("PUNCTUAL_CALLS", "FREE_CALLS", "MAX_FREE_CALLS"):
        monkeypatch.setattr(board, name, 1)


@pytest.mark.parametrize("impatient", [(), pytest.param((0,), marks=pytest.mark.slow)])
def test_every_order_with_free_calls(free, impatient):
    _, ends = explore(Queue(2, 3, 2, impatient, policy=SHORT))
    assert (NORMAL, NORMAL, NORMAL) in ends


@pytest.mark.parametrize(("n", "calls", "window", "impatient"), [(2, 3, 2, (0,)), (3, 4, 3, (1,)), (3, 6, 2, ())])
def test_many_orders_with_free_calls(free, n, calls, window, impatient):
    ends = set().union(*(walk(Queue(n, calls, window, impatient, policy=SHORT), seed) for seed in range(400)))
    assert ends == {NORMAL, JOIN} | ({"aborted"} if impatient else set())


class Narrow(Sequencer):
    """Ends the call that was given up, and none behind it."""

    def give_up(self, rank, number):
        return [(each, record) for each, record in super().give_up(rank, number) if record.number == number]


class Generous(Sequencer):
    """Frees a call, and answers those who have come to it as well."""

    def _set_free(self, number, call):
        return []


def test_who_is_not_ready_does_not_begin():
    """By hand: rank 1 rests in call 1, rank 0 does not, so call 2 waits."""
    sequencer = Sequencer(3)
    for rank in (0, 1):
        sequencer.arrive(rank, 1, "f", POLICY, 0.0)
        sequencer.arrive(rank, 2, "f", POLICY, 0.1, ready=False)
    assert {record.number for _, record in sequencer.expire(1.0)} == {1}
    sequencer.be_ready(1, 2, 1.5)
    assert sequencer.deadline_s() is None
    sequencer.be_ready(0, 2, 2.0)
    # Its window was over long ago.
    assert sequencer.deadline_s() == 2.0
    assert {(record.number, record.verdict) for _, record in sequencer.expire(2.0)} == {(2, WITHOUT)}


def walk_many(*args, **kwargs):
    for seed in range(2000):
        walk(Queue(*args, **kwargs), seed)


def test_the_model_finds_calls_behind_one_that_was_given_up():
    with pytest.raises(AssertionError, match="stuck"):
        walk_many(2, 2, 2, (0, 1), make=Narrow)


def test_the_model_finds_calls_that_only_some_ask_about(free):
    with pytest.raises(AssertionError):
        walk_many(2, 3, 2, make=Generous, policy=SHORT)


def test_the_model_finds_what_all_begin_beside_a_join(monkeypatch):
    monkeypatch.setitem(turns._NEEDS, NORMAL, turns.ENDING)
    with pytest.raises(AssertionError, match="beside a join"):
        walk_many(2, 2, 2)


@pytest.mark.parametrize("needed", [WITHOUT, NORMAL, JOIN])
def test_the_model_finds_a_turn_out_of_order(monkeypatch, needed):
    monkeypatch.setitem(turns._NEEDS, needed, turns.BUSY)
    with pytest.raises(AssertionError, match="begun too soon" if needed == WITHOUT else "out of turn"):
        walk_many(2, 2, 2)
