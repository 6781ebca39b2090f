"""Ranks as processes, over TCP connections of our own: host memory, no library.

What jobs go over where there is neither MPI nor UCX, and nccl's host messages with them. A message costs a copy.
"""

from typing import TYPE_CHECKING

from lanterne.transport.local import LocalWorld
from lanterne.transport.pauses import Pauses
from lanterne.transport.rails.spare import SpareTransport
from lanterne.transport.rank_group import Group

if TYPE_CHECKING:
    from lanterne.transport.board.seat import StoreSeat
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
        self._group = group
        self.pauses: Pauses = group.machine.pauses(group.ranks_here)
        for peer in self.peers.values():
            peer.path = peer.rails[0].index
            peer.is_ready = True

    def open_board(self, key: str, rank: int, world_size: int) -> "StoreSeat | None":
        return self._group.open_board(key, rank, world_size)

    @property
    def store(self) -> "StoreClient | None":
        return self._group.store
