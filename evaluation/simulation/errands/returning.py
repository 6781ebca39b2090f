"""Errands of ranks whose store was lost: they come back to another one, which goes on with what the first decided."""

from collections.abc import Collection, Mapping
from typing import Any

from evaluation.simulation.errands.errand import PORT, Errand, Puppet
from evaluation.simulation.kept_lease import KeptLease
from lanterne.transport.store.meeting_names import to_shrink
from lanterne.transport.store.membership.meetings import BEGIN_KEY
from lanterne.transport.store.membership.members import RETURN_S
from lanterne.transport.store.terms import Terms
from lanterne.transport.wire import Kind, pack_ranks, unpack_fields

TYPES = {Kind.DIED_NOTICE: "ib", Kind.LEFT_NOTICE: "i"}
MEETS_S = 1.0
STAYED_AWAY = f"it has not come to the store that took over, in {RETURN_S:g} s".encode()
# The store that takes over.
NEXT = PORT + 1


def _heard(puppet: Puppet) -> list[tuple[Kind, list[Any]]]:
    """Return what a rank has heard of the ends of others, in order."""
    return [(Kind(kind), unpack_fields(body, TYPES[Kind(kind)])) for kind, _, body in puppet.heard if kind in TYPES]


def returns(errand: Errand) -> None:
    """Ranks end, the rest may shrink, the store is lost: all that come back hear the same, and the rest is dead."""
    rng, lease = errand.rng, KeptLease()
    size = rng.randint(2, 6)
    store = errand.start_store(lease=lease)
    ranks = {rank: errand.puppet(f"rank {rank}") for rank in range(size)}
    for rank, puppet in ranks.items():
        puppet.call(Kind.JOIN, rank, size)
    for rank in rng.sample(range(size), rng.randint(0, size - 1)):
        if rng.random() < 0.5:
            ranks[rank].call(Kind.LEAVE)
        ranks.pop(rank).end()
        errand.settle()
    meets = to_shrink("c").encode(), pack_ranks(range(size)), b"", b"", round(MEETS_S * 1e3)
    shrinks = rng.random() < 0.5
    requests = [ranks[rank].ask(Kind.MEET, *meets) for rank in ranks] if shrinks else []
    errand.settle()
    known = _heard(next(iter(ranks.values())))
    answers = [puppet.list_of(request) for puppet, request in zip(ranks.values(), requests, strict=False)]
    errand.end(store)
    errand.start_store(port=NEXT, lease=lease)
    launcher = errand.puppet("the launcher", NEXT)
    launcher.call(Kind.WATCH)
    absent = [rank for rank in ranks if rng.random() < rng.choice((0.35, 1.0))]
    guards = {rank: int(rng.random() < 0.5) for rank in absent if rng.random() < 0.5}
    for rank, outside in guards.items():
        errand.puppet(f"guard {rank}", NEXT).call(Kind.GUARD, rank, size, outside)
    back = {rank: errand.puppet(f"rank {rank} again", NEXT) for rank in ranks if rank not in absent}
    for rank, puppet in back.items():
        puppet.call(Kind.ENTER, 0, rank)
        errand.expect("what it hears of the gone", _heard(puppet), known)
        if shrinks:
            again = puppet.ask(Kind.MEET, *meets)
            errand.settle()
            errand.expect("who goes on, as it hears again", puppet.list_of(again), answers[0])
    # Where nobody waits for them, their guards vouch for those that are only busy.
    _stay_away(errand, back, launcher, len(known), {rank for rank in absent if guards.get(rank, 1)})


def _stay_away(errand: Errand, back: Mapping[int, Puppet], launcher: Puppet, known: int, dead: Collection[int]) -> None:
    """Those `dead`, and no others, are given up, in time and not before."""
    errand.machine.sleep(RETURN_S - 1.0)
    errand.settle()
    errand.expect("who is given up too early", [_heard(puppet)[known:] for puppet in back.values()], [[]] * len(back))
    errand.machine.sleep(1.5)
    errand.settle()
    expected = [(Kind.DIED_NOTICE, [rank, STAYED_AWAY]) for rank in sorted(dead)]
    for puppet in back.values():
        errand.expect("who is given up", _heard(puppet)[known:], expected)
    said = {rank for rank, why in launcher.notices(Kind.DIED_NOTICE, "ib") if why == STAYED_AWAY}
    errand.expect("who is given up, as the launcher hears", said, {*dead})


def between(errand: Errand) -> None:
    """The store is lost while an epoch is to begin: it has begun for all where its last rank was ready, or for none."""
    rng, lease = errand.rng, KeptLease()
    size, terms = rng.randint(1, 4), Terms("1", "tcp", "a model").pack()
    store = errand.start_store(lease=lease)
    ranks = {rank: errand.puppet(f"rank {rank}") for rank in range(size)}
    for rank, puppet in ranks.items():
        puppet.call(Kind.JOIN, rank, size)
    newcomer = errand.puppet("who is new")
    newcomer.ask(Kind.APPLY, size, -1, terms, 60_000)
    errand.settle()
    for puppet in ranks.values():
        puppet.ask(Kind.GROW, b"grow", pack_ranks(range(size)), terms, round(MEETS_S * 1e3))
    errand.settle()
    ready = rng.randint(0, size + 1)
    every = range(size + 1)
    meets = BEGIN_KEY, pack_ranks(every), b"", b"", round(MEETS_S * 1e3)
    for rank in range(ready):
        puppet = errand.puppet(f"rank {rank} of the next epoch")
        puppet.call(Kind.ENTER, 1, rank)
        puppet.ask(Kind.MEET, *meets)
    errand.settle()
    errand.end(store)
    errand.start_store(port=NEXT, lease=lease)
    keeper = errand.puppet("who waits for the end", NEXT)
    has_begun = ready == size + 1
    for rank in every:
        after = errand.puppet(f"rank {rank} comes to the next epoch", NEXT)
        answer = after.call(Kind.ENTER, 1, rank)
        errand.expect("whether the next epoch has begun", "which is over" not in str(answer), has_begun)
        if has_begun:
            began = after.ask(Kind.MEET, *meets)
            errand.settle()
            errand.expect("who begins", after.list_of(began), [pack_ranks((each,)) for each in every])
        elif rank < size:
            before = errand.puppet(f"rank {rank} comes to the epoch in force", NEXT)
            errand.expect("whether it comes back", before.call(Kind.ENTER, 0, rank), [b""])
    keeper.end()
