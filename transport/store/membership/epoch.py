"""Epoch of a job as the store sees it: a numbering of its ranks, the living ones, and their collective requests."""

from collections.abc import Callable, Sequence
from typing import Protocol

from lanterne.transport.store.decision_log import Decisions
from lanterne.transport.store.handler import Answer, Connection, Refusal, Service
from lanterne.transport.store.membership.census import Census
from lanterne.transport.store.membership.meetings import BEGIN_KEY, Meetings
from lanterne.transport.store.membership.together import Gathers, Votes, Waiting
from lanterne.transport.wire import Fields, Kind, pack_frame, unpack_fields

# A lost connection waits so long for the rank's guard to report what happened to it.
VERDICT_S = 0.1


class Parents(Protocol):
    """Part of the Guards that an epoch needs."""

    def has(self, number: int) -> bool: ...
    def tell_who_goes_on(self, before: Sequence[int], now: Sequence[int]) -> None: ...


class Job(Protocol):
    """Part of the Members that an epoch needs."""

    @property
    def guards(self) -> Parents: ...
    @property
    def decisions(self) -> Decisions: ...
    def on_gone(self, epoch: "Epoch", rank: int, reason: bytes | None) -> None: ...
    def begin(self, epoch: "Epoch") -> None: ...


class Epoch:
    """Ranks 0 to n-1 of a job, from its start, or from a growth, until the next growth.

    Args:
        number: 0 at the start of the job.
        places: of each rank, ascending: the rank that it had, or would have had, in epoch 0. A restart claims it.
        numbers: of each rank, the number of its guard.

    Attributes: as the arguments; `meetings`.
    """

    def __init__(
        self, store: Service, job: Job, number: int = 0, places: Sequence[int] = (), numbers: Sequence[int] = ()
    ) -> None:
        self._store = store
        self._job = job
        self.number = number
        self.places: tuple[int, ...] = tuple(places)
        self.numbers: tuple[int, ...] = tuple(numbers)
        self.meetings: Meetings = Meetings(store, self)
        self._census = Census(store)
        self._votes = Votes(store)
        self._gathers = Gathers(store)

    # -- membership

    def enter(self, connection: Connection, request_id: int, rank: int) -> None:
        """Make `connection` that of `rank`. Raises Refusal as Census.enter."""
        self._census.enter(connection, rank, len(self.places))
        self._welcome(connection, request_id, rank)

    def _welcome(self, connection: Connection, request_id: int, rank: int) -> None:
        """Answer, and notify of the ranks that have gone."""
        connection.rank, connection.epoch = rank, self
        self._store.reply(connection, request_id)
        self._census.tell_gone(connection)

    def come_back(self, connection: Connection, request_id: int, rank: int) -> None:
        """As `enter`, of a rank that was in this epoch at the store before; a dead rank learns that it is dead."""
        if rank in self._census.died:
            self._welcome(connection, request_id, rank)
        else:
            self.enter(connection, request_id, rank)

    def recall(self, kind: int, body: bytes) -> None:
        """Take over what the store before has decided of this epoch."""
        if kind == Kind.DIED_NOTICE:
            self.declare_dead(*unpack_fields(body, "ib"))
        elif kind == Kind.LEFT_NOTICE:
            self._tell_left(*unpack_fields(body, "i"))
        elif kind == Kind.REPLY:
            key, *answer = unpack_fields(body, "bb*")
            self.meetings.recall(key, answer)

    def tell(self, kind: Kind, fields: list[int | bytes]) -> None:
        """Send a notice to all members."""
        self._census.tell(kind, fields)

    def leave(self, connection: Connection, _request_id: int) -> Answer:
        """LEAVE."""
        rank = self.rank_of(connection)
        self._census.members.pop(rank)
        self._tell_left(rank)
        return ()

    def _tell_left(self, rank: int) -> None:
        if not self.decide(Kind.LEFT_NOTICE, [rank]):
            return
        self._census.leave(rank)
        self.meetings.gone(rank)
        self._job.on_gone(self, rank, None)

    def rank_of(self, connection: Connection) -> int:
        """The rank of a member."""
        return self._census.rank_of(connection)

    def lives(self, rank: int) -> bool:
        """Return whether `rank` is a member, or may become one."""
        return self._census.lives(rank)

    def is_here(self, rank: int) -> bool:
        """Return whether `rank` is connected."""
        return rank in self._census.members

    @property
    def living(self) -> list[int]:
        """All ranks that live."""
        return [rank for rank in range(len(self.places)) if self.lives(rank)]

    @property
    def somebody_left(self) -> bool:
        """Return whether a rank has ended in order."""
        return bool(self._census.left)

    @property
    def all_came(self) -> bool:
        """Return whether every rank has joined, or never will."""
        return all(map(self.knows, range(len(self.places))))

    def knows(self, rank: int) -> bool:
        """Return whether `rank` has joined, or is known never to."""
        return self._census.knows(rank)

    # -- ends

    def declare_dead(self, rank: int, reason: bytes) -> None:
        """Decide that `rank` is dead, and notify all members, and the rank if it is still connected."""
        if rank in self._census.died or not self.decide(Kind.DIED_NOTICE, [rank, reason]):
            return
        self._census.die(rank, reason)
        self.meetings.gone(rank)
        self._job.on_gone(self, rank, reason)

    def decide(self, kind: Kind, fields: Fields, over: Sequence[Fields] = ()) -> bool:
        """Decide what `fields` say; False once this store may decide nothing any more.

        Args:
            over: fields of earlier decisions of this kind that are not needed any more.
        """
        frame, *others = (pack_frame(kind, self.number, each) for each in (fields, *over))
        return self._job.decisions.decide(frame, others)

    def process_ended(self, number: int, code: int, reason: bytes) -> None:
        """The process below guard `number` has ended."""
        if number in self.numbers:
            rank = self.numbers.index(number)
            if code != 0 or rank in self._census.members:
                self.declare_dead(rank, reason)
            elif rank not in self._census.left:  # a rank that never joined is not waited for either
                self._tell_left(rank)

    def place_died(self, place: int, reason: bytes) -> None:
        """Whoever has `place` is dead in another epoch, in which it still was."""
        if place in self.places and self.lives(rank := self.places.index(place)):
            self.declare_dead(rank, reason)

    def connection_closed(self, connection: Connection) -> None:
        """The client of a rank is gone: a member that has not left is dead, unless its guard knows better."""
        rank = connection.rank
        assert rank is not None
        self._votes.is_gone(rank, len(self.places))
        if self._census.members.get(rank) is connection:
            lost = connection.lost.encode()
            delay_s = VERDICT_S if self._job.guards.has(self.numbers[rank]) else 0
            self._store.after(delay_s, lambda: self.declare_dead(rank, lost))

    def met(self, key: bytes, ranks: Sequence[int], survivors: Sequence[int]) -> None:
        """Act on a meeting of `ranks` at which `survivors` have met."""
        if key == BEGIN_KEY:
            if len(survivors) == len(self.places):
                self._job.begin(self)
        else:
            before, now = ([self.numbers[rank] for rank in each] for each in (ranks, survivors))
            self._job.guards.tell_who_goes_on(before, now)

    # -- what all do together

    def vote(self, connection: Connection, request_id: int, willing: int) -> None:
        """END."""
        if connection.rank is None:
            raise Refusal("got a vote from a client that has not joined")
        self._votes.vote(connection.rank, bool(willing), Waiting(connection, request_id), len(self.places))

    def gather(self, connection: Connection, request_id: int, name: bytes, payload: bytes) -> None:
        """GATHER."""
        rank = self.rank_of(connection)
        self._gathers.bring(name, rank, payload, Waiting(connection, request_id), len(self.places))

    def absent(self, connection: Connection, _request_id: int, name: bytes) -> Answer:
        """ABSENT: return the ranks missing at a gather that timed out; declare dead those that never joined."""
        present = self._gathers.present(name)
        absent = [rank for rank in range(len(self.places)) if rank not in present]
        for rank in absent:
            if rank not in self._census.members and rank not in self._census.left:
                self.declare_dead(rank, f"it did not join within the time of rank {connection.rank}".encode())
        return absent


def of_its_epoch(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return a handler that calls a method of the connection's Epoch."""

    def answer(connection: Connection, *args: object) -> Answer:
        if not isinstance(connection.epoch, Epoch):
            raise Refusal("got a request of a member from a client that has not joined, or has left")
        return function(connection.epoch, connection, *args)

    return answer
