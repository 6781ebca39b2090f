"""Errands of ranks whose store was lost: they come back to another one, which knows what any of them was told."""

from collections.abc import Collection, Mapping
from typing import Any

from evaluation.simulation.errands.errand import Errand, Puppet
from lanterne.transport.store.membership.meetings import BEGIN_KEY
from lanterne.transport.store.membership.returns import POLICY
from lanterne.transport.wire import Kind, pack_frame, pack_ranks, unpack_fields, unpack_ranks

TYPES = {Kind.DIED_NOTICE: "ib", Kind.LEFT_NOTICE: "i"}
MEETS_S = 1.0
STAYED_AWAY = f"it has not come to the store that took over, in {POLICY.return_s:g} s".encode()


def _heard(puppet: Puppet) -> dict[int, list[tuple[Kind, list[Any]]]]:
    """What a rank has heard of the ends of others, by rank: each is to be heard once."""
    found: dict[int, list[tuple[Kind, list[Any]]]] = {}
    for kind, _, body in puppet.heard:
        if kind in TYPES:
            rank, *why = unpack_fields(body, TYPES[Kind(kind)])
            found.setdefault(rank, []).append((Kind(kind), why))
    return found


def _returns(
    term: int, number: int, rank: int, size: int, known: Mapping[int, tuple[Kind, list[Any]]], *, begun: int = 1
) -> tuple[Any, ...]:
    roll = pack_ranks((term - 1, size, *range(size), *range(size)))
    frames = b"".join(pack_frame(kind, 0, [gone, *why]) for gone, (kind, why) in known.items())
    return Kind.RETURN, number, rank, begun, roll, frames


def returns(errand: Errand) -> None:
    """Ranks come back, each with what it knows: all hear of every end once, and who stays away is dead, but if guarded.

    The time of those that stay away begins with the first that comes, or the first guard whose process is no member.
    """
    rng = errand.rng
    size, term, number = rng.randint(2, 6), rng.randint(1, 2), rng.randint(0, 2)
    errand.start_store(term=term)
    launcher = errand.puppet("the launcher")
    launcher.call(Kind.WATCH)
    gone: dict[int, tuple[Kind, list[Any]]] = {}
    for rank in range(size - 1):
        if rng.random() < 0.3:
            gone[rank] = rng.choice([(Kind.DIED_NOTICE, [f"{rank} fell".encode()]), (Kind.LEFT_NOTICE, [])])
    alive = [rank for rank in range(size) if rank not in gone]
    share = rng.choice((0.35, 0.35, 1.0))
    absent = [rank for rank in alive if rng.random() < share]
    guards = {rank: int(rng.random() < 0.5) for rank in absent if rng.random() < 0.5}
    for rank, outside in guards.items():
        errand.puppet(f"guard {rank}").call(Kind.GUARD, rank, size, outside)
    came = [rank for rank in alive if rank not in absent]
    rng.shuffle(came)
    ranks: dict[int, Puppet] = {}
    known: dict[int, tuple[Kind, list[Any]]] = {}
    for rank in came:
        mine = {each: gone[each] for each in gone if rng.random() < 0.6}
        known |= mine
        ranks[rank] = errand.puppet(f"rank {rank}")
        ranks[rank].call(*_returns(term, number, rank, size, mine))
        roll = unpack_ranks(ranks[rank].list_of(ranks[rank].asked)[0])
        errand.expect("the roll of who comes back", roll, (term, size, *range(size), *range(size)))
    for puppet in ranks.values():
        errand.expect("what all hear of the gone", _heard(puppet), {rank: [each] for rank, each in known.items()})
    if came and number:
        joins = errand.puppet("a rank that was started again").call(Kind.JOIN, 0, size)
        errand.expect("whether the job has gone on", "gone on without it" in str(joins), True)
    # At a third store those that no rank tells of are not known to have been members.
    begins = bool(ranks) or (1 in guards.values() and term == 1)
    away = {rank for rank in range(size) if rank not in came and rank not in known} if begins else set[int]()
    _stay_away(errand, ranks, launcher, {*known}, away - {rank for rank, outside in guards.items() if not outside})


def _stay_away(
    errand: Errand, ranks: Mapping[int, Puppet], launcher: Puppet, known: Collection[int], dead: Collection[int]
) -> None:
    """Those `dead`, and no others but those `known`, are given up, in time and not before."""
    errand.machine.sleep(POLICY.return_s - 1.0)
    errand.settle()
    early = [rank for puppet in ranks.values() for rank in _heard(puppet) if rank not in known]
    errand.expect("who is given up too early", early, [])
    errand.machine.sleep(1.5)
    errand.settle()
    for puppet in ranks.values():
        told = {rank: each for rank, each in _heard(puppet).items() if rank not in known}
        errand.expect("who is given up", told, {rank: [(Kind.DIED_NOTICE, [STAYED_AWAY])] for rank in dead})
    said = {rank for rank, why in launcher.notices(Kind.DIED_NOTICE, "ib") if why == STAYED_AWAY}
    errand.expect("who is given up, as the launcher hears", said, {*dead})


def between(errand: Errand) -> None:
    """A store was lost while an epoch was to begin: some ranks come back to it, others to the one that was in force."""
    rng = errand.rng
    size, number = rng.randint(2, 5), rng.randint(0, 2)
    errand.start_store(term=1)
    back = rng.randrange(size)
    others = [rank for rank in range(size) if rank != back]
    puppets = {rank: errand.puppet(f"rank {rank}") for rank in range(size)}
    order = rng.sample(range(size), size)
    for rank in order:
        begun = int(rank == back)
        puppets[rank].call(*_returns(1, number + 1 - begun, rank, size, {}, begun=begun))
    why = [(Kind.DIED_NOTICE, [b"it was not ready when the store was lost"])]
    told = [_heard(puppets[rank]) for rank in others]
    errand.expect("who is not in the next epoch", told, [{back: why}] * len(others))
    meets = BEGIN_KEY, pack_ranks(range(size)), b"", b"", round(MEETS_S * 1e3)
    requests = [puppets[rank].ask(Kind.MEET, *meets) for rank in others]
    errand.settle()
    for rank, request in zip(others, requests, strict=True):
        errand.expect("whether the next epoch begins", 0 < len(puppets[rank].list_of(request)) < size, True)
    older = errand.puppet("a rank of before")
    if number:
        answer = older.call(*_returns(1, number - 1, 0, size, {}))
        is_over = f"got a rank of epoch {number - 1}, which is over"
        errand.expect("what a rank of an epoch that is over hears", answer, is_over)
