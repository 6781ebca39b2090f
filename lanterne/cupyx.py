"""What `cupyx.distributed` offers, over lanterne: `NCCLBackend`, `init_process_group`, CuPy's arguments and errors.

    from lanterne.cupyx import NCCLBackend       # in the place of: from cupyx.distributed import NCCLBackend
    comm = NCCLBackend(2, rank)
    comm.all_reduce(x, y)

Dense arrays only. `communicator` is what is behind it, with all that lanterne has beside: late ranks, timeouts, groups.
"""

# So that help() says `Array`, not all that it may be.
from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import init
from lanterne.errors import InputError, LanterneError
from lanterne.kernels.arrays import Stream

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 13333
# What CuPy's backend takes: characters of dtypes, and ops.
DTYPES, COMPLEX, OPS = "bBiIlLqQefdFD", "FD", ("sum", "prod", "max", "min")

_joining = threading.Lock()


class NCCLBackend:
    """A communicator with the methods of `cupyx.distributed.NCCLBackend`.

    Args:
        n_devices: how many ranks there are, a device each.
        rank: of this one; its device is the current one.
        host, port: where rank 0 listens.
        use_mpi: the job is MPI's: host and port are not needed.
        transport: as `lanterne.init` has it.

    Attributes: `communicator`, the lanterne.Communicator; `rank`.

    Raises:
        InputError, Unavailable, TransportTimeout: as `lanterne.init`.
    """

    def __init__(
        self,
        n_devices: int,
        rank: int,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        use_mpi: bool = False,
        *,
        transport: str = "nccl",
    ) -> None:
        with _variables({} if use_mpi else _job(n_devices, rank, host, port)):
            self.communicator: Communicator = init(transport)
        if self.communicator.world_size != n_devices:
            raise InputError(f"NCCLBackend: got {n_devices} devices in a job of {self.communicator.world_size} ranks")
        self.rank: int = self.communicator.rank

    def all_reduce(self, in_array: Any, out_array: Any, op: str = "sum", stream: Stream = None) -> None:
        """out_array = the reduction of the in_arrays of all ranks."""
        given, out = _dense(in_array), _dense(out_array)
        self.communicator.all_reduce(given, out, _op(op, given), stream)

    def reduce(self, in_array: Any, out_array: Any, root: int = 0, op: str = "sum", stream: Stream = None) -> None:
        """As all_reduce, for rank `root` only."""
        given = _dense(in_array)
        out = _dense(out_array) if self.rank == root else None
        self.communicator.reduce(given, out, root, _op(op, given), stream)

    def broadcast(self, in_out_array: Any, root: int = 0, stream: Stream = None) -> None:
        """in_out_array = that of rank `root`."""
        self.communicator.broadcast(_dense(in_out_array), root, stream)

    def reduce_scatter(self, in_array: Any, out_array: Any, count: int, op: str = "sum", stream: Stream = None) -> None:
        """The first `count` elements of out_array = this rank's part of the reduction, of parts of so many."""
        given, out = _dense(in_array), _dense(out_array)
        parts = _first(given, count * self.communicator.world_size)
        self.communicator.reduce_scatter(parts, _first(out, count), _op(op, given), stream)

    def all_gather(self, in_array: Any, out_array: Any, count: int, stream: Stream = None) -> None:
        """out_array = the first `count` elements of the in_arrays of all ranks, in order."""
        given, out = _dense(in_array), _dense(out_array)
        parts = _first(out, count * self.communicator.world_size)
        self.communicator.all_gather(_first(given, count), parts, stream)

    def send(self, array: Any, peer: int, stream: Stream = None) -> None:
        """Send `array` to rank `peer`."""
        self.communicator.send(_dense(array), peer, stream)

    def recv(self, out_array: Any, peer: int, stream: Stream = None) -> None:
        """Receive from rank `peer`."""
        self.communicator.recv(_dense(out_array), peer, stream)

    def send_recv(self, in_array: Any, out_array: Any, peer: int, stream: Stream = None) -> None:
        """Send to rank `peer` and receive from it, at the same time; `peer` may be this rank."""
        self.communicator.send_recv(_dense(in_array), _dense(out_array), peer, stream)

    def scatter(self, in_array: Any, out_array: Any, root: int = 0, stream: Stream = None) -> None:
        """out_array = row `rank` of the in_array of rank `root`, of shape (ranks, ...)."""
        given = _dense(in_array) if self.rank == root else None
        self.communicator.scatter(given, _dense(out_array), root, stream)

    def gather(self, in_array: Any, out_array: Any, root: int = 0, stream: Stream = None) -> None:
        """out_array of rank `root`, of shape (ranks, ...), = the in_arrays of all ranks."""
        out = _dense(out_array) if self.rank == root else None
        self.communicator.gather(_dense(in_array), out, root, stream)

    def all_to_all(self, in_array: Any, out_array: Any, stream: Stream = None) -> None:
        """Row r of out_array = row `rank` of the in_array of rank r; both of shape (ranks, ...)."""
        self.communicator.all_to_all(_dense(in_array), _dense(out_array), stream)

    def barrier(self) -> None:
        """Return once every rank has called it; the program waits, not the stream."""
        self.communicator.barrier()

    def stop(self) -> None:
        """Leave the job; a second call does nothing."""
        self.communicator.close()

    def __del__(self) -> None:
        # CuPy's programs drop it and end: what they have queued is to leave this process before.
        with suppress(AttributeError, LanterneError):
            self.stop()


def init_process_group(
    n_devices: int,
    rank: int,
    *,
    backend: str = "nccl",
    host: str | None = None,
    port: int | None = None,
    use_mpi: bool = False,
) -> NCCLBackend:
    """As `cupyx.distributed.init_process_group`: an NCCLBackend; host and port by CUPYX_DISTRIBUTED_HOST and _PORT.

    Raises:
        ValueError: fewer than one device, or another backend.
        InputError, Unavailable, TransportTimeout: as NCCLBackend.
    """
    if n_devices <= 0:
        raise ValueError(f"init_process_group: got {n_devices} devices, expected 1 or more")
    if backend != "nccl":
        raise ValueError(f"init_process_group: got backend {backend!r}, expected nccl")
    if not 0 <= rank < n_devices:
        raise ValueError(f"init_process_group: got rank {rank}, expected 0 to {n_devices - 1}")
    host = host or os.environ.get("CUPYX_DISTRIBUTED_HOST", DEFAULT_HOST)
    port = port or int(os.environ.get("CUPYX_DISTRIBUTED_PORT", DEFAULT_PORT))
    return NCCLBackend(n_devices, rank, host, port, use_mpi)


def _dense(array: Any) -> Any:
    """`array` in the order of its memory, C-contiguous; errors are CuPy's."""
    if not hasattr(array, "flags"):
        raise TypeError(f"NCCLBackend: got {type(array).__name__}, expected a dense array")
    if array.dtype.char not in DTYPES:
        raise TypeError(f"NCCLBackend: got dtype {array.dtype}, expected one of {', '.join(DTYPES)}")
    if array.flags.c_contiguous:
        return array
    if not array.flags.f_contiguous:
        raise RuntimeError("NCCLBackend: got an array that is not contiguous, expected one in C or Fortran order")
    return array.T


def _first(array: Any, count: int) -> Any:
    return array.reshape(-1)[:count]


def _op(op: str, array: Any) -> str:
    if op not in OPS:
        raise RuntimeError(f"NCCLBackend: got op {op!r}, expected one of {', '.join(OPS)}")
    if array.dtype.char in COMPLEX and op != "sum":
        raise ValueError(f"NCCLBackend: got op {op} of {array.dtype}, expected sum")
    return op


def _job(n_devices: int, rank: int, host: str, port: int) -> dict[str, str]:
    return {"WORLD_SIZE": str(n_devices), "RANK": str(rank), "MASTER_ADDR": host, "MASTER_PORT": str(port)}


@contextmanager
def _variables(wanted: dict[str, str]) -> Iterator[None]:
    """A block in which the environment has `wanted`, which `init` reads."""
    with _joining:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
