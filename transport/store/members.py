"""The store's list of a job's members: who is in it, who left, who died, and what they do all together."""

from collections.abc import Callable, Container

from lanterne.transport.store.handler import Answer, Connection, Refusal, Service
from lanterne.transport.wire import MAX_BODY_NBYTES, Kind

# How long a lost connection waits for the rank's guard to say what happened to it.
VERDICT_S = 0.1
MAX_WORLD_SIZE = 1 << 16
# The exit code of a rank whose guard ended before it.
UNKNOWN_CODE = -1


class Members:
    """Membership, death notices, the all-gather that brings members together, and their vote on how to end.

    A *member* is a rank itself. A *guard* is a rank's parent, which knows how it ended. A *watcher* is the launcher. A
    member whose connection ends without goodbye has died.

    Attributes: `on_gone`, called with each rank that has died or left; may be set.
    """

    def __init__(self, store: Service) -> None:
        self._store = store
        self.on_gone: Callable[[int], object] = lambda rank: None
        self._world_size = 0  # as the first rank says
        self._members: dict[int, Connection] = {}
        self._guards: dict[int, Connection] = {}
        self._watchers: set[Connection] = set()
        self._left: set[int] = set()
        self._died: dict[int, bytes] = {}  # why, by rank
        self._gone: list[tuple[Kind, list[int | bytes]]] = []  # the notices of both
        self._ended: dict[int, int] = {}  # exit codes, by rank
        self._fault: list[int | bytes] | None = None
        # By rank: its vote on how to end; (connection, request_id) of who waits for the outcome.
        self._willing: dict[int, bool] = {}
        self._ending: dict[int, tuple[Connection, int]] = {}
        # By name and rank: (connection, request_id, payload).
        self._gathers: dict[bytes, dict[int, tuple[Connection, int, bytes]]] = {}
        store.route(Kind.JOIN, "ii", self._join)
        store.route(Kind.GUARD, "ii", self._guard)
        store.route(Kind.WATCH, "", self._watch)
        store.route(Kind.LEAVE, "", self._leave)
        store.route(Kind.ENDED, "iib", self._end)
        store.route(Kind.FAULT, "ib", self._report_fault)
        store.route(Kind.END, "i", self._vote)
        store.route(Kind.GATHER, "bb", self._gather)
        store.route(Kind.ABSENT, "b", self._absent)

    def _check_rank(self, connection: Connection, rank: int, world_size: int, taken: Container[int]) -> None:
        if connection.rank is not None or connection.guards is not None:
            raise Refusal("got a second rank from one client")
        if not 1 <= world_size <= MAX_WORLD_SIZE:
            raise Refusal(f"got a world of {world_size} ranks, expected 1 to {MAX_WORLD_SIZE}")
        self._world_size = self._world_size or world_size
        if world_size != self._world_size:
            raise Refusal(f"got a world of {world_size} ranks, expected {self._world_size} as on the other ranks")
        if not 0 <= rank < world_size:
            raise Refusal(f"got rank {rank}, expected 0 to {world_size - 1}")
        if rank in taken:
            raise Refusal(f"got rank {rank} twice, expected each rank of the job once")

    def _join(self, connection: Connection, request_id: int, rank: int, world_size: int) -> None:
        if rank in self._died:
            raise Refusal(f"got rank {rank}, which is dead to this job: {self._died[rank].decode(errors='replace')}")
        self._check_rank(connection, rank, world_size, self._members.keys() | self._left)
        self._members[rank] = connection
        connection.rank = rank
        self._store.reply(connection, request_id)
        self._tell_gone(connection)

    def _guard(self, connection: Connection, request_id: int, rank: int, world_size: int) -> None:
        self._check_rank(connection, rank, world_size, self._guards)
        self._guards[rank] = connection
        connection.guards = rank
        self._store.reply(connection, request_id)
        self._tell_gone(connection)

    def _watch(self, connection: Connection, request_id: int) -> None:
        self._watchers.add(connection)
        self._store.reply(connection, request_id)
        if self._fault is not None:
            self._store.send(connection, Kind.FAULT_NOTICE, 0, self._fault)

    def _tell_gone(self, connection: Connection) -> None:
        """Who has left or died, in that order: who comes late blames the first."""
        for kind, fields in self._gone:
            self._store.send(connection, kind, 0, fields)

    def _leave(self, connection: Connection, _request_id: int) -> Answer:
        rank = self.rank_of(connection)
        self._members.pop(rank)
        self._tell_left(rank)
        return ()

    def _tell_left(self, rank: int) -> None:
        self._left.add(rank)
        self._gone.append((Kind.LEFT_NOTICE, [rank]))
        for member in self._members.values():
            self._store.send(member, Kind.LEFT_NOTICE, 0, [rank])
        self.on_gone(rank)

    def rank_of(self, connection: Connection) -> int:
        """The rank of a member."""
        if connection.rank in self._died:
            reason = self._died[connection.rank].decode(errors="replace")
            raise Refusal(f"got a request of rank {connection.rank}, which is dead to this job: {reason}")
        if connection.rank is None or self._members.get(connection.rank) is not connection:
            raise Refusal("got a request of a member from a client that has not joined, or has left")
        return connection.rank

    def lives(self, rank: int) -> bool:
        """Whether `rank` is a member, or may become one."""
        return rank not in self._died and rank not in self._left

    def tell_guards(self, kind: Kind, fields: list[int | bytes]) -> None:
        """Send a notice to all guards and watchers."""
        for connection in [*self._guards.values(), *self._watchers]:
            self._store.send(connection, kind, 0, fields)

    def _end(self, connection: Connection, _request_id: int, rank: int, code: int, reason: bytes) -> Answer:
        if connection.guards != rank:
            raise Refusal(f"got the end of rank {rank} from a client that is not its guard")
        self._record_end(rank, code, reason)
        return ()

    def _record_end(self, rank: int, code: int, reason: bytes) -> None:
        if rank in self._ended:
            return
        self._ended[rank] = code
        for watcher in self._watchers:
            self._store.send(watcher, Kind.ENDED_NOTICE, 0, [rank, code, reason])
        if code != 0 or rank in self._members:
            self.declare_dead(rank, reason)
        elif rank not in self._left:  # who never joined is not waited for either
            self._tell_left(rank)
        if len(self._ended) == self._world_size:
            for guard in self._guards.values():
                self._store.send(guard, Kind.FINISHED_NOTICE, 0)

    def _report_fault(self, _connection: Connection, _request_id: int, code: int, text: bytes) -> Answer:
        if self._fault is None:
            self._fault = [code, text]
            for watcher in self._watchers:
                self._store.send(watcher, Kind.FAULT_NOTICE, 0, self._fault)
        return ()

    def declare_dead(self, rank: int, reason: bytes) -> None:
        """From now on `rank` is dead to this job: all are told, it too if it can still hear."""
        if rank in self._died:
            return
        self._died[rank] = reason
        self._gone.append((Kind.DIED_NOTICE, [rank, reason]))
        for connection in [*self._members.values(), *self._guards.values(), *self._watchers]:
            self._store.send(connection, Kind.DIED_NOTICE, 0, [rank, reason])
        self._members.pop(rank, None)
        self.on_gone(rank)

    def _vote(self, connection: Connection, request_id: int, willing: int) -> None:
        if connection.rank is None:
            raise Refusal("got a vote from a client that has not joined")
        self._ending[connection.rank] = (connection, request_id)
        self._willing.setdefault(connection.rank, bool(willing))
        self._count_votes()

    def _count_votes(self) -> None:
        together = all(self._willing.values())
        if not together or len(self._willing) == self._world_size:
            for connection, request_id in self._ending.values():
                self._store.reply(connection, request_id, [int(together)])
            self._ending.clear()

    def _gather(self, connection: Connection, request_id: int, name: bytes, payload: bytes) -> None:
        member = self.rank_of(connection)
        if len(payload) * self._world_size > MAX_BODY_NBYTES // 2:
            raise Refusal(
                f"got {len(payload)} bytes from each rank, expected at most {MAX_BODY_NBYTES // 2 // self._world_size}"
            )
        entries = self._gathers.setdefault(name, {})
        entries[member] = (connection, request_id, payload)
        if len(entries) == self._world_size:
            del self._gathers[name]
            payloads = [entries[rank][2] for rank in range(self._world_size)]
            for waiting, its_request_id, _payload in entries.values():
                self._store.reply(waiting, its_request_id, payloads)

    @property
    def all_came(self) -> bool:
        """Whether every rank of the job has joined, or never will."""
        return all(map(self.knows, range(self._world_size)))

    def knows(self, rank: int) -> bool:
        """Whether `rank` has joined, or is known never to."""
        return rank in self._members or rank in self._left or rank in self._died

    def _absent(self, connection: Connection, _request_id: int, name: bytes) -> Answer:
        """Who has not come to a gather whose time is over; all are told of those that never joined."""
        present = self._gathers.get(name, {})
        absent = [rank for rank in range(self._world_size) if rank not in present]
        for rank in absent:
            if rank not in self._members and rank not in self._left:
                self.declare_dead(rank, f"it did not join within the time of rank {connection.rank}".encode())
        return absent

    def connection_closed(self, connection: Connection) -> None:
        """The client is gone: a member that has not left is dead, unless its guard knows better."""
        self._watchers.discard(connection)
        if connection.guards is not None:
            del self._guards[connection.guards]
            self._record_end(
                connection.guards, UNKNOWN_CODE, b"ended with its guard, which was killed, or its host was lost"
            )
        rank = connection.rank
        if rank is None:
            return
        if self._willing.setdefault(rank, False) is False:
            self._count_votes()
        if self._members.get(rank) is connection:
            lost = connection.lost.encode()
            self._store.after(VERDICT_S if rank in self._guards else 0, lambda: self.declare_dead(rank, lost))
