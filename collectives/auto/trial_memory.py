"""The memory that `auto` is measured with (learn.py, trials.py): of the host, or of the device over nccl."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lanterne.kernels.arrays import Array
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.kernels.staging import wait_for
from lanterne.transport.base import Transport


class Group(Protocol):
    """What is measured: what `auto` uses of a Communicator."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def timeout_s(self) -> float: ...
    def all_reduce(
        self, in_array: Array, out_array: Array, op: str = "sum", *, algorithm: str, num_chunks: int | None = None
    ) -> None: ...
    def reduce_scatter(self, in_array: Array, out_array: Array, *, algorithm: str) -> None: ...
    def all_gather(self, in_array: Array, out_array: Array, *, algorithm: str) -> None: ...
    def broadcast(self, in_out_array: Array, root: int = 0, *, algorithm: str) -> None: ...
    def barrier(self, *, algorithm: str) -> None: ...


def trial_array(communicator: Group, count: int) -> NDArray[np.float32] | DeviceView:
    """(count,) float32, of whatever values where it is device memory."""
    runtime = _runtime(communicator)
    if runtime is None:
        return np.ones(count, np.float32)
    memory = runtime.empty(4 * count, "trial")
    return DeviceView(memory.address, count, np.dtype(np.float32), owner=memory)


def finish(communicator: Group) -> None:
    """Return once a call with such arrays is done, which over nccl has returned before."""
    runtime = _runtime(communicator)
    if runtime is not None:
        done = runtime.record(runtime.current_stream())
        wait_for(lambda: runtime.is_done(done), "trial", communicator.timeout_s)


def _runtime(communicator: Group) -> CudaRuntime | None:
    transport = communicator.transport
    return transport.runtime if transport.capabilities.stream_ordered else None
