"""A stand-in for CudaRuntime: streams are threads, device memory is host memory, and flags are what they are."""

import ctypes
import os
import queue
import threading


class HostStream:
    """A queue of work and the thread that does it, in order."""

    def __init__(self):
        self.work = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while (item := self.work.get()) is not None:
            item()


class HostRuntime:
    """The verbs of CudaRuntime; `pinned` holds the memory that is pinned now."""

    def __init__(self):
        self.streams, self.pinned, self.closing = [], {}, threading.Event()
        self.default = self.new_stream()

    def new_stream(self):
        self.streams.append(HostStream())
        return self.streams[-1]

    def current_stream(self):
        return self.default

    def copy(self, dst, src, nbytes, stream):
        stream.work.put(lambda: ctypes.memmove(dst, src, nbytes))

    def record(self, stream):
        event = threading.Event()
        stream.work.put(event.set)
        return event

    def wait_event(self, event, stream):
        stream.work.put(lambda: self._until(event.is_set))

    def is_done(self, event):
        return event.is_set()

    def write_flag(self, address, value, stream):
        self._check_pinned(address)
        stream.work.put(lambda: setattr(ctypes.c_uint32.from_address(address), "value", value))

    def wait_flag(self, address, value, stream):
        self._check_pinned(address)
        flag = ctypes.c_uint32.from_address(address)
        stream.work.put(lambda: self._until(lambda: ctypes.c_int32(flag.value - value).value >= 0))

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
