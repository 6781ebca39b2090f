"""Ids of communicators: however the threads of ranks take turns, no two agreements give the same, and all end."""

import random

import numpy as np
import pytest

from lanterne.collectives.call.ids import CLOSED, OPEN, CommunicatorIds, first_free
from lanterne.errors import InputError

PARENTS = (1, 2, 7)


class Agreements:
    """Ranks with a thread for each parent, each of which takes `count` ids; a step is one thread's."""

    def __init__(self, ranks, count):
        self.ranks, self.count = ranks, count
        self.ids = [CommunicatorIds() for _ in range(ranks)]
        self.offers = {parent: [] for parent in PARENTS}
        self.rounds = {(rank, parent): 0 for rank in range(ranks) for parent in PARENTS}
        self.taken = {(rank, parent): [] for rank in range(ranks) for parent in PARENTS}

    def may(self):
        for (rank, parent), done in self.rounds.items():
            if len(self.taken[rank, parent]) < self.count:
                rounds = self.offers[parent]
                if done == len(rounds) or rank not in rounds[done] or len(rounds[done]) == self.ranks:
                    yield rank, parent

    def step(self, rank, parent):
        done, rounds = self.rounds[rank, parent], self.offers[parent]
        if done == len(rounds):
            rounds.append({})
        if rank not in rounds[done]:
            rounds[done][rank] = self.ids[rank].offer(parent)
            return
        self.rounds[rank, parent] += 1
        free = self.ids[rank].take(parent, np.maximum.reduce(list(rounds[done].values())))
        if free is not None:
            self.taken[rank, parent].append(free)
            self.ids[rank].ask_no_more(parent)


@pytest.mark.parametrize("seed", range(40))
def test_agreements_side_by_side_never_give_the_same_id(seed):
    rng = random.Random(seed)
    agreements = Agreements(rng.choice((2, 3)), 3)
    for _ in range(5000):
        ready = list(agreements.may())
        if not ready:
            break
        agreements.step(*rng.choice(ready))
    else:
        pytest.fail("the threads do not come to an end")
    for parent in PARENTS:
        assert len({tuple(agreements.taken[rank, parent]) for rank in range(agreements.ranks)}) == 1, parent
    every = [free for parent in PARENTS for free in agreements.taken[0, parent]]
    assert len(set(every)) == len(every) == 3 * len(PARENTS)


def test_closed_ids_come_last_and_an_end_is_told():
    used = np.full(1 << 16, OPEN, np.uint8)
    used[9], used[4] = 0, CLOSED
    assert first_free(used) == 9
    used[9] = OPEN
    assert first_free(used) == 4
    used[4] = OPEN
    with pytest.raises(InputError, match="no free communicator id"):
        first_free(used)
