"""What a store has decided is written before it is told, and the store that takes over knows the same."""

import random
from types import SimpleNamespace

import pytest
from store_world import TERMS, World

from lanterne.errors import Unavailable
from lanterne.transport.store import decision_log
from lanterne.transport.store.decision_log import Decisions
from lanterne.transport.store.membership.meetings import BEGIN_KEY
from lanterne.transport.store.redis_lease import LeaseUnreachable
from lanterne.transport.wire import Kind, pack_frame, pack_ranks


class Kept:
    """A lease that keeps what is written; `errors` come first."""

    where = "redis://host:6379"

    def __init__(self):
        self.decided, self.errors, self.is_held = b"", [], True

    def save(self, _term, decided):
        if self.errors:
            raise self.errors.pop(0)
        self.decided = decided if self.is_held else self.decided
        return self.is_held

    def release(self):
        self.decided = b""


class Losing:
    """A store with a clock that goes on while it sleeps."""

    def __init__(self):
        self.machine = SimpleNamespace(now_s=lambda: self.now_s, sleep=self.sleep)
        self.now_s, self.lost, self.timers = 100.0, [], []

    def sleep(self, seconds):
        self.now_s += seconds

    def after(self, _delay_s, function):
        self.timers.append(function)

    def lose(self, why):
        self.lost.append(why)


FRAMES = [pack_frame(Kind.DIED_NOTICE, epoch, [rank, b"it fell"]) for epoch in (0, 1) for rank in (0, 1)]


def test_without_a_lease_nothing_is_kept():
    store = Losing()
    log = Decisions(store)
    assert log.decide(FRAMES[0]) and log.decided == [] and not store.timers and not store.lost


def test_what_is_decided_is_written_once_and_what_is_void_is_left_out():
    store, lease = Losing(), Kept()
    log = Decisions(store, lease)
    assert log.decide(FRAMES[0]) and log.decide(FRAMES[1], [FRAMES[0]]) and log.decide(FRAMES[1])
    assert lease.decided == FRAMES[1]
    assert log.decide(FRAMES[2])
    log.keep(1)
    store.timers.pop()()
    assert lease.decided == FRAMES[2] == Decisions(store, lease, 1, lease.decided)._frames[0]


def test_it_is_patient_with_a_redis_that_fails_over():
    store, lease = Losing(), Kept()
    log = Decisions(store, lease)
    lease.errors = [LeaseUnreachable("no master")] * 20
    assert log.decide(FRAMES[0]) and lease.decided == FRAMES[0] and not store.lost


@pytest.mark.parametrize(
    ("errors", "held", "why"),
    [
        (
            [LeaseUnreachable("no master")] * 1000,
            True,
            "it cannot write to redis://host:6379 of LANTERNE_STORE: no master",
        ),
        ([Unavailable("no permissions")], True, "of LANTERNE_STORE: no permissions"),
        ([], False, "another store leads the job"),
    ],
)
def test_a_store_that_cannot_decide_ends_and_says_why(errors, held, why):
    store, lease = Losing(), Kept()
    log = Decisions(store, lease)
    lease.errors, lease.is_held = errors, held
    assert not log.decide(FRAMES[0]) and why in store.lost[0] and log.is_lost
    assert not log.decide(FRAMES[1]) and len(store.lost) == 1
    assert store.now_s < 100 + decision_log.PATIENCE_S + 1


def story(seed):
    """A World at which ranks shrink, agree, die, leave and grow, as `seed` draws; and its lease."""
    rng, lease = random.Random(seed), Kept()
    world = World(died=(), lease=lease)
    ranks, epoch = dict(world.ranks), 0
    for number in range(rng.randint(1, 8)):
        world.answers.clear()
        what = rng.choice(["dies", "leaves", "agree", "grow"])
        if what == "dies" and len(ranks) > 1:
            world.close(ranks.pop(rng.choice([*ranks])))
        elif what == "leaves" and len(ranks) > 1:
            world.ask(ranks.pop(rng.choice([*ranks])), Kind.LEAVE)
        elif what == "agree":
            for client in ranks.values():
                world.ask(client, Kind.MEET, b"c/agree/%d" % number, pack_ranks(ranks), b"", b"flags", 1000)
        elif what == "grow":
            new = world.apply(f"new {number}", -1)
            for client in ranks.values():
                world.ask(client, Kind.GROW, b"grow %d" % number, pack_ranks(ranks), TERMS.pack(), 1000)
            epoch += 1
            size = len(ranks) + 1
            entered = {rank: world.client(f"rank {rank} of {epoch}") for rank in range(size)}
            own = world.members.next_epoch.places.index(max(world.members.next_epoch.places))
            entered[own] = new
            world.answers.clear()
            for rank, client in entered.items():
                world.ask(client, Kind.ENTER, epoch, rank)
            world.answers.clear()
            if rng.random() < 0.3:
                world.close(new)
                break
            for client in entered.values():
                world.ask(client, Kind.MEET, BEGIN_KEY, pack_ranks(range(size)), b"", b"", 1000)
            ranks = entered
    return world, lease


@pytest.mark.parametrize("seed", range(60))
def test_the_store_that_takes_over_knows_what_the_one_before_had_decided(seed):
    world, lease = story(seed)
    before = world.members.epoch
    after = World(died=(), ranks=(), lease=lease).members.epoch
    assert (after.number, after.places, after.numbers) == (before.number, before.places, before.numbers)
    assert (after.living, after._census.died) == (before.living, before._census.died)
    assert after._census._gone == before._census._gone
    assert dict(after.meetings._answers) == {
        key: answer for key, answer in before.meetings._answers.items() if not key.startswith(b"grow")
    }
