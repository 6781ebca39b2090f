"""A process group that is made of other ranks again and again: what torchft's Manager drives.

Another party, such as torchft's lighthouse, decides which ranks are in it; `Communicator.shrink` decides it itself.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from lanterne.collectives.jobs import join
from lanterne.errors import InputError, LanterneError
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.torch_internals import limit_of, store_at, torch_errors


class ReconfigurableGroup(LanterneGroup):
    """A process group of the ranks of the last `configure`, until the first of this rank alone.

    Args:
        timeout: of `configure`, and of calls that are given none.
        transport, deterministic: as lanterne.join has them.
    """

    def __init__(
        self,
        timeout: timedelta = timedelta(seconds=60),
        transport: str | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        timeout_s = limit_of("ReconfigurableGroup", timeout)
        self._transport, self._deterministic = transport, deterministic
        with torch_errors():
            alone = join(dist.HashStore(), 0, 1, transport, timeout_s, deterministic=deterministic)
            super().__init__(alone, timeout_s, lambda _group: None)

    def rank(self) -> int:
        """Of this process, in the group that there is now."""
        return self.communicator.rank

    def size(self) -> int:
        """Of the group that there is now."""
        return self.communicator.world_size

    getRank, getSize = rank, size

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: Sequence[int] | None = None,
    ) -> None:
        """End the group that there is, and make one of `world_size` ranks, all of which call this.

        Args:
            store_addr: HOST:PORT/PREFIX of a store of torch's; the prefix is new for each call that ranks share.
            rank: of this process in the new group.
            replica_id, quorum_id, group_rank, group_world_size, global_ranks: what else torchft tells; not used.

        Raises:
            ValueError: arguments that cannot be; the group that there is goes on.
            DistBackendError: a rank did not come, or died; the group has ended, until the next call.
            DistNetworkError, DistStoreError: the store is not there, or a rank did not come to it.
        """
        if not 0 <= rank < world_size:
            raise InputError(f"configure: got rank {rank} of {world_size}, expected 0 to {world_size - 1}")
        host, port, prefix = _parts_of(store_addr)
        timeout_s = self.communicator.timeout_s
        self._leave("configured anew")
        with torch_errors():
            place = store_at(host, port, prefix, timeout_s)
            made = join(place, rank, world_size, self._transport, timeout_s, deterministic=self._deterministic)
            self._adopt(made, timeout_s)

    def _leave(self, reason: str) -> None:
        """End the communicator that there is; nobody is waited for."""
        self.communicator.abort(reason)
        with suppress(LanterneError):
            self.communicator.close()


def _parts_of(address: str) -> tuple[str, int, str]:
    """(host, port, prefix) of HOST:PORT/PREFIX."""
    place, _, prefix = address.partition("/")
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"configure: got store {address!r}, expected HOST:PORT/PREFIX")
    return host.strip("[]"), int(port), prefix
