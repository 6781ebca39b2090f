"""The data plane of device memory over nccl: messages go from GPU to GPU on streams, and the CPU only queues them.

    with make_plane("streams", comm, links) as plane:     # comm over nccl
        plane.stage_on(device)

Each direction between two ranks has an NCCL communicator, and at both ends a stream, of its own: no message waits for
one of another pair or direction. A send follows what the computing stream was given before it; what needs a message
waits for it there. NCCL moves a message once both ends have come to it, so receives are queued ahead, in the order in
which their rank sends; but not in the first iteration, in which kernels are loaded: CUDA may then wait for all that is
on the device, for ever if that waits for what another rank will send once it has heard from this one.

Emulated links take their time on those streams too (StreamShaper): bandwidth keeps a direction's stream busy at both
ends, latency holds the receiver's computing stream back. A message over a link with a bandwidth follows one of a few
bytes, which is done at both ends together: from then on both count.

A kernel's first launch loads it, which may wait for all streams, and so for messages that will not come before this
rank has done more: run what computes once before the first message (Trainer does).

What fails ends the plane: NCCL takes nothing back. Waits have the transport's timeout, from when the computing stream
gets there.
Paper: Chen et al. 2025 (CrossPipe), sections 6.3 and 6.4, appendix F.1; differs: see kernels/cuda/spin.py.
"""

import os
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.errors import InputError, LanterneError
from lanterne.kernels.arrays import CONNECTIONS_VARIABLE, Event, Stream, address_of
from lanterne.kernels.cuda.spin import ShapedTransfer, SpinKernels, StreamShaper
from lanterne.pipeline.planes.data_plane import Buffer, DataPlane, Receive, Shape
from lanterne.transport.base import make_tag
from lanterne.transport.nccl.channel import MEETING_LANE, NcclChannel
from lanterne.transport.nccl.over_nccl import NcclTransport
from lanterne.transport.nccl.watchdog import ChannelRequest
from lanterne.transport.shaped import FREE, Link, Links

if TYPE_CHECKING:
    from lanterne.pipeline.device.device_stage import Device

# Receives from a rank that are queued before the first of them is waited for. A stream takes a thousand pieces of work,
# some five a message, and then keeps the CPU waiting.
AHEAD = 64
LEAD_NBYTES = 8
# Streams that must not hold each other up: of two neighbours four, and those that compute and copy.
LEAST_CONNECTIONS = 8


class Streams(DataPlane):
    """All messages between ranks of `comm` by NCCL, on streams.

    Args:
        comm: a Communicator of this plane's own over a transport that is ordered on streams; closed with it.
        links: {(source, destination): Link}, ranks of `comm`: emulated.
        make_spins: gives the SpinKernels of this rank's device; None: that class.
    """

    on_device = True

    def __init__(
        self, comm: Communicator, links: Links | None = None, make_spins: Callable[[], SpinKernels] | None = None
    ) -> None:
        told = os.environ.get(CONNECTIONS_VARIABLE, "")
        if told.isdigit() and int(told) < LEAST_CONNECTIONS:
            raise InputError(
                f"streams: got {CONNECTIONS_VARIABLE}={told}, expected {LEAST_CONNECTIONS} or more, or none: a stream "
                "that waits for a message would hold up the others"
            )
        self.comm = comm
        self._links: dict[tuple[int, int], Link] = dict(links or {})
        self._make_spins = make_spins or SpinKernels
        self._spins: SpinKernels | None = None
        self._staged_on: Device | None = None
        self._ahead = 0
        # Peer -> the directions to and from it; both are opened when the first of their messages is asked for.
        self._to: dict[int, Direction] = {}
        self._from: dict[int, Direction] = {}
        # The messages of this iteration, in the order in which the computing stream comes to them.
        self._carried: deque[MessageRequest] = deque()
        # (shape, dtype) -> arrays with the event after which they may be written, oldest first.
        self._free: dict[tuple[Shape, np.dtype[Any]], deque[tuple[Buffer, Event]]] = {}

    def lend(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Buffer:
        return self.take(shape, dtype)[0]

    def send(self, buffer: Buffer, peer: int, timeout_s: float | None = None) -> bool:
        self._open(peer)
        direction, runtime = self._to[peer], self._device.runtime
        made = runtime.record(self._computing())
        transfer = direction.carry(buffer, made)
        self._carry(direction, made, transfer, buffer)
        self._give(buffer, transfer.event)
        return False

    def receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Receive:
        self._open(peer)
        return StreamReceive(self, self._from[peer], shape, dtype)

    def take(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Buffer, Event]:
        """(an array that the computing stream may write to, an event after which all may; None: at once)."""
        free, runtime = self._free.setdefault((shape, dtype), deque()), self._device.runtime
        if free and runtime.is_done(free[0][1]):
            return free.popleft()[0], None
        return self._device.xp.empty(shape, dtype), runtime.record(self._computing())

    def hold(self, direction: "Direction", shaper: StreamShaper, transfer: ShapedTransfer, buffer: Buffer) -> None:
        """Hold the computing stream back until the message that is to come into `buffer` is here."""
        computing = self._computing()
        reached = self._device.runtime.record(computing)
        shaper.hold(transfer, computing)
        self._carry(direction, reached, transfer, buffer)

    def _carry(self, direction: "Direction", reached: Event, transfer: ShapedTransfer, buffer: Buffer) -> None:
        """Watch a message in `buffer`, which is to end within the transport's timeout from the event `reached`."""
        channel = direction.channel
        pending = channel.watch(reached, transfer.event, (direction.peer,), direction.about, regions=(buffer,))
        self._carried.append(MessageRequest(core_of(self.comm), ChannelRequest(channel, pending)))

    def release(self, buffer: Buffer) -> None:
        self._give(buffer, self._device.runtime.record(self._computing()))

    def finish(self, timeout_s: float | None = None) -> None:
        # In the order of the plan: as long as this rank's stream goes on, some message ends from time to time.
        while self._carried:
            self._carried[0].wait(timeout_s)
            self._carried.popleft()
        self._ahead = AHEAD
        for direction in self._from.values():
            direction.ahead = AHEAD

    def set_link(self, source: int, destination: int, link: Link) -> None:
        self._links[source, destination] = link
        self._load()
        for own, peer, directions in ((source, destination, self._to), (destination, source, self._from)):
            if own == self.comm.rank and peer in directions:
                directions[peer].shaper = self._shaper(link, directions is self._to)

    def stage_on(self, device: "Device") -> None:
        self._staged_on = device
        self._leads: list[Any] = [device.runtime.empty(LEAD_NBYTES) for _ in range(2)]
        self._load()

    def fail(self, error: LanterneError) -> None:
        core_of(self.comm).fail(error)
        for direction in (*self._to.values(), *self._from.values()):
            direction.channel.fail(error)

    def close(self) -> None:
        for direction in (*self._to.values(), *self._from.values()):
            direction.channel.close()
        self.comm.close()

    @property
    def _device(self) -> "Device":
        if self._staged_on is None:
            raise InputError("data plane streams: got no device, expected `stage_on` before the first message")
        return self._staged_on

    def _computing(self) -> Stream:
        """The stream that computes. Raises InputError for one that is being captured: no graph holds a plane."""
        return self._device.runtime.as_stream(None)

    def _open(self, peer: int) -> None:
        """Open the directions to and from `peer`, which does it now, too.

        No cycle of ranks waits for each other: all ask their peers in ascending order, lower ranks first.
        """
        if peer in self._to:
            return
        rank, leads = self.comm.rank, self._leads if self._device else []
        for sends in (rank < peer, rank > peer):
            source, destination = (rank, peer) if sends else (peer, rank)
            directions, lead = (self._to, leads[0]) if sends else (self._from, leads[1])
            shaper = self._shaper(self._links.get((source, destination), FREE), sends)
            directions[peer] = Direction(self.comm, peer, sends, lead, shaper, self._ahead)

    def _shaper(self, link: Link, sends: bool) -> StreamShaper:
        """The StreamShaper of the sending or the receiving end; latency is the receiver's."""
        latency_s = 0.0 if sends else link.latency_s
        return StreamShaper(self._device.runtime, latency_s, link.bandwidth_bytes_per_s, self._spins)

    def _load(self) -> None:
        """Have the kernels of emulated links, where there are any, before messages are under way."""
        if self._spins is None and self._staged_on is not None and any(link != FREE for link in self._links.values()):
            self._spins = self._make_spins()

    def _give(self, array: Buffer, event: Event) -> None:
        self._free.setdefault((array.shape, array.dtype), deque()).append((array, event))


class Direction:
    """The messages from this rank to `peer`, or from it to this one.

    Args:
        sends: which of the two.
        lead: LEAD_NBYTES of device memory, anything.
        shaper: the StreamShaper of its link; may be replaced.
        ahead: receives that are queued before they are waited for, at most; may be replaced.

    Attributes: `channel`, its NcclChannel; `peer`, the transport's rank of it; `about`, its messages in words.
    """

    def __init__(self, comm: Communicator, peer: int, sends: bool, lead: Any, shaper: StreamShaper, ahead: int) -> None:
        transport = comm.transport
        assert isinstance(transport, NcclTransport)
        self.shaper = shaper
        self.ahead = ahead
        self.peer: int = comm.ranks[peer]
        ends = sorted((comm.ranks[comm.rank], self.peer))
        self.about: str = f"a message {'to' if sends else 'from'} rank {self.peer}"
        self.channel: NcclChannel = transport.open_channel(ends, make_tag(comm.communicator_id, MEETING_LANE))
        self._lead = sends, address_of(lead), LEAD_NBYTES, ends.index(self.peer)
        # The first message makes the connection, for which the CPU waits until the other end comes.
        self.channel.group([self._lead])
        # Receives that are not queued yet; how many are, and are not waited for.
        self._later: deque[StreamReceive] = deque()
        self._num_ahead = 0

    def carry(self, array: Buffer, ready: Event) -> ShapedTransfer:
        """Queue the message that is, or is to be, in `array`, after the event `ready` if there is one."""
        channel, shaper = self.channel, self.shaper
        if ready is not None:
            channel.runtime.wait_event(ready, channel.stream)
        if shaper.bandwidth_bytes_per_s is not None or not array.nbytes:
            channel.group([self._lead])
        sends, _, _, member = self._lead
        with shaper.transfer(array.nbytes, channel.stream) as done:
            channel.group([(sends, address_of(array), array.nbytes, member)])
        return done[0]

    def expect(self, receive: "StreamReceive") -> None:
        """`receive` is to come, after those before it."""
        self._later.append(receive)
        self._queue_ahead()

    def come_to(self, receive: "StreamReceive") -> ShapedTransfer:
        """`receive` is waited for: queue it, and all before it. Returns its transfer."""
        while receive.transfer is None:
            self._queue_next()
        self._num_ahead -= 1
        self._queue_ahead()
        return receive.transfer

    def _queue_ahead(self) -> None:
        while self._later and self._num_ahead < self.ahead:
            self._queue_next()

    def _queue_next(self) -> None:
        self._later.popleft().queue()
        self._num_ahead += 1


class StreamReceive(Receive):
    """A message that the computing stream will wait for; the CPU never does."""

    __slots__ = ("_buffer", "_direction", "_message", "_plane", "_shaper", "transfer")

    @property
    def looked_s(self) -> float:
        return -inf

    def __init__(self, plane: Streams, direction: Direction, shape: Shape, dtype: np.dtype[Any]) -> None:
        self._plane = plane
        self._direction = direction
        self._message = shape, dtype
        self.transfer: ShapedTransfer | None = None
        direction.expect(self)

    def queue(self) -> None:
        """Let the message come, after those before it."""
        self._buffer, writable = self._plane.take(*self._message)
        self._shaper = self._direction.shaper
        self.transfer = self._direction.carry(self._buffer, writable)

    def test(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> Buffer:
        transfer = self._direction.come_to(self)
        self._plane.hold(self._direction, self._shaper, transfer, self._buffer)
        return self._buffer
