"""Streams, copies, events and flags of one CUDA device: the few verbs that staging and delays are made of.

Tests put a stand-in with the same verbs in its place, so what is built on them runs without a GPU.
"""

import atexit
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any

import numpy as np

from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.kernels.arrays import Event, Stream, import_cupy, on_stream, require_device
from lanterne.kernels.cuda.device_view import DeviceView, stream_address

_COPY_ANY_DIRECTION = 4  # cudaMemcpyDefault
_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_INVALID_HANDLE = 400  # cudaErrorInvalidResourceHandle
_NOT_READY = 600  # cudaErrorNotReady
_CAPTURE_IMPLICIT = 906  # cudaErrorStreamCaptureImplicit
_ON_A_DEVICE = (2, 3)  # cudaMemoryTypeDevice, cudaMemoryTypeManaged
_REGISTER_PORTABLE_MAPPED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped
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
        self._pinned: dict[int, tuple[int, int]] = {}
        self.device_id = device_id
        self.device: Any = self._cupy.cuda.Device(device_id)
        self._here = _Here(self.device if num_devices > 1 else None, device_id, self._cupy.cuda)
        # Nothing runs on it: memory that the pool gives it was never another stream's, and is reused only once freed.
        self._memory_stream = self.new_stream()
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
            self._check(self._driver.cuThreadExchangeStreamCaptureMode(relaxed))

    @property
    def identity(self) -> str:
        """What tells this device from the others of its host: its PCI address."""
        return str(self.device.pci_bus_id)

    def as_stream(self, stream: Stream) -> Stream:
        """The stream object of `stream`: CuPy's, another library's, or an address; None for the current one.

        Raises:
            InputError: a stream of another device, one that is gone, or one that is being captured: what a call needs
                besides its stream (messages of other ranks, a watch over them) is no part of a graph of the user's.
            TransportError: work on the device has failed.
        """
        if stream is None:
            stream = self.current_stream()
        elif not isinstance(stream, self._cupy.cuda.Stream):
            stream = _ForeignStream(stream_address(stream), stream)
        if stream.device_id not in (-1, self.device_id):
            raise InputError(f"stream: got one of device {stream.device_id}, expected device {self.device_id}")
        if self._is_captured(stream):
            raise InputError(
                "stream: got one that is being captured, expected one that runs; Communicator.capture makes a graph of "
                "a call"
            )
        return stream

    def _is_captured(self, stream: Stream) -> bool:
        runtime = self._cupy.cuda.runtime
        with self._here:
            try:
                return bool(runtime.streamIsCapturing(stream.ptr))
            except runtime.CUDARuntimeError as error:
                # Of the default stream, while one is captured that waits for it.
                if error.status == _CAPTURE_IMPLICIT:
                    return True
                if error.status == _INVALID_HANDLE:
                    raise InputError(
                        f"stream: got {stream.ptr:#x}, which CUDA does not know on device {self.device_id}, expected a "
                        "stream of that device which has not been destroyed"
                    ) from error
                raise
            except RuntimeError:
                # A capture that something has broken: CuPy's own error.
                return True

    def device_of(self, address: int) -> int:
        """The number of the device whose memory `address` is in; -1 for host memory."""
        with self._here:
            return _device_of(self._cupy, address)

    def empty(self, nbytes: int, what: str = "scratch") -> DeviceView:
        """A DeviceView of `nbytes` new bytes.

        Raises:
            Unavailable: the device has no room for it.
        """
        cuda = self._cupy.cuda
        with self._here, on_stream(self._cupy, self._memory_stream):
            try:
                memory = cuda.alloc(nbytes)
            except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError) as error:
                # The pool's error, or, where the user has chosen another allocator, CUDA's.
                if getattr(error, "status", _NO_MEMORY) != _NO_MEMORY:
                    raise
                free, total = cuda.runtime.memGetInfo()
                raise Unavailable(
                    f"{what}: device {self.device_id} has no room for {nbytes} bytes ({free} of {total} free); use "
                    "smaller arrays or a smaller segment_nbytes, or cupy.get_default_memory_pool().free_all_blocks()"
                ) from error
            # An allocator that is ordered on streams (cupy.cuda.malloc_async) has given it to this one only.
            self._memory_stream.synchronize()
        return DeviceView(memory.ptr, nbytes, np.dtype(np.uint8), owner=memory)

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
            self._check(self._driver.cuStreamWriteValue32(stream.ptr, flag, value, _WRITE_AFTER_EARLIER_WRITES))

    def wait_flag(self, address: int, value: int, stream: Stream) -> None:
        """Hold `stream` back until the uint32 in pinned host memory is at least `value`: no multiprocessor waits."""
        with self._here:
            flag = self.device_address(address)
            self._check(self._driver.cuStreamWaitValue32(stream.ptr, flag, value, _WAIT_FOR_AT_LEAST))

    def pin(self, address: int, nbytes: int) -> None:
        """Make host memory known to the device, so that copies to it are asynchronous; `unpin` before it is freed.

        Raises:
            Unavailable: the system does not let so much be pinned.
        """
        runtime = self._cupy.cuda.runtime
        with self._here:
            try:
                runtime.hostRegister(address, nbytes, _REGISTER_PORTABLE_MAPPED)
            except runtime.CUDARuntimeError as error:
                raise Unavailable(
                    f"pinned memory: cannot pin {nbytes} bytes ({error}); use smaller messages"
                ) from error
            mapped = self._check(self._driver.cuMemHostGetDevicePointer(address, 0))
        self._pinned[address] = nbytes, int(mapped)

    def unpin(self, address: int) -> None:
        """Undo `pin` of the memory that begins at `address`."""
        del self._pinned[address]
        with self._here:
            self._cupy.cuda.runtime.hostUnregister(address)

    def device_address(self, address: int) -> int:
        """Where the device sees the pinned host memory at `address`.

        Raises:
            InputError: it is not pinned.
        """
        # A copy: a buffer that goes meanwhile, on this thread or another, is unpinned.
        for start, (nbytes, mapped) in tuple(self._pinned.items()):
            if start <= address < start + nbytes:
                return mapped + address - start
        raise InputError(f"device_address: got {address:#x}, expected an address in pinned memory")

    def _check(self, returned: tuple[Any, ...]) -> Any:
        status, *values = returned
        if int(status) != 0:
            raise TransportError(f"device {self.device_id}: CUDA driver: got {status.name}, expected CUDA_SUCCESS")
        return values[0] if values else None


class _Here:
    """A block on a runtime's device, in which CUDA's errors become ours, so that they end a communicator by name."""

    __slots__ = ("_device", "_device_id", "errors")

    def __init__(self, device: Any, device_id: int, cuda: Any):
        """`device`: None where there is but one, which is the current one anyway."""
        self._device = device
        self._device_id = device_id
        self.errors: tuple[type[Exception], ...] = (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError)

    def __enter__(self) -> None:
        if self._device is not None:
            try:
                self._device.__enter__()
            except self.errors as error:
                # One that has failed refuses even to become the current one.
                raise self._ours(error) from error

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        try:
            if self._device is not None:
                self._device.__exit__()
        except self.errors as refused:
            # A device that has failed may refuse even to give way to the one before.
            error = error or refused
        if error is not None and isinstance(error, self.errors):
            raise self._ours(error) from error

    def _ours(self, error: BaseException) -> TransportError:
        return TransportError(f"device {self._device_id}: {error}")


class _ForeignStream:
    """A stream of another library, with what the verbs above and CuPy's launches ask of one: its address."""

    __slots__ = ("owner", "ptr")
    device_id = -1

    def __init__(self, address: int, owner: object):
        self.ptr = address
        self.owner = owner
