"""NCCL through CuPy: found, new enough, and its errors turned into ours.

CuPy's binding has the blocking calls only (14.2: NcclConfig has no `blocking`, and there is no registration of memory),
so whatever may hang is called on a thread that nobody waits for longer than a limit.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lanterne.errors import TransportError, TransportTimeout, Unavailable
from lanterne.kernels.arrays import require_device
from lanterne.transport.rank_group import Group

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

T = TypeVar("T")
# Point to point came with 2.7, several ranks on one GPU with 2.30.
LEAST_VERSION, SHARED_GPU_VERSION = 20700, 23000
SHARED_GPU_VARIABLE, HOST_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_HOSTID"
# Several ranks on one GPU take turns: NCCL's kernels are kept small, and features for several GPUs are off.
SHARED_GPU_ENVIRONMENT = {SHARED_GPU_VARIABLE: "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}
# ncclDataType_t and ncclRedOp_t.
DATATYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "bool": 1,
}  # fmt: skip
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
UINT8 = DATATYPES["uint8"]


def load_nccl() -> Any:
    """The module cupy.cuda.nccl.

    Raises:
        Unavailable: no GPU, no NCCL for this CuPy, or one older than 2.7.
    """
    require_device()
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise Unavailable(f"NCCL: {error}; {_advice()}") from error
    if not getattr(nccl, "available", True):
        raise Unavailable(f"NCCL: CuPy found no libnccl.so.2; {_advice()}")
    return check_version(nccl)


def check_version(nccl: Any) -> Any:
    """`nccl`, if it is new enough.

    Raises:
        Unavailable: it is not.
    """
    version = nccl.get_version()
    if version < LEAST_VERSION:
        raise Unavailable(f"NCCL: got version {version_text(version)}, expected 2.7 or newer; {_advice()}")
    return nccl


def check_devices(seats: Iterable[tuple[str, str]], nccl_version: int) -> None:
    """Raise unless the ranks' GPUs can be a communicator. `seats`: (host, device identity) of every rank, equal on all.

    Raises:
        Unavailable: ranks share a GPU, and this NCCL cannot do that, or is not told to.
    """
    first: dict[tuple[str, str], int] = {}
    for rank, seat in enumerate(seats):
        if first.setdefault(seat, rank) == rank:
            continue
        shared = f"nccl: ranks {first[seat]} and {rank} share device {seat[1]}"
        advice = "start at most as many ranks as there are GPUs"
        if os.environ.get(SHARED_GPU_VARIABLE) != "1":
            raise Unavailable(f"{shared}; {advice}, or set {SHARED_GPU_VARIABLE}=1 for a test")
        if nccl_version < SHARED_GPU_VERSION:
            raise Unavailable(
                f"{shared}, which NCCL can from version 2.30 on, and this is {version_text(nccl_version)}; {advice}, "
                f"give each rank a {HOST_VARIABLE} of its own for a test, or use --transport mpi or ucx"
            )


def pose_as_host(nccl_version: int, group: Group, num_devices: int) -> None:
    """Where this host's ranks are to share its GPUs, and NCCL cannot yet, let NCCL take each of them for a host.

    Their messages then go through sockets: good for a test, slow. Sets variables of this process that are not set.
    """
    if nccl_version >= SHARED_GPU_VERSION or os.environ.get(SHARED_GPU_VARIABLE) != "1":
        return
    if group.hosts.count(group.host) > num_devices:
        os.environ.setdefault(HOST_VARIABLE, f"{group.host}-{group.rank}".replace("/", "-"))
        if len(set(group.hosts)) == 1:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def version_text(version: int) -> str:
    """NCCL's version number as people write it: 21805 is 2.18.5, 2708 is 2.7.8."""
    base = 10000 if version >= 10000 else 1000
    return f"{version // base}.{version % base // 100}.{version % 100}"


def make_communicator(nccl: Any, world_size: int, unique_id: bytes, rank: int) -> Any:
    """The NcclCommunicator of `rank`. Returns once all ranks have called it, or never."""
    try:
        return nccl.NcclCommunicator(world_size, unique_id, rank)
    except TypeError:
        # Before CuPy 14 the id is a tuple of signed chars.
        signed = tuple(byte - 256 if byte > 127 else byte for byte in unique_id)
        return nccl.NcclCommunicator(world_size, signed, rank)


class LimitedCall(Generic[T]):
    """`function()`, begun on a daemon thread, which `runtime` adopts, if it is given."""

    def __init__(self, function: Callable[[], T], what: str, runtime: "CudaRuntime | None" = None) -> None:
        self._what = what
        self._results: list[T] = []
        self._errors: list[Exception] = []

        def run() -> None:
            try:
                if runtime is not None:
                    runtime.adopt_thread()
                self._results.append(function())
            except Exception as error:
                self._errors.append(error)

        self._thread = threading.Thread(target=run, daemon=True, name=f"lanterne-{what}")
        self._thread.start()

    def has_ended(self, limit_s: float) -> bool:
        """Whether it has returned or raised, after `limit_s` seconds at most."""
        self._thread.join(limit_s)
        return bool(self._results or self._errors)

    def result(self, limit_s: float) -> T:
        """What it returned.

        Raises:
            TransportTimeout: it has not returned after `limit_s` seconds; the thread is left behind.
            TransportError: it raised what is no error of ours.
        """
        if not self.has_ended(limit_s):
            raise TransportTimeout(f"{self._what}: did not return within {limit_s:g} s")
        for error in self._errors:
            if isinstance(error, TransportError):
                raise error
            raise reported(self._what, error) from error
        return self._results[0]


def call_with_limit(function: Callable[[], T], what: str, limit_s: float, runtime: "CudaRuntime | None" = None) -> T:
    """The result of `function()`, run on a daemon thread; arguments and errors as LimitedCall's."""
    return LimitedCall(function, what, runtime).result(limit_s)


def reported(what: str, error: Exception) -> TransportError:
    """The TransportError of what NCCL has raised. It names no rank, though it may be of one that is gone."""
    found = TransportError(f"{what}: {describe(error)}")
    found.rank_unknown = True
    return found


def describe(error: Exception) -> str:
    """One line about an error of CuPy's binding, which looks some of NCCL's codes up in a table without them."""
    if isinstance(error, KeyError):
        return {"6": "NCCL_ERROR_REMOTE_ERROR", "7": "NCCL_ERROR_IN_PROGRESS"}.get(str(error), f"NCCL error {error}")
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _advice() -> str:
    return "pip install --upgrade nvidia-nccl-cu12 (or -cu13), which lanterne[cuda12] (or [cuda13]) brings"
