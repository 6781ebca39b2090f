"""Errands of ends: what guards, goodbyes and lost connections say of ranks, and who votes on how the job ends."""

from dataclasses import dataclass
from typing import Any

from evaluation.simulation.errands.errand import Errand, Puppet
from lanterne.transport.wire import Kind, unpack_fields

# Between an end and what the store makes of it, at most.
TOLD_S = 0.2
LOST = "its connection ended without goodbye"


@dataclass(frozen=True)
class End:
    """How a rank ends: it has `joined`, `left` with a word, or not; its guard says the exit `code`, None: nothing."""

    joined: bool
    left: bool
    code: int | None

    @property
    def is_death(self) -> bool:
        """Whether the others are to hear of a death."""
        return self.code not in (None, 0) or (self.joined and not self.left)


# A rank that is killed, with a guard or without; that ends without a word; in order; and that never came.
ENDS = (
    End(True, False, 137), End(True, False, None), End(True, False, 0), End(True, True, 0), End(True, True, None),
    End(False, False, 0), End(False, False, 1),
)  # fmt: skip


def ends(errand: Errand) -> None:
    """Each rank ends in a way of its own: the others hear of every end once, in one order, from whoever knows best."""
    rng = errand.rng
    errand.start_store()
    watcher = errand.puppet("the launcher")
    watcher.call(Kind.WATCH)
    fates = {rank: rng.choice(ENDS) for rank in range(1, rng.randint(2, 5))}
    size = len(fates) + 2
    guards = {rank: errand.puppet(f"guard {rank}") for rank in range(size)}
    for rank, guard in guards.items():
        guard.call(Kind.GUARD, rank, size, 0)
    ranks = {rank: errand.puppet(f"rank {rank}") for rank in range(size)}
    late = size - 1
    for rank, puppet in ranks.items():
        if rank != late and (rank not in fates or fates[rank].joined):
            puppet.call(Kind.JOIN, rank, size)
    order = rng.sample([*fates], len(fates))
    for rank in order:
        _end(errand, rank, fates[rank], ranks[rank], guards[rank])
    ranks[late].call(Kind.JOIN, late, size)
    known = [_known_of(puppet) for puppet in (ranks[0], ranks[late])]
    errand.expect("what who comes late hears", known[1], known[0])
    expected = [_expected(rank, fates[rank]) for rank in order]
    errand.expect("which ends the ranks hear of", known[0], expected)
    told = [[rank, code] for rank, code, _why in watcher.notices(Kind.ENDED_NOTICE, "iib")]
    said = [[rank, fates[rank].code] for rank in order if fates[rank].code is not None]
    errand.expect("which ends the launcher hears of", told, said)
    errand.expect("whether all have ended", guards[0].notices(Kind.FINISHED_NOTICE, ""), [])
    for rank in range(size):
        guards[rank].call(Kind.ENDED, rank, 0, b"")
    finished = {len(guard.notices(Kind.FINISHED_NOTICE, "")) for guard in guards.values()}
    errand.expect("how often guards hear that all have ended", finished, {1})


def _end(errand: Errand, rank: int, fate: End, puppet: Puppet, guard: Puppet) -> None:
    if fate.left:
        puppet.call(Kind.LEAVE)
    puppet.end()
    if fate.code is not None:
        guard.call(Kind.ENDED, rank, fate.code, f"its guard says {fate.code}".encode())
    errand.machine.sleep(TOLD_S)
    errand.settle()


def _known_of(puppet: Puppet) -> list[tuple[Kind, list[Any]]]:
    """What a rank has heard of the others' ends, in order."""
    types = {Kind.DIED_NOTICE: "ib", Kind.LEFT_NOTICE: "i"}
    return [(Kind(kind), unpack_fields(body, types[Kind(kind)])) for kind, _, body in puppet.heard if kind in types]


def _expected(rank: int, fate: End) -> tuple[Kind, list[Any]]:
    if not fate.is_death:
        return Kind.LEFT_NOTICE, [rank]
    why = LOST if fate.code is None else f"its guard says {fate.code}"
    return Kind.DIED_NOTICE, [rank, why.encode()]


def votes(errand: Errand) -> None:
    """Ranks vote on whether to end together: all are told that they do once all are willing, else that they do not."""
    rng = errand.rng
    errand.start_store()
    size = rng.randint(1, 5)
    ranks = [errand.puppet(f"rank {rank}") for rank in range(size)]
    for rank, puppet in enumerate(ranks):
        puppet.call(Kind.JOIN, rank, size)
    stranger = errand.puppet("a stranger")
    errand.expect("what a stranger's vote hears", "has not joined" in str(stranger.call(Kind.END, 1)), True)
    voted: dict[int, int] = {}
    is_off = False
    for rank in rng.sample(range(size), size):
        what = rng.choice(("willing", "willing", "willing", "left", "not", "gone"))
        if what == "left":
            ranks[rank].call(Kind.LEAVE)
        if what == "gone":
            ranks[rank].end()
            errand.settle()
        else:
            ranks[rank].call(Kind.END, int(what != "not"))
            voted[rank] = ranks[rank].asked
        is_off = is_off or what in ("not", "gone")
        outcome = [0] if is_off else [1] if len(voted) == size else None
        told = [ranks[each].answer(request, "i") for each, request in voted.items()]
        errand.expect("what those that have voted are told", told, [outcome] * len(voted))


def idle(errand: Errand) -> None:
    """A store that is asked nothing sleeps, before its first client and after: it takes no core while ranks compute."""
    store = errand.start_store()
    for client in range(2):
        before = store.steps
        errand.machine.sleep(errand.rng.uniform(0.5, 1.0))
        errand.expect(f"whether a store with {client} clients looks again and again", store.steps - before > 100, False)
        errand.puppet(f"rank {client}").call(Kind.JOIN, client, 2)
