"""What members do together at the store: in whatever order they come, each is answered once, and with the same."""

from contextlib import nullcontext
from itertools import permutations
from types import SimpleNamespace

import pytest

from lanterne.transport.store.fellows import FellowStores
from lanterne.transport.store.handler import Refusal
from lanterne.transport.store.membership.together import Gathers, Votes, Waiting
from lanterne.transport.wire import MAX_BODY_NBYTES, Kind


class Answers(dict):
    """A store that keeps what it replied, by connection."""

    def reply(self, connection, _request_id, fields=()):
        assert connection not in self, f"{connection} is answered twice"
        self[connection] = list(fields)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_gather_gives_all_the_payloads_in_rank_order_to_everybody(order):
    answers = Answers()
    gathers = Gathers(answers)
    for count, rank in enumerate(order):
        assert (not answers, set(gathers.present(b"x"))) == (True, set(order[:count])), f"before rank {rank}"
        gathers.bring(b"x", rank, b"%d" % rank, Waiting(rank, 7), 3)
    assert answers == {rank: [b"0", b"1", b"2"] for rank in range(3)}
    assert not gathers.present(b"x")


def test_a_gather_whose_answer_would_be_too_long_is_refused_and_leaves_nothing():
    gathers = Gathers(Answers())
    with pytest.raises(Refusal, match=rf"expected at most {MAX_BODY_NBYTES // 6}"):
        gathers.bring(b"x", 0, bytes(MAX_BODY_NBYTES // 6 + 1), Waiting(0, 7), 3)
    assert not gathers.present(b"x")


@pytest.mark.parametrize("willing", [(True, True, True), (True, False, True), (False, True, True), (True, True, False)])
def test_ranks_end_together_if_all_are_willing_and_know_of_one_that_is_not_at_once(willing):
    answers = Answers()
    votes = Votes(answers)
    for rank, will in enumerate(willing):
        votes.vote(rank, will, Waiting(rank, 7), 3)
        told = (all(willing) and rank == 2) or not all(willing[: rank + 1])
        assert (rank in answers) == told, (rank, answers)
    assert answers == {rank: [all(willing)] for rank in range(3)}


def test_one_that_is_gone_before_it_votes_is_not_willing_and_one_that_has_voted_stays_so():
    answers = Answers()
    votes = Votes(answers)
    votes.vote(0, True, Waiting(0, 7), 3)
    votes.is_gone(0, 3)
    assert not answers
    votes.is_gone(2, 3)
    assert answers == {0: [0]}


class Nowhere:
    """A machine with a clock of its own, that reaches nobody: `error` says how."""

    def __init__(self, error):
        self.seconds, self.tried, self.error = 0.0, 0, error

    def now_s(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds

    def lock(self):
        return nullcontext()

    def thread(self, _name, function):
        function()
        return SimpleNamespace(is_alive=lambda: False, join=lambda: None)

    def connect(self, address, _limit_s):
        assert address == ("host", 99)
        self.tried += 1
        raise self.error


@pytest.mark.parametrize(
    ("error", "silent"),
    [(ConnectionRefusedError(111, "refused"), set()), (TimeoutError("nothing"), {"host:99"})],
    ids=["it has ended", "it says nothing"],
)
def test_a_store_that_does_not_answer_is_left_alone_for_a_while(error, silent):
    machine = Nowhere(error)
    fellows = FellowStores(machine, "0" * 64, rests_s=1.5)
    ask = lambda: fellows.ask_all(["host:99"], Kind.PROMISE, lambda name: (), 0.2, 0.2).wait()  # noqa: E731
    assert ask() == {"host:99": None}
    assert (fellows.silent, "host:99" in fellows) == (silent, False)
    tried, machine.seconds = machine.tried, machine.seconds + 1.4
    assert ask() == {"host:99": None} and machine.tried == tried
    machine.seconds += 0.2
    assert ask() == {"host:99": None} and machine.tried > tried
    tried = machine.tried
    fellows.rouse()
    assert ask() == {"host:99": None} and machine.tried > tried
