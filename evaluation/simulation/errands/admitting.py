"""Errands of those that ask to be taken into a job: who is, in which place, and why the others are not."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from evaluation.simulation.errands.errand import Errand, Puppet
from lanterne.transport.store.membership.meetings import BEGIN_KEY
from lanterne.transport.store.terms import ANY, SPARE, Terms
from lanterne.transport.wire import Kind, pack_ranks, unpack_ranks

TERMS, OTHER_TERMS = Terms("1", "tcp", "a model"), Terms("1", "tcp", "another")
# How long applicants and meetings wait; numbers of processes that their launchers have given them.
WAITS_S, MEETS_S, FIRST_NUMBER = 3.0, 2.0, 100
OVER = "the job is over"


@dataclass
class Asker:
    """Who asks to be taken in, as `place`; its request has `number`."""

    puppet: Puppet
    place: int
    process: int
    terms: Terms = TERMS
    number: int = 0

    @property
    def called(self) -> str:
        """What the store calls it."""
        return f"rank {self.place}" if self.place >= 0 else "a rank"

    def apply(self) -> None:
        """Ask; before anybody else does."""
        self.puppet.call(Kind.APPLY, self.place, self.process, self.terms.pack(), round(WAITS_S * 1e3))
        self.number = self.puppet.asked

    @property
    def answer(self) -> object:
        """What it heard: the epoch, its size, its own rank and all newcomers; or an error's text; None: nothing."""
        answer = self.puppet.answer(self.number, "ibb")
        return answer if answer is None or isinstance(answer, str) else [answer[0], *unpack_ranks(answer[2])]


def places_of(askers: Sequence[Asker], places: Sequence[int], living: Collection[int]) -> dict[int, int]:
    """Who of `askers` is taken in where: {index: place}. Of a job of `places`, those `living` are not to be had.

    Who names a place has it, unless it is taken. Others have the first that is free and named by nobody that waits,
    else, but for spares, one that is new: after all that there are or are named.
    """
    named = {asker.place for asker in askers if asker.place >= 0}
    found = {index: asker.place for index, asker in enumerate(askers) if asker.place in named - {*living}}
    for index, asker in enumerate(askers):
        if asker.place < 0:
            taken = {*living, *found.values()}
            free = [place for place in sorted({*places}) if place not in taken and place not in named]
            if free:
                found[index] = free[0]
            elif asker.place == ANY:
                found[index] = max({*places, *named, *taken}) + 1
    return found


def claims(errand: Errand) -> None:
    """Some ranks of a job are gone, others ask for their places, or any: who may be taken in is, in that place."""
    rng = errand.rng
    errand.start_store()
    watcher = errand.puppet("the launcher")
    watcher.call(Kind.WATCH)
    size = rng.randint(2, 5)
    ranks = [errand.puppet(f"rank {rank}") for rank in range(size)]
    for rank, puppet in enumerate(ranks):
        puppet.call(Kind.JOIN, rank, size)
    living = sorted(rng.sample(range(size), rng.randint(1, size)))
    askers = _draw_askers(errand, size)
    # They may come before the others have gone.
    early = rng.random() < 0.5
    for asker in askers if early else ():
        asker.apply()
    for rank in {*range(size)} - {*living}:
        if rng.random() < 0.3:
            ranks[rank].call(Kind.LEAVE)
        ranks[rank].end()
    errand.settle()
    for asker in askers if not early else ():
        asker.apply()
    able = places_of(askers, range(size), living)
    told = ranks[living[0]].notices(Kind.WAITING_NOTICE, "i")
    errand.expect("how many wait that could be taken in", told[-1:], [[len(able)]] if able else [])
    have_met = len(living) == 1 or rng.random() < 0.75
    if have_met:
        in_force = _grow(errand, [ranks[rank] for rank in living], size, living, askers, watcher)
    else:
        in_force = _miss(errand, [ranks[rank] for rank in living], living)
    errand.machine.sleep(WAITS_S)
    errand.settle()
    for asker in askers:
        if asker.answer is None or isinstance(asker.answer, str):
            why = f"{asker.called} lives" if asker.place in in_force else "the others have not called grow()"
            why = f"{why}, in {WAITS_S:g} s" if in_force else OVER
            if have_met and asker.terms != TERMS:
                why = "got model 'another', expected 'a model' as on the other ranks"
            errand.expect("what who was not taken in hears", asker.answer, f"{asker.called} is not taken in: {why}")


def _draw_askers(errand: Errand, size: int) -> list[Asker]:
    rng, askers = errand.rng, list[Asker]()
    for index in range(rng.randint(1, 4)):
        place = rng.choice([ANY, SPARE, *range(size + 2)])
        if place < 0 or place not in {asker.place for asker in askers}:
            process = rng.choice((-1, FIRST_NUMBER + index))
            terms = OTHER_TERMS if rng.random() < 0.15 else TERMS
            askers.append(Asker(errand.puppet(f"asker {index}"), place, process, terms))
    return askers


def _miss(errand: Errand, puppets: Sequence[Puppet], living: Sequence[int]) -> Collection[int]:
    """One ends while they meet to take in who waits: nobody is taken in, by none of them; those that are left."""
    some = puppets[1 : errand.rng.randint(2, len(puppets))]
    requests = [puppet.ask(Kind.GROW, *_grows(living)) for puppet in some]
    errand.settle()
    puppets[0].end()
    errand.settle()
    rolls = {puppet.list_of(request)[-1] for puppet, request in zip(some, requests, strict=True)}
    errand.expect("the roll after a rank had died", rolls, {b""})
    return living[1:]


def _grows(living: Sequence[int]) -> tuple[bytes, bytes, bytes, int]:
    return b"grow", pack_ranks(living), TERMS.pack(), round(MEETS_S * 1e3)


def _grow(
    errand: Errand,
    puppets: Sequence[Puppet],
    size: int,
    living: Sequence[int],
    askers: Sequence[Asker],
    watcher: Puppet,
) -> Collection[int]:
    """The living ranks take in who waits: places of the ranks of the epoch that is in force then."""
    requests = [puppet.ask(Kind.GROW, *_grows(living)) for puppet in puppets]
    errand.settle()
    able = [asker for asker in askers if asker.terms == TERMS]
    taken = places_of(able, range(size), living)
    places = sorted([*living, *taken.values()])
    newcomers = {places.index(place) for place in taken.values()}
    for puppet, request in zip(puppets, requests, strict=True):
        number, *counts = unpack_ranks(puppet.list_of(request)[-1]) or [0, 0]
        grown = [1, len(places), newcomers] if taken else [0, 0, set[int]()]
        errand.expect("epoch, ranks and newcomers", [number, *counts[:1], {*counts[1:]}], grown)
    if not taken:
        return living
    for index, place in taken.items():
        answer = able[index].answer
        known = [*answer[:3], {*answer[3:]}] if isinstance(answer, list) else answer
        errand.expect("what a newcomer hears", known, [1, len(places), places.index(place), newcomers])
    news = {place: able[index] for index, place in taken.items()}
    old = dict(zip(living, puppets, strict=True))
    return _begin(errand, old, news, places, watcher)


def _begin(
    errand: Errand, old: dict[int, Puppet], news: dict[int, Asker], places: Sequence[int], watcher: Puppet
) -> Collection[int]:
    """All enter the next epoch, which is in force once they are ready, and not if one ends before.

    Args:
        old, news: by place; `places`, all of them.
    """
    numbers = [place if place in old or news[place].process < 0 else news[place].process for place in places]
    falls = None if errand.rng.random() < 0.6 else errand.rng.choice(places)
    if falls in old:
        old[falls].end()
        errand.settle()
    entered: dict[int, Puppet] = {}
    for rank, place in enumerate(places):
        if place != falls or place in news:
            puppet = news[place].puppet if place in news else errand.puppet(f"rank {rank} of the next epoch")
            puppet.call(Kind.ENTER, 1, rank)
            roll = puppet.list_of(puppet.asked)[0]
            errand.expect("who is who in the next epoch", unpack_ranks(roll)[2:], (*places, *numbers))
            entered[rank] = puppet
    if falls in news:
        entered.pop(places.index(falls)).end()
        errand.settle()
    meets = BEGIN_KEY, pack_ranks(range(len(places))), b"", b"", round(MEETS_S * 1e3)
    requests = [(puppet, puppet.ask(Kind.MEET, *meets)) for puppet in entered.values()]
    errand.settle()
    all_came = [pack_ranks((rank,)) for rank in entered]
    for puppet, request in requests:
        # Where one has ended they need not wait for each other.
        answer = puppet.list_of(request)
        some = [each for each in all_came if each in answer] if falls is not None else all_came
        errand.expect("who begins", answer, some or all_came)
    told = [unpack_ranks(now) for _before, now in watcher.notices(Kind.GOES_ON_NOTICE, "bb")]
    errand.expect("who goes on, as the launcher hears", told, [tuple(numbers)] if falls is None else [])
    joins = errand.puppet("a rank that comes late").call(Kind.JOIN, 0, 1)
    errand.expect("whether the job has gone on", "gone on without it" in str(joins), falls is None)
    return places if falls is None else [place for place in old if place != falls]


def anew(errand: Errand) -> None:
    """All ranks of a job end; it begins anew once every process waits that has a guard, unless it was over.

    It is over where a rank had ended in order, where nobody has guards, and where spares alone wait.
    """
    rng = errand.rng
    errand.start_store()
    errand.puppet("the launcher").call(Kind.WATCH)  # So the store does not end with the last rank.
    size = rng.randint(1, 4)
    guarded = [rank for rank in range(size) if rng.random() < 0.9]
    guards = {rank: errand.puppet(f"guard {rank}") for rank in [*guarded, *range(size, size + rng.randint(0, 1))]}
    for number, guard in guards.items():
        guard.call(Kind.GUARD, number, size, 0)
    ranks = [errand.puppet(f"rank {rank}") for rank in range(size)]
    for rank, puppet in enumerate(ranks):
        puppet.call(Kind.JOIN, rank, size)
    has_left = rng.random() < 0.15
    if has_left:
        ranks[-1].call(Kind.LEAVE)
    running = {*guards}
    for rank, puppet in enumerate(ranks):
        puppet.end()
        if rank in guards:
            is_last = rng.random() < 0.2
            if is_last:
                guards[rank].call(Kind.ENDED, rank, 1, b"it fell")
            else:
                guards[rank].call(Kind.RESTART, rank, 0, b"it fell")
            running -= {rank} if is_last else set()
    errand.machine.sleep(0.2)
    comers = [*running, *range(size, size + 1 + rng.randint(0, 1))] if guards else [*range(size)]
    comers = list(dict.fromkeys(comers))
    rng.shuffle(comers)
    _come(errand, comers, size, guards, running, is_over=has_left or not guards)


def _come(
    errand: Errand, comers: Sequence[int], size: int, guards: dict[int, Puppet], running: set[int], *, is_over: bool
) -> None:
    """Those `comers` ask to be taken in, one by one: none is until all that are `running` have, and one has a place."""
    waiting: list[Asker] = []
    for number in comers:
        if errand.rng.random() < 0.1 and number in guards:
            # Its guard gives it up instead.
            guards[number].call(Kind.ENDED, number, 1, b"it fell again")
            running -= {number}
        else:
            place = number if number < size else SPARE
            waiting.append(Asker(errand.puppet(f"comer {number}"), place, number if number in guards else -1))
            waiting[-1].apply()
        processes = {asker.process for asker in waiting}
        if is_over or (waiting and running <= processes and all(asker.place < 0 for asker in waiting)):
            for asker in waiting:
                errand.expect("what who waits in vain hears", asker.answer, f"{asker.called} is not taken in: {OVER}")
            _start_again(errand, guards, running, can=not waiting)
            return
        if waiting and running <= processes:
            _judge_anew(errand, waiting, size)
            return
        errand.expect("answers before all wait", [asker.answer for asker in waiting], [None] * len(waiting))
    _start_again(errand, guards, running, can=True)


def _start_again(errand: Errand, guards: dict[int, Puppet], running: Collection[int], *, can: bool) -> None:
    """A guard asks whether its process can be started again: not if who waited was told that the job is over."""
    for number in [*running][:1]:
        guards[number].call(Kind.RESTART, number, 0, b"it fell again")
        errand.expect("whether a process starts again", guards[number].answer(guards[number].asked, "i"), [int(can)])


def _judge_anew(errand: Errand, waiting: Sequence[Asker], size: int) -> None:
    """All that waited are the job now, and who comes meanwhile waits for them."""
    taken = places_of(waiting, range(size), ())
    places = sorted(taken.values())
    for index, asker in enumerate(waiting):
        known = asker.answer[:3] if isinstance(asker.answer, list) else asker.answer
        rank = places.index(taken[index]) if index in taken else -1
        errand.expect("who begins anew", known, [1, len(places), rank] if index in taken else None)
        if index in taken:
            asker.puppet.call(Kind.ENTER, 1, rank)
    late = Asker(errand.puppet("who comes late"), ANY, -1)
    late.apply()
    errand.expect("what hears who comes while they enter", late.answer, None)
    meets = BEGIN_KEY, pack_ranks(range(len(places))), b"", b"", round(MEETS_S * 1e3)
    entered = [asker.puppet for index, asker in enumerate(waiting) if index in taken]
    for puppet in entered:
        puppet.ask(Kind.MEET, *meets)
    errand.settle()
    began = [len(puppet.list_of(puppet.asked)) for puppet in entered]
    errand.expect("how many begin anew", began, [len(places)] * len(places))
    errand.expect("who waits, as they hear", entered[0].notices(Kind.WAITING_NOTICE, "i")[-1:], [[1]])
