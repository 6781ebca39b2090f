"""Supervisors of a job's processes, and how each process has ended."""

from collections.abc import Sequence
from typing import Protocol

from lanterne.transport.store.handler import Answer, Connection, Refusal, Service
from lanterne.transport.store.membership.admissions import Admissions
from lanterne.transport.store.membership.epoch import Epoch
from lanterne.transport.wire import Kind, pack_ranks

# Exit code of a rank whose guard ended before it.
UNKNOWN_CODE = -1


class Guarded(Protocol):
    """Part of the Members that the guards need."""

    world_size: int
    epoch: Epoch

    @property
    def epochs(self) -> list[Epoch]: ...


class Guards:
    """Connections of the parents of a job's ranks, which report how those end, and of the launcher.

    A *guard* is a rank's parent; the launcher gives it a number. A *watcher* is the launcher.
    """

    def __init__(self, store: Service, admissions: Admissions, job: Guarded) -> None:
        self._store = store
        self._admissions = admissions
        self._job = job
        self._guards: dict[int, Connection] = {}
        self._outside: set[int] = set()  # guards whose processes are no members
        self._watchers: dict[Connection, None] = {}  # in the order of their connections
        self._ended: dict[int, int] = {}  # exit codes, by number
        self._fault: list[int | bytes] | None = None
        self._attempt = 0  # the most starts after the first that a process has had
        self._history: list[tuple[Kind, list[int | bytes]]] = []  # notices of the epoch in force
        store.route(Kind.WATCH, "", self._watch)
        store.route(Kind.ENDED, "iib", self._end)
        store.route(Kind.RESTART, "iib", self._restart)
        store.route(Kind.FAULT, "ib", self._report_fault)

    # -- connections

    def add(self, connection: Connection, number: int, *, outside: bool) -> None:
        """Make `connection` that of guard `number`; `outside`: its process is no member."""
        self._guards[number] = connection
        if outside:
            self._outside.add(number)
        connection.guards = number
        self._replay(connection)

    def has(self, number: int) -> bool:
        """Return whether process `number` has a guard."""
        return number in self._guards

    def vouches(self, number: int) -> bool:
        """Return whether process `number` has a guard, which takes it for a member."""
        return number in self._guards and number not in self._outside

    @property
    def running(self) -> set[int] | None:
        """Return the processes that have a guard and have not ended for good; None where none has a guard."""
        return self._guards.keys() - self._ended.keys() if self._guards else None

    def _watch(self, connection: Connection, request_id: int) -> None:
        self._watchers[connection] = None
        self._store.reply(connection, request_id)
        self._replay(connection)
        if self._fault is not None:
            self._store.send(connection, Kind.FAULT_NOTICE, 0, self._fault)

    # -- notices

    def begin(self, before: Sequence[int], now: Sequence[int]) -> None:
        """Another epoch is in force: the processes `now` go on, of those that did `before`."""
        self._history.clear()
        self.tell_who_goes_on(before, now)

    def _replay(self, connection: Connection) -> None:
        for kind, fields in self._history:
            self._store.send(connection, kind, 0, fields)

    def tell(self, kind: Kind, fields: list[int | bytes]) -> None:
        """Send a notice to all guards and watchers, and to those that connect later."""
        self._history.append((kind, fields))
        for connection in [*self._guards.values(), *self._watchers]:
            self._store.send(connection, kind, 0, fields)

    def tell_who_goes_on(self, before: Sequence[int], now: Sequence[int]) -> None:
        """Notify that the processes `now` go on, of those `before`."""
        self.tell(Kind.GOES_ON_NOTICE, [pack_ranks(before), pack_ranks(now)])

    def tell_waiting(self, number: int) -> None:
        """Notify the guard of process `number`, if it has one, that it waits to be taken in."""
        if number in self._guards:
            self._store.send(self._guards[number], Kind.WAITING_NOTICE, 0, [1])

    def _tell_watchers(self, kind: Kind, fields: list[int | bytes]) -> None:
        for watcher in self._watchers:
            self._store.send(watcher, kind, 0, fields)

    # -- reports

    def _check_guard(self, connection: Connection, number: int) -> None:
        if connection.guards != number:
            raise Refusal(f"got the end of rank {number} from a client that is not its guard")

    def _end(self, connection: Connection, _request_id: int, number: int, code: int, reason: bytes) -> Answer:
        self._check_guard(connection, number)
        self._record_end(number, code, reason)
        return ()

    def _restart(self, connection: Connection, _request_id: int, number: int, attempt: int, reason: bytes) -> Answer:
        """Return the number of the next attempt of a process that has failed; 0 where the job is over.

        Processes that fail after each other in one attempt get the same next one.
        """
        self._check_guard(connection, number)
        if self._admissions.is_over:
            return [0]
        self._tell_watchers(Kind.RESTART_NOTICE, [number, reason])
        for epoch in self._job.epochs:
            epoch.process_ended(number, 1, reason)
        self._attempt = max(self._attempt, attempt + 1)
        return [self._attempt]

    def _record_end(self, number: int, code: int, reason: bytes) -> None:
        if number in self._ended:
            return
        self._ended[number] = code
        self._tell_watchers(Kind.ENDED_NOTICE, [number, code, reason])
        for epoch in self._job.epochs:
            epoch.process_ended(number, code, reason)
        if self._ended.keys() >= {*range(self._job.world_size)}:
            for guard in self._guards.values():
                self._store.send(guard, Kind.FINISHED_NOTICE, 0)
        self._admissions.look(self._job.epoch)

    def _report_fault(self, _connection: Connection, _request_id: int, code: int, text: bytes) -> Answer:
        if self._fault is None:
            self._fault = [code, text]
            self._tell_watchers(Kind.FAULT_NOTICE, self._fault)
        return ()

    def connection_closed(self, connection: Connection) -> None:
        """Record the end of a guard's process with its guard."""
        self._watchers.pop(connection, None)
        if connection.guards is not None:
            del self._guards[connection.guards]
            self._record_end(
                connection.guards, UNKNOWN_CODE, b"ended with its guard, which was killed, or its host was lost"
            )
