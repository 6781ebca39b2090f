"""Who is taken into a job: in every order of comings, deaths and ends all are told one thing, and it is right."""

from itertools import permutations

import pytest
from store_world import TERMS, Guarded, World

from lanterne.transport.store.membership.meetings import BEGIN_KEY
from lanterne.transport.store.terms import ANY, Terms
from lanterne.transport.wire import RANK_NBYTES, Kind, pack_ranks, unpack_ranks


def roll_of(answer):
    """What GROW was answered: who came, and (epoch, size, newcomers) or ()."""
    *came, roll = answer
    return [unpack_ranks(each[:RANK_NBYTES])[0] for each in came], unpack_ranks(roll)


ACTIONS = ("grow 0", "grow 2", "shrink 2", "apply a", "apply b", "a goes", "rank 2 dies", "time")


@pytest.mark.parametrize("count", range(1, 6))
def test_every_order_of_what_may_happen(count):
    for order in permutations(ACTIONS, count):
        world = World()
        clients, goes, dead = {}, set(), set()
        at = {}  # At which meeting a rank is, or was.
        for what in order:
            kind, _, who = what.partition(" ")
            if kind in ("grow", "shrink") and who not in at and int(who) not in dead:
                at[who] = kind
                if kind == "grow":
                    world.grow(int(who))
                else:  # It has learned of a death.
                    world.ask(world.ranks[2], Kind.MEET, b"shrink", pack_ranks((0, 2)), b"", b"", 1000)
                    assert "0" not in at or "rank 0" in world.answers, f"{order}: they wait for each other"
            elif kind == "apply":
                clients[who] = world.apply(who, 1)
            elif what == "a goes" and "a" in clients:
                goes.add("a")
                world.close(clients["a"])
            elif what == "rank 2 dies":
                dead.add(2)
                world.close(world.ranks[2])
            elif what == "time":
                timers, world.timers = world.timers, []
                for timer in timers:
                    timer()
        growing = [f"rank {who}" for who, kind in at.items() if kind == "grow"]
        told = [roll_of(world.answers[name]) for name in growing if name in world.answers]
        assert all(each == told[0] for each in told), order
        taken = [name for name in ("a", "b") if name in world.answers]
        assert len(taken) <= 1 and not set(taken) & set(world.refusals), order
        # Whoever is told that it is in, the members are told of, and the other way around.
        assert bool(taken) == bool(told and told[0][1]), order
        if taken:
            (epoch, size, *newcomers), (number, terms, ranks) = told[0][1], world.answers[taken[0]]
            its_size, its_rank, *its_newcomers = unpack_ranks(ranks)
            assert (number, its_size, its_newcomers) == (epoch, size, newcomers) and newcomers == [its_rank], order
            assert terms == TERMS.pack() and (epoch, size, its_rank) == (1, 3, 1) and told[0][0] == [0, 2], order
        if {"0", "2"} == at.keys() or ("0" in at and dead):
            heard = world.answers.keys() | world.refusals.keys()  # refused: dead to the others by then
            assert "rank 0" in heard, f"{order}: somebody waits in vain"
        if "apply a" in order and "apply b" in order and not taken and not goes and "time" not in order:
            assert len(set(world.refusals) & {"a", "b"}) == 1, f"{order}: two claim one place"


def in_next(world, newcomer="a"):
    """The connections of epoch 1, by rank: 0 and 2 have grown by the newcomer, rank 1."""
    entered = {rank: world.client(f"next {rank}") for rank in (0, 2)}
    entered[1] = world.apply(newcomer, 1)
    world.grow(0)
    world.grow(2)
    return entered


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_an_epoch_begins_once_all_its_ranks_are_ready_or_never(order, missing):
    world = World()
    entered = in_next(world)
    for rank in order:
        if rank == missing:
            world.close(entered[rank] if rank == 1 else world.ranks[rank])  # Its process dies.
            if rank != 1:
                continue
        world.answers.clear()
        world.ask(entered[rank], Kind.ENTER, 1, rank)
    if missing == 1:
        world.close(entered[1])
    world.answers.clear()
    for rank in order:
        if rank != missing:
            world.ask(entered[rank], Kind.MEET, BEGIN_KEY, pack_ranks(range(3)), b"", b"", 1000)
    answers = list(world.answers.values())
    assert len(answers) == (3 if missing is None else 2)
    # Where one is missing nobody waits for the others.
    assert all(len(answer) == (3 if missing is None else 1) for answer in answers)
    assert world.members.epoch.number == (1 if missing is None else 0)
    if missing == 1:
        # Nothing has changed, and the place is free: the next one may come.
        assert world.members.epoch.living == [0, 2]
        world.answers.clear()
        world.apply("b", 1)
        world.grow(0, key=b"again")
        world.grow(2, key=b"again")
        assert roll_of(world.answers["rank 0"]) == ([0, 2], (2, 3, 1))


def test_who_abandons_the_next_epoch_lives_on_in_this_one():
    world = World()
    entered = in_next(world)
    world.answers.clear()
    for rank in range(3):
        world.ask(entered[rank], Kind.ENTER, 1, rank)
    world.close(entered[0])
    assert world.members.epoch.living == [0, 2]
    assert ("next 2", Kind.DIED_NOTICE, [0, b"its connection ended without goodbye"]) in world.notices


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (Terms("0.9", "tcp", "a model"), "rank 1 is not taken in: got lanterne '0.9', expected '1.0'"),
        (Terms("1.0", "ucx", "a model"), "rank 1 is not taken in: got transport 'ucx', expected 'tcp'"),
        (Terms("1.0", "", "another"), "rank 1 is not taken in: got model 'another', expected 'a model'"),
        (Terms("1.0", "", ""), "rank 1 is not taken in: got model 'of no name', expected 'a model'"),
    ],
)
def test_who_differs_is_refused_by_name_and_the_others_go_on(terms, said):
    world = World()
    world.apply("a", 1, terms)
    world.grow(0)
    world.grow(2)
    assert world.refusals["a"].startswith(said)
    assert roll_of(world.answers["rank 0"]) == ([0, 2], ())


def test_members_that_differ_take_nobody_in():
    world = World()
    world.apply("a", 1)
    world.grow(0)
    world.grow(2, terms=Terms("1.0", "tcp", "another"))
    assert roll_of(world.answers["rank 0"]) == ([0, 2], ()) and "a" not in world.answers


def test_only_all_that_live_can_take_somebody_in():
    world = World()
    world.apply("a", 1)
    world.grow(0, ranks=(0,))
    assert world.refusals["rank 0"] == "got ranks without [2], expected the communicator of all that live"


@pytest.mark.parametrize(
    ("applicants", "places"),
    [
        ({"a": ANY}, {"a": 1}),
        ({"a": ANY, "b": ANY}, {"a": 1, "b": 3}),
        ({"a": ANY, "b": 1}, {"a": 3, "b": 1}),
        ({"a": 7}, {"a": 7}),
        ({"a": 2}, {}),
    ],
)
def test_who_gets_which_place(applicants, places):
    world = World()
    for name, place in applicants.items():
        world.apply(name, place)
    world.grow(0)
    world.grow(2)
    roll = roll_of(world.answers["rank 0"])[1]
    order = sorted([0, 2, *places.values()])
    ranks = {name: unpack_ranks(world.answers[name][2])[1] for name in applicants if name in world.answers}
    assert ranks == {name: order.index(place) for name, place in places.items()}
    newcomers = [order.index(place) for place in roll_places(applicants, places)]
    assert roll == ((1, len(order), *newcomers) if places else ())


def roll_places(applicants, places):
    """Claims come first, then who came first."""
    return [places[name] for name in sorted(places, key=lambda name: applicants[name] < 0)]


def test_members_hear_of_those_that_could_be_taken_in():
    world = World(died=())
    world.apply("twin", 2)
    assert not world.notices
    world.close(world.ranks[2])
    assert [each for each in world.notices if each[1] == Kind.WAITING_NOTICE] == [
        ("rank 0", Kind.WAITING_NOTICE, [1]),
        ("rank 1", Kind.WAITING_NOTICE, [1]),
    ]


@pytest.mark.parametrize(("place", "said"), [(2, "rank 2 lives, in 60 s"), (1, "the others have not called grow()")])
def test_whose_time_is_over_learns_why(place, said):
    world = World()
    world.apply("a", place)
    world.timers.pop()()
    assert said in world.refusals["a"]
    world.timers.clear()
    world.apply("b", place)  # The place is not claimed any more.
    assert "b" not in world.refusals


def test_who_waits_learns_that_the_job_is_over():
    world = World()
    world.apply("a", ANY)
    for rank in (0, 2):
        world.ask(world.ranks[rank], Kind.LEAVE)
    assert world.refusals["a"] == "a rank is not taken in: the job is over"


EVENTS = ("0 gives up", "1 gives up", "2 gives up", "0 again", "1 again", "2 again")


@pytest.mark.parametrize("ended", [None, 1])
def test_when_nobody_lives_all_that_can_begin_anew_together_and_not_before(ended):
    """In each order in which a death before the job is together may reach them."""
    for order in permutations(EVENTS):
        if any(order.index(f"{rank} gives up") > order.index(f"{rank} again") for rank in range(3)):
            continue
        world = Guarded()
        for count, event in enumerate(order, 1):
            rank, what = event.split(" ", 1)
            if what == "gives up":
                world.give_up(int(rank))
            elif int(rank) != ended:
                world.begin_again(int(rank))
            else:
                world.end(int(rank))
            if count < len(order):
                assert not world.entered and not world.refusals, (order, event)
        ranks = [rank for rank in range(3) if rank != ended]
        assert {rank: own[:3] for rank, own in world.entered.items()} == {
            rank: (1, len(ranks), at) for at, rank in enumerate(ranks)
        }, order
        assert all(sorted(own[3]) == list(range(len(ranks))) for own in world.entered.values()), order


def test_a_process_of_any_place_comes_in_with_them_but_claims_no_job_alone():
    world = Guarded(others=1)
    world.begin_again(3, ANY)
    for rank in range(3):
        world.give_up(rank)
    world.begin_again(0)
    world.end(1)
    world.begin_again(2)
    assert sorted(world.entered) == [0, 2, 3] and world.entered[3][:3] == (1, 3, 1)
    world = Guarded(others=1)
    world.begin_again(3, ANY)
    for rank in range(3):
        world.end(rank)
    assert world.refusals == {"again 3": "a rank is not taken in: the job is over"}


def test_a_job_of_which_a_rank_has_left_does_not_begin_anew():
    world = Guarded()
    world.ask(world.ranks[0], Kind.LEAVE)
    world.give_up(1)
    world.begin_again(1)
    world.give_up(2)
    assert world.refusals == {"again 1": "rank 1 is not taken in: the job is over"}


def test_if_one_dies_on_its_way_in_they_begin_once_more():
    world = Guarded()
    for rank in range(3):
        world.give_up(rank)
    first = {rank: world.begin_again(rank) for rank in range(3)}
    assert len(world.entered) == 3
    world.answers.clear()
    for rank, client in first.items():
        world.ask(client, Kind.ENTER, 1, rank)
    world.answers.clear()
    world.close(first[1])
    world.begin_again(1)
    world.close(first[0])
    world.begin_again(0)
    assert not world.entered
    world.close(first[2])
    world.begin_again(2)
    assert [own[:3] for _, own in sorted(world.entered.items())] == [(2, 3, 0), (2, 3, 1), (2, 3, 2)]


def test_the_guard_of_one_that_waits_is_told():
    world = Guarded()
    world.give_up(0)
    world.begin_again(0)
    assert ("guard 0", Kind.WAITING_NOTICE, [1]) in world.notices


def test_the_end_of_a_process_is_that_of_the_rank_for_which_it_stands():
    world = World()
    guards = {number: world.client(f"guard {number}") for number in (0, 1, 2, 3)}
    for number, guard in guards.items():
        world.ask(guard, Kind.GUARD, number, 3, 0)
    entered = {rank: world.client(f"next {rank}") for rank in (0, 2)}
    entered[1] = world.apply("a", ANY, number=3)
    world.grow(0)
    world.grow(2)
    world.answers.clear()
    for rank in range(3):
        world.ask(entered[rank], Kind.ENTER, 1, rank)
    world.answers.clear()
    for rank in range(3):
        world.ask(entered[rank], Kind.MEET, BEGIN_KEY, pack_ranks(range(3)), b"", b"", 1000)
    world.answers.clear()
    # The guard of the dead rank is late.
    world.ask(guards[1], Kind.ENDED, 1, 137, b"killed")
    assert world.members.epoch.living == [0, 1, 2]
    world.ask(guards[3], Kind.ENDED, 3, 137, b"killed too")
    assert world.members.epoch.living == [0, 2]
    assert ("next 0", Kind.DIED_NOTICE, [1, b"killed too"]) in world.notices
    world.answers.clear()
    for number in (0, 2):
        assert not [each for each in world.notices if each[1] == Kind.FINISHED_NOTICE], number
        world.ask(guards[number], Kind.ENDED, number, 0, b"exited")
    assert len([each for each in world.notices if each[1] == Kind.FINISHED_NOTICE]) == 4


@pytest.mark.parametrize("kind", [Kind.JOIN, Kind.ENTER])
def test_nobody_comes_by_an_old_door(kind):
    world = World()
    entered = in_next(world)
    world.answers.clear()
    for rank in range(3):
        world.ask(entered[rank], Kind.ENTER, 1, rank)
    world.answers.clear()
    for rank in range(3):
        world.ask(entered[rank], Kind.MEET, BEGIN_KEY, pack_ranks(range(3)), b"", b"", 1000)
    stranger = world.client("stranger")
    world.ask(stranger, kind, *((1, 3) if kind == Kind.JOIN else (0, 1)))
    assert "stranger" in world.refusals


def test_what_is_refused():
    world = World()
    for number, fields in enumerate([(-2, -1, TERMS.pack()), (1 << 17, -1, TERMS.pack()), (1, -1, b"not terms")]):
        client = world.client(f"bad {number}")
        world.ask(client, Kind.APPLY, *fields, 1000)
        assert client.name in world.refusals, (number, fields)
    again = world.apply("a", 1)
    world.ask(again, Kind.APPLY, 1, -1, TERMS.pack(), 1000)
    assert world.refusals["a"] == "got a second rank from one client"
