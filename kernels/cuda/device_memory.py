"""Memory that a CUDA device reaches: new bytes of its own, and pinned bytes of the host's."""

from typing import Any

import numpy as np

from lanterne.errors import InputError, Unavailable
from lanterne.kernels.arrays import Stream, on_stream
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.cuda.here import Here

_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_REGISTER_PORTABLE_MAPPED = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


class DeviceMemory:
    """What one device was given, and which memory of the host is pinned for it.

    Args:
        driver: cuda.bindings.driver.
        stream: nothing runs on it: memory that the pool gives it was never another stream's, and is reused only once
            freed.

    Attributes:
        pinned: {address: (bytes, where the device sees them)} of the host's.
    """

    def __init__(self, here: Here, cupy: Any, driver: Any, stream: Stream) -> None:
        self._here = here
        self._cupy = cupy
        self._driver = driver
        self.stream = stream
        self.pinned: dict[int, tuple[int, int]] = {}

    def empty(self, nbytes: int, what: str) -> DeviceView:
        """As CudaRuntime.empty."""
        cuda = self._cupy.cuda
        with self._here, on_stream(self._cupy, self.stream):
            try:
                memory = cuda.alloc(nbytes)
            except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError) as error:
                # The pool's error, or, where the user has chosen another allocator, CUDA's.
                if getattr(error, "status", _NO_MEMORY) != _NO_MEMORY:
                    raise
                free, total = cuda.runtime.memGetInfo()
                raise Unavailable(
                    f"{what}: device {self._here.device_id} has no room for {nbytes} bytes ({free} of {total} free); "
                    "use smaller arrays or a smaller segment_nbytes, or "
                    "cupy.get_default_memory_pool().free_all_blocks()"
                ) from error
            # An allocator that is ordered on streams (cupy.cuda.malloc_async) has given it to this one only.
            self.stream.synchronize()
        return DeviceView(memory.ptr, nbytes, np.dtype(np.uint8), owner=memory)

    def pin(self, address: int, nbytes: int) -> None:
        """As CudaRuntime.pin."""
        runtime = self._cupy.cuda.runtime
        with self._here:
            try:
                runtime.hostRegister(address, nbytes, _REGISTER_PORTABLE_MAPPED)
            except runtime.CUDARuntimeError as error:
                raise Unavailable(
                    f"pinned memory: cannot pin {nbytes} bytes ({error}); use smaller messages"
                ) from error
            mapped = self._here.value(self._driver.cuMemHostGetDevicePointer(address, 0))
        self.pinned[address] = nbytes, int(mapped)

    def unpin(self, address: int) -> None:
        """As CudaRuntime.unpin."""
        del self.pinned[address]
        with self._here:
            self._cupy.cuda.runtime.hostUnregister(address)

    def device_address(self, address: int) -> int:
        """As CudaRuntime.device_address."""
        # A copy: a buffer that goes meanwhile, on this thread or another, is unpinned.
        for start, (nbytes, mapped) in tuple(self.pinned.items()):
            if start <= address < start + nbytes:
                return mapped + address - start
        raise InputError(f"device_address: got {address:#x}, expected an address in pinned memory")
