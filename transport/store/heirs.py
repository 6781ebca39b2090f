"""Which store leads a job of three or more hosts: the one whose decisions a majority of the hosts' stores hold.

Rank 0's store leads first; on each other host one stands by and keeps what was decided (succession.py). Ranks that lose
the one that leads come to one of those: it takes over if it cannot reach that one either, and a majority follows it.
A store that leads and reaches no majority any more ends, and says so to its ranks: they are the minority.

Who leads asks all others at once, and waits for a few messages' time; an elector that says nothing for that long is
left out. A store that stands by goes on serving while it asks: ranks that come meanwhile wait for what comes of it,
and of two that want to lead the one with the later term goes first.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from lanterne.errors import TransportError
from lanterne.transport.machine import Machine
from lanterne.transport.steering import steers, value
from lanterne.transport.store.fellows import Answers, FellowStores, Question
from lanterne.transport.store.handler import Answer, Connection, Refusal, Service
from lanterne.transport.store.succession import (
    LEAST_ELECTORS,
    NO_TERM,
    Decided,
    Elector,
    Log,
    Term,
    electorates,
    is_backed,
    known_to,
    names_of,
    succeed,
)
from lanterne.transport.wire import Fields, Kind, pack_frame, take_frame, unpack_fields, unpack_ranks

# Told whether this store leads now: empty, or why not.
Told: TypeAlias = Callable[[str], object]


@steers
@dataclass(frozen=True)
class HeirsPolicy:
    """How stores deal with each other."""

    ask_s: float = value(
        0.25,
        "chosen: many times a message's time, on a busy host",
        half="busy hosts are left out",
        double="who is cut off learns it half a second later",
    )
    begins_s: float = value(
        10.0,
        "a Python start on a busy machine",
        half="jobs on busy hosts do not begin",
        double="a job whose host is lost at its start says so 10 s later",
    )
    # Whom another was just promised to is not stood in the way of, unless it gives up; who did not answer is not asked
    # again for so long by who leads.
    yields_s: float = value(
        1.5,
        "chosen: what taking over takes, on a busy host",
        half="two that take over hinder each other",
        double="if the successor is cut off at once, the next comes 1.5 s later",
    )
    # A store that stands by and asks looks so often whether there are answers.
    look_s: float = value(
        2e-3,
        "chosen: a hundredth of what taking over takes",
        half="1 % of a core, while it asks",
        double="ranks wait 2 ms longer",
    )
    # How long a store that stands by waits for ranks, after the one that led is gone.
    idle_s: float = value(
        12.0,
        "chosen: ranks that compute come within ten",
        half="ranks that compute for 6 s find no store",
        double="it stays 12 s longer after a job that was killed",
    )


POLICY = HeirsPolicy()


class DecisionLog:
    """What was decided, as this store keeps it, and the other stores that keep it.

    Attributes: `name` of this store; `own`, what it keeps as an elector; `fellows`, the others.
    """

    def __init__(self, machine: Machine, token: str) -> None:
        self.name: str = ""
        self.own: Elector = Elector()
        self.fellows: FellowStores = FellowStores(machine, token, POLICY.yields_s)

    @property
    def decided(self) -> list[tuple[int, int, bytes]]:
        """What was decided: kind, epoch, body."""
        frames = (take_frame(bytearray(each.what)) for each in self.own.log[: self.own.known])
        return [(kind, epoch, body) for kind, epoch, body in filter(None, frames)]

    def ask(self, names: Collection[str], kind: Kind, fields: Callable[[str], Fields], times: int = 1) -> Question:
        """Ask the other ones of `names`, for what they answer in so many times ask_s."""
        others = [name for name in names if name != self.name]
        return self.fellows.ask_all(others, kind, fields, POLICY.ask_s, times * POLICY.ask_s)

    def hears_a_majority(self) -> bool:
        """Whether a majority answers: who hears nobody, but is heard, must not write that all others have died."""
        log, known = self.own.log, self.own.known
        if not log:
            return True
        answers = self.ask(names_of(log, known), Kind.REFUSED, lambda _name: ()).wait()
        return is_backed(log, known, {self.name, *(name for name, answer in answers.items() if answer is not None)})

    def have_written(self, wanted: Elector, term: Term) -> bool:
        """Whether the log of `wanted` is with a majority that follows who leads in `term`, and so decided."""
        log, known = wanted.log, wanted.known
        (count, leader), packed = term, _pack_log(wanted)
        names = names_of(log, known)
        writing = self.ask(names, Kind.WRITE, lambda name: [name.encode(), count, leader.encode(), *packed], 2)
        votes = {name for name, answer in writing.wait().items() if answer and answer[0]}
        if self.name in names and (own := self.own.write(term, log, known, wanted.dropped)):
            self.own = own
            votes.add(self.name)
        if is_backed(log, known, votes):
            self.own = replace(self.own, known=len(log))
            return True
        return False

    def out_of_reach(self, epoch: int) -> list[int]:
        """Ranks of `epoch` on hosts that did not answer when this store took over."""
        fellows, silent = self.fellows, dict[str, bytes]()
        # Also of those that are electors no more: as soon as this store leads it leaves out who does not answer.
        for kind, its_epoch, body in self.decided:
            if kind == Kind.ELECTORS and its_epoch == epoch:
                silent |= {name: ranks for name, ranks in _ranks_of(body) if name in fellows.silent}
        return [rank for name, ranks in silent.items() if name not in fellows for rank in unpack_ranks(ranks)]


class _Candidacy:
    """The wish of the store of `heirs` to lead in `term`, until it does or may not.

    Attributes: `waiting`, who is told what comes of it.
    """

    def __init__(self, heirs: "Heirs", term: Term, told: Told) -> None:
        self.term = term
        self.waiting = [told]
        self._heirs = heirs
        self._before = heirs.decisions.own.written  # whose log the store had when it began
        self._promises: dict[str, Elector] = {}  # by name, of others
        self._asked = {heirs.decisions.name}  # for a promise

    def stand(self, hears_leader: bool) -> None:
        """Ask others to follow, unless the store that led still answers here."""
        if hears_leader:
            self._heirs.end_candidacy(f"it stands by: {self._heirs.decisions.own.written[1]}, which leads, answers it")
        else:
            self._heirs.decisions.fellows.rouse()
            self._ask({})

    def _ask(self, answers: Answers) -> None:
        """Take in what those `answers` say, and ask those who are known by that; then see what comes of it."""
        heirs, decisions = self._heirs, self._heirs.decisions
        self._promises |= {name: _unpack(answer[1:]) for name, answer in answers.items() if answer and answer[0]}
        names = {*known_to([decisions.own, *self._promises.values()])} - self._asked
        if names:
            self._asked |= names
            count, own = self.term[0], decisions.name.encode()
            # They look for the one that led first.
            asking = decisions.ask(sorted(names), Kind.PROMISE, lambda name: [name.encode(), count, own], 3)
            heirs.when_over(asking, self._ask)
        else:
            heirs.end_candidacy(self._be_followed())

    def _be_followed(self) -> str:
        """Lead, if enough have promised to follow, or why not."""
        decisions = self._heirs.decisions
        # It promises itself what others do only if they are enough: one that leads, and was busy, goes on else.
        own = decisions.own.promise(self.term)
        if own is None or decisions.own.written != self._before:
            return f"it stands by, for {max(decisions.own.promised, decisions.own.written)[1]}, which takes over"
        promises = {decisions.name: own, **self._promises}
        found = succeed(promises)
        if found is not None and self._heirs.lead(self.term, own, found):
            return ""
        electors = max((electorates(each.log, each.known)[-1] for each in promises.values() if each.log), key=len)
        return f"{len({*electors} & promises.keys())} of {len(electors)} hosts of the job follow it, no majority"


class Heirs:
    """One store's part in it.

    Args: `stands_by`: it does not lead.

    Attributes: `leads`; `is_lost`, it did, and has no majority any more; `decisions`.
    """

    def __init__(self, store: Service, token: str, *, stands_by: bool) -> None:
        self._store = store
        self._machine = store.machine
        self.leads: bool = not stands_by
        self.is_lost: bool = False
        self._term: Term = NO_TERM  # in which it leads
        self._tried = 0  # how often, as terms count, it has asked to be followed
        self._leader: Connection | None = None
        self._candidacy: _Candidacy | None = None
        self._preferred: Connection | None = None  # of whom it has promised to follow
        self._promised_s = float("-inf")
        self._asking = 0  # so many questions, while it stands by
        self.decisions: DecisionLog = DecisionLog(store.machine, token)
        store.route(Kind.ELECTORS, "b*", self._elect)
        store.route(Kind.PROMISE, "bib", self._promise)
        store.route(Kind.WRITE, "bibiib*", self._write)
        store.route(Kind.OVER, "", self._over)

    # -- it leads

    def decide(self, what: bytes, over: Collection[bytes] = ()) -> bool:
        """Whether the frame `what` is decided, and may be told, and those `over` are void. False: it leads no more.

        Cost: nothing while it is the only one; else two messages there and back, to all electors at once.
        """
        log = self.decisions.own.log
        if not log or any(each.what == what for each in log):
            return not self.is_lost
        return self._decide(Decided(what), over)

    def _elect(self, connection: Connection, _request_id: int, *fields: bytes) -> Answer:
        """ELECTORS: names and ranks of the stores that are to decide, this one first."""
        if connection.rank is None or connection.epoch is None or not self.leads:
            raise Refusal("got electors from a client that is no member")
        names = [name.decode(errors="replace") for name in fields[::2]]
        if len(names) >= LEAST_ELECTORS and len(fields) == 2 * len(names):
            self.decisions.name = self.decisions.name or names[0]
            self._term = (0, self.decisions.name) if self._term == NO_TERM else self._term
            for name in names:
                # They have only just begun.
                with suppress(TransportError):
                    if name != self.decisions.name:
                        self.decisions.fellows.connect(name, POLICY.begins_s)
            self._decide(Decided(pack_frame(Kind.ELECTORS, connection.epoch.number, fields), tuple(names)))
        return ()

    def drop_the_lost(self) -> None:
        """Those electors that did not answer last time are none any more: fewer are a majority then."""
        if not self.decisions.own.log or self.is_lost:
            return
        (electors,) = electorates(self.decisions.own.log, self.decisions.own.known)
        left = tuple(name for name in electors if name == self.decisions.name or name in self.decisions.fellows)
        if len(left) < len(electors):
            left = left if len(left) >= LEAST_ELECTORS else (self.decisions.name,)
            epoch, ranks_of = packed_electors(self.decisions.decided)
            fields = [field for name, ranks in ranks_of if name in left for field in (name.encode(), ranks)]
            self._decide(Decided(pack_frame(Kind.ELECTORS, epoch, fields), left))

    def _decide(self, decision: Decided, over: Collection[bytes] = ()) -> bool:
        wanted = self.decisions.own.without(over).followed_by(decision)
        decisions = self.decisions
        if not self.is_lost and not (decisions.hears_a_majority() and decisions.have_written(wanted, self._term)):
            self.is_lost = True
            asked = electorates(wanted.log, wanted.known)[-1]
            reached = sum(name == decisions.name or name in decisions.fellows for name in asked)
            self._store.lose(f"it reaches {reached} of {len(asked)} hosts of the job, no majority")
        return not self.is_lost

    # -- it stands by

    def _promise(self, connection: Connection, request_id: int, name: bytes, count: int, candidate: bytes) -> Answer:
        term = count, candidate.decode(errors="replace")

        def promise(hears_leader: bool) -> None:
            promised = None if hears_leader or connection.sock.fileno() < 0 else self._promised_to(term)
            if promised is not None:
                self.decisions.name = name.decode(errors="replace")
                self.decisions.own = promised
                self._promised_s, self._preferred = self._machine.now_s(), connection
            self._store.reply(connection, request_id, [int(promised is not None), *_pack(promised or Elector())])

        if self._promised_to(term) is None:
            self._store.reply(connection, request_id, [0, *_pack(Elector())])
        else:
            self._ask_leader(promise)
        return None

    def _promised_to(self, term: Term) -> Elector | None:
        """What it would remember; None: it leads, or has promised to another, or wants to lead later than that."""
        prefers_itself = self.leads or (self._candidacy is not None and self._candidacy.term > term)
        return None if prefers_itself else self.decisions.own.promise(term)

    def _write(self, connection: Connection, _request_id: int, *fields: Any) -> Answer:
        name, count, leader, known, dropped, *log = fields
        term = count, leader.decode(errors="replace")
        written = None if self.leads else self.decisions.own.write(term, _log(log), known, dropped)
        if written is None:
            return [0]
        self.decisions.name = name.decode(errors="replace")
        self.decisions.own = written
        self._leader = connection
        return [1]

    def _over(self, connection: Connection, _request_id: int) -> Answer:
        if connection is self._leader:
            self._store.stop()
        return None

    def _ask_leader(self, then: Callable[[bool], object]) -> None:
        """Find out whether the store that led still answers here, and tell `then`."""
        name = self.decisions.own.written[1]
        if self._leader is None or name == self.decisions.name:
            then(False)
            return
        asking = self.decisions.ask([name], Kind.REFUSED, lambda _name: ())
        self.when_over(asking, lambda answers: then(answers.get(name) is not None))

    def when_over(self, asking: Question, then: Callable[[Answers], object]) -> None:
        """Tell `then` what was answered, once `asking` is over; meanwhile this store serves."""
        self._asking += 1
        self._look(asking, then)

    def _look(self, asking: Question, then: Callable[[Answers], object]) -> None:
        if not asking.is_over:
            self._store.after(POLICY.look_s, partial(self._look, asking, then))
            return
        self._asking -= 1
        then(asking.answers)
        if not self.leads and not self._asking:
            # A store with clients does not end: one that leads would wait for this one's end.
            self.decisions.fellows.close()

    def take_over(self, told: Told) -> None:
        """Lead from now on, or say why not; that may take a while."""
        if self._candidacy is not None:
            self._candidacy.waiting.append(told)
        elif not self.decisions.own.log or not self.decisions.name:
            told("it stands by, and nothing was decided here yet")
        elif self._preferred is not None and self._machine.now_s() < self._promised_s + POLICY.yields_s:
            told(f"it stands by, for {self.decisions.own.promised[1]}, which takes over")
        else:
            self._tried = max(self.decisions.own.promised[0], self._tried) + 1
            self._candidacy = _Candidacy(self, (self._tried, self.decisions.name), told)
            self._ask_leader(self._candidacy.stand)

    def lead(self, term: Term, own: Elector, found: Elector) -> bool:
        """Whether it leads in `term` now: this store being `own`, a majority writes what was `found`."""
        self.decisions.own, self._term = own, term
        if self.decisions.have_written(found, term):
            self.leads, self._leader = True, None
        return self.leads

    def end_candidacy(self, why: str) -> None:
        """It leads, or `why` it does not: whoever waits for that is told."""
        candidacy, self._candidacy = self._candidacy, None
        assert candidacy is not None
        for told in candidacy.waiting:
            told(why)

    def connection_closed(self, connection: Connection) -> None:
        """A client is gone."""
        if connection is self._leader:
            self._leader = None
        if connection is self._preferred:
            self._preferred = None

    def close(self) -> None:
        """The job is over, or this store leads no more."""
        if self.leads and not self.is_lost:
            self.decisions.fellows.tell(Kind.OVER, POLICY.ask_s)  # One that misses it ends by itself, later.
        self.decisions.fellows.close()


class PackedElectors(NamedTuple):
    """Who decides: the epoch whose ranks they serve, and each one's name, beside those ranks, packed."""

    epoch: int
    ranks_of: list[tuple[str, bytes]]


def packed_electors(decided: Sequence[tuple[int, int, bytes]]) -> PackedElectors:
    """What ELECTORS say, of frames of any kind that were `decided`: kind, epoch, body."""
    frames = [(epoch, body) for kind, epoch, body in decided if kind == Kind.ELECTORS]
    ranks_of = _ranks_of(frames[-1][1]) if frames else []
    return PackedElectors(max((epoch for epoch, _ in frames), default=0), ranks_of)


def _ranks_of(body: bytes) -> list[tuple[str, bytes]]:
    """Each name in the body of ELECTORS, beside its ranks."""
    fields = unpack_fields(body, "b*")
    names = [name.decode(errors="replace") for name in fields[::2]]
    return [*zip(names, fields[1::2], strict=True)]


def _pack_log(elector: Elector) -> list[int | bytes]:
    fields = [field for each in elector.log for field in (each.what, "\n".join(each.electors).encode())]
    return [elector.known, elector.dropped, *fields]


def _log(fields: Sequence[bytes]) -> Log:
    if len(fields) % 2:
        raise Refusal(f"got {len(fields)} fields, expected two for each decision")
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return tuple(Decided(what, tuple(filter(None, names.decode().split("\n")))) for what, names in pairs)


def _pack(elector: Elector) -> list[int | bytes]:
    (promised, by), (written, leader) = elector.promised, elector.written
    return [promised, by.encode(), written, leader.encode(), *_pack_log(elector)]


def _unpack(fields: Sequence[Any]) -> Elector:
    promised, by, written, leader, known, dropped, *log = fields
    return Elector((promised, by.decode()), (written, leader.decode()), _log(log), known, dropped)
