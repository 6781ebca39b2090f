"""Devices with streams: what lanterne needs of each kind beside torch's own module of it. CUDA is one."""

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import join
from lanterne.kernels.arrays import CONNECTIONS_VARIABLE, MOST_CONNECTIONS, Stream
from lanterne.kernels.dtypes import Op
from lanterne.kernels.staging import pinned_empty
from lanterne.torch.meeting import Meeting

_WORD = 1 << 32
# Before torch begins to use CUDA: a stream that is held up must not hold up others.
os.environ.setdefault(CONNECTIONS_VARIABLE, str(MOST_CONNECTIONS))


class Gate(Protocol):
    """A number in memory that streams wait for."""

    def hold(self, stream: Stream) -> int:
        """Hold up what `stream` is given from now on; return the number to `open` it by."""
        ...

    def open(self, number: int, stream: Stream | None = None) -> None:
        """Let go on what `hold` held up until `number`, in the order of numbers.

        Args:
            stream: wait until it reaches this point; None: at once.
        """


class Accelerator(Protocol):
    """One kind of device.

    Attributes:
        kind: type of torch's devices.
        module: torch's module of it, such as torch.cuda.
        native: name of torch's own backend for it; None without one.
    """

    @property
    def kind(self) -> str: ...
    @property
    def module(self) -> Any: ...
    @property
    def native(self) -> str | None: ...

    def gate(self, device: torch.device) -> Gate:
        """Return a Gate for streams of `device`."""
        ...

    def new_stream(self, device: torch.device) -> Any:
        """Return a stream of `device` that nobody else has; torch hands out its own ones more than once."""
        ...

    def adopt_thread(self, device: torch.device) -> None:
        """Make a thread that lanterne started work on `device`."""

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        ...

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor in host memory with the shape and dtype of `tensor`, for asynchronous copies."""
        ...

    def all_reduce(self, comm: Communicator, tensor: torch.Tensor, op: Op, stream: Stream, timeout_s: float) -> None:
        """Reduce a contiguous `tensor` in place over the ranks of `comm`, in the order of `stream`."""

    def join(
        self, place: Meeting, rank: int, world_size: int, timeout_s: float, *, deterministic: bool
    ) -> Communicator:
        """Return a Communicator of device memory of the ranks that meet at `place`."""
        ...


class Cuda:
    """CUDA devices; needs CuPy (extras cuda12, cuda13)."""

    kind = "cuda"
    module: Any = torch.cuda

    @property
    def native(self) -> str | None:
        return "nccl" if dist.is_nccl_available() else None

    def gate(self, device: torch.device) -> Gate:
        return _CudaGate(device)

    def new_stream(self, device: torch.device) -> Any:
        stream = _runtime_of(device).new_stream()
        made: Any = torch.cuda.ExternalStream(stream.ptr, device=device)
        made.owner = stream
        return made

    def adopt_thread(self, device: torch.device) -> None:
        _runtime_of(device).adopt_thread()
        torch.cuda.set_device(device)

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def all_reduce(self, comm: Communicator, tensor: torch.Tensor, op: Op, stream: Stream, timeout_s: float) -> None:
        comm.all_reduce(tensor, tensor, op, stream, timeout_s=timeout_s)

    def join(
        self, place: Meeting, rank: int, world_size: int, timeout_s: float, *, deterministic: bool
    ) -> Communicator:
        return join(place, rank, world_size, "nccl", timeout_s, deterministic=deterministic)


class _CudaGate:
    """A word of pinned memory that CUDA's streams wait for without a multiprocessor."""

    def __init__(self, device: torch.device) -> None:
        self._runtime = _runtime_of(device)
        self._word = pinned_empty(self._runtime, 4).view("uint32")
        self._word[0] = 0
        self._last = 0

    def hold(self, stream: Stream) -> int:
        self._last = (self._last + 1) % _WORD
        self._runtime.wait_flag(self._word.ctypes.data, self._last, self._runtime.as_stream(stream))
        return self._last

    def open(self, number: int, stream: Stream | None = None) -> None:
        if stream is not None:
            self._runtime.write_flag(self._word.ctypes.data, number, self._runtime.as_stream(stream))
        else:
            self._word[0] = number


def _runtime_of(device: torch.device) -> Any:
    from lanterne.kernels.cuda.runtime import CudaRuntime

    return CudaRuntime(device.index)


# By the type of torch's devices.
KINDS: dict[str, Callable[[], Accelerator]] = {"cuda": Cuda}


def accelerator_here() -> Accelerator | None:
    """Return the Accelerator of this machine; None without one that lanterne serves."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None or found.type not in KINDS else KINDS[found.type]()
