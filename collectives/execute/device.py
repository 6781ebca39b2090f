"""What a communicator has for device arrays: streams, scratch, and the way their messages take.

Over nccl all is queued on streams (stream_execution.py). Over any other transport messages go through pinned host
memory (transport/staged.py), or straight from the device where the transport says that it can; the host's executor
runs them, and folds read what has arrived where it is: in pinned memory.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lanterne.collectives.call.memory import CallMemory
from lanterne.errors import InputError, LanterneError
from lanterne.kernels.arrays import Event, Stream
from lanterne.kernels.cuda.device_view import DeviceView, view_device
from lanterne.kernels.cuda.runtime import CudaRuntime, runtime_of
from lanterne.kernels.dtypes import Dtype
from lanterne.kernels.reduce import factor_of
from lanterne.kernels.staging import pinned_empty, wait_for
from lanterne.transport.base import Recv, Region, Request, Send, Transport, make_tag
from lanterne.transport.nccl.channel import MEETING_LANE, NcclChannel
from lanterne.transport.nccl.over_nccl import NcclTransport
from lanterne.transport.nccl.watchdog import ChannelRequest, stuck_stream


class Entry(NamedTuple):
    """Where a call stands on the user's stream: `event` is done once the stream has reached it."""

    stream: Stream
    event: Event


class DeviceSide:
    """The device of one rank of a communicator. All members make one at their first call with device arrays.

    Args:
        transport, ranks, communicator_id: the communicator's.
        array: the first device array, which says which device it is where the transport does not.

    Attributes: `runtime`, a CudaRuntime; `channel`, an NcclChannel or None; `transport`, which takes device regions;
    `streams`, of messages and of work.
    """

    def __init__(self, transport: Transport, ranks: tuple[int, ...], communicator_id: int, array: Any) -> None:
        self.runtime: CudaRuntime = transport.runtime or runtime_of(view_device(array).address)
        self.channel: NcclChannel | None = None
        if isinstance(transport, NcclTransport):
            whole = transport.channel
            tag = make_tag(communicator_id, MEETING_LANE)
            mine = whole.ranks == ranks and communicator_id == 0
            self.channel = whole if mine else transport.open_channel(ranks, tag)
            self.streams: tuple[Stream, Stream] = (self.channel.stream, self.runtime.new_stream())
        else:
            self.streams = (self.runtime.new_stream(), self.runtime.new_stream())
        self.direct: bool = transport.capabilities.device_memory
        self.transport: Transport = transport if self.direct else _staged(transport, self.runtime, self.streams[1])
        self._scratch: Region | None = None

    # -- arrays and streams of the user's

    def adopt(self, what: str, array: Any) -> DeviceView:
        """The DeviceView of `array`.

        Raises:
            InputError: no device array, not contiguous, not on this rank's device, or not where its elements may lie.
        """
        view, own = view_device(array, what), self.runtime.device_id
        found = self.runtime.device_of(view.address) if view.size else own
        if found < 0:
            raise InputError(f"{what}: got an address in host memory, expected one on device {own}, this rank's own")
        if found != own:
            raise InputError(f"{what}: got an array on device {found}, expected device {own}, this rank's own")
        # A kernel that reads there would end all work on the device.
        if view.size and view.address % view.dtype.itemsize:
            raise InputError(
                f"{what}: got elements of {view.dtype.itemsize} bytes at address {view.address:#x}, expected a "
                "multiple of their size"
            )
        return view

    def entry(self, stream: Stream, view: DeviceView) -> Entry:
        """The Entry of a call on `stream` (None: the one that made `view`, else the current one)."""
        found = self.runtime.as_stream(view.stream if stream is None else stream)
        return Entry(found, self.runtime.record(found))

    def scaled(self, stream: Stream, memory: CallMemory, factor: float, dtype: Dtype) -> CallMemory:
        """`memory` with a copy of its source, times `factor`, which is made on the call's stream (as of `entry`).

        Raises:
            InputError: bools; no number.
            Unavailable: no room for the copy on the device.
        """
        source = memory.source
        assert isinstance(source, DeviceView), "whoever reduces gives an array"
        number, multiply = factor_of(factor, dtype), self.runtime.prepare_multiply(dtype)
        copy = replace(self.runtime.empty(source.nbytes, "a PremulSum's copy"), size=source.size, dtype=source.dtype)
        user = self.runtime.as_stream(source.stream if stream is None else stream)
        multiply(source.size, copy.address, source.address, number, stream=user)
        return memory._replace(source=replace(copy, element=source.element), in_place=False, copies=True)

    def has_reached(self, entry: Entry) -> bool:
        """True once the user's stream has reached the call."""
        return self.runtime.is_done(entry.event)

    def check_reached(self, entry: Entry, what: str, limit_s: float) -> None:
        """Raise TransportTimeout if the user's stream, after `limit_s`, has not reached the call `what`."""
        if not self.has_reached(entry):
            channel = self.channel
            raise channel.overdue(what, limit_s) if channel else stuck_stream(self.transport, what, limit_s)

    # -- failure

    @property
    def is_open(self) -> bool:
        """Whether nothing has ended the channel: what the watch saw, too."""
        channel = self.channel
        return channel is None or (channel.failure is None and not channel.closed)

    def check(self) -> None:
        """Raise what has ended the channel, if anything has."""
        if self.channel is not None:
            self.channel.check_open()

    def hear_by(self, listener: Callable[[], None]) -> None:
        """Have `listener`, a method, called while work is under way on a channel; it raises what others have told."""
        hears = isinstance(self.transport, NcclTransport) and self.transport.hears_s is not None
        if hears and self.channel is not None:
            self.channel.hear_by(listener)

    def fail(self, error: LanterneError) -> None:
        """End the channel: what is queued on it is given up, so that no stream hangs."""
        if self.channel is not None:
            self.channel.fail(error)

    # -- the order of calls on the streams

    def has_room(self) -> bool:
        """False while so much is queued that CUDA would keep the CPU waiting for a place for more."""
        return self.channel is None or self.channel.has_room()

    def enter(self, entry: Entry) -> None:
        """Let what is queued from now on come after `entry`, and after all calls before; see `joined`."""
        self.runtime.wait_event(entry.event, self.streams[0])

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """A block of queued work: both streams start it together, and the stream of messages ends it."""
        messages, work = self.streams
        self.runtime.wait_event(self.runtime.record(messages), work)
        yield
        self.runtime.wait_event(self.runtime.record(work), messages)

    def leave(self, entry: Entry, peers: Sequence[int], what: str, held: Any) -> ChannelRequest:
        """Let the user's stream wait for all that was queued; the ChannelRequest of it. `held`: memory to keep."""
        done = self.runtime.record(self.streams[0])
        self.runtime.wait_event(done, entry.stream)
        assert self.channel is not None, "without a channel nothing is queued"
        return ChannelRequest(self.channel, self.channel.watch(entry.event, done, peers, what, held))

    def is_idle(self) -> bool:
        """True once all that was queued before is done."""
        return all(map(self.runtime.is_idle, self.streams))

    def poster(self, view: DeviceView, stream: Stream) -> Callable[[tuple[Send | Recv, ...]], Request]:
        """A function of operations that posts them in the order of the user's stream: of a message of `view`."""
        channel = self.channel
        if channel is not None:
            user = self.runtime.as_stream(view.stream if stream is None else stream)
            return lambda ops: channel.post(ops, user)
        entry = self.entry(stream, view)
        if self.direct:
            # The library reads and writes the memory when it likes.
            wait_for(lambda: self.has_reached(entry), f"a message on {self.transport.name}", self.transport.timeout_s)
        else:
            self.runtime.wait_event(entry.event, self.streams[1])
        return self.transport.post

    # -- memory

    def region(self, nbytes: int) -> Region:
        """Scratch of at least `nbytes`: a Region, of device memory, or of pinned host memory where messages are staged.

        Raises:
            Unavailable: no room for it on the device.
        """
        if self._scratch is None or self._scratch.nbytes < nbytes:
            nbytes = max(nbytes, 1)
            memory = self.runtime.empty(nbytes) if self.direct else pinned_empty(self.runtime, nbytes)
            self._scratch = self.transport.register(memory)
        return self._scratch

    def event(self) -> Event:
        """Return an event that is done once all work queued so far is."""
        return self.runtime.record(self.streams[1])

    def address_of(self, region: Region) -> int:
        """Where kernels see `region`."""
        return region.address if region.device else self.runtime.device_address(region.address)


def _staged(transport: Transport, runtime: CudaRuntime, stream: Stream) -> Transport:
    from lanterne.transport.staged import StagedTransport

    return StagedTransport(transport, runtime, stream)
