"""Meetings of the store: in every order of comings, deaths and the end of time, all get one answer, and it is right."""

from itertools import permutations
from types import SimpleNamespace

import pytest

from lanterne.transport.store.handler import Refusal
from lanterne.transport.store.membership.meetings import MAX_ANSWERS, Meetings
from lanterne.transport.wire import RANK_NBYTES, WireError, pack_ranks, unpack_ranks

RANKS = (2, 3, 5)


class World:
    """The store and its members, for one meeting after another."""

    def __init__(self):
        self.timers, self.answers, self.told, self.dead, self.decided = [], {}, [], {}, []
        self.meetings = Meetings(self, self)

    def after(self, delay_s, function):
        self.timers.append(function)

    def reply(self, connection, request_id, fields):
        assert connection.rank not in self.answers, "answered twice"
        self.answers[connection.rank] = parse(fields)

    def rank_of(self, connection):
        if connection.rank in self.dead:
            raise Refusal("dead")
        return connection.rank

    def lives(self, rank):
        return rank not in self.dead

    def declare_dead(self, rank, reason):
        if rank not in self.dead:
            self.dead[rank] = reason
            self.meetings.gone(rank)

    def give_up(self, absent, reason):
        for rank in absent:
            self.declare_dead(rank, reason)

    def decide(self, kind, fields, over=()):
        self.decided = [each for each in self.decided if each not in over] + [fields]
        return True

    def met(self, key, ranks, survivors):
        self.told.append((ranks, tuple(survivors)))

    def come(self, rank, key=b"k", ranks=RANKS, cut=(), payload=None):
        payload = str(rank).encode() if payload is None else payload
        fields = key, pack_ranks(ranks), pack_ranks(cut), payload, 1000
        answer = self.meetings.meet(SimpleNamespace(rank=rank), 1, *fields)
        if answer is not None:
            self.answers[rank] = parse(answer)

    def ring(self):
        for timer in self.timers:
            timer()


def parse(fields):
    return {unpack_ranks(field[:RANK_NBYTES])[0]: field[RANK_NBYTES:] for field in fields}


ACTIONS = [("come", rank) for rank in RANKS] + [("die", 3), ("ring", 0)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_every_order_of_what_may_happen(count):
    for order in permutations(ACTIONS, count):
        world = World()
        for what, rank in order:
            if what == "come" and rank not in world.dead:
                world.come(rank)
            elif what == "die":
                world.declare_dead(rank, b"killed")
            elif what == "ring":
                world.ring()
        came = {rank for what, rank in order if what == "come"}
        answers = list(world.answers.values())
        assert all(answer == answers[0] for answer in answers), order
        for rank, answer in world.answers.items():
            assert rank in answer and all(answer[each] == str(each).encode() for each in answer), order
        living = {rank for rank in RANKS if rank not in world.dead}
        if living <= came and living:
            assert living <= set(world.answers), f"{order}: somebody waits although all have come"
        if world.answers:
            assert world.told == [(RANKS, tuple(sorted(answers[0])))], order
        else:
            assert not world.told, order


def test_whoever_asks_again_gets_the_same_answer():
    world = World()
    for rank in RANKS:
        world.come(rank)
    first = dict(world.answers)
    world.answers.clear()
    world.declare_dead(3, b"killed after it")
    world.come(2)
    assert world.answers[2] == first[2] and set(first[2]) == set(RANKS)


@pytest.mark.parametrize(
    ("cut", "left_out"),
    [
        ({2: (3,)}, {3}),
        ({3: (2,)}, {3}),
        ({2: (3, 5)}, {2}),
        ({2: (3,), 3: (5,)}, {3}),
        ({2: (3, 5), 3: (2, 5)}, {5, 3}),
        ({2: (7,)}, set()),
    ],
)
def test_of_two_without_a_path_one_is_left_out(cut, left_out):
    world = World()
    for rank in RANKS:
        if rank not in world.dead:
            world.come(rank, cut=cut.get(rank, ()))
    assert set(world.dead) == left_out
    assert all(set(answer) == set(RANKS) - left_out for answer in world.answers.values()) and world.answers
    assert all(b"there is no path between it and rank" in why for why in world.dead.values())


def test_what_is_refused():
    world = World()
    world.come(2)
    with pytest.raises(Refusal, match="expected"):
        world.come(3, ranks=(2, 3))
    with pytest.raises(Refusal):
        world.come(7)
    with pytest.raises(Refusal):
        world.come(3, key=b"x" * 1000)
    with pytest.raises(Refusal):
        world.come(3, payload=bytes(8 << 20))
    with pytest.raises(WireError):
        unpack_ranks(b"123")


def test_answers_do_not_pile_up():
    world = World()
    for number in range(2 * MAX_ANSWERS):
        world.answers.clear()
        for rank in RANKS:
            world.come(rank, key=str(number).encode())
    assert len(world.meetings._answers) == MAX_ANSWERS and not world.meetings._open


def test_of_a_series_only_the_last_answer_is_kept_also_by_those_who_decide():
    world = World()
    keys = [b"k/shrink", *(b"k/agree/%d" % number for number in range(1, 12)), b"k/agree/x", b"other/agree/1"]
    for key in keys:
        world.answers.clear()
        for rank in RANKS:
            world.come(rank, key=key)
    left = [b"k/shrink", b"k/agree/11", b"k/agree/x", b"other/agree/1"]
    assert list(world.meetings._answers) == [fields[0] for fields in world.decided] == left


@pytest.mark.parametrize("first", [b"k/shrink", b"k/agree/1"])
def test_who_came_to_agree_is_told_nothing_once_one_of_them_shrinks(first):
    world = World()
    second = b"k/agree/1" if first == b"k/shrink" else b"k/shrink"
    world.come(2, key=first)
    world.come(3, key=first)
    world.come(5, key=b"other/agree/1")
    assert not world.answers
    world.come(5, key=second)
    agreed = {2, 3} if first == b"k/agree/1" else {5}
    assert world.answers == {key: {} for key in agreed} and not world.decided
    world.answers.clear()
    for rank in agreed:
        world.come(rank, key=b"k/shrink")
    assert set(world.answers) == set(RANKS) and [fields[0] for fields in world.decided] == [b"k/shrink"]
    # It dies in its shrink: the others may agree, without it.
    world = World()
    world.come(2, key=b"k/shrink")
    world.declare_dead(2, b"killed")
    world.come(3, key=b"k/agree/1")
    world.come(5, key=b"k/agree/1")
    assert world.answers == {key: {3: b"3", 5: b"5"} for key in (3, 5)}
