"""The data plane of common frameworks: the computing rank itself sends, in order, and waits when its queue is full."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.collectives.message_lanes import Lane
from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.device.message_staging import MessageStaging
from lanterne.pipeline.planes.data_plane import Buffer, DataPlane, Pool, Receive, Shape
from lanterne.transport.shaped import Link, ShapedTransport

if TYPE_CHECKING:
    from lanterne.pipeline.device.device_stage import Device

# Of each buffer, which comes again and again, by its id and the peer: what starts a message of it, and holds it.
Starts: TypeAlias = dict[tuple[int, int], Callable[[], MessageRequest]]


class Inline(DataPlane):
    """Sends messages in the order in which they are handed over; receives are posted when they are asked for.

    Args:
        comm: the Communicator, of this plane alone or shared.
        queue: sends that may not be done while the rank goes on computing; 0: it waits for each; None: any number.
        owned: whether `close` closes `comm`.
    """

    def __init__(self, comm: Communicator, queue: int | None = 1, *, owned: bool = False) -> None:
        if queue is not None and queue < 0:
            raise InputError(f"queue: got {queue}, expected at least 0 sends")
        self.comm = comm
        self.in_order = queue
        self._owned = owned
        self._sends: deque[tuple[MessageRequest, Buffer]] = deque()
        self._pool = Pool()
        # Of stages on a device.
        self._staging: MessageStaging | None = None
        self._send_starts: Starts = {}
        self._receive_starts: Starts = {}

    def lend(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Buffer:
        return self._pool.take(shape, dtype)

    def send(self, buffer: Buffer, peer: int, timeout_s: float | None = None) -> bool:
        if self._staging is not None:
            # While the rank computes nobody would post the message.
            self._staging.land(buffer, self._limit_s(timeout_s))
        start = self._send_starts.get((id(buffer), peer))
        if start is None:
            start = self._send_starts[id(buffer), peer] = core_of(self.comm).prepare_send(
                buffer, peer, tag=Lane.PIPELINE
            )
        self._sends.append((start(), buffer))
        return self._wait(self.in_order, timeout_s)

    def receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Receive:
        receive = InlineReceive(self, shape, dtype, peer)
        receive.post()
        return receive

    def look(self, receive: "InlineReceive") -> bool:
        """Make progress; True once the message of `receive` is here."""
        return receive.post().test()

    def start_receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> tuple[MessageRequest, Buffer]:
        """Post a receive of the next message from rank `peer`; return its request and the buffer that it fills."""
        buffer = self._pool.take(shape, dtype)
        start = self._receive_starts.get((id(buffer), peer))
        if start is None:
            start = self._receive_starts[id(buffer), peer] = core_of(self.comm).prepare_recv(
                buffer, peer, tag=Lane.PIPELINE
            )
        return start(), buffer

    def release(self, buffer: Buffer) -> None:
        if self._staging is not None:
            # What has used the message was queued after its copy: there is hardly anything to wait for.
            self._staging.consume(buffer, self._limit_s(None))
        self._pool.give(buffer)

    def finish(self, timeout_s: float | None = None) -> None:
        self._wait(0, timeout_s)

    def set_link(self, source: int, destination: int, link: Link) -> None:
        transport = self.comm.transport
        if not isinstance(transport, ShapedTransport):
            raise InputError(f"set_link: got transport {transport.name}, expected one with emulated links")
        transport.set_link(self.comm.ranks[source], self.comm.ranks[destination], link)

    def stage_on(self, device: "Device") -> None:
        self._staging = MessageStaging(device)
        self._pool = Pool(self._staging.empty)

    def fail(self, error: LanterneError) -> None:
        core_of(self.comm).fail(error)

    def close(self) -> None:
        try:
            if self._staging is not None:
                self._staging.close()
        finally:
            if self._owned:
                self.comm.close()

    def _limit_s(self, timeout_s: float | None) -> float:
        return self.comm.timeout_s if timeout_s is None else timeout_s

    def _wait(self, most: int | None, timeout_s: float | None) -> bool:
        """Return once at most `most` sends are not done, and whether that took waiting."""
        waited, sends = False, self._sends
        while sends:
            request, buffer = sends[0]
            if not request.test():
                if most is None or len(sends) <= most:
                    break
                request.wait(timeout_s)
                waited = True
            sends.popleft()
            self._pool.give(buffer)
        return waited


class InlineReceive(Receive):
    """A message that the communicator receives once it is posted: when it is asked for, or later (paired.py).

    Attributes: `peer`, the rank that sends it.
    """

    __slots__ = ("_buffer", "_message", "_plane", "_request", "peer")

    def __init__(self, plane: Inline, shape: Shape, dtype: np.dtype[Any], peer: int) -> None:
        self._plane = plane
        self._message = shape, dtype
        self.peer: int = peer
        self._request: MessageRequest | None = None

    @property
    def looked_s(self) -> float:
        return -inf if self._request is None else self._request._looked_s

    def post(self) -> MessageRequest:
        """Post it, unless that was done; return its request."""
        if self._request is None:
            self._request, self._buffer = self._plane.start_receive(*self._message, self.peer)
        return self._request

    def test(self) -> bool:
        return self._plane.look(self)

    def wait(self, timeout_s: float | None = None) -> Buffer:
        if not self._plane.look(self):
            self.post().wait(timeout_s)
        return self._buffer
