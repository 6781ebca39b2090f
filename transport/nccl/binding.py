"""NCCL through CuPy, or nccl4py: found, new enough, and its errors turned into ours.

CuPy's binding has the blocking calls only (14.2: NcclConfig has no `blocking`, and there is no registration of memory),
so whatever may hang is called on a thread that nobody waits for longer than a limit. LANTERNE_NCCL=nccl4py takes
NVIDIA's own (nccl4py.py), whose calls do not block.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lanterne.errors import InputError, TransportError, TransportTimeout, Unavailable, one_of
from lanterne.kernels.arrays import import_cupy, require_device
from lanterne.transport.nccl.nccl4py import load_nccl4py, versions_of
from lanterne.transport.nccl.versions import (
    SHARED_GPU_VERSION,
    Versions,
    asked,
    check_together,
    newer,
    version_text,
    with_cupy,
)
from lanterne.transport.rank_group import Group

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

T = TypeVar("T")
BINDING_VARIABLE, BINDINGS = "LANTERNE_NCCL", ("cupy", "nccl4py")
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
    """The module cupy.cuda.nccl, or what LANTERNE_NCCL names.

    Raises:
        Unavailable: no GPU, no NCCL for this binding, or versions that do not go together; names all of them.
        InputError: LANTERNE_NCCL names no binding.
    """
    name = binding_name()
    require_device()
    return checked(*find_nccl(name))


def binding_name() -> str:
    """The one of BINDINGS that is to be taken.

    Raises:
        InputError: LANTERNE_NCCL names none.
    """
    name = os.environ.get(BINDING_VARIABLE) or BINDINGS[0]
    if name not in BINDINGS:
        raise InputError(f"{BINDING_VARIABLE}: {one_of(name, BINDINGS)}")
    return name


def find_nccl(name: str) -> tuple[Any, Versions]:
    """NCCL through the binding `name`, of BINDINGS, and the versions that are here, whether they go together or not.

    Raises:
        Unavailable: the binding is not installed.
    """
    cupy = import_cupy()
    if name == "nccl4py":
        library = load_nccl4py()
        return library, versions_of(library, asked(cupy.cuda.runtime.driverGetVersion))
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise Unavailable(f"NCCL: {error}; got {with_cupy(cupy, None)}; {newer()}") from error
    here = getattr(nccl, "available", True)
    return nccl, with_cupy(cupy, asked(nccl.get_version) if here else None)


def checked(library: Any, found: Versions) -> Any:
    """`library`, if it has found an NCCL, and this goes with the driver and the binding.

    Raises:
        Unavailable: it does not; names the versions, and what fits.
    """
    if found.nccl is None:
        raise Unavailable(f"NCCL: no libnccl.so.2 was found; got {found}; {newer()}")
    check_together(found)
    return library


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


def make_communicator(nccl: Any, world_size: int, unique_id: bytes, rank: int, limit_s: float) -> Any:
    """The NcclCommunicator of `rank`. Returns once all ranks have called it; CuPy's or never."""
    if hasattr(nccl, "start"):
        return nccl.start(world_size, unique_id, rank, limit_s)
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
