"""Decisions of a majority: all interleavings of three agents, of which two want to lead, messages lost and late."""

from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest

from lanterne.transport.rank_group import electors_of
from lanterne.transport.store import succession
from lanterne.transport.store.heirs import packed_electors
from lanterne.transport.store.meeting_names import is_over
from lanterne.transport.store.succession import (
    Decided,
    Elector,
    electorates,
    is_backed,
    known_to,
    succeed,
)
from lanterne.transport.wire import Kind, pack_frame, take_frame

AGENTS = "a", "b", "c"
FIRST = Decided(b"first", AGENTS)


class Leader(NamedTuple):
    """A store that leads, or wants to; a state of the search.

    What it has sent may come at any time, or never, and so may the answers: it may act on any part of them, or stand
    still for ever, as one that is dead.
    """

    term: tuple
    wants: tuple  # to add, one after the other
    promises: tuple = ()  # (agent, Elector as it was)
    log: tuple = ()
    known: int = 0
    dropped: int = 0
    sent: tuple = ()  # logs that it wrote, each with what was known, and dropped, then
    votes: frozenset = frozenset()  # (agent, length of the log that it has, with what was dropped)
    leads: bool = False


class World(NamedTuple):
    agents: tuple  # Electors
    leaders: tuple
    decided: frozenset = frozenset()  # logs that some leader holds for decided, after how many that were dropped


def put(items, index, item):
    return (*items[:index], item, *items[index + 1 :])


def sends(leader, log, **changes):
    then = leader._replace(log=log, **changes)
    return then._replace(sent=(*leader.sent, (log, then.known, then.dropped)))


def adds(leader, decision):
    """What a leader sends that decides once more; one of a series makes those before it void."""
    has = Elector(leader.term, leader.term, leader.log, leader.known, leader.dropped)
    has = has.without([each.what for each in leader.log if is_over(each.what, decision.what)])
    return sends(leader, (*has.log, decision), known=has.known, dropped=has.dropped, wants=leader.wants[1:])


def written(world, index, leader):
    for at, agent in enumerate(world.agents):
        for log, known, dropped in leader.sent:
            if after := agent.write(leader.term, log, known, dropped):
                voted = leader._replace(votes=leader.votes | {(at, dropped + len(log))})
                yield World(put(world.agents, at, after), put(world.leaders, index, voted), world.decided)


def following(world, names):
    """All worlds that come next."""
    for index, leader in enumerate(world.leaders):
        yield from written(world, index, leader)
        if not leader.leads:
            for at, agent in enumerate(world.agents):
                if promised := agent.promise(leader.term):
                    then = leader._replace(promises=(*leader.promises, (names[at], promised)))
                    yield World(put(world.agents, at, promised), put(world.leaders, index, then), world.decided)
            for count in range(1, 1 + len(leader.promises)):
                for some in combinations(leader.promises, count):
                    if found := succeed(dict(some)):
                        has = {"known": found.known, "dropped": found.dropped}
                        then = sends(leader, found.log, **has, leads=True, promises=())
                        yield world._replace(leaders=put(world.leaders, index, then))
            continue
        by = {names[at] for at, count in leader.votes if count >= leader.dropped + len(leader.log)}
        if leader.known < len(leader.log) and is_backed(leader.log, leader.known, by):
            then = leader._replace(known=len(leader.log))
            decided = world.decided | {(leader.dropped, leader.log)}
            yield World(world.agents, put(world.leaders, index, then), decided)
        if leader.known == len(leader.log) and leader.wants:
            yield world._replace(leaders=put(world.leaders, index, adds(leader, leader.wants[0])))


def length(decided):
    dropped, log = decided
    return dropped + len(log)


def agree(decided):
    """Whether each of the logs begins with the one before, without what is void by then, and counts that."""
    logs = sorted(decided, key=length)
    for (dropped, log), (more, longer) in pairwise(logs):
        kept = [each for each in log if not any(is_over(each.what, other.what) for other in longer)]
        if [*longer[: len(kept)]] != kept or len(log) - len(kept) != more - dropped:
            return False
    return True


def explored(world, names, most=10_000_000):
    """How many worlds there are, of those that one can become; and the first in which two logs are decided that differ,
    or the greatest number of decisions that one of them has."""
    seen, todo, longest = {world}, [world], 0
    while todo and len(seen) < most:
        for after in following(todo.pop(), names):
            if after not in seen:
                if not agree(after.decided):
                    return len(seen), after
                longest = max(longest, *map(length, after.decided), 0)
                seen.add(after)
                todo.append(after)
    return len(seen), longest


def job(*wants, names=AGENTS):
    """A store that leads, whose first decision is on its way to all, and those that want to succeed it."""
    leads = sends(Leader((0, "a"), wants[0], leads=True), (FIRST,))
    others = [Leader((index, names[index]), wants[index]) for index in range(1, len(wants))]
    return World((Elector(),) * len(names), (leads, *others))


def decisions(*names):
    return tuple(Decided(name.encode()) for name in names)


@pytest.mark.parametrize(
    ("wants", "longest"),
    [
        ((decisions("of 0"), decisions("of 1")), 3),
        # Whom nobody follows any more may not lead: it alone decides from then on.
        (((Decided(b"alone", ("a",)), *decisions("of 0")), decisions("of 1")), 4),
        # Those of a series are each over once the next is decided, whoever decides that.
        ((decisions("s/1", "s/2"), decisions("s/3")), 4),
        ((decisions("s/1", "of 0"), decisions("s/2")), 4),
    ],
    ids=["two lead", "one leads alone", "a series", "a series, and more"],
)
def test_all_interleavings(wants, longest):
    count, found = explored(job(*wants), AGENTS)
    assert found == longest, f"of {count} worlds: {found}"


def half_is_enough(log, known, by):
    return all(2 * len({*electors} & {*by}) >= len(electors) - 1 for electors in electorates(log, known))


def takes_any(promises):
    first = next(iter(promises.values()))
    return first if is_backed(first.log, first.known, promises) else None


def takes_what_it_promised_not_to(self, term, log, known, dropped):
    return Elector(self.promised, term, log, known, dropped)


def forgets_how_many(self, over):
    kept = tuple(each for each in self.log if each.what not in over)
    return Elector(self.promised, self.written, kept, len(kept))


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (succession, "is_backed", half_is_enough),
        (None, "succeed", takes_any),
        (Elector, "write", takes_what_it_promised_not_to),
    ],
    ids=["half", "any log", "no promise"],
)
def test_the_search_finds_what_is_wrong(monkeypatch, place, name, broken):
    if place is not Elector:
        monkeypatch.setitem(globals(), name, broken)
    if place is not None:
        monkeypatch.setattr(place, name, broken)
    _count, found = explored(job(decisions("of 0"), decisions("of 1")), AGENTS)
    assert isinstance(found, World)
    assert not agree(found.decided)


def test_the_search_finds_that_what_was_dropped_does_not_count(monkeypatch):
    """Of two logs of one term the shorter one may then be that with the latest decision."""
    monkeypatch.setattr(Elector, "without", forgets_how_many)
    _count, found = explored(job(decisions("s/1", "s/2"), decisions("of 1")), AGENTS)
    assert isinstance(found, World) and not agree(found.decided)


def test_what_is_over_is_left_out_and_counted():
    log = (FIRST, *decisions("s/1", "x"), Decided(b"s/1", AGENTS), *decisions("s/2"))
    elector = Elector((0, "a"), (0, "a"), log, 4)
    after = elector.without([b"s/1", b"s/2"])
    assert (after.log, after.known, after.dropped) == ((FIRST, *log[2:]), 3, 1)
    assert after.length == elector.length == 5
    # A longer log takes the place of a shorter one, whatever either has dropped; a late one tells what is known.
    assert elector.write((0, "a"), (*after.log, FIRST), 3, 1).log == (*after.log, FIRST)
    assert after.write((0, "a"), log, 5).known == 4 and after.write((0, "a"), log[:1], 1) == after
    # What others know to be decided counts in the list that was written last.
    last = replace(after, log=(*after.log, FIRST), known=0)
    found = succeed({"a": last, "b": replace(elector, known=5)})
    assert (found.length, found.known, found.dropped) == (6, 4, 1)


def test_electors_that_are_not_known_to_be_replaced_are_asked_too():
    log = (FIRST, Decided(b"others", ("a", "d", "e")), Decided(b"more"))
    assert electorates(log, 1) == [AGENTS, ("a", "d", "e")]
    assert electorates(log, 2) == [("a", "d", "e")]
    assert is_backed(log, 1, {"a", "b", "d"})
    assert not is_backed(log, 1, {"a", "d", "e"})
    assert is_backed(log, 2, {"a", "d"})
    assert not is_backed((), 0, AGENTS)


def test_a_late_shorter_log_of_the_same_term_takes_nothing_back():
    elector = Elector().write((0, "a"), (FIRST, *decisions("x")), 1)
    assert elector.write((0, "a"), (FIRST,), 2) == Elector((0, "a"), (0, "a"), (FIRST, *decisions("x")), 2)
    assert elector.promise((0, "a")) is None
    assert elector.promise((1, "b")).write((0, "a"), (FIRST,), 1) is None


@pytest.mark.parametrize(
    ("names", "hosts", "expected"),
    [
        # Nothing said which rank is the first of its host: all have started a store.
        (("a:1", "a:2", "b:1", "b:2"), "aabb", [("a:1", "a"), ("b:1", "b")]),
        (("a:1", "", "b:1", "", "c:1", ""), "aabbcc", [("a:1", "a"), ("b:1", "b"), ("c:1", "c")]),
        (("a:1", "b:1", "a:2", "c:1"), "abac", [("a:1", "a"), ("b:1", "b"), ("c:1", "c")]),
    ],
)
def test_each_host_has_one_elector(names, hosts, expected):
    assert electors_of(names, hosts) == expected


def test_all_are_asked_that_any_of_those_who_promise_know():
    """Rank c is known to one of those that made a promise only."""
    promises = Elector(log=(Decided(b"1", ("a", "b")),), known=1), Elector(log=(FIRST,), known=1)
    assert known_to(promises) == ["a", "b", "c"]
    assert known_to([]) == []


def test_electors_are_those_of_the_last_decision_on_them():
    frames = [
        pack_frame(Kind.ELECTORS, 0, [b"a", b"1", b"b", b"2"]),
        pack_frame(Kind.ELECTORS, 3, [b"b", b"2"]),
        pack_frame(Kind.DIED_NOTICE, 4, [1, b"lost"]),
    ]
    decided = [take_frame(bytearray(frame)) for frame in frames]
    assert packed_electors(decided) == (3, [("b", b"2")])
    assert packed_electors(decided[:1]) == (0, [("a", b"1"), ("b", b"2")])
    assert packed_electors([]) == (0, [])
