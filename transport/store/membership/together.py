"""Collective requests of an epoch's members at the store: votes and gathers, answered to all at once."""

from collections.abc import Collection
from typing import NamedTuple

from lanterne.transport.store.handler import Connection, Refusal, Service
from lanterne.transport.wire import MAX_BODY_NBYTES


class Waiting(NamedTuple):
    """Request that is answered later."""

    connection: Connection
    request_id: int


class Votes:
    """Votes of the ranks on how the job ends: together if all are willing."""

    def __init__(self, store: Service) -> None:
        self._store = store
        self._willing: dict[int, bool] = {}
        self._waiting: dict[int, Waiting] = {}

    def vote(self, rank: int, willing: bool, waiting: Waiting, size: int) -> None:
        """Record the vote of `rank`, of `size`, which waits for the outcome; its first vote counts."""
        self._waiting[rank] = waiting
        self._willing.setdefault(rank, willing)
        self._count(size)

    def is_gone(self, rank: int, size: int) -> None:
        """Count `rank` as not willing if it has not voted: it has gone."""
        if not self._willing.setdefault(rank, False):
            self._count(size)

    def _count(self, size: int) -> None:
        together = all(self._willing.values())
        if not together or len(self._willing) == size:
            for waiting in self._waiting.values():
                self._store.reply(*waiting, [int(together)])
            self._waiting.clear()


class Gathers:
    """Gathers by name: once the last member has arrived, all get the bytes of all, in rank order."""

    def __init__(self, store: Service) -> None:
        self._store = store
        self._brought: dict[bytes, dict[int, tuple[Waiting, bytes]]] = {}

    def bring(self, name: bytes, rank: int, payload: bytes, waiting: Waiting, size: int) -> None:
        """Add the `payload` of `rank`, of `size`, which waits for those of the others.

        Raises:
            Refusal: the answer would be too long.
        """
        if len(payload) * size > MAX_BODY_NBYTES // 2:
            raise Refusal(f"got {len(payload)} bytes from each rank, expected at most {MAX_BODY_NBYTES // 2 // size}")
        brought = self._brought.setdefault(name, {})
        brought[rank] = waiting, payload
        if len(brought) == size:
            del self._brought[name]
            payloads = [brought[rank][1] for rank in range(size)]
            for each, _payload in brought.values():
                self._store.reply(*each, payloads)

    def present(self, name: bytes) -> Collection[int]:
        """Return the ranks that have arrived at a gather that is not over."""
        return self._brought.get(name, {}).keys()
