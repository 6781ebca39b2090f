"""A stand-in for CudaRuntime: streams are threads, device memory is host memory, and flags are what they are."""

import ctypes
import os
import queue
import threading
import time
from contextlib import suppress

import numpy as np

from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.kernels.cpu.jit import divide_function
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.reduce import multiply, prepare


class HostArray:
    """A NumPy array that says that it is on a device; `values` is what a test looks at."""

    def __init__(self, values, readonly=False, stream=None):
        self.values = np.ascontiguousarray(values)
        self.dtype, self.shape, self.nbytes = self.values.dtype, self.values.shape, self.values.nbytes
        self._readonly, self._stream = readonly, stream

    @property
    def __cuda_array_interface__(self):
        found = self.values.__array_interface__
        kept = {"shape": found["shape"], "typestr": found["typestr"], "strides": None, "version": 3}
        return kept | {"data": (found["data"][0], self._readonly), "stream": self._stream}


class HostStream:
    """A queue of work and the thread that does it, in order; while it is captured, what it is given is `captured`."""

    def __init__(self):
        self.work = queue.SimpleQueue()
        self.ptr = id(self)
        self.captured = None
        # How much it was given while captured.
        self.num_captured = 0
        self.num_given = self.num_done = 0
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, item):
        if self.captured is None:
            self.num_given += 1
            self.work.put(item)
        else:
            self.captured.items.append(item)
            self.captured.joined_back.discard(self)
            self.num_captured += 1

    def _run(self):
        while (item := self.work.get()) is not None:
            with suppress(Aborted):
                item()
            self.num_done += 1


class Aborted(Exception):
    """What a stand-in's device work raises when it is ended from outside."""


class HostGraph:
    """What was captured, in one order that respects it; `joined` are the streams that are captured now."""

    def __init__(self, origin):
        self.items, self.joined, self.joined_back = [], [origin], set()


class CapturedEvent:
    """An event recorded inside a capture: it orders captured work only, and cannot be asked."""

    def __init__(self, stream):
        self.graph, self.stream, self.after = stream.captured, stream, stream.num_captured


class HostRuntime:
    """The verbs of CudaRuntime; `pinned` holds the memory that is pinned now."""

    def __init__(self, device_id=0, device_memory_nbytes=1 << 40):
        self.device_id, self.identity = device_id, f"0000:{device_id:02d}:00.0"
        self.streams, self.pinned, self.closing = [], {}, threading.Event()
        self.default = self.new_stream()
        self.free_nbytes = device_memory_nbytes
        # Of work that has failed on the device: every question after it is answered so.
        self.fault = None
        self.launches = 0
        # Names of threads.
        self.adopted = set()
        # Addresses that are said to be on another device than 0.
        self.elsewhere = {}

    def new_stream(self):
        self.streams.append(HostStream())
        return self.streams[-1]

    def current_stream(self):
        return self.default

    def adopt_thread(self):
        self.adopted.add(threading.current_thread().name)

    def as_stream(self, stream):
        stream = self.default if stream is None else stream
        if stream.captured is not None:
            raise InputError("stream: got one that is being captured")
        return stream

    def device_of(self, address):
        return self.elsewhere.get(address, self.device_id)

    def empty(self, nbytes, what="scratch"):
        if nbytes > self.free_nbytes:
            raise Unavailable(f"{what}: device 0 has no room for {nbytes} bytes")
        memory = np.empty(nbytes, np.uint8)
        return DeviceView(memory.ctypes.data, nbytes, memory.dtype, owner=memory)

    def prepare_fold(self, op, dtype, num_inputs):
        kernel = prepare(op, dtype, num_inputs)
        return lambda count, *addresses, stream: stream.put(lambda: kernel(count, *addresses))

    def prepare_divide(self, dtype):
        kernel = divide_function(dtype)
        return lambda count, *arguments, stream: stream.put(lambda: kernel(count, *arguments))

    def prepare_multiply(self, dtype):
        views = {"bfloat16": np.uint16}

        def kernel(count, out, source, factor):
            bytes_type = ctypes.c_uint8 * (count * dtype.nbytes)
            to, of = (
                np.ctypeslib.as_array(bytes_type.from_address(address)).view(views.get(dtype.name, dtype.name))
                for address in (out, source)
            )
            multiply(to, of, factor, dtype)

        return lambda count, *arguments, stream: stream.put(lambda: kernel(count, *arguments))

    def begin_capture(self, stream):
        assert stream is not self.default and stream.captured is None
        stream.captured = HostGraph(stream)

    def end_capture(self, stream):
        graph = stream.captured
        assert graph.joined[0] is stream, "a capture ends where it began"
        for joined in graph.joined[1:]:
            assert joined in graph.joined_back, f"{joined} was forked into the capture and never joined back"
        for joined in graph.joined:
            joined.captured = None
        return graph

    def launch(self, graph, stream):
        self.launches += 1
        for item in graph.items:
            stream.put(item)

    def copy(self, dst, src, nbytes, stream):
        stream.put(lambda: ctypes.memmove(dst, src, nbytes))

    def record(self, stream, timed=False):
        if stream.captured is not None:
            return CapturedEvent(stream)
        event = threading.Event()
        if timed:
            stream.put(lambda: setattr(event, "at_s", time.monotonic()))
        stream.put(event.set)
        return event

    def elapsed_s(self, start, stop):
        assert start.is_set() and stop.is_set(), "the time of an event that is not done"
        return stop.at_s - start.at_s

    def wait_event(self, event, stream):
        if isinstance(event, CapturedEvent):
            assert stream.captured in (None, event.graph), "an event of a capture orders that capture only"
            if stream.captured is None:
                stream.captured = event.graph
                event.graph.joined.append(stream)
            if event.after == event.stream.num_captured:
                event.graph.joined_back.add(event.stream)
            return
        assert stream.captured is None, "a captured stream cannot wait for an event of outside"
        stream.put(lambda: self._until(event.is_set))

    def is_done(self, event):
        assert not isinstance(event, CapturedEvent), "an event of a capture cannot be asked"
        if self.fault:
            raise TransportError(f"device {self.device_id}: {self.fault}; what was queued on it has failed")
        return event.is_set()

    def is_idle(self, stream):
        return stream.num_done == stream.num_given

    def write_flag(self, address, value, stream):
        self._check_pinned(address)
        stream.put(lambda: setattr(ctypes.c_uint32.from_address(address), "value", value))

    def wait_flag(self, address, value, stream):
        self._check_pinned(address)
        stream.put(lambda: self._until(lambda: ctypes.c_uint32.from_address(address).value >= value))

    def pin(self, address, nbytes):
        assert address not in self.pinned
        self.pinned[address] = nbytes

    def unpin(self, address):
        del self.pinned[address]

    def device_address(self, address):
        self._check_pinned(address)
        return address

    def close(self):
        """End all threads, whatever they wait for."""
        self.closing.set()
        for stream in self.streams:
            stream.work.put(None)

    def _check_pinned(self, address):
        assert any(start <= address < start + nbytes for start, nbytes in self.pinned.items()), "memory not pinned"

    def _until(self, is_ready):
        while not is_ready() and not self.closing.is_set():
            os.sched_yield()
