"""Staging: copies between device and pinned host memory, in chunks, with flags that a CPU can watch.

A `Stager` moves whole messages between a device and pinned buffers on its own streams: the compute stream is held back
by no copy, and a transport, or a delegate process where the memory is shared, sends the first chunk while the second
is still on its way.
Paper: ADAPTRA, section 5.2, figures 11 and 12; differs: completion is a stream-ordered write of a counter per chunk,
not one copied flag per message, so that sending overlaps copying, and no thread spins while data comes in.
"""

import mmap
import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError, TransportTimeout
from lanterne.kernels.arrays import HostArray, Stream
from lanterne.kernels.chunks import CHUNK_NBYTES, FLAG_MODULUS, chunk_nbytes_of, landed_nbytes

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

_POLLS_PER_CHECK = 64


def pinned_empty(runtime: "CudaRuntime", nbytes: int) -> NDArray[np.uint8]:
    """(nbytes,) uint8 array of page-aligned host memory, pinned for `runtime`'s device as long as it lives."""
    if nbytes < 1:
        raise InputError(f"pinned_empty: got {nbytes} bytes, expected at least 1")
    array = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    runtime.pin(array.ctypes.data, nbytes)
    weakref.finalize(array, runtime.unpin, array.ctypes.data).atexit = False
    return array


def wait_for(is_ready: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Poll `is_ready()` until it is true, yielding the core between polls.

    Raises:
        TransportTimeout: not within `timeout_s` seconds; names `what`.
    """
    deadline = time.monotonic() + timeout_s
    polls = 0
    while not is_ready():
        os.sched_yield()
        polls += 1
        if polls % _POLLS_PER_CHECK == 0 and time.monotonic() > deadline:
            raise TransportTimeout(f"{what}: not done within {timeout_s:g} s")


class Stager:
    """Copies messages between one device and pinned host memory, each direction on a stream of its own.

    Args:
        chunk_nbytes: bytes per copy, or a multiple for messages of more than MAX_CHUNKS of them; completion is reported
            at this grain.
        landed: (1,) uint32 in pinned memory that counts the chunks copied to the host, where others are to see them;
            None for memory of its own.
    """

    def __init__(
        self, runtime: "CudaRuntime", chunk_nbytes: int = CHUNK_NBYTES, landed: NDArray[np.uint32] | None = None
    ):
        if chunk_nbytes < 1:
            raise InputError(f"Stager: got chunks of {chunk_nbytes} bytes, expected at least 1")
        self.runtime = runtime
        self.chunk_nbytes = chunk_nbytes
        self._to_host = _Lane(runtime, landed)
        self._to_device = _Lane(runtime)

    def to_host(self, host: HostArray, device_address: int, stream: Stream = None) -> "Copy":
        """Start copying to the pinned array `host` once `stream` (default: the current one) reaches this point; a Copy.

        The device memory may be written again once the copy is done, or by work on a stream that `Copy.hold(stream)`
        holds back.
        """
        return self._start(self._to_host, host.ctypes.data, device_address, host.nbytes, stream)

    def to_device(self, device_address: int, host: HostArray, stream: Stream = None) -> "Copy":
        """Start copying the pinned array `host` to the device, after what `stream` was given so far; a Copy.

        Work that needs the data runs on `stream` after `Copy.hold(stream)`.
        """
        return self._start(self._to_device, device_address, host.ctypes.data, host.nbytes, stream)

    def _start(self, lane: "_Lane", dst: int, src: int, nbytes: int, stream: Stream) -> "Copy":
        runtime = self.runtime
        runtime.wait_event(runtime.record(stream or runtime.current_stream()), lane.stream)
        first = lane.num_chunks
        chunk_nbytes = chunk_nbytes_of(nbytes, self.chunk_nbytes)
        for offset in range(0, nbytes, chunk_nbytes):
            size = min(chunk_nbytes, nbytes - offset)
            runtime.copy(dst + offset, src + offset, size, lane.stream)
            lane.num_chunks += 1
            runtime.write_flag(lane.flag_address, lane.num_chunks % FLAG_MODULUS, lane.stream)
        return Copy(runtime, lane, first, nbytes, chunk_nbytes)


class _Lane:
    """A stream with its counter of finished chunks, in pinned memory."""

    def __init__(self, runtime: "CudaRuntime", flag: NDArray[np.uint32] | None = None):
        self.stream: Stream = runtime.new_stream()
        self.flag: NDArray[np.uint32] = pinned_empty(runtime, mmap.PAGESIZE).view(np.uint32) if flag is None else flag
        self.flag[0] = 0
        self.flag_address: int = self.flag.ctypes.data
        self.num_chunks = 0


class Copy:
    """A copy under way: `done_nbytes()`, `test()`, `wait()` for the CPU, `hold(stream)` for the device.

    Attributes: `first_chunk`, how many chunks its lane was given before.
    """

    def __init__(self, runtime: "CudaRuntime", lane: _Lane, first_chunk: int, nbytes: int, chunk_nbytes: int):
        self._runtime = runtime
        self._lane = lane
        self.first_chunk = first_chunk
        self._event = runtime.record(lane.stream)
        self.nbytes = nbytes
        self.chunk_nbytes = chunk_nbytes
        self._polls = 0

    def done_nbytes(self) -> int:
        """Bytes, from the start of the message, that have arrived."""
        return landed_nbytes(self._lane.flag[0], self.first_chunk, self.nbytes, self.chunk_nbytes)

    def test(self) -> bool:
        """True once all of it has arrived.

        Raises:
            TransportError: work on the device has failed, and nothing arrives any more.
        """
        if self.done_nbytes() == self.nbytes:
            return True
        self._polls += 1
        if self._polls % _POLLS_PER_CHECK == 0:
            self._runtime.is_done(self._event)
        return False

    def wait(self, timeout_s: float) -> None:
        """Return once all of it has arrived.

        Raises:
            TransportTimeout: not within `timeout_s` seconds.
            TransportError: as `test`.
        """
        wait_for(self.test, f"staged copy of {self.nbytes} bytes", timeout_s)

    def hold(self, stream: Stream) -> None:
        """Hold `stream` back until the copy is done; the CPU does not wait."""
        self._runtime.wait_event(self._event, stream)
