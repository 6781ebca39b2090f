"""Streams, copies, events and flags of one CUDA device: the few verbs that staging and delays are made of.

Tests put a stand-in with the same verbs in its place, so what is built on them runs without a GPU.
"""

import atexit
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.kernels.arrays import Event, Stream, import_cupy, require_device
from lanterne.kernels.cuda.device_memory import DeviceMemory
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.cuda.foreign_stream import own_stream
from lanterne.kernels.cuda.here import Here

_COPY_ANY_DIRECTION = 4  # cudaMemcpyDefault
_NOT_READY = 600  # cudaErrorNotReady
_ON_A_DEVICE = (2, 3)  # cudaMemoryTypeDevice, cudaMemoryTypeManaged
_WRITE_AFTER_EARLIER_WRITES = 0  # CU_STREAM_WRITE_VALUE_DEFAULT
_WAIT_FOR_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ


def own_device(place: int) -> "CudaRuntime":
    """The CudaRuntime of a rank's device, made the current one of this thread.

    Args:
        place: the rank's number, or that among those of its host: they are given this host's devices in turn, where
            LANTERNE_DEVICE does not name one.

    Raises:
        Unavailable: no CuPy, driver or device.
        InputError: LANTERNE_DEVICE is no device.
    """
    num_devices = require_device()
    text = os.environ.get("LANTERNE_DEVICE")
    if text is not None and not (text.isascii() and text.isdigit() and int(text) < num_devices):
        raise InputError(f"LANTERNE_DEVICE: got {text!r}, expected a number from 0 to {num_devices - 1}")
    runtime = CudaRuntime(place % num_devices if text is None else int(text))
    runtime.device.use()
    return runtime


def runtime_of(address: int) -> "CudaRuntime":
    """The CudaRuntime of the device whose memory `address` is in; 0, that of an empty array: of the current device.

    Nothing is done on any other device: a process that only looks at one would keep memory there.

    Raises:
        Unavailable: no CuPy, driver or device.
        InputError: an address of host memory.
    """
    require_device()
    device_id = _device_of(import_cupy(), address) if address else import_cupy().cuda.Device().id
    if device_id < 0:
        raise InputError(f"array: got an address on the host ({address:#x}), expected device memory")
    return CudaRuntime(device_id)


@functools.cache
def _leave_in_order(cuda: Any, device_id: int) -> None:
    """As Python ends, have a device for the main thread, where CuPy then unloads kernels: which CUDA refuses without.

    Where the ranks are threads, only those may have used one.
    """

    def adopt_main_thread() -> None:
        # A driver that has failed refuses; nothing is left to be told.
        with suppress(Exception):
            if not cuda.driver.ctxGetCurrent():
                cuda.Device(device_id).use()

    atexit.register(adopt_main_thread)


def _device_of(cupy: Any, address: int) -> int:
    attributes = cupy.cuda.runtime.pointerGetAttributes(address)
    return attributes.device if attributes.type in _ON_A_DEVICE else -1


class CudaRuntime:
    """The verbs on device `device_id`; addresses are ints, streams and events CuPy's.

    Verbs may be used whichever device is the current one, and on any thread.

    Raises:
        Unavailable: no CuPy, driver or device, or no cuda.bindings (a dependency of Numba CUDA).
        InputError: no device of that number.
        TransportError: of every verb: CUDA refuses, as it does all once work on the device has failed.
    """

    def __init__(self, device_id: int = 0):
        num_devices = require_device()
        if not 0 <= device_id < num_devices:
            raise InputError(f"device: got {device_id}, expected 0 to {num_devices - 1}")
        try:
            self._driver: Any = import_module("cuda.bindings.driver")
        except ImportError as error:
            raise Unavailable(f"cuda.bindings: {error}; install lanterne[cuda12] or lanterne[cuda13]") from error
        self._cupy = import_cupy()
        self.device_id = device_id
        self.device: Any = self._cupy.cuda.Device(device_id)
        self._here = Here(self.device if num_devices > 1 else None, device_id, self._cupy.cuda)
        self._memory = DeviceMemory(self._here, self._cupy, self._driver, self.new_stream())
        _leave_in_order(self._cupy.cuda, device_id)

    def new_stream(self) -> Stream:
        """A stream that does not wait for the default stream."""
        with self._here:
            return self._cupy.cuda.Stream(non_blocking=True)

    def current_stream(self) -> Stream:
        """This thread's current stream of the device."""
        return self._cupy.cuda.get_current_stream(self.device_id)

    def adopt_thread(self) -> None:
        """Make this thread, which lanterne has started, work on the device, and disturb no capture of other threads.

        While one captures in CUDA's strictest mode, as torch does, a question about an event on any other thread would
        break its capture.
        """
        # A device that has failed refuses even this; whatever the thread asks next tells.
        with suppress(TransportError, *self._here.errors):
            self.device.use()
            relaxed = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            self._here.value(self._driver.cuThreadExchangeStreamCaptureMode(relaxed))

    @property
    def identity(self) -> str:
        """What tells this device from the others of its host: its PCI address."""
        return str(self.device.pci_bus_id)

    def as_stream(self, stream: Stream) -> Stream:
        """The stream object of `stream`; see foreign_stream.own_stream."""
        return own_stream(self._here, self._cupy, stream)

    def device_of(self, address: int) -> int:
        """The number of the device whose memory `address` is in; -1 for host memory."""
        with self._here:
            return _device_of(self._cupy, address)

    def empty(self, nbytes: int, what: str = "scratch") -> DeviceView:
        """A DeviceView of `nbytes` new bytes.

        Raises:
            Unavailable: the device has no room for it.
        """
        return self._memory.empty(nbytes, what)

    def prepare_fold(self, op: str, dtype: object, num_inputs: int) -> Callable[..., None]:
        """The compiled kernel `(count, out_address, in0_address, ..., stream=...)`; see reduce_on_device.py."""
        from lanterne.kernels.cuda.reduce_on_device import prepare

        with self._here:
            return self._launched_here(prepare(op, dtype, num_inputs))

    def prepare_divide(self, dtype: object) -> Callable[..., None]:
        """The compiled kernel `(count, out_address, in_address, divisor, stream=...)`."""
        from lanterne.kernels.cuda.reduce_on_device import prepare_divide

        with self._here:
            return self._launched_here(prepare_divide(dtype))

    def prepare_multiply(self, dtype: object) -> Callable[..., None]:
        """As prepare_divide, with a factor; see reduce.factor_of."""
        from lanterne.kernels.cuda.reduce_on_device import prepare_multiply

        with self._here:
            return self._launched_here(prepare_multiply(dtype))

    def _launched_here(self, kernel: Callable[..., None]) -> Callable[..., None]:
        """`kernel`, launched on this device whichever is the current one; CuPy launches on that."""

        def launch(*arguments: float, stream: Stream) -> None:
            with self._here:
                kernel(*arguments, stream=stream)

        return launch

    def begin_capture(self, stream: Stream) -> None:
        """From now on, what `stream` is given becomes a graph instead of running; also streams that wait for it."""
        with self._here:
            stream.begin_capture()

    def end_capture(self, stream: Stream) -> Any:
        """The graph of what `stream` was given since `begin_capture`; the device has it already."""
        with self._here:
            graph = stream.end_capture()
            graph.upload(stream)
            return graph

    def launch(self, graph: Any, stream: Stream) -> None:
        """Queue all that `graph` holds on `stream`."""
        with self._here:
            graph.launch(stream)

    def copy(self, dst: int, src: int, nbytes: int, stream: Stream) -> None:
        """Copy between any memories, asynchronously where the host's is pinned."""
        with self._here:
            self._cupy.cuda.runtime.memcpyAsync(dst, src, nbytes, _COPY_ANY_DIRECTION, stream.ptr)

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        """An event that is done once all that `stream` has been given so far is; `timed` for `elapsed_s`."""
        # An event belongs to the device that is current when it is made, a default stream to that when it is used.
        with self._here:
            event = self._cupy.cuda.Event(disable_timing=not timed)
            event.record(stream)
            return event

    def elapsed_s(self, start: Event, stop: Event) -> float:
        """Seconds of the device between two timed events that are done."""
        with self._here:
            return 1e-3 * float(self._cupy.cuda.get_elapsed_time(start, stop))

    def wait_event(self, event: Event, stream: Stream) -> None:
        """Hold `stream` back until `event` is done."""
        with self._here:
            self._cupy.cuda.runtime.streamWaitEvent(stream.ptr, event.ptr)

    def is_done(self, event: Event) -> bool:
        """Whether `event` is done.

        Raises:
            TransportError: work on the device has failed, such as a kernel that left its memory.
        """
        return self._is_done(self._cupy.cuda.runtime.eventQuery(event.ptr))

    def is_idle(self, stream: Stream) -> bool:
        """Whether all that `stream` was given is done; raises as `is_done`."""
        return self._is_done(self._cupy.cuda.runtime.streamQuery(stream.ptr))

    def _is_done(self, status: int) -> bool:
        # CuPy's own `done` takes every error for "not yet", so that a wait for failed work would never end.
        if status == 0:
            return True
        runtime = self._cupy.cuda.runtime
        if status != _NOT_READY:
            error = runtime.CUDARuntimeError(status)
            raise TransportError(f"device {self.device_id}: {error}; what was queued on it has failed")
        # CUDA keeps it as this thread's last error; where torch shares the runtime it would take that for its own.
        with suppress(runtime.CUDARuntimeError):
            runtime.check_status(status)
        return False

    def write_flag(self, address: int, value: int, stream: Stream) -> None:
        """Write the uint32 `value` to pinned host memory after everything before it on `stream`, copies included."""
        with self._here:
            flag = self.device_address(address)
            self._here.value(self._driver.cuStreamWriteValue32(stream.ptr, flag, value, _WRITE_AFTER_EARLIER_WRITES))

    def wait_flag(self, address: int, value: int, stream: Stream) -> None:
        """Hold `stream` back until the uint32 in pinned host memory is at least `value`: no multiprocessor waits."""
        with self._here:
            flag = self.device_address(address)
            self._here.value(self._driver.cuStreamWaitValue32(stream.ptr, flag, value, _WAIT_FOR_AT_LEAST))

    def pin(self, address: int, nbytes: int) -> None:
        """Make host memory known to the device, so that copies to it are asynchronous; `unpin` before it is freed.

        Raises:
            Unavailable: the system does not let so much be pinned.
        """
        self._memory.pin(address, nbytes)

    def unpin(self, address: int) -> None:
        """Undo `pin` of the memory that begins at `address`."""
        self._memory.unpin(address)

    def device_address(self, address: int) -> int:
        """Where the device sees the pinned host memory at `address`.

        Raises:
            InputError: it is not pinned.
        """
        return self._memory.device_address(address)
