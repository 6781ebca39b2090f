"""Errands of meetings: ranks agree, or shrink their communicator, and all that live hear the same."""

from collections.abc import Sequence

from evaluation.simulation.errands.errand import Errand, Puppet
from lanterne.transport.store.meeting_names import to_agree, to_shrink
from lanterne.transport.wire import Kind, pack_ranks, unpack_ranks

MEETS_S = 1.0


def _joined(errand: Errand) -> tuple[list[Puppet], Puppet]:
    """The ranks of a job, and its launcher."""
    errand.start_store()
    size = errand.rng.randint(2, 5)
    launcher = errand.puppet("the launcher")
    launcher.call(Kind.WATCH)
    ranks = [errand.puppet(f"rank {rank}") for rank in range(size)]
    for rank, puppet in enumerate(ranks):
        puppet.call(Kind.JOIN, rank, size)
    return ranks, launcher


def _meets(name: str, size: int, rank: int, cut: Sequence[int] = ()) -> tuple[Kind, bytes, bytes, bytes, bytes, int]:
    what = name.encode(), pack_ranks(range(size)), pack_ranks(cut), f"of {rank}".encode(), round(MEETS_S * 1e3)
    return Kind.MEET, *what


def _all_of(ranks: Sequence[int]) -> list[bytes]:
    return [pack_ranks((rank,)) + f"of {rank}".encode() for rank in ranks]


def agreements(errand: Errand) -> None:
    """Ranks agree, unless one has come to shrink their communicator: then those that came to agree hear so at once."""
    rng = errand.rng
    ranks, _ = _joined(errand)
    size, shrink = len(ranks), to_shrink("c")
    for number in range(rng.randint(0, 3)):
        asked = [puppet.ask(*_meets(to_agree("c", number), size, rank)) for rank, puppet in enumerate(ranks)]
        errand.settle()
        told = [puppet.list_of(request) for puppet, request in zip(ranks, asked, strict=True)]
        errand.expect("what all agreed on", told, [_all_of(range(size))] * size)
        again = rng.randrange(size)
        ranks[again].call(*_meets(to_agree("c", number), size, again))
        errand.expect("what who asks again hears", ranks[again].list_of(ranks[again].asked), _all_of(range(size)))
    agree = to_agree("c", 9)
    order = rng.sample(range(size), size)
    at = rng.randrange(1, size)
    early, first, late = order[:at], order[at], order[at + 1 :]
    for rank in early:
        ranks[rank].ask(*_meets(agree, size, rank))
    # Of another communicator, whose ranks do not shrink it.
    other = rng.random() < 0.5
    if other:
        ranks[first].call(*_meets(to_agree("d", 0), size, first))
        errand.expect("what who agrees elsewhere hears", ranks[first].answer(ranks[first].asked), None)
    errand.settle()
    answers = [ranks[rank].answer(ranks[rank].asked) for rank in early]
    errand.expect("answers before all have come", answers, [None] * len(early))
    shrinks = {first: ranks[first].ask(*_meets(shrink, size, first))}
    errand.settle()
    for rank in late:
        ranks[rank].call(*_meets(agree, size, rank))
    answers = [ranks[rank].answer(ranks[rank].asked, "b*") for rank in (*early, *late)]
    errand.expect("what those hear that came to agree", answers, [[]] * len(answers))
    for rank in (*early, *late):
        shrinks[rank] = ranks[rank].ask(*_meets(shrink, size, rank))
    errand.settle()
    told = [ranks[rank].list_of(request) for rank, request in shrinks.items()]
    errand.expect("who goes on", told, [_all_of(range(size))] * size)


def absences(errand: Errand) -> None:
    """Of ranks that shrink their communicator some do not come, or have no path to others: the rest go on."""
    rng = errand.rng
    ranks, launcher = _joined(errand)
    size = len(ranks)
    absent = rng.sample(range(size), rng.randint(0, size - 1)) if rng.random() < 0.6 else []
    cut = rng.sample(range(size), 2) if not absent and size > 2 and rng.random() < 0.7 else []
    dies = [rank for rank in absent if rng.random() < 0.5]
    came = [rank for rank in range(size) if rank not in absent]
    for rank in came:
        others = [rank for rank in cut if rank != cut[0]] if rank in cut[:1] else []
        ranks[rank].ask(*_meets(to_shrink("c"), size, rank, others))
    errand.settle()
    for rank in dies:
        ranks[rank].end()
    errand.settle()
    if {*absent} - {*dies}:
        answers = [ranks[rank].answer(ranks[rank].asked) for rank in came]
        errand.expect("answers while one may come", answers, [None] * len(came))
        errand.machine.sleep(MEETS_S)
        errand.settle()
    # Of two between which there is no path the higher one ends.
    stay = [rank for rank in came if not cut or rank != max(cut)]
    told = [ranks[rank].list_of(ranks[rank].asked) for rank in stay]
    errand.expect("who goes on", told, [_all_of(stay)] * len(stay))
    dead = {rank for rank, _why in ranks[stay[0]].notices(Kind.DIED_NOTICE, "ib")}
    errand.expect("who is dead", dead, {*range(size)} - {*stay})
    goes_on = [tuple(map(unpack_ranks, each)) for each in launcher.notices(Kind.GOES_ON_NOTICE, "bb")]
    errand.expect("who goes on, as the launcher hears", goes_on, [(tuple(range(size)), tuple(stay))])
