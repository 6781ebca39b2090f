"""Who of an epoch is a member, has left or has died: what is refused, and what all are told, in one order."""

from types import SimpleNamespace

import pytest

from lanterne.transport.store.handler import Refusal
from lanterne.transport.store.membership.census import Census
from lanterne.transport.wire import Kind

LEFT_1, DIED_2 = (Kind.LEFT_NOTICE, [1]), (Kind.DIED_NOTICE, [2, b"lost"])


class Store:
    """Keeps what each connection is told."""

    def __init__(self):
        self.told = {}

    def send(self, connection, kind, request_id, fields):
        self.told.setdefault(connection.rank, []).append((kind, fields))


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def census(store):
    """Of four ranks: 0 is a member, 1 has left, 2 has died, 3 has not come."""
    census = Census(store)
    for rank in range(3):
        census.enter(SimpleNamespace(rank=rank), rank, 4)
    census.members.pop(1)
    census.leave(1)
    census.die(2, b"lost")
    return census


def test_who_lives_and_who_is_known(census):
    assert [census.lives(rank) for rank in range(4)] == [True, False, False, True]
    assert [census.knows(rank) for rank in range(4)] == [True, True, True, False]


def test_all_are_told_in_one_order_whenever_they_come(store, census):
    assert store.told == {0: [LEFT_1, DIED_2], 2: [LEFT_1, DIED_2]}
    census.tell_gone(SimpleNamespace(rank=3))
    assert store.told[3] == [LEFT_1, DIED_2]


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (0, "got rank 0 twice"),
        (1, "got rank 1 twice"),
        (2, "got rank 2, which is dead to this job: lost"),
        (4, "got rank 4, expected 0 to 3"),
        (-1, "got rank -1, expected 0 to 3"),
    ],
)
def test_who_cannot_enter(census, rank, words):
    with pytest.raises(Refusal, match=words):
        census.enter(SimpleNamespace(rank=rank), rank, 4)


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (0, "a client that has not joined, or has left"),  # another connection than the member's
        (1, "a client that has not joined, or has left"),
        (2, "got a request of rank 2, which is dead to this job: lost"),
        (None, "a client that has not joined, or has left"),
    ],
)
def test_who_is_no_member(census, rank, words):
    assert census.rank_of(census.members[0]) == 0
    with pytest.raises(Refusal, match=words):
        census.rank_of(SimpleNamespace(rank=rank))
