"""Streams, copies, events and flags of one CUDA device: the few verbs that staging and delays are made of.

Tests put a stand-in with the same verbs in its place, so what is built on them runs without a GPU.
"""

from ..errors import InputError, LanterneError, Unavailable
from .arrays import import_cupy, require_device

_COPY_ANY_DIRECTION = 4  # cudaMemcpyDefault
_REGISTER_PORTABLE_MAPPED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped
_WAIT_UNTIL_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ, compared cyclically
_WRITE_AFTER_EARLIER_WRITES = 0  # CU_STREAM_WRITE_VALUE_DEFAULT


class CudaRuntime:
    """The verbs on device `device_id`; addresses are ints, streams and events CuPy's.

    Raises:
        Unavailable: no CuPy, driver or device, or no cuda.bindings (a dependency of Numba CUDA).
        InputError: no device of that number.
    """

    def __init__(self, device_id=0):
        num_devices = require_device()
        if not 0 <= device_id < num_devices:
            raise InputError(f"device: got {device_id}, expected 0 to {num_devices - 1}")
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise Unavailable(f"cuda.bindings: {error}; install lanterne[cuda12] or lanterne[cuda13]") from error
        self._driver = driver
        self._cupy = import_cupy()
        self._pinned = {}
        self.device = self._cupy.cuda.Device(device_id)

    def new_stream(self):
        """A stream that does not wait for the default stream."""
        with self.device:
            return self._cupy.cuda.Stream(non_blocking=True)

    def current_stream(self):
        return self._cupy.cuda.get_current_stream()

    def copy(self, dst, src, nbytes, stream):
        """Copy between any memories, asynchronously where the host's is pinned."""
        with self.device:
            self._cupy.cuda.runtime.memcpyAsync(dst, src, nbytes, _COPY_ANY_DIRECTION, stream.ptr)

    def record(self, stream):
        """An event that is done once all that `stream` has been given so far is."""
        with self.device:
            event = self._cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return event

    def wait_event(self, event, stream):
        """Hold `stream` back until `event` is done."""
        stream.wait_event(event)

    def is_done(self, event):
        return event.done

    def write_flag(self, address, value, stream):
        """Write the uint32 `value` to pinned host memory after everything before it on `stream`, copies included."""
        with self.device:
            flag = self.device_address(address)
            self._check(self._driver.cuStreamWriteValue32(stream.ptr, flag, value, _WRITE_AFTER_EARLIER_WRITES))

    def wait_flag(self, address, value, stream):
        """Hold `stream` back until the uint32 in pinned host memory is `value` or later (modulo 2**32)."""
        with self.device:
            flag = self.device_address(address)
            self._check(self._driver.cuStreamWaitValue32(stream.ptr, flag, value, _WAIT_UNTIL_AT_LEAST))

    def pin(self, address, nbytes):
        """Make host memory known to the device, so that copies to it are asynchronous; `unpin` before it is freed."""
        with self.device:
            self._cupy.cuda.runtime.hostRegister(address, nbytes, _REGISTER_PORTABLE_MAPPED)
            mapped = self._check(self._driver.cuMemHostGetDevicePointer(address, 0))
        self._pinned[address] = nbytes, int(mapped)

    def unpin(self, address):
        """Undo `pin` of the memory that begins at `address`."""
        del self._pinned[address]
        self._cupy.cuda.runtime.hostUnregister(address)

    def device_address(self, address):
        """Where the device sees the pinned host memory at `address`.

        Raises:
            InputError: it is not pinned.
        """
        for start, (nbytes, mapped) in self._pinned.items():
            if start <= address < start + nbytes:
                return mapped + address - start
        raise InputError(f"device_address: got {address:#x}, expected an address in pinned memory")

    def _check(self, returned):
        status, *values = returned
        if int(status) != 0:
            raise LanterneError(f"CUDA driver: got {status.name}, expected CUDA_SUCCESS")
        return values[0] if values else None
