"""Which store leads a job of three or more hosts: the one whose decisions a majority of the hosts' stores hold.

Rank 0's store leads first; on each other host one stands by and keeps what was decided (succession.py). Ranks that lose
the one that leads come to one of those: it takes over if it cannot reach that one either, and a majority follows it.
A store that leads and reaches no majority any more ends, and says so to its ranks: they are the minority.

Asking takes the store's one thread, for a few messages' time; an elector that says nothing for that long is left out.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lanterne.errors import TransportError
from lanterne.transport.steering import steers, value
from lanterne.transport.store.fellows import FellowStores
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
    is_heard_by_enough,
    names_of,
    next_to_ask,
    succeed,
)
from lanterne.transport.wire import Kind, pack_frame, take_frame, unpack_fields, unpack_ranks


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
    # Whom another was just promised to is not stood in the way of; who did not answer is not asked again for so long.
    yields_s: float = value(
        1.5,
        "chosen: a few times ask_s for each of seven",
        half="two that take over hinder each other",
        double="if the successor dies at once, the next comes 1.5 s later",
    )
    # How long a store that stands by waits for ranks, after the one that led is gone.
    idle_s: float = value(
        12.0,
        "chosen: ranks that compute come within ten",
        half="ranks that compute for 6 s find no store",
        double="it stays 12 s longer after a job that was killed",
    )


POLICY = HeirsPolicy()


class Heirs:
    """One store's part in it.

    Args: `stands_by`: it does not lead.

    Attributes: `leads`; `is_lost`, it did, and has no majority any more.
    """

    def __init__(self, store: Service, token: str, *, stands_by: bool) -> None:
        self._store = store
        self._machine = store.machine
        self.leads: bool = not stands_by
        self.is_lost: bool = False
        self._name = ""
        self._term: Term = NO_TERM  # in which it leads
        self._own = Elector()
        self._tried = 0  # how often, as terms count, it has asked to be followed
        self._leader: Connection | None = None
        self._promised_s = float("-inf")
        self._fellows = FellowStores(store.machine, token, POLICY.yields_s)
        store.route(Kind.ELECTORS, "b*", self._elect)
        store.route(Kind.PROMISE, "bib", self._promise)
        store.route(Kind.WRITE, "bibiib*", self._write)
        store.route(Kind.OVER, "", self._over)

    # -- it leads

    @property
    def decided(self) -> list[tuple[int, int, bytes]]:
        """What was decided: kind, epoch, body."""
        frames = (take_frame(bytearray(each.what)) for each in self._own.log[: self._own.known])
        return [(kind, epoch, body) for kind, epoch, body in filter(None, frames)]

    def decide(self, what: bytes, over: Collection[bytes] = ()) -> bool:
        """Whether the frame `what` is decided, and may be told, and those `over` are void. False: it leads no more.

        Cost: nothing while it is the only one; else two messages there and back to each elector, one after the other.
        """
        log = self._own.log
        if not log or any(each.what == what for each in log):
            return not self.is_lost
        return self._decide(Decided(what), over)

    def _elect(self, connection: Connection, _request_id: int, *fields: bytes) -> Answer:
        """ELECTORS: names and ranks of the stores that are to decide, this one first."""
        if connection.rank is None or connection.epoch is None or not self.leads:
            raise Refusal("got electors from a client that is no member")
        names = [name.decode(errors="replace") for name in fields[::2]]
        if len(names) >= LEAST_ELECTORS and len(fields) == 2 * len(names):
            self._name = self._name or names[0]
            self._term = (0, self._name) if self._term == NO_TERM else self._term
            for name in names:
                # They have only just begun.
                with suppress(TransportError):
                    if name != self._name:
                        self._fellows.connect(name, POLICY.begins_s)
            self._decide(Decided(pack_frame(Kind.ELECTORS, connection.epoch.number, fields), tuple(names)))
        return ()

    def drop_the_lost(self) -> None:
        """Those electors that did not answer last time are none any more: fewer are a majority then."""
        if not self._own.log or self.is_lost:
            return
        (electors,) = electorates(self._own.log, self._own.known)
        left = tuple(name for name in electors if name == self._name or name in self._fellows)
        if len(left) < len(electors):
            left = left if len(left) >= LEAST_ELECTORS else (self._name,)
            epoch, ranks_of = packed_electors(self.decided)
            fields = [field for name, ranks in ranks_of if name in left for field in (name.encode(), ranks)]
            self._decide(Decided(pack_frame(Kind.ELECTORS, epoch, fields), left))

    def _decide(self, decision: Decided, over: Collection[bytes] = ()) -> bool:
        wanted = self._own.without(over).followed_by(decision)
        if not self.is_lost and not (self._hears_a_majority() and self._have_written(wanted)):
            self.is_lost = True
            asked = electorates(wanted.log, wanted.known)[-1]
            self._store.lose(f"it reaches {self._reached(asked)} of {len(asked)} hosts of the job, no majority")
        return not self.is_lost

    def _hears_a_majority(self) -> bool:
        """Whether a majority answers: who hears nobody, but is heard, must not write that all others have died."""
        log, known = self._own.log, self._own.known
        return not log or is_heard_by_enough(log, known, self._name, self._answers)

    def _answers(self, name: str) -> bool:
        return self._ask(name, Kind.REFUSED, []) is not None

    def _reached(self, electors: Sequence[str]) -> int:
        return sum(name == self._name or name in self._fellows for name in electors)

    def _have_written(self, wanted: Elector) -> bool:
        """Whether the log of `wanted` is with a majority, and so decided; who has just answered has it first."""
        votes: set[str] = set()
        log, known = wanted.log, wanted.known
        (count, name), packed = self._term, _pack_log(wanted)
        for elector in sorted(names_of(log, known), key=lambda each: each not in self._fellows):
            if elector == self._name:
                own = self._own.write(self._term, log, known, wanted.dropped)
                self._own = own or self._own
                has = own is not None
            else:
                answer = self._ask(elector, Kind.WRITE, [elector.encode(), count, name.encode(), *packed], 2)
                has = bool(answer and answer[0])
            if has:
                votes.add(elector)
        if is_backed(log, known, votes):
            self._own = replace(self._own, known=len(log))
            return True
        return False

    def _ask(self, name: str, kind: Kind, fields: list[int | bytes], times: int = 1) -> list[Any] | None:
        """What another store answers, in so many times ask_s; None: nothing."""
        return self._fellows.ask(name, kind, fields, POLICY.ask_s, times * POLICY.ask_s)

    def out_of_reach(self, epoch: int) -> list[int]:
        """Ranks of `epoch` on hosts that did not answer when this store took over."""
        fellows, (its_epoch, ranks_of) = self._fellows, packed_electors(self.decided)
        silent = [ranks for name, ranks in ranks_of if name in fellows.silent and name not in fellows]
        return [rank for ranks in silent for rank in unpack_ranks(ranks)] if epoch == its_epoch else []

    # -- it stands by

    def _promise(self, _connection: Connection, _request_id: int, name: bytes, count: int, candidate: bytes) -> Answer:
        term = count, candidate.decode(errors="replace")
        promised = None if self.leads or self._hears_leader() else self._own.promise(term)
        if promised is None:
            return [0, *_pack(Elector())]
        self._name = name.decode(errors="replace")
        self._own = promised
        self._promised_s = self._machine.now_s()
        return [1, *_pack(promised)]

    def _write(self, connection: Connection, _request_id: int, *fields: Any) -> Answer:
        name, count, leader, known, dropped, *log = fields
        term = count, leader.decode(errors="replace")
        written = None if self.leads else self._own.write(term, _log(log), known, dropped)
        if written is None:
            return [0]
        self._name = name.decode(errors="replace")
        self._own = written
        self._leader = connection
        return [1]

    def _over(self, connection: Connection, _request_id: int) -> Answer:
        if connection is self._leader:
            self._store.stop()
        return None

    def _hears_leader(self) -> bool:
        """Whether the store that led still answers here."""
        name = self._own.written[1]
        if self._leader is None or name == self._name:
            return False
        answers = self._answers(name)
        self._fellows.close()
        return answers

    def take_over(self) -> str:
        """Lead from now on: empty, or why not."""
        why = self._take_over()
        if why:
            self._fellows.close()  # A store with clients does not end: one that leads would wait for this one's end.
        return why

    def _take_over(self) -> str:
        if not self._own.log or not self._name:
            return "it stands by, and nothing was decided here yet"
        if self._machine.now_s() < self._promised_s + POLICY.yields_s:
            return "it stands by, for another one that takes over"
        if self._hears_leader():
            return f"it stands by: {self._own.written[1]}, which leads, answers it"
        self._tried = max(self._own.promised[0], self._tried) + 1
        term = self._tried, self._name
        # It promises itself what others do only if they are enough: one that leads, and was busy, goes on else.
        promises = {self._name: replace(self._own, promised=term)}
        last, asked = self._own.written[1], {self._name}
        while (found := succeed(promises)) is None and (name := next_to_ask(promises, asked, last, self._name)):
            asked.add(name)
            # It looks for the one that led first.
            answer = self._ask(name, Kind.PROMISE, [name.encode(), term[0], self._name.encode()], 3)
            if answer and answer[0]:
                promises[name] = _unpack(answer[1:])
        if found is not None:
            self._own, self._term = promises[self._name], term
            if self._have_written(found):
                self.leads, self._leader = True, None
                return ""
        electors = max((electorates(each.log, each.known)[-1] for each in promises.values() if each.log), key=len)
        return f"{len({*electors} & promises.keys())} of {len(electors)} hosts of the job follow it, no majority"

    def connection_closed(self, connection: Connection) -> None:
        """A client is gone."""
        if connection is self._leader:
            self._leader = None

    def close(self) -> None:
        """The job is over, or this store leads no more."""
        if self.leads and not self.is_lost:
            self._fellows.tell(Kind.OVER, POLICY.ask_s)  # One that misses it ends by itself, later.
        self._fellows.close()


class PackedElectors(NamedTuple):
    """Who decides: the epoch whose ranks they serve, and each one's name, beside those ranks, packed."""

    epoch: int
    ranks_of: list[tuple[str, bytes]]


def packed_electors(decided: Sequence[tuple[int, int, bytes]]) -> PackedElectors:
    """What ELECTORS say, of frames of any kind that were `decided`: kind, epoch, body."""
    frames = [(epoch, body) for kind, epoch, body in decided if kind == Kind.ELECTORS]
    fields = unpack_fields(frames[-1][1], "b*") if frames else []
    names = [name.decode(errors="replace") for name in fields[::2]]
    return PackedElectors(max((epoch for epoch, _ in frames), default=0), [*zip(names, fields[1::2], strict=True)])


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
