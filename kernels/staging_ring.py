"""A ring of chunks in shared, pinned host memory: one end fills, the other drains; a device or a CPU process each.

Two counters lie in the same memory: chunks filled and chunks drained, ever. A device's end does not wait for them on
the CPU: its stream does. So the training process queues a send and goes on computing, and a delegate process sees each
chunk as it lands. Paper: ADAPTRA, section 5.2, figures 10 to 12.
"""

import contextlib
from dataclasses import dataclass

import numpy as np

from ..errors import InputError, TransportTimeout
from .staging import FLAG_MODULUS, is_reached, wait_for

# Each counter has a cache line of its own, and the chunks begin on the next page.
_FILLED, _DRAINED, _DATA = 0, 64, 4096


@dataclass(frozen=True)
class Ring:
    """`num_chunks` chunks of `chunk_nbytes` bytes in `memory`, a writable buffer of `nbytes_for(...)` zeros."""

    memory: object
    chunk_nbytes: int
    num_chunks: int

    def __post_init__(self):
        if self.chunk_nbytes < 1 or self.num_chunks < 1:
            raise InputError(
                f"Ring: got {self.num_chunks} chunks of {self.chunk_nbytes} bytes, expected at least 1 of 1"
            )
        needed = self.nbytes_for(self.chunk_nbytes, self.num_chunks)
        if memoryview(self.memory).nbytes < needed:
            raise InputError(f"Ring: got {memoryview(self.memory).nbytes} bytes of memory, expected {needed}")

    @staticmethod
    def nbytes_for(chunk_nbytes, num_chunks):
        """Bytes of memory that a ring needs."""
        return _DATA + chunk_nbytes * num_chunks

    def array(self):
        """The whole memory as uint8."""
        return np.frombuffer(self.memory, np.uint8, self.nbytes_for(self.chunk_nbytes, self.num_chunks))

    def counters(self):
        """(filled, drained), each a (1,) uint32 view."""
        return tuple(np.frombuffer(self.memory, np.uint32, 1, offset) for offset in (_FILLED, _DRAINED))

    def offset_of(self, index):
        """Where chunk number `index`, counted from the first ever, begins in the memory."""
        return _DATA + index % self.num_chunks * self.chunk_nbytes

    def pieces(self, first, nbytes):
        """(chunk number, offset in the message, bytes) of a message of `nbytes` that begins with chunk `first`."""
        for i, offset in enumerate(range(0, nbytes, self.chunk_nbytes)):
            yield first + i, offset, min(self.chunk_nbytes, nbytes - offset)


class HostEnd:
    """A CPU's end of a ring; it fills with `send` or drains with `recv`, one of the two for good.

    Args:
        ring: a Ring; the other end, in whatever process, uses the same memory.
    """

    def __init__(self, ring):
        self.ring = ring
        self._bytes = ring.array()
        self._filled, self._drained = ring.counters()
        self._next = 0

    def recv(self, array, timeout_s):
        """Drain a message of `array.nbytes` bytes into the C-contiguous host array `array`.

        Raises:
            TransportTimeout: a chunk did not come within `timeout_s` seconds.
        """
        target = array.reshape(-1).view(np.uint8)
        for index, offset, size in self.ring.pieces(self._next, array.nbytes):
            with self.filled_chunk(index, size, timeout_s) as chunk:
                target[offset : offset + size] = chunk

    def send(self, array, timeout_s):
        """Fill the ring with the bytes of the C-contiguous host array `array`, as room comes.

        Raises:
            TransportTimeout: there was no room within `timeout_s` seconds.
        """
        source = array.reshape(-1).view(np.uint8)
        for index, offset, size in self.ring.pieces(self._next, array.nbytes):
            with self.empty_chunk(index, size, timeout_s) as chunk:
                chunk[:] = source[offset : offset + size]

    @contextlib.contextmanager
    def filled_chunk(self, index, nbytes, timeout_s):
        """Lend the first `nbytes` of chunk number `index` once it is filled; leaving the block drains it."""
        wait_for(lambda: is_reached(self._filled[0], index + 1), f"ring: chunk {index} to be filled", timeout_s)
        yield self._chunk(index, nbytes)
        self._next = index + 1
        self._drained[0] = self._next % FLAG_MODULUS

    @contextlib.contextmanager
    def empty_chunk(self, index, nbytes, timeout_s):
        """Lend the first `nbytes` of chunk number `index` once its last use is drained; leaving the block fills it."""
        reusable = index + 1 - self.ring.num_chunks
        wait_for(
            lambda: reusable <= 0 or is_reached(self._drained[0], reusable), f"ring: room for chunk {index}", timeout_s
        )
        yield self._chunk(index, nbytes)
        self._next = index + 1
        self._filled[0] = self._next % FLAG_MODULUS

    def pieces(self, nbytes):
        """(chunk number, offset, bytes) of the next message, for a caller who works on the chunks in place."""
        return self.ring.pieces(self._next, nbytes)

    def _chunk(self, index, nbytes):
        start = self.ring.offset_of(index)
        return self._bytes[start : start + nbytes]


class DeviceEnd:
    """A device's end of a ring; it fills with `send` or drains with `recv`. Both only queue work on its own stream.

    Args:
        runtime: a CudaRuntime.
        ring: a Ring, whose memory is pinned here, until `close`.
    """

    def __init__(self, runtime, ring):
        self.ring = ring
        self.runtime = runtime
        self.stream = runtime.new_stream()
        self._bytes = ring.array()
        self._counters = ring.counters()
        self._filled, self._drained = (counter.ctypes.data for counter in self._counters)
        self._next = 0
        runtime.pin(self._bytes.ctypes.data, self._bytes.nbytes)

    def send(self, device_address, nbytes, stream=None):
        """Queue a message; returns an event that is done once the device memory may be written again.

        Args:
            stream: the one that makes the data; None for the current one. It is not held back.
        """
        runtime = self.runtime
        runtime.wait_event(runtime.record(stream or runtime.current_stream()), self.stream)
        for index, offset, size in self.ring.pieces(self._next, nbytes):
            reusable = index + 1 - self.ring.num_chunks
            if reusable > 0:
                runtime.wait_flag(self._drained, reusable % FLAG_MODULUS, self.stream)
            runtime.copy(self._address(index), device_address + offset, size, self.stream)
            self._advance(index, self._filled)
        return runtime.record(self.stream)

    def recv(self, device_address, nbytes, stream=None):
        """Queue the arrival of a message; returns an event that is done once it is there.

        Args:
            stream: whose earlier work must be done before the device memory is overwritten; None for the current one.
                Use `runtime.wait_event(event, stream)` where the data is needed.
        """
        runtime = self.runtime
        runtime.wait_event(runtime.record(stream or runtime.current_stream()), self.stream)
        for index, offset, size in self.ring.pieces(self._next, nbytes):
            runtime.wait_flag(self._filled, (index + 1) % FLAG_MODULUS, self.stream)
            runtime.copy(device_address + offset, self._address(index), size, self.stream)
            self._advance(index, self._drained)
        return runtime.record(self.stream)

    def recv_reduce(self, kernel, out_address, nbytes, element_nbytes, stream=None):
        """Queue the arrival of a message that is combined with device memory as it lands: out = out op message.

        The kernel reads the chunks where they are, in host memory: no scratch on the device, no copy before.

        Args:
            kernel: from `cuda_reduce.prepare(op, dtype, 2)`.
            element_nbytes: bytes of one element; the ring's chunks hold whole elements.
            stream: as for `recv`; the event returned, too.

        Raises:
            InputError: chunks or message are no whole number of elements.
        """
        if nbytes % element_nbytes or self.ring.chunk_nbytes % element_nbytes:
            raise InputError(
                f"recv_reduce: got {nbytes} bytes in chunks of {self.ring.chunk_nbytes}, "
                f"expected multiples of {element_nbytes}"
            )
        runtime = self.runtime
        runtime.wait_event(runtime.record(stream or runtime.current_stream()), self.stream)
        for index, offset, size in self.ring.pieces(self._next, nbytes):
            runtime.wait_flag(self._filled, (index + 1) % FLAG_MODULUS, self.stream)
            out, message = out_address + offset, runtime.device_address(self._address(index))
            kernel(size // element_nbytes, out, out, message, stream=self.stream)
            self._advance(index, self._drained)
        return runtime.record(self.stream)

    def release(self):
        """Let everything queued run on, so that no stream hangs after a failure. The data is lost."""
        for counter in self._counters:
            counter[0] = self._next % FLAG_MODULUS

    def close(self, timeout_s=60.0):
        """Wait for what is queued, then unpin the memory; a second call does nothing.

        Raises:
            TransportTimeout: the other end did not do its part within `timeout_s` seconds; the end is closed all the
                same.
        """
        if self._bytes is None:
            return
        done = self.runtime.record(self.stream)
        try:
            wait_for(lambda: self.runtime.is_done(done), "ring: work queued before close", timeout_s)
        except TransportTimeout:
            self.release()
            wait_for(lambda: self.runtime.is_done(done), "ring: work released at close", timeout_s)
            raise
        finally:
            self.runtime.unpin(self._bytes.ctypes.data)
            self._bytes = None

    def _address(self, index):
        return self._bytes.ctypes.data + self.ring.offset_of(index)

    def _advance(self, index, counter):
        self._next = index + 1
        self.runtime.write_flag(counter, self._next % FLAG_MODULUS, self.stream)
