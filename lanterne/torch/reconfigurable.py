"""A process group that is made of other ranks again and again, as torchft's Manager and torch's `_reconfigure` do.

Another party, such as torchft's lighthouse, decides which ranks are in it; `Communicator.shrink` decides it itself.
"""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from lanterne.collectives.jobs import join
from lanterne.errors import InputError, LanterneError, TransportError, Unavailable
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.torch_internals import error_type, limit_of, renumber, store_at, store_served, torch_errors
from lanterne.torch.works import RequestWork
from lanterne.transport.job.bootstrap import shown_address


class ReconfigurableGroup(LanterneGroup):
    """A process group of the ranks of the last `configure` or `reconfigure`, until the first of this rank alone.

    torch makes one by `init_process_group("lanterne", enable_reconfigure=True)`, since 2.14.

    Args:
        timeout: timeout of `configure`, and the default of calls.
        transport, deterministic: as in lanterne.join.
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
        # Where the ranks of a `reconfigure` meet if this one is the first, and the instances that this rank was in.
        self._hall: Any = None
        self._uuids: set[int] = set()
        self._is_aborted = False

    def rank(self) -> int:
        """Return the rank of this process in the present group."""
        return self.communicator.rank

    def size(self) -> int:
        """Return the size of the present group."""
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
        """End the present group, and make one of `world_size` ranks, all of which call this.

        Args:
            store_addr: HOST:PORT/PREFIX of a store of torch's; the ranks of a call share the prefix, which is new.
            rank: rank of this process in the new group.
            replica_id, quorum_id, group_rank, group_world_size, global_ranks: further arguments of torchft; not used.

        Raises:
            ValueError: wrong arguments; the present group goes on.
            DistBackendError: a rank did not arrive, or died; the group has ended, until the next call.
            DistNetworkError, DistStoreError: the store cannot be reached, or a rank did not arrive there.
        """
        if not 0 <= rank < world_size:
            raise InputError(f"configure: got rank {rank} of {world_size}, expected 0 to {world_size - 1}")
        self._configure(*_parts_of(store_addr), rank, world_size, self.communicator.timeout_s)

    def _configure(self, host: str, port: int, prefix: str, rank: int, world_size: int, timeout_s: float) -> None:
        default_s = self.communicator.timeout_s
        self._leave("configured anew")
        with torch_errors():
            place = store_at(host, port, prefix, timeout_s)
            made = join(place, rank, world_size, self._transport, timeout_s, deterministic=self._deterministic)
            self._adopt(made, default_s)
        self._is_aborted = False
        renumber(self, world_size)

    # -- the same by torch's contract

    supports_reconfigure = True

    def get_reconfigure_handle(self) -> str:
        """Return what other ranks need to `reconfigure` with this one: HOST:PORT/NAME of a store that it serves."""
        if self._hall is None:
            try:
                host = shown_address("", several_hosts=True)
            except Unavailable:
                host = "127.0.0.1"  # The others can be on this host alone.
            self._hall = store_served(host, self.communicator.timeout_s), secrets.token_hex(8), host
        store, name, host = self._hall
        return f"{host}:{store.port}/{name}"

    def reconfigure(self, opts: Any) -> RequestWork:
        """End the present group, and make one of the ranks of `opts.handles`, all of which call this.

        Args:
            opts: torch's ReconfigureOptions: `uuid`, another one in each call of a rank; `handles`, a list in the order
                of ranks or a set; `timeout`, None for the group's.

        Raises:
            RuntimeError: a used uuid; the present group goes on.
            ValueError, DistBackendError: as `configure`.
        """
        uuid, mine = int(opts.uuid), self.get_reconfigure_handle()
        handles = list(opts.handles) if isinstance(opts.handles, list) else sorted(opts.handles)
        if uuid in self._uuids:
            # torch's contract has a RuntimeError here.
            raise TransportError(f"reconfigure: got uuid {uuid}, which is already used, expected a new one")
        if mine not in handles or len(set(handles)) != len(handles):
            raise InputError(f"reconfigure: got handles {handles}, expected different ones, also this rank's {mine}")
        self._uuids.add(uuid)
        host, port, name = _parts_of(handles[0])
        timeout_s = self.communicator.timeout_s if opts.timeout is None else limit_of("reconfigure", opts.timeout)
        self._configure(host, port, f"{name}/{uuid}", handles.index(mine), len(handles), timeout_s)
        return RequestWork((), timeout_s)

    def get_error(self) -> Any:
        """Return torch's ErrorType of what has ended the present group; its own `abort` is none."""
        return error_type(None if self._is_aborted else self.errored())

    def abort(self) -> None:
        """End the present group until it is configured again; current and later calls raise."""
        self._is_aborted = True
        super().abort()

    def shutdown(self) -> None:
        """End this group, and its store; a second call does nothing."""
        self._hall = None
        super().shutdown()

    def _leave(self, reason: str) -> None:
        """End the present communicator, without a wait for other ranks."""
        self.communicator.abort(reason)
        with suppress(LanterneError):
            self.communicator.close()


def _parts_of(address: str) -> tuple[str, int, str]:
    """Return the host, port and prefix of HOST:PORT/PREFIX."""
    place, _, prefix = address.partition("/")
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"configure: got store {address!r}, expected HOST:PORT/PREFIX")
    return host.strip("[]"), int(port), prefix
