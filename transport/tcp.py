"""Ranks as processes, over TCP connections of our own: host memory, no library.

What jobs go over where there is neither MPI nor UCX, and nccl's host messages with them. A message costs a copy.
"""

from lanterne.transport.base import Transport
from lanterne.transport.local import LocalWorld
from lanterne.transport.pauses import Pauses
from lanterne.transport.rails.spare import SpareTransport
from lanterne.transport.rank_group import Group
from lanterne.transport.store.client import StoreClient


class TcpTransport(SpareTransport):
    """One rail between any two ranks, in use from the start; to itself a rank sends in its own memory.

    Args:
        timeout_s: the default of every wait.

    Raises:
        TransportError: a rank did not come.
    """

    def __init__(self, group: Group, timeout_s: float | None = None) -> None:
        inner = LocalWorld(group.world_size, group.machine).transport(group.rank, timeout_s)
        super().__init__(inner, ("tcp",), lambda told: group.exchange("lanterne/tcp", told), group.check_peers)
        self.name = "tcp"
        self._job = group
        self.pauses: Pauses = group.machine.pauses(group.ranks_here)
        for peer in self.peers.values():
            peer.path = peer.rails[0].index
            peer.is_ready = True

    # The job's, not that of `inner`; so is the store.
    open_board = Transport.open_board

    @property
    def store(self) -> StoreClient | None:
        return None if self._job is None else self._job.store

