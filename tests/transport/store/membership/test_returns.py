"""A store is lost, and another takes over: whoever comes back, in which order ever, what was decided stays decided."""

from itertools import permutations

import pytest
from store_world import World

from lanterne.transport.store.membership.meetings import BEGIN_KEY
from lanterne.transport.wire import RANK_NBYTES, Kind, pack_frame, pack_ranks, unpack_ranks


class Returned(World):
    """The store that has taken over from that of a job of `size` ranks; `told` is what each was told there."""

    def __init__(self, size=3, epoch=0, begun=True, term=1):
        self.term = term
        super().__init__(died=(), ranks=())
        self.size, self.epoch, self.begun = size, epoch, begun

    def come_back(self, rank, *frames, epoch=None, begun=None, places=None, term=0):
        places = places or range(self.size)
        roll = pack_ranks((term, 3, *places, *places))
        client = self.ranks[rank] = self.client(f"rank {rank}")
        epoch, begun = self.epoch if epoch is None else epoch, self.begun if begun is None else begun
        self.ask(client, Kind.RETURN, epoch, rank, int(begun), roll, b"".join(frames))
        self.answers.pop(client.name, None)
        return client

    def meet(self, rank, key=b"shrink", limit_ms=1000):
        self.ask(self.ranks[rank], Kind.MEET, key, pack_ranks(range(self.size)), b"", b"%d" % rank, limit_ms)

    def miss(self):
        """The time to come back is over."""
        self.timers.pop(0)()

    def met(self, rank):
        answer = self.answers.get(f"rank {rank}")
        return answer and [(unpack_ranks(each[:RANK_NBYTES])[0], each[RANK_NBYTES:]) for each in answer]


def died(rank):
    return pack_frame(Kind.DIED_NOTICE, 0, [rank, b"killed"])


def left(rank):
    return pack_frame(Kind.LEFT_NOTICE, 0, [rank])


def answered(key, *ranks):
    return pack_frame(Kind.REPLY, 0, [key, *(pack_ranks((rank,)) + b"%d" % rank for rank in ranks)])


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_nobody_has_died_all_go_on(order):
    world = Returned()
    for rank in order:
        assert not world.answers, rank
        world.come_back(rank)
        world.meet(rank)
    assert [world.met(rank) for rank in range(3)] == [[(0, b"0"), (1, b"1"), (2, b"2")]] * 3
    world.miss()
    assert world.members.epoch.living == [0, 1, 2] and not world.refusals


@pytest.mark.parametrize("order", list(permutations(["back 0", "meet 0", "back 1", "meet 1", "over"])), ids=",".join)
def test_who_does_not_come_back_is_dead_and_nobody_goes_on_without_it_before(order):
    if any(order.index(f"back {rank}") > order.index(f"meet {rank}") for rank in (0, 1)):
        return
    world, began = Returned(), False
    for count, what in enumerate(order, 1):
        if what == "over":
            if not began:  # It counts from the first that comes.
                return
            world.miss()
        elif what.startswith("back"):
            began = True
            world.come_back(int(what[-1]))
        elif int(what[-1]) in world.members.epoch.living:
            world.meet(int(what[-1]))
        if count < len(order):
            assert not world.answers or 0 not in world.members.epoch.living or 1 not in world.members.epoch.living, (
                count,
                what,
            )
    late = [rank for rank in (0, 1) if order.index(f"back {rank}") > order.index("over")]
    living = [rank for rank in (0, 1) if rank not in late]
    assert world.members.epoch.living == living
    assert all(world.met(rank) == [(each, b"%d" % each) for each in living] for rank in living), order
    why = b"it has not come to the store that took over, in 10 s"
    for rank in late:  # It learns that the others have gone on.
        assert (f"rank {rank}", Kind.DIED_NOTICE, [rank, why]) in world.notices, rank


@pytest.mark.parametrize("knows", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("order", list(permutations(["back 0", "back 1", "meet 0", "meet 1"])), ids=",".join)
def test_what_one_was_told_holds_for_all(knows, order):
    """Ranks 0 and 1 have gone on without rank 2: not all have heard of it."""
    if any(order.index(f"back {rank}") > order.index(f"meet {rank}") for rank in (0, 1)):
        return
    world = Returned()
    for what in order:
        rank = int(what[-1])
        if what.startswith("back"):
            world.come_back(rank, *((died(2), answered(b"shrink", 0, 1)) if rank in knows else ()))
        elif rank not in knows:
            world.meet(rank)
    assert world.members.epoch.living == [0, 1]
    for rank in {0, 1} - set(knows):
        assert world.met(rank) == [(0, b"0"), (1, b"1")], order


def test_who_died_at_the_first_learns_it_at_the_second_and_who_left_is_not_waited_for():
    world = Returned()
    world.come_back(0, died(1), left(2))
    assert world.members.epoch.living == [0]
    world.come_back(1)
    assert ("rank 1", Kind.DIED_NOTICE, [1, b"killed"]) in world.notices
    world.ask(world.ranks[1], Kind.MEET, b"shrink", pack_ranks(range(3)), b"", b"", 1000)
    assert "which is dead to this job: killed" in world.refusals["rank 1"]
    world.meet(0)
    assert world.met(0) == [(0, b"0")]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("knows", [(), (0,), (0, 2), (0, 1, 2)], ids=str)
def test_an_epoch_that_had_begun_for_one_begins_for_all(order, knows):
    """All were ready for epoch 2; those who know had been told that it begins."""
    world = Returned(epoch=2)
    for rank in order:
        told = [answered(BEGIN_KEY, 0, 1, 2)] if rank in knows else []
        world.come_back(rank, *told, begun=rank in knows, places=(0, 1, 5))
        if rank not in knows:
            world.meet(rank, BEGIN_KEY)
    assert (world.members.epoch.number, world.members.epoch.places) == (2, (0, 1, 5))
    for rank in set(range(3)) - set(knows):
        assert len(world.met(rank)) == 3, rank


def test_an_epoch_for_which_one_was_not_ready_is_none_and_those_before_go_on():
    world = Returned(size=2, epoch=1)
    world.come_back(0, epoch=2, begun=False)
    world.come_back(1, epoch=1)  # It had given the next one up.
    world.come_back(0, epoch=1)
    world.meet(0)
    world.meet(1)
    assert world.members.epoch.number == 1 and world.met(1) == [(0, b"0"), (1, b"1")]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ((0, 3, 1, pack_ranks((0, 3, 0, 1, 2, 0, 1, 2)), b""), "got rank 3 of 3 in epoch 0"),
        ((0, 0, 1, pack_ranks((0, 3, 0, 1, 2, 0, 1)), b""), "got rank 0 of 2 in epoch 0"),
        ((-1, 0, 1, pack_ranks((0, 3, 0, 1, 2, 0, 1, 2)), b""), "got rank 0 of 3 in epoch -1"),
        ((0, 0, 1, b"", b""), "got a roll of no ranks"),
        ((0, 0, 1, pack_ranks((0, 3, 0, 1, 2, 0, 1, 2)), died(7)), "got the end of rank 7, expected 0 to 2"),
    ],
)
def test_what_is_refused(fields, said):
    world = Returned()
    client = world.client("one")
    world.ask(client, Kind.RETURN, *fields)
    assert said in world.refusals["one"] and not world.answers


def test_an_older_epoch_is_over_and_a_guard_says_whose_process_is_outside():
    world = Returned(epoch=3)
    world.come_back(0)
    world.come_back(1, epoch=2)
    assert "got a rank of epoch 2, which is over" in world.refusals["rank 1"]
    for number, outside in ((1, 0), (2, 1)):
        world.ask(world.client(f"guard {number}"), Kind.GUARD, number, 3, outside)
    world.miss()
    assert world.members.epoch.living == [0, 1]  # rank 1 computes, says its guard


@pytest.mark.parametrize(
    ("come", "others", "left"),
    [
        # By rank: how many stores there were before the last one that it was with. The third store waits for them.
        ({0: 0}, (), ()),
        ({0: 0, 1: 0}, (), (0, 1)),
        ({0: 0, 1: 1}, (), (0, 1)),
        ({1: 1}, (), (1,)),
        ({0: 0}, (1,), ()),
        ({0: 0}, (1, 2), (0,)),
    ],
)
@pytest.mark.parametrize("late", ["they meet", "nobody meets"])
def test_who_was_with_an_older_store_only_goes_on_with_most_of_those_that_live(come, others, left, late):
    """The second store may have gone on without rank 0, as who is not here knows; `others` are known to be dead."""
    world = Returned(term=2)
    for rank, term in come.items():
        world.come_back(rank, *map(died, others), term=term)
        if late == "they meet":
            world.meet(rank)
    if world.timers:
        world.timers.pop(-1 if late == "they meet" else 0)()
    # Nobody says of those that did not come that they are dead, where it is rank 0 that is taken for dead.
    assert world.members.epoch.living == [*(left or sorted({1, 2} - {*others}))]
    if not left:
        reason = b"the job has had another store since, and most of its ranks are not here"
        assert ("rank 0", Kind.DIED_NOTICE, [0, reason]) in world.notices
