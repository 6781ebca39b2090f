"""A transport around another: what all of them pass on."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from lanterne.errors import PeerFailed
from lanterne.transport.base import Capabilities, Transport
from lanterne.transport.machine import Lock, Machine
from lanterne.transport.pauses import Pauses

if TYPE_CHECKING:
    from lanterne.transport.board.seat import Seat
    from lanterne.transport.store.client import StoreClient


class Wrapper(Transport):
    """Moves messages over `inner`, changed by whoever derives from this. Closed with it.

    Args:
        name: of this one.
        capabilities: None for those of `inner`.
    """

    def __init__(self, inner: Transport, name: str, capabilities: Capabilities | None = None) -> None:
        self.inner = inner
        self.name = name
        self.rank: int = inner.rank
        self.world_size: int = inner.world_size
        self.capabilities: Capabilities = capabilities or inner.capabilities
        self.timeout_s: float = inner.timeout_s
        self.machine: Machine = inner.machine
        self.pauses: Pauses = inner.pauses

    def open_board(self, key: str, rank: int, world_size: int) -> "Seat | None":
        return self.inner.open_board(key, rank, world_size)

    @property
    def lock(self) -> Lock:
        return self.inner.lock

    @property
    def store(self) -> "StoreClient | None":
        return self.inner.store

    def keep(self, thing: object) -> None:
        self.inner.keep(thing)

    def take_in(self) -> bool:
        return self.inner.take_in()

    def check_peers(self, peers: Iterable[int]) -> None:
        self.inner.check_peers(peers)

    @property
    def left(self) -> Collection[int]:
        return self.inner.left

    def survivors(
        self, name: str, ranks: Sequence[int], cut: Sequence[int], payload: bytes, limit_s: float
    ) -> dict[int, bytes]:
        return self.inner.survivors(name, ranks, cut, payload, limit_s)

    def cut_off(self, ranks: Iterable[int]) -> tuple[int, ...]:
        return self.inner.cut_off(ranks)

    def forget(self, communicator_id: int) -> None:
        self.inner.forget(communicator_id)

    def retire(self, communicator_id: int) -> bool:
        return self.inner.retire(communicator_id)

    def reopen(self, communicator_id: int) -> None:
        self.inner.reopen(communicator_id)

    def first_death(self, ranks: Iterable[int]) -> PeerFailed | None:
        return super().first_death(ranks) or self.inner.first_death(ranks)

    def end_soon(self) -> None:
        self.inner.end_soon()

    def settle(self) -> None:
        self.inner.settle()

    def close(self) -> None:
        self.inner.close()
        self.closed = True
