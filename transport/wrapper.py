"""A transport around another: what all of them pass on."""

from collections.abc import Iterable
from dataclasses import replace

from lanterne.transport.base import Capabilities, Transport
from lanterne.transport.pauses import Pauses


class Wrapper(Transport):
    """Transport over `inner`, whose messages a derived class changes. Closed with it.

    Args:
        name: of this one.
        capabilities: None for those of `inner`.
    """

    def __init__(self, inner: Transport, name: str, capabilities: Capabilities | None = None) -> None:
        super().__init__(inner.rank, inner.world_size, inner.membership, machine=inner.machine)
        self.inner = inner
        self.name = name
        self.timeout_s: float = inner.timeout_s
        # The next epoch of a job would have a transport without the wrapper.
        self.capabilities: Capabilities = replace(capabilities or inner.capabilities, grows=False)
        self.pauses: Pauses = inner.pauses
        self.lock = inner.lock
        self.unreachable = inner.unreachable
        self.kept = inner.kept
        self.closed_ids = inner.closed_ids

    def take_in(self) -> bool:
        return self.inner.take_in()

    def check_peers(self, peers: Iterable[int]) -> None:
        self.inner.check_peers(peers)

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        return self.inner.retire(communicator_id, orderly=orderly)

    def settle(self) -> None:
        self.inner.settle()

    def close(self) -> None:
        self.inner.close()
        self.closed = True
