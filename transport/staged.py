"""Device memory over a transport that moves host memory: through pinned buffers, copied on streams of their own.

A send leaves once its copy to the host has landed, a receive is complete once its copy to the device is. Messages of
one pair and tag leave in the order of their posts, however long their copies take.
Paper: ADAPTRA, section 5.2 (transfers that the compute stream does not wait for).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lanterne.kernels.staging import Copy, Stager, pinned_empty
from lanterne.transport.base import Operation, PostedOperation, Recv, Request, Send, Transport
from lanterne.transport.wrapper import Wrapper

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

# Buffers are kept for the next message of their size, a power of two.
LEAST_BUFFER_NBYTES = 4096


class StagedTransport(Wrapper):
    """`inner`, for regions of device memory too.

    Args:
        inner: a transport of host memory; closed by whoever opened it.
        stream: the one that makes the data: copies to the host come after what it was given before the post.
    """

    def __init__(self, inner: Transport, runtime: "CudaRuntime", stream: Any) -> None:
        super().__init__(inner, inner.name, replace(inner.capabilities, device_memory=True))
        self._runtime = runtime
        self.runtime: CudaRuntime | None = runtime
        self.stream = stream
        self._stager = Stager(runtime)
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        # (peer, tag) -> sends not yet posted on `inner`, oldest first.
        self._outbox: dict[tuple[int, int], deque[_StagedOperation]] = {}

    def _post(self, ops: Sequence[Operation]) -> Request:
        if not any(op.region.device or self._outbox.get((op.peer, op.tag)) for op in ops):
            return self.inner.post(ops)
        return Request(self, [self._start(op) for op in ops])

    def _is_done(self, operation: "_StagedOperation") -> bool:
        # Here, since a communicator calls `take_in` of the inner transport.
        self._pump()
        return operation.test()

    def _pump(self) -> None:
        """Post the sends whose copies have landed."""
        for key, waiting in list(self._outbox.items()):
            while waiting and waiting[0].copy_is_done():
                waiting.popleft().post()
            if not waiting:
                del self._outbox[key]

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """A pinned buffer of at least `nbytes`."""
        size = max(LEAST_BUFFER_NBYTES, 1 << max(0, nbytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        return free.pop() if free else pinned_empty(self._runtime, size)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """The buffer is not used any more."""
        self._free[buffer.nbytes].append(buffer)

    def close(self) -> None:
        self.closed = True

    def _start(self, op: Operation) -> "_StagedOperation":
        operation = _StagedOperation(self, op)
        if type(op) is Send:
            self._outbox.setdefault((op.peer, op.tag), deque()).append(operation)
        return operation


class _StagedOperation(PostedOperation):
    """An operation of which device memory is copied: a Send before it is posted, a Recv once its message is here."""

    def __init__(self, transport: StagedTransport, op: Operation) -> None:
        super().__init__(op)
        self._transport = transport
        self._buffer: NDArray[np.uint8] | None = None
        self._copy: Copy | None = None
        self._posted = op
        if op.region.device:
            self._buffer = transport.take(op.nbytes)
            self._posted = op._replace(region=transport.inner.register(self._buffer), offset=0)
            if type(op) is Send:
                host, address = self._buffer[: op.nbytes], op.region.address + op.offset
                self._copy = transport._stager.to_host(host, address, transport.stream)
        if type(op) is Recv:
            self.post()

    def copy_is_done(self) -> bool:
        return self._copy is None or self._copy.test()

    def post(self) -> None:
        self.request = self._transport.inner.post((self._posted,))

    def test(self) -> bool:
        if self.request is None or not self.request.test():
            return False
        if self._buffer is None:
            return True
        transport, op = self._transport, self.op
        if type(op) is Recv:
            if self._copy is None:
                host = self._buffer[: op.nbytes]
                self._copy = transport._stager.to_device(op.region.address + op.offset, host, transport.stream)
            if not self._copy.test():
                return False
        transport.give_back(self._buffer)
        self._buffer = None
        return True
