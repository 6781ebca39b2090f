"""What the members of an epoch do together at the store: each brings something, and all are answered at once."""

from collections.abc import Collection
from typing import NamedTuple

from lanterne.transport.store.handler import Connection, Refusal, Service
from lanterne.transport.wire import MAX_BODY_NBYTES


class Waiting(NamedTuple):
    """A request that is answered later."""

    connection: Connection
    request_id: int


class Votes:
    """The ranks' votes on how the job is to end: together if all are willing, which each that has voted is told."""

    def __init__(self, store: Service) -> None:
        self._store = store
        self._willing: dict[int, bool] = {}
        self._waiting: dict[int, Waiting] = {}

    def vote(self, rank: int, willing: bool, waiting: Waiting, size: int) -> None:
        """`rank`, of `size`, waits for the outcome; its first vote counts."""
        self._waiting[rank] = waiting
        self._willing.setdefault(rank, willing)
        self._count(size)

    def is_gone(self, rank: int, size: int) -> None:
        """`rank` votes no more; one that has not is not willing."""
        if not self._willing.setdefault(rank, False):
            self._count(size)

    def _count(self, size: int) -> None:
        together = all(self._willing.values())
        if not together or len(self._willing) == size:
            for waiting in self._waiting.values():
                self._store.reply(*waiting, [int(together)])
            self._waiting.clear()


class Gathers:
    """Bytes that the members bring together under a name: once the last has come all get all of them, in rank order."""

    def __init__(self, store: Service) -> None:
        self._store = store
        self._brought: dict[bytes, dict[int, tuple[Waiting, bytes]]] = {}

    def bring(self, name: bytes, rank: int, payload: bytes, waiting: Waiting, size: int) -> None:
        """`rank`, of `size`, brings `payload`, and waits for what the others bring.

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
        """The ranks that have come to a gather that is not over."""
        return self._brought.get(name, {}).keys()
