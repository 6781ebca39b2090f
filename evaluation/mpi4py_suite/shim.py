"""mpi4py's names of communicators and requests over a Communicator: buffers only, no objects, no derived datatypes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from evaluation.mpi4py_suite.buffers import (
    Blocks,
    NoVerb,
    array_of,
    blocks_of,
    byte_blocks_of,
    is_in_place,
)
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.mailbox import Received

OPS = {
    op.handle: name
    for op, name in (
        *((MPI.SUM, "sum"), (MPI.PROD, "prod"), (MPI.MIN, "min"), (MPI.MAX, "max")),
        *((MPI.BAND, "band"), (MPI.BOR, "bor"), (MPI.BXOR, "bxor")),
        *((MPI.LAND, "land"), (MPI.LOR, "lor"), (MPI.LXOR, "lxor")),
    )
}


def _nothing() -> None:
    pass


class ShimRequest:
    """What is waited for: some of lanterne's requests, and what is to be done once they are complete.

    Args:
        start: starts them; of a persistent one, at each Start.
    """

    def __init__(self, start: Callable[[], Sequence[Any]], end: Callable[[], None] = _nothing, again: bool = False):
        if isinstance(start, ShimRequest):
            raise NoVerb("handles")
        self._start = start
        self._end = end
        self._again = again
        self._parts: Sequence[Any] | None = None if again else start()
        self._free = False

    def Start(self) -> None:
        self._parts = self._start()

    def Wait(self, status: Any = None) -> bool:
        for part in self._parts or ():
            part.wait()
        self._done()
        return True

    def Test(self, status: Any = None) -> bool:
        if all([part.test() for part in self._parts or ()]):
            self._done()
            return True
        return False

    def Free(self) -> None:
        self._free = True

    def Cancel(self) -> None:
        raise NoVerb("cancelling")

    def _done(self) -> None:
        if self._parts is not None:
            self._parts = None
            self._end()
            self._free = not self._again

    @property
    def active(self) -> bool:
        return self._parts is not None

    def __bool__(self) -> bool:
        return not self._free

    def __eq__(self, other: object) -> bool:
        return self._free if isinstance(other, MPI.Request) else self is other

    __hash__ = object.__hash__

    @staticmethod
    def Startall(requests: Sequence["ShimRequest"]) -> None:
        for request in requests:
            request.Start()

    @staticmethod
    def Waitall(requests: Sequence["ShimRequest"], statuses: Any = None) -> bool:
        return all([request.Wait() for request in requests])

    @staticmethod
    def Testall(requests: Sequence["ShimRequest"], statuses: Any = None) -> bool:
        return all([not request.active or request.Test() for request in requests])

    @staticmethod
    def Waitany(requests: Sequence["ShimRequest"], status: Any = None) -> int:
        active = [index for index, request in enumerate(requests) if request.active]
        while active:
            for index in active:
                if requests[index].Test():
                    return index
        return int(MPI.UNDEFINED)

    @classmethod
    def Testany(cls, requests: Sequence["ShimRequest"], status: Any = None) -> tuple[int, bool]:
        active = [index for index, request in enumerate(requests) if request.active]
        found = next((index for index in active if requests[index].Test()), None)
        return (int(MPI.UNDEFINED), not active) if found is None else (found, True)

    @classmethod
    def Waitsome(cls, requests: Sequence["ShimRequest"], statuses: Any = None) -> list[int] | None:
        index = cls.Waitany(requests)
        return None if index == MPI.UNDEFINED else [index]

    @classmethod
    def Testsome(cls, requests: Sequence["ShimRequest"], statuses: Any = None) -> list[int] | None:
        active = [index for index, request in enumerate(requests) if request.active]
        return [index for index in active if requests[index].Test()] if active else None


class ShimComm:
    """A communicator of mpi4py, as far as its tests of buffers use it.

    lanterne's sends end once their buffers are free. A synchronous one waits for a receipt too, a message of `receipts`
    by the same tag: each receive sends one.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._box = comm.mailbox()
        self._receipts = comm.split(0)
        self._receipt_box = self._receipts.mailbox()
        self.rank: int = comm.rank
        self.size: int = comm.world_size

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Dup(self) -> "ShimComm":
        return ShimComm(self._comm.split(0))

    def Free(self) -> None:
        self._receipts.close()
        self._comm.close()

    def __getattr__(self, name: str) -> Any:
        # Every collective is defined once, as what it starts; `Iname` returns the request, `Name` waits for it.
        verb = _VERBS.get(name.removeprefix("I").capitalize() if name.startswith("I") else name)
        if verb is None:
            raise NoVerb(name)
        started = lambda *args, **options: ShimRequest(*verb(self, *args, **options))  # noqa: E731
        return started if name.startswith("I") else lambda *args, **options: started(*args, **options).Wait()

    # -- messages

    def _send(
        self, buf: Any, dest: int, copies: bool = False, synchronous: bool = False
    ) -> Callable[[], Sequence[Any]]:
        def start() -> Sequence[Any]:
            if dest == MPI.PROC_NULL:
                return ()
            array = array_of(buf)
            request = self._box.start_send(array.copy() if copies else array, dest, tag=self._tag)
            receipt = self._receipt_box.start_recv(np.empty(0), dest, tag=self._tag)
            if copies:
                return ()
            return (request, receipt) if synchronous else (request,)

        return start

    _tag = 0

    def _tagged(self, tag: int) -> "ShimComm":
        twin = ShimComm.__new__(ShimComm)
        twin.__dict__ |= self.__dict__ | {"_tag": tag}
        return twin

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> ShimRequest:
        return ShimRequest(self._tagged(tag)._send(buf, dest))

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Isend(buf, dest, tag).Wait()

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> ShimRequest:
        return ShimRequest(self._tagged(tag)._send(buf, dest, copies=True))

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Ibsend(buf, dest, tag).Wait()

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> ShimRequest:
        return ShimRequest(self._tagged(tag)._send(buf, dest, synchronous=True))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self.Issend(buf, dest, tag).Wait()

    Irsend = Isend
    Rsend = Send

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> ShimRequest:
        return ShimRequest(self._tagged(tag)._send(buf, dest), again=True)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> ShimRequest:
        return ShimRequest(self._tagged(tag)._send(buf, dest, copies=True), again=True)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> ShimRequest:
        return ShimRequest(self._tagged(tag)._send(buf, dest, synchronous=True), again=True)

    Rsend_init = Send_init

    def _recv(self, buf: Any, source: int, tag: int) -> Callable[[], Sequence[Any]]:
        peer = None if source == MPI.ANY_SOURCE else source
        wanted = None if tag == MPI.ANY_TAG else tag
        if source == MPI.PROC_NULL:
            return lambda: ()

        def start() -> Sequence[Any]:
            request = self._box.start_recv(array_of(buf), peer, tag=wanted)
            request.then(lambda: self._send_receipt(request.received))
            return (request,)

        return start

    def _send_receipt(self, received: Received | None) -> None:
        if received is not None:
            self._receipt_box.start_send(np.empty(0), received.source, tag=received.tag)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> ShimRequest:
        return ShimRequest(self._recv(buf, source, tag))

    def Recv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> None:
        self.Irecv(buf, source, tag).Wait()

    def Recv_init(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> ShimRequest:
        return ShimRequest(self._recv(buf, source, tag), again=True)

    def Isendrecv(self, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int) -> ShimRequest:
        receive, send = self._recv(recvbuf, source, recvtag), self._tagged(sendtag)._send(sendbuf, dest)
        return ShimRequest(lambda: (*receive(), *send()))

    def Sendrecv(self, *args: Any) -> None:
        self.Isendrecv(*args).Wait()

    def Isendrecv_replace(self, buf: Any, dest: int, sendtag: int, source: int, recvtag: int) -> ShimRequest:
        return self.Isendrecv(array_of(buf).copy(), dest, sendtag, buf, source, recvtag)

    def Sendrecv_replace(self, *args: Any) -> None:
        self.Isendrecv_replace(*args).Wait()

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> bool:
        found = self._box.probe(None if source == MPI.ANY_SOURCE else source, tag=None if tag == MPI.ANY_TAG else tag)
        if found is not None and status is not None:
            status.Set_source(found.source)
            status.Set_tag(found.tag)
        return found is not None

    def Probe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> None:
        while not self.Iprobe(source, tag, status):
            pass


# What a collective is: the function that starts it, and what follows.
Started = tuple[Callable[[], Sequence[Any]], Callable[[], None]]


def _one(request: Callable[[], Any], end: Callable[[], None] = _nothing) -> Started:
    return lambda: (request(),), end


def _name(op: Any) -> str:
    if op.handle not in OPS:
        raise NoVerb("user-defined operations")
    return OPS[op.handle]


def _barrier(shim: ShimComm) -> Started:
    return _one(shim._comm.start_barrier)


def _bcast(shim: ShimComm, buf: Any, root: int = 0) -> Started:
    return _one(lambda: shim._comm.start_broadcast(array_of(buf), root))


def _gather(shim: ShimComm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Started:
    out = array_of(recvbuf, shim.size) if shim.rank == root else None
    if is_in_place(sendbuf):
        assert out is not None, "only the root's is in place"
        source = np.split(out, shim.size)[root]
    else:
        source = array_of(sendbuf)
    return _one(lambda: shim._comm.start_gather(source, out if out is None else out[: source.size * shim.size], root))


def _scatter(shim: ShimComm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Started:
    source = array_of(sendbuf, shim.size) if shim.rank == root else None
    if is_in_place(recvbuf):
        assert source is not None, "only the root's is in place"
        out = np.split(source, shim.size)[root]
    else:
        out = array_of(recvbuf)
        out = out if source is None else out[: source.size // shim.size]
    return _one(lambda: shim._comm.start_scatter(source, out, root))


def _allgather(shim: ShimComm, sendbuf: Any, recvbuf: Any) -> Started:
    out = array_of(recvbuf, shim.size)
    source = np.split(out, shim.size)[shim.rank] if is_in_place(sendbuf) else array_of(sendbuf)
    return _one(lambda: shim._comm.start_all_gather(source, out))


def _alltoall(shim: ShimComm, sendbuf: Any, recvbuf: Any) -> Started:
    out = array_of(recvbuf, shim.size)
    source = out if is_in_place(sendbuf) else array_of(sendbuf, shim.size)
    return _one(lambda: shim._comm.start_all_to_all(source, out))


def _reduce(shim: ShimComm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0) -> Started:
    out = array_of(recvbuf) if shim.rank == root else None
    source = out if is_in_place(sendbuf) else array_of(sendbuf)
    assert source is not None, "only the root's is in place"
    return _one(lambda: shim._comm.start_reduce(source, out, root, _name(op)))


def _elementwise(name: str) -> Callable[..., Started]:
    def start(shim: ShimComm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Started:
        out = array_of(recvbuf)
        source = out if is_in_place(sendbuf) else array_of(sendbuf)
        return _one(lambda: getattr(shim._comm, f"start_{name}")(source, out, _name(op)))

    return start


def _reduce_scatter_block(shim: ShimComm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Started:
    out = array_of(recvbuf)
    source = out if is_in_place(sendbuf) else array_of(sendbuf)
    return _one(lambda: shim._comm.start_reduce_scatter(source, out[: source.size // shim.size], _name(op)))


def _reduce_scatter(shim: ShimComm, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = MPI.SUM) -> Started:
    out = array_of(recvbuf)
    source = out if is_in_place(sendbuf) else array_of(sendbuf)
    # Without counts those of the arrays that ranks give, which MPI gathers too.
    counts = list(recvcounts) if recvcounts is not None else _sizes(shim, out.size)
    return _one(lambda: shim._comm.start_reduce_scatter(source, out[: counts[shim.rank]], _name(op), counts=counts))


def _sizes(shim: ShimComm, size: int) -> list[int]:
    sizes = np.empty(shim.size, np.int64)
    shim._comm.all_gather(np.array([size]), sizes)
    return [int(each) for each in sizes]


def _gatherv(shim: ShimComm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Started:
    if shim.rank != root:
        mine = array_of(sendbuf)
        return _one(lambda: shim._comm.start_gather(mine, None, root, counts=mine.size))
    blocks = blocks_of(recvbuf, shim.size)
    out: NDArray[Any] = np.empty(sum(blocks.counts), blocks.array.dtype)
    start = sum(blocks.counts[:root])
    if is_in_place(sendbuf):
        mine = blocks.array[blocks.starts[root] :][: blocks.counts[root]].copy()
    else:
        mine = array_of(sendbuf)
    assert start <= out.size
    return _one(lambda: shim._comm.start_gather(mine, out, root, counts=blocks.counts), lambda: blocks.unpack(out))


def _scatterv(shim: ShimComm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Started:
    if shim.rank != root:
        out = array_of(recvbuf)
        return _one(lambda: shim._comm.start_scatter(None, out, root, counts=out.size))
    blocks = blocks_of(sendbuf, shim.size)
    mine = np.empty(blocks.counts[root], blocks.array.dtype) if is_in_place(recvbuf) else array_of(recvbuf)
    mine = mine[: blocks.counts[root]]
    return _one(lambda: shim._comm.start_scatter(blocks.packed, mine, root, counts=blocks.counts))


def _allgatherv(shim: ShimComm, sendbuf: Any, recvbuf: Any) -> Started:
    blocks = blocks_of(recvbuf, shim.size)
    mine = blocks.array[blocks.starts[shim.rank] :][: blocks.counts[shim.rank]].copy()
    mine = mine if is_in_place(sendbuf) else array_of(sendbuf)
    out: NDArray[Any] = np.empty(sum(blocks.counts), blocks.array.dtype)
    return _one(lambda: shim._comm.start_all_gather(mine, out, counts=blocks.counts), lambda: blocks.unpack(out))


def _alltoallv(shim: ShimComm, sendbuf: Any, recvbuf: Any) -> Started:
    come = blocks_of(recvbuf, shim.size)
    return _all_to_all_blocks(shim, come if is_in_place(sendbuf) else blocks_of(sendbuf, shim.size), come)


def _alltoallw(shim: ShimComm, sendbuf: Any, recvbuf: Any) -> Started:
    come = byte_blocks_of(recvbuf, shim.size)
    return _all_to_all_blocks(shim, come if is_in_place(sendbuf) else byte_blocks_of(sendbuf, shim.size), come)


def _all_to_all_blocks(shim: ShimComm, sent: Blocks, come: Blocks) -> Started:
    packed = sent.packed.copy() if sent is come else sent.packed
    out: NDArray[Any] = np.empty(sum(come.counts), come.array.dtype)
    return _one(
        lambda: shim._comm.start_all_to_all(packed, out, in_counts=sent.counts, out_counts=come.counts),
        lambda: come.unpack(out),
    )


_VERBS: dict[str, Callable[..., Started]] = {
    "Barrier": _barrier,
    "Bcast": _bcast,
    "Gather": _gather,
    "Scatter": _scatter,
    "Allgather": _allgather,
    "Alltoall": _alltoall,
    "Reduce": _reduce,
    "Allreduce": _elementwise("all_reduce"),
    "Scan": _elementwise("scan"),
    "Exscan": _elementwise("exscan"),
    "Reduce_scatter_block": _reduce_scatter_block,
    "Reduce_scatter": _reduce_scatter,
    "Gatherv": _gatherv,
    "Scatterv": _scatterv,
    "Allgatherv": _allgatherv,
    "Alltoallv": _alltoallv,
    "Alltoallw": _alltoallw,
}


class ShimMPI:
    """mpi4py.MPI for test modules: communicators and requests are the shim's, those of the calling thread."""

    Prequest = ShimRequest
    Request = ShimRequest

    def __init__(self) -> None:
        self._here = threading.local()

    def enter(self, world: Communicator, alone: Communicator) -> None:
        """From now on this thread is a rank of `world`; `alone` is of itself only."""
        self._here.world, self._here.alone = ShimComm(world), ShimComm(alone)

    @property
    def COMM_WORLD(self) -> Any:
        return getattr(self._here, "world", MPI.COMM_WORLD)

    @property
    def COMM_SELF(self) -> Any:
        return getattr(self._here, "alone", MPI.COMM_SELF)

    @staticmethod
    def Attach_buffer(buf: Any) -> None:
        """Nothing: copies are lanterne's own."""

    @staticmethod
    def Detach_buffer() -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(MPI, name)
