"""Messages of stages on a device, copied to and from the memory of delegates while the device computes on.

What a stage makes is copied into shared, pinned memory in chunks, on a stream of its own, and handed over at once:
delegates, or a rank of this host that reads it there, see by a counter beside the memory how much has landed, so the
first chunk leaves while the second is copied. What comes is copied to the device likewise, and the computing stream
alone waits for it. Has not run on a GPU yet.
Paper: ADAPTRA, section 5.2, figures 10 to 12; differs: the memory of a message is pinned where it is sent from and
received, not a ring of chunks that everything is copied through, so that a message can go again over another rail.
"""

import mmap
import time

import numpy as np

from ..kernels.arrays import address_of
from ..kernels.staging import Stager, wait_for
from ..transport.delegate_memory import ticket_of
from ..transport.pauses import Pauses

# How long copies may take to end when a plane is closed.
CLOSE_S = 5.0


class DelegateStaging:
    """The copies between a device and the arenas that a Delegate plane lends its buffers from.

    Args:
        device: a Device, told which buffers are these.
        landed: the arena's landed_counter.
    """

    def __init__(self, device, landed):
        self._device, self._runtime = device, device.runtime
        counter = np.frombuffer(landed, np.uint32)
        # Arrays in pinned memory, by address; they stay as long as that is pinned.
        self._pinned = {}
        self._pin(counter)
        self._stager = Stager(self._runtime, landed=counter)
        # By buffer's id, copies under way: to it with the array that they read, or from it.
        self._filling, self._fetching = {}, {}

    def adopt(self, buffer):
        """`buffer`, a host array that begins on a page of its own, may be lent or given from now on.

        Raises:
            Unavailable: the system does not let so much be pinned.
        """
        if buffer.nbytes:
            self._pin(buffer)
            self._device.stagings[id(buffer)] = self

    def _pin(self, array):
        address = array.ctypes.data
        if address not in self._pinned:
            self._runtime.pin(address, -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._pinned[address] = array

    def fill(self, buffer, array):
        """Start copying `array`, C-contiguous on the device, into the lent `buffer`, once it is computed.

        Returns then, so that the times of an action are those of its work, and a message's begins where that ends.

        Raises:
            TransportError: work on the device has failed.
        """
        computed, polls, pauses = self._runtime.record(self._runtime.current_stream()), 0, Pauses()
        while not self._runtime.is_done(computed):
            pauses.pause(polls)
            polls += 1
        self._settle()
        copy = self._stager.to_host(buffer.reshape(-1), address_of(array))
        self._filling[id(buffer)] = copy, array

    def fetch(self, buffer, array):
        """Start copying `buffer`, which a receive gave, to `array` on the device: work given to it now comes after."""
        copy = self._stager.to_device(address_of(array), buffer.reshape(-1))
        copy.hold(self._runtime.current_stream())
        self._fetching[id(buffer)] = copy

    def departure_ns(self, buffer, timeout_s=None):
        """What to say of the departure of `buffer`, which is sent now: the time, or its ticket if it was filled here.

        Args:
            timeout_s: not None: wait for its copy, so long, since an emulated link takes whole messages.

        Raises:
            TransportTimeout: the copy has not ended.
        """
        if id(buffer) not in self._filling:
            return time.monotonic_ns()
        copy = self._filling[id(buffer)][0]
        if timeout_s is None:
            return ticket_of(copy.first_chunk)
        copy.wait(timeout_s)
        return time.monotonic_ns()

    def is_free(self, buffer):
        """Whether no copy reads `buffer` any more."""
        copy = self._fetching.get(id(buffer))
        if copy is None or not copy.test():
            return copy is None
        del self._fetching[id(buffer)]
        return True

    def _settle(self):
        """Let go of the device's arrays whose copies have ended."""
        self._filling = {key: entry for key, entry in self._filling.items() if not entry[0].test()}

    def close(self):
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
        self._pinned, self._filling, self._fetching, self._stager = {}, {}, {}, None
