"""Runs a RankProgram on CUDA streams: all of it is queued at once, and the CPU goes on; or captured once, and launched.

The host's Execution (executor.py) has the same verbs; programs, compiler, kernels and scratch rules are shared.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from lanterne.collectives.execute.arguments import Key
from lanterne.collectives.execute.rank_program import IN, OUT, SCRATCH, BufferPlace, Fold, Message, Move, RankProgram
from lanterne.collectives.execute.stream_program import MESSAGES, WORK, StreamStep, lower
from lanterne.kernels.arrays import Event, Stream
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.dtypes import Dtype
from lanterne.transport.base import Region

if TYPE_CHECKING:
    from lanterne.collectives.execute.device import DeviceSide, Entry
    from lanterne.transport.nccl.channel import NcclChannel
    from lanterne.transport.nccl.watchdog import ChannelRequest


class QueuedExecution:
    """One call at a time that is queued on the streams of a DeviceSide, of which the user's wait for it.

    Args:
        what: what the call is, for errors.
        peers: transport ranks whose messages it needs, sorted.

    Attributes:
        remaining: 1 until all is queued, then 0.
        completion: the ChannelRequest of its end, once all is queued.
    """

    def __init__(self, side: "DeviceSide", channel: "NcclChannel", what: str, peers: Sequence[int]) -> None:
        self._side = side
        self._channel = channel
        self._what = what
        self._peers = peers
        self._arrays: tuple[DeviceView | None, DeviceView | None] | None = None
        self._entry: Entry | None = None
        self.completion: ChannelRequest | None = None
        self.remaining: int = 0

    def bind(self, in_array: Any, out_array: Any, entry: "Entry | None" = None) -> None:
        """Take the user's DeviceViews and the Entry of the call."""
        self._arrays = in_array, out_array
        self._entry = entry
        self.completion = None
        self.remaining = 1

    def unbind(self) -> None:
        """Let go of the user's arrays; what is queued has them still."""
        self._arrays = None
        self._entry = None

    def is_ready(self) -> bool:
        """True if the streams have room: they wait for the user's, the CPU does not."""
        return self._side.has_room()

    def advance(self) -> bool:
        """True once all is queued."""
        return not self.remaining

    def pending_peers(self) -> Sequence[int]:
        """Transport ranks whose messages this call needs, sorted."""
        return self._peers

    def enter(self) -> None:
        """Let what is queued from now on come after the user's."""
        assert self._entry is not None, "bound"
        self._side.enter(self._entry)

    def leave(self, held: Any) -> None:
        """All is queued, on memory `held` too."""
        assert self._entry is not None, "bound"
        self.completion = self._side.leave(self._entry, self._peers, self._what, held)
        self.remaining = 0


# What a program's graphs are of: what comes before phase "join", that phase, all.
BEFORE, JOINING, WHOLE = range(3)


class StreamExecution(QueuedExecution):
    """One call of a program at a time, on the streams of a DeviceSide.

    Args:
        op, dtype: of its folds. Compiled here, before anything is queued.
        what: what the call is, for errors.
    """

    def __init__(
        self,
        program: RankProgram,
        side: "DeviceSide",
        channel: "NcclChannel",
        op: str | None,
        dtype: Dtype,
        what: str,
    ) -> None:
        peers = {channel.ranks[a.peer] for a in program.actions if type(a) is Message and a.nbytes}
        super().__init__(side, channel, what, sorted(peers))
        self.program = program
        self._divisor = float(channel.world_size)
        runtime = side.runtime
        # By the number of inputs.
        self._kernels: dict[int, Callable[..., Any]] = {
            len(action.inputs): runtime.prepare_fold(op, dtype, len(action.inputs))
            for action in program.actions
            if type(action) is Fold and op is not None
        }
        divides = any(type(action) is Fold and action.divides for action in program.actions)
        self._divide: Callable[..., Any] | None = runtime.prepare_divide(dtype) if divides else None
        # By (start, stop): the steps, and the graphs that were made of them.
        self._steps: dict[tuple[int, int], tuple[StreamStep, ...]] = {}
        self._graphs: dict[tuple[int, int], Any] = {}
        # By part: BEFORE, JOINING, WHOLE; None of a part that is empty.
        self._ready: tuple[Any, ...] = ()
        self._bases = [0, 0, 0]
        self._scratch: Region

    def bind(self, in_array: Any, out_array: Any, entry: "Entry | None" = None) -> None:
        super().bind(in_array, out_array, entry)
        for buffer, view in ((IN, in_array), (OUT, out_array)):
            self._bases[buffer] = 0 if view is None else view.address

    def start(self, held: bool = False) -> None:
        """Queue everything; `held`: only what comes before phase "join", until `release`."""
        if not self._graphs:
            self._scratch = self._side.region(self.program.scratch_nbytes)
            self._bases[SCRATCH] = self._scratch.address
        self.enter()
        before, _join, whole = self._parts()
        if held:
            self._run(before)
            return
        self._run(whole)
        self.leave((self._arrays, self._scratch))

    def release(self) -> None:
        """Queue phase "join", which was held."""
        self._run(self._parts()[JOINING])
        self.leave((self._arrays, self._scratch))

    def launch(self, part: int) -> None:
        """Launch the graph of BEFORE, JOINING or WHOLE: nothing else, since others may be waiting for it.

        The side has been entered; `launched` follows it.
        """
        graph = self._ready[part]
        if self._channel.failure is not None:
            self._channel.check_open()
        if graph is not None:
            self._side.runtime.launch(graph, self._side.streams[MESSAGES])

    def launched(self, part: int) -> None:
        """What is to be done after `launch`, for the call that is bound."""
        if part != BEFORE:
            self.leave((self._arrays, self._scratch))

    def capture(self) -> None:
        """Make a graph of each part that may be queued, for the arrays that are bound and scratch as it is now.

        Whoever communicates must have done so before: connections cannot be made inside a capture.
        """
        side = self._side
        self._scratch = side.region(self.program.scratch_nbytes)
        self._bases[SCRATCH] = self._scratch.address
        self._channel.keep_graphs(self)
        for part in self._parts():
            if part[0] < part[1] and part not in self._graphs:
                side.runtime.begin_capture(side.streams[MESSAGES])
                try:
                    self.queue(*part)
                except BaseException:
                    # A stream that stays captured can do nothing else; that the capture is broken is no news.
                    with suppress(Exception):
                        side.runtime.end_capture(side.streams[MESSAGES])
                    raise
                self._graphs[part] = side.runtime.end_capture(side.streams[MESSAGES])
        self._ready = tuple(map(self._graphs.get, self._parts()))

    def drop_graphs(self) -> None:
        """Let go of the graphs; called before their communicator ends."""
        self._graphs.clear()
        self._ready = ()

    def neighbours(self) -> tuple[set[int], set[int]]:
        """(ranks that this one sends to, ranks that it receives from), of the program's numbering."""
        messages = [action for action in self.program.actions if type(action) is Message and action.nbytes]
        return {m.peer for m in messages if m.sends}, {m.peer for m in messages if not m.sends}

    def _parts(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """What is queued at once: before phase "join", that phase, everything."""
        join, stop = self.program.join_start, len(self.program.actions)
        return (0, join), (join, stop), (0, stop)

    def _run(self, part: tuple[int, int]) -> None:
        graph = self._graphs.get(part)
        if graph is None:
            self.queue(*part)
        else:
            self._channel.check_open()
            self._side.runtime.launch(graph, self._side.streams[MESSAGES])

    @property
    def drained(self) -> bool:
        """True once nothing is under way; what is queued runs to its end without the late rank."""
        return self._side.is_idle()

    def queue(self, start: int, stop: int) -> None:
        """Queue the actions from `start` to `stop` on the side's streams, or into the capture that is under way."""
        if (start, stop) not in self._steps:
            self._steps[start, stop] = lower(self.program, start, stop)
        side, runtime, actions = self._side, self._side.runtime, self.program.actions
        steps = self._steps[start, stop]
        events: dict[int, Event] = {}
        # A stream that has nothing to do is not forked from the other, which would then wait for it.
        forks = any(step.lane == WORK for step in steps)
        with side.joined() if forks else nullcontext():
            for number, step in enumerate(steps):
                stream, first = side.streams[step.lane], actions[step.actions[0]]
                if step.waits_for is not None:
                    runtime.wait_event(events[step.waits_for], stream)
                if type(first) is Message:
                    messages = (actions[index] for index in step.actions)
                    self._channel.group([self._message(each) for each in messages if type(each) is Message])
                elif type(first) is Fold:
                    self._fold(first, stream)
                elif type(first) is Move:
                    runtime.copy(self._address(first.target), self._address(first.source), first.nbytes, stream)
                if step.records:
                    events[number] = runtime.record(stream)

    def _message(self, message: Message) -> tuple[bool, int, int, int]:
        return message.sends, self._address(message.place), message.nbytes, message.peer

    def _fold(self, fold: Fold, stream: Stream) -> None:
        out = self._address(fold.out)
        self._kernels[len(fold.inputs)](fold.num_elements, out, *map(self._address, fold.inputs), stream=stream)
        if fold.divides and self._divide is not None:
            self._divide(fold.num_elements, out, out, self._divisor, stream=stream)

    def _address(self, place: BufferPlace) -> int:
        return self._bases[place.buffer] + place.offset


class NativeExecution(QueuedExecution):
    """NCCL's own all-reduce, with the verbs of a StreamExecution."""

    def __init__(self, side: "DeviceSide", channel: "NcclChannel", key: Key) -> None:
        from lanterne.transport.nccl.binding import DATATYPES

        super().__init__(side, channel, str(key), [rank for rank in channel.ranks if rank != channel.transport.rank])
        assert key.op is not None, "an all-reduce has one"
        self._op = key.op
        self._datatype = DATATYPES[key.dtype]

    def start(self, held: bool = False) -> None:
        """Queue it."""
        assert self._arrays is not None, "bound"
        source, target = self._arrays
        assert source is not None and target is not None, "an all-reduce has both"
        self.enter()
        # On the stream of messages alone, which all that ran on the other has been waited for by.
        self._channel.all_reduce(source.address, target.address, source.size, self._datatype, self._op)
        self.leave(self._arrays)
