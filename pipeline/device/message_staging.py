"""Messages of stages on a device, copied to and from the pinned host memory that a data plane lends its buffers from.

What a stage makes is copied in chunks, on a stream of its own, and a counter tells how much has landed. In memory that
is shared with delegates, or read by a rank of this host, a message is handed over at once, and its first chunk leaves
while the second is copied; where the computing rank itself sends, that waits for the counter. What comes is copied to
the device likewise, and the computing stream alone waits for it.
Paper: ADAPTRA, section 5.2, figures 10 to 12; differs: the memory of a message is pinned where it is sent from and
received, not a ring of chunks that everything is copied through, so that a message can go again over another rail.
"""

import math
import mmap
import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lanterne.kernels.arrays import HostArray, address_of
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.kernels.staging import Copy, Stager, pinned_empty, wait_for
from lanterne.pipeline.device.device_times import until_done
from lanterne.transport.rails.delegate_memory import ticket_of

# How long copies may take to end when a plane is closed.
CLOSE_S = 5.0


class Staged(Protocol):
    """What a MessageStaging needs of a Device."""

    runtime: CudaRuntime
    stagings: "dict[int, MessageStaging]"


class MessageStaging:
    """The copies between a device and the buffers of one data plane.

    Args:
        device: a Device, told which buffers are these.
        landed: the landed_counter of the arena that they lie in, where others are to see what has landed.
    """

    def __init__(self, device: Staged, landed: memoryview | None = None) -> None:
        self._device = device
        self._runtime = device.runtime
        # Arrays in memory that is pinned here, by address, and in memory of their own: they stay as long as this does.
        self._pinned: dict[int, HostArray] = {}
        self._made: list[HostArray] = []
        counter: NDArray[np.uint32] | None = None
        if landed is not None:
            counter = np.frombuffer(landed, np.uint32)
            self._pin(counter)
        self._stager: Stager | None = Stager(self._runtime, landed=counter)
        # By buffer's id, copies under way: to it with the array that they read, or from it.
        self._filling: dict[int, tuple[Copy, Any]] = {}
        self._fetching: dict[int, Copy] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        """A new array (shape) of dtype in pinned memory of its own, which may be lent or given."""
        nbytes = math.prod(shape) * dtype.itemsize
        buffer = pinned_empty(self._runtime, max(nbytes, 1))[:nbytes].view(dtype).reshape(shape)
        self._device.stagings[id(buffer)] = self
        self._made.append(buffer)
        return buffer

    def adopt(self, buffer: HostArray) -> None:
        """`buffer`, a host array that begins on a page of its own, may be lent or given from now on.

        Raises:
            Unavailable: the system does not let so much be pinned.
        """
        if buffer.nbytes:
            self._pin(buffer)
        self._device.stagings[id(buffer)] = self

    def _pin(self, array: HostArray) -> None:
        address = array.ctypes.data
        if address not in self._pinned:
            self._runtime.pin(address, -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._pinned[address] = array

    def fill(self, buffer: HostArray, array: Any) -> None:
        """Start copying `array`, C-contiguous on the device, into the lent `buffer`, once it is computed.

        Returns then, so that the times of an action are those of its work, and a message's begins where that ends.

        Raises:
            TransportError: work on the device has failed.
        """
        until_done(self._runtime, self._runtime.record(self._runtime.current_stream()))
        self._settle()
        assert self._stager is not None, "closed"
        copy = self._stager.to_host(buffer.reshape(-1), address_of(array))
        self._filling[id(buffer)] = copy, array

    def fetch(self, buffer: HostArray, array: Any) -> None:
        """Start copying `buffer`, which a receive gave, to `array` on the device: work given to it now comes after."""
        assert self._stager is not None, "closed"
        copy = self._stager.to_device(address_of(array), buffer.reshape(-1))
        copy.hold(self._runtime.current_stream())
        self._fetching[id(buffer)] = copy

    def departure_ns(self, buffer: HostArray, timeout_s: float | None = None) -> int:
        """What to say of the departure of `buffer`, which is sent now: the time, or its ticket if it was filled here.

        Args:
            timeout_s: not None: wait for its copy, so long, since an emulated link takes whole messages.

        Raises:
            TransportTimeout: the copy has not ended.
        """
        if timeout_s is not None:
            self.land(buffer, timeout_s)
        elif id(buffer) in self._filling:
            return ticket_of(self._filling[id(buffer)][0].first_chunk)
        return time.monotonic_ns()

    def land(self, buffer: HostArray, timeout_s: float) -> None:
        """Return once what `fill` copies into `buffer`, if anything, has landed.

        Raises:
            TransportTimeout: not within `timeout_s` seconds.
        """
        if id(buffer) in self._filling:
            self._filling[id(buffer)][0].wait(timeout_s)

    def is_free(self, buffer: HostArray) -> bool:
        """Whether no copy reads `buffer` any more."""
        copy = self._fetching.get(id(buffer))
        if copy is None or not copy.test():
            return copy is None
        del self._fetching[id(buffer)]
        return True

    def consume(self, buffer: HostArray, timeout_s: float) -> None:
        """Return once no copy reads `buffer` any more.

        Raises:
            TransportTimeout: not within `timeout_s` seconds.
        """
        copy = self._fetching.pop(id(buffer), None)
        if copy is not None:
            copy.wait(timeout_s)

    def _settle(self) -> None:
        """Let go of the device's arrays whose copies have ended."""
        self._filling = {key: entry for key, entry in self._filling.items() if not entry[0].test()}

    def close(self) -> None:
        """Unpin the memory, once no copy uses it; a second call does nothing.

        Raises:
            TransportTimeout: one does not end; the memory stays pinned.
        """
        for key in [key for key, staging in self._device.stagings.items() if staging is self]:
            del self._device.stagings[key]
        copies = [*(copy for copy, _ in self._filling.values()), *self._fetching.values()]
        wait_for(lambda: all(copy.test() for copy in copies), "copies of messages", CLOSE_S)
        for address in self._pinned:
            self._runtime.unpin(address)
        self._pinned = {}
        self._made = []
        self._filling = {}
        self._fetching = {}
        self._stager = None
