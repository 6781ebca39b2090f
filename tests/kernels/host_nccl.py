"""A stand-in for cupy.cuda.nccl: ranks are threads, streams those of HostRuntime, and a send waits for its receive.

As NCCL's: no tags; what is between groupStart and groupEnd goes together; a group holds its stream until all of it is
done; the call that begins the first message with a rank returns only once that rank begins it too; an abort frees the
streams. Unlike NCCL's, sizes that differ are an asynchronous error at both ends.
"""

import ctypes
import itertools
import threading
from collections import defaultdict, deque

import numpy as np
from host_runtime import Aborted

NCCL_UINT8 = 1
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
REDUCE = (np.add, np.multiply, np.maximum, np.minimum)


class NcclError(RuntimeError):
    """An error of the library."""


class HostNccl:
    """The module: one for all ranks of a job, whose streams it finds by address.

    Attributes: `hangs`, names of what never returns ("init", "abort", "destroy"); `log`, what was called.
    """

    def __init__(self, version=23203, id_type=bytes):
        self.version, self.id_type = version, id_type
        self.condition = threading.Condition()
        self.worlds = {}
        self.streams = {}
        self.hangs = set()
        self.never = threading.Event()
        self.log = []
        self._ids = itertools.count(1)
        self._local = threading.local()
        self.NcclError = NcclError
        self.NcclCommunicator = lambda *arguments: HostCommunicator(self, *arguments)

    def adopt(self, runtime):
        """Know the streams of `runtime`, those to come as well."""
        make = runtime.new_stream

        def new_stream():
            stream = make()
            self.streams[stream.ptr] = stream
            return stream

        self.streams[runtime.default.ptr] = runtime.default
        runtime.new_stream = new_stream
        return runtime

    def get_version(self):
        return self.version

    def get_unique_id(self):
        unique_id = (next(self._ids) * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(128, "little")
        if self.id_type is bytes:
            return unique_id
        return tuple(byte - 256 if byte > 127 else byte for byte in unique_id)

    def groupStart(self):
        self._local.group = []

    def groupEnd(self):
        group, self._local.group = self._local.group, None
        by_stream = defaultdict(list)
        for communicator, stream, operation in group:
            by_stream[communicator, stream].append(operation)
        for (communicator, stream), operations in by_stream.items():
            self._queue(communicator, stream, operations)

    def submit(self, communicator, stream, operation):
        group = getattr(self._local, "group", None)
        if group is None:
            self._queue(communicator, stream, [operation])
        else:
            group.append((communicator, stream, operation))

    def _queue(self, communicator, stream, operations):
        communicator.connect(operations)
        self.streams[stream].put(lambda: communicator.run(operations))

    def hang(self, name):
        self.log.append(name)
        if name in self.hangs:
            self.never.wait()


class _World:
    def __init__(self):
        self.boxes = defaultdict(deque)
        self.meetings = defaultdict(dict)
        self.ranks = set()
        # (kind, rank, peer) of every end of a connection.
        self.ends = set()


class HostCommunicator:
    """A rank of a communicator."""

    def __init__(self, nccl, world_size, unique_id, rank):
        if type(unique_id) is not nccl.id_type:
            raise TypeError(f"Argument 'commId' has incorrect type (expected {nccl.id_type})")
        assert len(unique_id) == 128 and set(unique_id) != {0}
        nccl.hang("init")
        self.nccl, self.rank, self.world_size = nccl, rank, world_size
        self.aborted, self.error, self._calls = False, None, 0
        with nccl.condition:
            self.world = nccl.worlds.setdefault(unique_id, _World())
            self.world.ranks.add(rank)
            nccl.condition.notify_all()
            while len(self.world.ranks) < world_size:
                nccl.condition.wait()

    def send(self, address, count, datatype, peer, stream):
        assert datatype == NCCL_UINT8 and 0 <= peer < self.world_size
        self.nccl.submit(self, stream, ("send", address, count, peer))

    def recv(self, address, count, datatype, peer, stream):
        assert datatype == NCCL_UINT8 and 0 <= peer < self.world_size
        self.nccl.submit(self, stream, ("recv", address, count, peer))

    def allReduce(self, source, target, count, datatype, op, stream):
        self.nccl.submit(self, stream, ("all_reduce", source, target, count, DTYPES[datatype], op))

    def check_async_error(self):
        if self.error:
            raise NcclError(self.error)

    def abort(self):
        self.nccl.hang("abort")
        with self.nccl.condition:
            self.aborted = True
            self.nccl.condition.notify_all()

    def destroy(self):
        self.nccl.hang("destroy")

    def connect(self, operations):
        """Return once all that `operations` need are at the other ends of their connections."""
        mine, theirs = set(), set()
        for kind, *given, peer in operations:
            if kind == "all_reduce":
                # For each algorithm, which NCCL picks by the size.
                size = given[2].bit_length()
                mine.add((kind, self.rank, size))
                theirs |= {(kind, rank, size) for rank in range(self.world_size)}
            else:
                mine.add((kind, self.rank, peer))
                theirs.add(("send" if kind == "recv" else "recv", peer, self.rank))
        with self.nccl.condition:
            self.world.ends |= mine
            self.nccl.condition.notify_all()
            while not theirs <= self.world.ends:
                if self.aborted:
                    raise NcclError("aborted")
                self.nccl.condition.wait(1.0)

    # -- on the stream's thread

    def run(self, operations):
        if operations[0][0] == "all_reduce":
            self._all_reduce(*operations[0][1:])
            return
        done = []
        with self.nccl.condition:
            for kind, address, nbytes, peer in operations:
                if kind == "send":
                    done.append([False])
                    self.world.boxes[self.rank, peer].append((address, nbytes, done[-1]))
            self.nccl.condition.notify_all()
            for kind, address, nbytes, peer in operations:
                if kind == "recv":
                    box = self.world.boxes[peer, self.rank]
                    self._until(lambda box=box: box)
                    source, sent, flag = box.popleft()
                    if sent != nbytes:
                        self.error = f"rank {peer} sent {sent} bytes to rank {self.rank}, which expected {nbytes}"
                    ctypes.memmove(address, source, min(sent, nbytes))
                    flag[0] = True
                    self.nccl.condition.notify_all()
            self._until(lambda: all(flag[0] for flag in done))

    def _all_reduce(self, source, target, count, dtype, op):
        values = np.frombuffer(ctypes.string_at(source, count * np.dtype(dtype).itemsize), dtype)
        with self.nccl.condition:
            meeting = self.world.meetings[self._calls]
            self._calls += 1
            meeting[self.rank] = values
            self.nccl.condition.notify_all()
            self._until(lambda: len(meeting) == self.world_size)
            total = values.copy()
            for rank, other in sorted(meeting.items()):
                if rank != self.rank:
                    REDUCE[op](total, other, out=total)
        ctypes.memmove(target, total.ctypes.data, total.nbytes)

    def _until(self, is_ready):
        while not is_ready():
            if self.aborted:
                raise Aborted
            self.nccl.condition.wait(1.0)
