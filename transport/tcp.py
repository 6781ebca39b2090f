"""Ranks as processes, over TCP connections of our own: host memory, no library.

What nccl falls back on where there is neither MPI nor UCX. A message costs a copy; it is meant for what ranks tell each
other, not for speed.
"""

from lanterne.transport.local import LocalWorld
from lanterne.transport.pauses import Pauses
from lanterne.transport.rails.spare import SpareTransport


class TcpTransport(SpareTransport):
    """One rail between any two ranks, in use from the start; to itself a rank sends in its own memory.

    Args:
        group: a bootstrap.Group.
        timeout_s: the default of every wait.

    Raises:
        TransportError: a rank did not come.
    """

    def __init__(self, group, timeout_s=None):
        inner = LocalWorld(group.world_size).transport(group.rank, timeout_s)
        super().__init__(inner, ("tcp",), lambda told: group.exchange("lanterne/tcp", told), group.check_peers)
        self.name, self._group = "tcp", group
        self.pauses = Pauses(group.ranks_here)
        for peer in self.peers.values():
            peer.path, peer.is_ready = peer.rail.index, True

    def open_board(self, key, rank, world_size):
        return self._group.open_board(key, rank, world_size)

    @property
    def store(self):
        return self._group.store
