"""Stages on a device, for an executor on the host: over data planes of the host, what comes is copied there and back.

    device = cuda_device(comm)
    trainer = Trainer(comm, model, data, plans, device=device)
    Adapter(comm, trainer.plans, trainer.plane, durations_s=trainer.device.durations_s)

So every data plane of the host carries a device's messages as it does a host's, through pinned memory
(message_staging.py); that of device memory (planes/streams.py) is given the stages as they are.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError
from lanterne.kernels.arrays import HostArray, Stream, import_cupy
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.pipeline.device.device_times import AnyIteration, AnyStage, DeviceTimes, TimedIteration
from lanterne.pipeline.device.message_staging import MessageStaging


class Plane(Protocol):
    """What a Device asks of a data plane."""

    @property
    def on_device(self) -> bool:
        """See DataPlane."""
        ...


class Device:
    """Where the stages of a rank compute.

    Args:
        xp: the array module, cupy.

    Attributes:
        stream: that the stages compute on: the one that is current when this is made.
        durations_s: as DeviceTimes has it, for a Profiler: of the stages that `run` gave.
        stagings: id of a data plane's buffer -> the MessageStaging that copies to and from it.
    """

    def __init__(self, xp: ModuleType, runtime: CudaRuntime) -> None:
        self.xp: Any = xp
        self.runtime = runtime
        self.stagings: dict[int, MessageStaging] = {}
        self._times = DeviceTimes(runtime)
        self.stream: Stream = self._times.stream
        self.durations_s: Callable[[TimedIteration], NDArray[np.float64]] = self._times.durations_s

    def run(self, stage: AnyStage, plane: Plane) -> AnyStage:
        """What the executor is to be given in place of `stage`, over `plane`: timed by events, with messages there."""
        timed = self._times.watch(stage)
        edges: Any = timed if plane.on_device else HostEdges(timed, self)
        return edges

    def by_its_clock(self, measured: AnyIteration) -> AnyIteration:
        """The Measured of the iteration that has just ended, with the device's times; see DeviceTimes.placed."""
        return self._times.placed(measured)

    def fetch(self, buffer: HostArray) -> Any:
        """The array of `buffer`, a host array that a data plane gave, on the device."""
        array: Any = self.xp.empty(buffer.shape, buffer.dtype)
        self._staging(buffer).fetch(buffer, array)
        return array

    def fill(self, buffer: HostArray, array: Any) -> HostArray:
        """`buffer`, which a data plane lent, to be sent with what `array` on the device holds; waits for its work."""
        self._staging(buffer).fill(buffer, self.xp.ascontiguousarray(array))
        return buffer

    def _staging(self, buffer: HostArray) -> MessageStaging:
        if id(buffer) not in self.stagings:
            raise InputError("device: got a buffer of a data plane without it, expected one after its `stage_on`")
        return self.stagings[id(buffer)]


def cuda_device(comm: Communicator, *, own_stream: bool = False) -> Device:
    """The Device of a rank: its transport's, where that has chosen one, else see own_device.

    Args:
        own_stream: make a new stream the current one of this thread first: the default stream is one for all threads.

    Raises:
        Unavailable: no CuPy, driver or device.
        InputError: LANTERNE_DEVICE is no device.
    """
    from lanterne.kernels.cuda.runtime import own_device

    runtime = comm.transport.runtime or own_device(comm.rank)
    if own_stream:
        runtime.new_stream().use()
    return Device(import_cupy(), runtime)


class HostEdges:
    """A Stage on a device that takes and gives messages on the host; in all else the stage itself.

    What the stage returns where it is lent nothing may be copied still when its next action computes: it may read that
    then, and not write it.
    """

    def __init__(self, stage: Any, device: Device) -> None:
        self._stage = stage
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def forward(self, microbatch: int, x: Any = None, out: Any = None, part: int = 1, parts: int = 1) -> Any:
        """As Stage.forward; waits for the device where `out` is given."""
        return self._given(self._stage.forward(microbatch, self._taken(x), None, part, parts), out)

    def backward_input(self, microbatch: int, dy: Any = None, out: Any = None, part: int = 1, parts: int = 1) -> Any:
        """As Stage.backward_input; waits as `forward`."""
        return self._given(self._stage.backward_input(microbatch, self._taken(dy), None, part, parts), out)

    def backward(self, microbatch: int, dy: Any = None, out: Any = None, part: int = 1, parts: int = 1) -> Any:
        """As Stage.backward; waits as `forward`."""
        return self._given(self._stage.backward(microbatch, self._taken(dy), None, part, parts), out)

    def _taken(self, array: Any) -> Any:
        # What another stage of this rank has made is on the device.
        return self._device.fetch(array) if id(array) in self._device.stagings else array

    def _given(self, result: Any, out: Any) -> Any:
        return result if result is None or out is None else self._device.fill(out, result)
