"""Runs a Program on CUDA streams: all of it is queued at once, and the CPU goes on; or captured once, and launched.

The host's Execution (executor.py) has the same verbs; programs, compiler, kernels and scratch rules are shared.
"""

from contextlib import suppress

from lanterne.collectives.execute.rank_program import IN, OUT, SCRATCH, Fold, Message
from lanterne.collectives.execute.stream_program import MESSAGES, lower


class QueuedExecution:
    """One call at a time that is queued on the streams of a DeviceSide, of which the user's wait for it.

    Attributes:
        remaining: 1 until all is queued, then 0.
        completion: the ChannelRequest of its end, once all is queued.
    """

    def __init__(self, side, what, peers):
        self._side, self._what, self._peers = side, what, peers
        self._arrays = self._entry = self.completion = None
        self.remaining = 0

    def bind(self, in_array, out_array, entry=None):
        """Take the user's DeviceViews and the Entry of the call."""
        self._arrays, self._entry = (in_array, out_array), entry
        self.completion, self.remaining = None, 1

    def unbind(self):
        """Let go of the user's arrays; what is queued has them still."""
        self._arrays = self._entry = None

    def is_ready(self):
        """True if the streams have room: they wait for the user's, the CPU does not."""
        return self._side.has_room()

    def advance(self):
        """True once all is queued."""
        return not self.remaining

    def pending_peers(self):
        """Transport ranks whose messages this call needs, sorted."""
        return self._peers

    def leave(self, held):
        """All is queued, on memory `held` too."""
        self.completion = self._side.leave(self._entry, self._peers, self._what, held)
        self.remaining = 0


class StreamExecution(QueuedExecution):
    """One call of a program at a time, on the streams of a DeviceSide.

    Args:
        program: a Program.
        side: the DeviceSide: channel, streams, runtime.
        op, dtype: of its folds. Compiled here, before anything is queued.
        what: what the call is, for errors.
    """

    def __init__(self, program, side, op, dtype, what):
        peers = {side.channel.ranks[a.peer] for a in program.actions if type(a) is Message and a.nbytes}
        super().__init__(side, what, sorted(peers))
        self.program = program
        self._divisor = float(side.channel.world_size)
        runtime = side.runtime
        self._kernels = {
            len(action.inputs): runtime.prepare_fold(op, dtype, len(action.inputs))
            for action in program.actions
            if type(action) is Fold
        }
        divides = any(type(action) is Fold and action.divides for action in program.actions)
        self._divide = runtime.prepare_divide(dtype) if divides else None
        # By (start, stop): the steps, and the graphs that were made of them.
        self._steps, self._graphs = {}, {}
        self._bases = [0, 0, 0]

    def bind(self, in_array, out_array, entry=None):
        super().bind(in_array, out_array, entry)
        for buffer, view in ((IN, in_array), (OUT, out_array)):
            self._bases[buffer] = 0 if view is None else view.address

    def start(self, held=False):
        """Queue everything; `held`: only what comes before phase "join", until `release`."""
        side = self._side
        if not self._graphs:
            self._scratch = side.region(self.program.scratch_nbytes)
            self._bases[SCRATCH] = self._scratch.address
        side.enter(self._entry)
        before, join, whole = self._parts()
        if held:
            self._run(before)
            return
        self._run(whole)
        self.leave((self._arrays, self._scratch))

    def release(self):
        """Queue phase "join", which was held."""
        self._run(self._parts()[1])
        self.leave((self._arrays, self._scratch))

    def capture(self):
        """Make a graph of each part that may be queued, for the arrays that are bound and scratch as it is now.

        Whoever communicates must have done so before: connections cannot be made inside a capture.
        """
        side = self._side
        self._scratch = side.region(self.program.scratch_nbytes)
        self._bases[SCRATCH] = self._scratch.address
        side.channel.keep_graphs(self)
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

    def drop_graphs(self):
        """Let go of the graphs; called before their communicator ends."""
        self._graphs.clear()

    def neighbours(self):
        """(ranks that this one sends to, ranks that it receives from), of the program's numbering."""
        messages = [action for action in self.program.actions if type(action) is Message and action.nbytes]
        return {m.peer for m in messages if m.sends}, {m.peer for m in messages if not m.sends}

    def _parts(self):
        """What is queued at once: before phase "join", that phase, everything."""
        join, stop = self.program.join_start, len(self.program.actions)
        return (0, join), (join, stop), (0, stop)

    def _run(self, part):
        graph = self._graphs.get(part)
        if graph is None:
            self.queue(*part)
        else:
            self._side.channel.check_open()
            self._side.runtime.launch(graph, self._side.streams[MESSAGES])

    @property
    def drained(self):
        """True once nothing is under way; what is queued runs to its end without the late rank."""
        return self._side.is_idle()

    def queue(self, start, stop):
        """Queue the actions from `start` to `stop` on the side's streams, or into the capture that is under way."""
        if (start, stop) not in self._steps:
            self._steps[start, stop] = lower(self.program, start, stop)
        side, runtime, actions = self._side, self._side.runtime, self.program.actions
        events = {}
        with side.joined():
            for number, step in enumerate(self._steps[start, stop]):
                stream = side.streams[step.lane]
                if step.waits_for is not None:
                    runtime.wait_event(events[step.waits_for], stream)
                if step.lane == MESSAGES:
                    side.channel.group([self._message(actions[index]) for index in step.actions])
                elif type(actions[step.actions[0]]) is Fold:
                    self._fold(actions[step.actions[0]], stream)
                else:
                    move = actions[step.actions[0]]
                    runtime.copy(self._address(move.target), self._address(move.source), move.nbytes, stream)
                if step.records:
                    events[number] = runtime.record(stream)

    def _message(self, message):
        return message.sends, self._address(message.place), message.nbytes, message.peer

    def _fold(self, fold, stream):
        out = self._address(fold.out)
        self._kernels[len(fold.inputs)](fold.count, out, *map(self._address, fold.inputs), stream=stream)
        if fold.divides:
            self._divide(fold.count, out, out, self._divisor, stream=stream)

    def _address(self, place):
        return self._bases[place.buffer] + place.offset


class NativeExecution(QueuedExecution):
    """NCCL's own all-reduce, with the verbs of a StreamExecution."""

    def __init__(self, side, key):
        from lanterne.transport.nccl.library import DATATYPES

        channel = side.channel
        super().__init__(side, str(key), [rank for rank in channel.ranks if rank != channel.transport.rank])
        self._op, self._datatype = key.op, DATATYPES[key.dtype]

    def start(self, held=False):
        """Queue it."""
        side, (source, target) = self._side, self._arrays
        side.enter(self._entry)
        with side.joined():
            side.channel.all_reduce(source.address, target.address, source.size, self._datatype, self._op)
        self.leave(self._arrays)
