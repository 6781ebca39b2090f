"""What members do together at the store: in whatever order they come, each is answered once, and with the same."""

from itertools import permutations

import pytest

from lanterne.transport.store.handler import Refusal
from lanterne.transport.store.membership.together import Gathers, Votes, Waiting
from lanterne.transport.wire import MAX_BODY_NBYTES


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
