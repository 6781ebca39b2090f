"""Meetings at the store: the living ranks of a group agree on its members, and exchange bytes.

The store is one process and answers one request at a time, so every rank of a meeting gets the same answer.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from lanterne.transport.store.handler import Connection, Refusal, Service
from lanterne.transport.store.meeting_names import ends, is_over
from lanterne.transport.wire import MAX_BODY_NBYTES, MAX_KEY_NBYTES, RANK_NBYTES, Fields, Kind, pack_ranks, unpack_ranks

MAX_LIMIT_MS = 86_400_000
# Ranks meet there once they have all that their epoch needs; it is in force if none is missing.
BEGIN_KEY = b"lanterne/begin"


# Makes the end of the answer of a meeting to grow, of its ranks and their payloads.
Last: TypeAlias = Callable[[Sequence[int], Sequence[bytes]], bytes]
# Answers kept for ranks that gave up waiting and ask again.
MAX_ANSWERS = 256


class Membership(Protocol):
    """Part of the Epoch that a meeting needs."""

    def rank_of(self, connection: Connection) -> int: ...
    def lives(self, rank: int) -> bool: ...
    def is_here(self, rank: int) -> bool: ...
    def declare_dead(self, rank: int, reason: bytes) -> None: ...
    def met(self, key: bytes, ranks: Sequence[int], survivors: Sequence[int]) -> None: ...
    def decide(self, kind: Kind, fields: Fields, over: Sequence[Fields] = ()) -> bool: ...


@dataclass
class _Meeting:
    ranks: tuple[int, ...]
    last: Last | None
    # By rank: (connection, request_id, payload); and those that it cannot reach.
    came: dict[int, tuple[Connection, int, bytes]] = field(default_factory=dict)
    cut: dict[int, tuple[int, ...]] = field(default_factory=dict)


class Meetings:
    """Answer a rank's MEET once all living ranks of its group have arrived: with those ranks and their payloads.

    A rank that is missing at the timeout of the first arrival is declared dead, and the others go on without it. Of two
    ranks that cannot reach each other, the one with more broken paths is declared dead, or the higher rank. A meeting
    to agree gets an empty answer where one of its ranks shrinks the communicator instead.

    Attributes: `gives_up`, whether a rank that has not come to the store that took over is dead as soon as no rank of a
    meeting reaches it.
    """

    def __init__(self, store: Service, members: Membership) -> None:
        self._store = store
        self._members = members
        self._open: dict[bytes, _Meeting] = {}
        self._answers: OrderedDict[bytes, list[bytes]] = OrderedDict()
        self.gives_up: bool = False

    def meet(
        self,
        connection: Connection,
        request_id: int,
        key: bytes,
        packed: bytes,
        cut: bytes,
        payload: bytes,
        limit_ms: int,
        last: Last | None = None,
    ) -> list[bytes] | None:
        """MEET, and GROW with `last`."""
        rank = self._members.rank_of(connection)
        if len(key) > MAX_KEY_NBYTES or not 0 <= limit_ms <= MAX_LIMIT_MS:
            raise Refusal("got a meeting with too long a name, or time")
        ranks = unpack_ranks(packed)
        if rank not in ranks or len(payload) * len(ranks) > MAX_BODY_NBYTES // 2:
            raise Refusal(f"got rank {rank} at a meeting of other ranks, or too much of it")
        if (answer := self._answers.get(key)) is not None:
            return answer
        meeting = self._open.get(key)
        if meeting is None:
            meeting = self._open[key] = _Meeting(ranks, last)
            self._store.after(limit_ms / 1e3, lambda: self._end(key, meeting, limit_ms / 1e3))
        elif meeting.ranks != ranks:
            raise Refusal(f"got a meeting of ranks {ranks}, expected {meeting.ranks} as on the other ranks")
        meeting.came[rank] = connection, request_id, payload
        meeting.cut[rank] = unpack_ranks(cut)
        for name, growing in list(self._open.items()):
            if growing.last is not None and any(
                {*growing.ranks} & other.came.keys() for other in self._open.values() if other is not growing
            ):
                self._answer(name, growing, b"")
        for name, agreeing in list(self._open.items()):
            if ends(key, name):
                self._look(name, agreeing)
        self._look(key, meeting)
        return None

    def _absent(self, meeting: _Meeting) -> list[int]:
        return [rank for rank in meeting.ranks if self._members.lives(rank) and rank not in meeting.came]

    def _look(self, key: bytes, meeting: _Meeting) -> None:
        """Answer if no rank is missing."""
        if self._open.get(key) is not meeting or not meeting.came:
            return
        if (meeting.last is not None or key == BEGIN_KEY) and not all(map(self._members.lives, meeting.ranks)):
            # Either all ranks grow, or begin, or none does.
            self._answer(key, meeting, None if meeting.last is None else b"")
            return
        if any(ends(name, key) and each.came.keys() & {*meeting.ranks} for name, each in self._open.items()):
            del self._open[key]
            self._reply(meeting, [])
            return
        if absent := self._absent(meeting):
            unreachable = set(absent).intersection(*(meeting.cut[each] for each in meeting.came))
            if self.gives_up and not any(rank not in unreachable or self._members.is_here(rank) for rank in absent):
                self._members.declare_dead(
                    absent[0], b"it has not come to the store that took over; no rank reaches it"
                )
            return  # `gone` looks again.
        if (worst := _worst(meeting)) is not None:
            rank, others = worst
            names = ", ".join(map(str, others))
            self._members.declare_dead(rank, f"there is no path between it and rank {names}".encode())
            return  # `gone` looks again.
        told = [came[2] for came in meeting.came.values()]
        last = None if meeting.last is None else meeting.last(meeting.ranks, told)
        survivors = self._answer(key, meeting, last)
        if last is None and survivors:
            self._members.met(key, meeting.ranks, survivors)

    def _answer(self, key: bytes, meeting: _Meeting, last: bytes | None) -> list[int]:
        """Answer the ranks that have arrived, with `last` at the end, and return them.

        The list is empty where this store may decide nothing any more.
        """
        del self._open[key]
        survivors = [rank for rank in meeting.ranks if rank in meeting.came]
        answer = [pack_ranks((rank,)) + meeting.came[rank][2] for rank in survivors]
        answer += [] if last is None else [last]
        if last is None and not self._decide(key, answer):
            return []
        self._tell(key, meeting, answer)
        return survivors

    def _decide(self, key: bytes, answer: list[bytes]) -> bool:
        over = [[other, *its] for other, its in self._answers.items() if is_over(other, key)]
        return self._members.decide(Kind.REPLY, [key, *answer], over)

    def _tell(self, key: bytes, meeting: _Meeting, answer: list[bytes]) -> None:
        for other in [other for other in self._answers if is_over(other, key)]:
            del self._answers[other]
        self._answers[key] = answer
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        self._reply(meeting, answer)

    def _reply(self, meeting: _Meeting, answer: list[bytes]) -> None:
        for connection, request_id, _payload in meeting.came.values():
            self._store.reply(connection, request_id, answer)

    def recall(self, key: bytes, answer: list[bytes]) -> None:
        """Give the answer of the store before to those that ask for it again."""
        self._answers[key] = answer
        came = [unpack_ranks(each[:RANK_NBYTES])[0] for each in answer]
        self._members.met(key, came, came)

    def _end(self, key: bytes, meeting: _Meeting, limit_s: float) -> None:
        """Declare the missing ranks dead: the first arrival has timed out."""
        if self._open.get(key) is meeting and meeting.came:
            first = next(iter(meeting.came))
            why = f"it did not come when the others went on: rank {first} waited {limit_s:g} s for it"
            for rank in self._absent(meeting):
                self._members.declare_dead(rank, why.encode())

    def give_up(self) -> None:
        """Wait no more for ranks that no rank of a meeting reaches."""
        self.gives_up = True
        for key, meeting in list(self._open.items()):
            self._look(key, meeting)

    def gone(self, rank: int) -> None:
        """Look again at the meetings: `rank` has died or left."""
        for key, meeting in list(self._open.items()):
            meeting.came.pop(rank, None)
            if self._open.get(key) is meeting and not meeting.came:
                del self._open[key]
            self._look(key, meeting)


def _worst(meeting: _Meeting) -> tuple[int, list[int]] | None:
    """Return the rank with most broken paths to others that have arrived, and those; None without any."""
    pairs = {frozenset((rank, other)) for rank in meeting.came for other in meeting.cut[rank] if other in meeting.came}
    if not pairs:
        return None
    paths = Counter(rank for pair in pairs for rank in pair)
    rank = max(paths, key=lambda rank: (paths[rank], rank))
    return rank, sorted(other for pair in pairs if rank in pair for other in pair - {rank})
