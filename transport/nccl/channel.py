"""One NCCL communicator: groups of messages on a stream, errors that are noticed, and an end that cannot hang.

Messages have no tags: those of one pair match in the order of their groups. All members issue the same groups in the
same order, so a channel has one stream for them.
"""

import atexit
import ctypes
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lanterne.errors import LanterneError, TransportError
from lanterne.kernels.arrays import Stream
from lanterne.transport.base import Operation, Send, Transport, timeout_error
from lanterne.transport.nccl.binding import OPS, UINT8, LimitedCall, call_with_limit, reported
from lanterne.transport.nccl.watchdog import ChannelRequest, ChannelWatch, Event, Pending
from lanterne.transport.waiting import wait

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

# The lane of a communicator on which its members meet before NCCL's start-up (plans.py hands out those from 0 to 255).
MEETING_LANE = 256
# How long an abort, or an orderly end, may take before its thread is left behind.
ABORT_S, DESTROY_S = 5.0, 5.0
# Groups and calls that may be queued when another call comes: a stream takes some thousand pieces of work, and a group
# is three of them (an event to wait for, messages, an event).
MAX_QUEUED = 256

log: logging.Logger = logging.getLogger(__name__)

# Whether it is sent, its address, its bytes, and with which member.
Message: TypeAlias = tuple[bool, int, int, int]
# (sends, member) where there is one; (None, what it goes by) for those of NCCL's own collectives.
Connection: TypeAlias = tuple[bool | None, Any]


class GraphHolder(Protocol):
    """What holds graphs of a communicator."""

    def drop_graphs(self) -> object: ...


class NcclChannel:
    """The NCCL communicator of some ranks of a transport.

    Args:
        transport: the NcclTransport.
        library: cupy.cuda.nccl, or a stand-in.
        communicator: cupy's NcclCommunicator, or a stand-in.
        ranks: transport rank of every member.

        tag: of the meeting at which it was made; the same on all members.

    Attributes: `world_size`; `runtime`; `stream`, which carries all groups; `failure`, the error that ended the
    channel, or None; `is_revoked`, whether the communicator is left to `shrink`.
    """

    def __init__(
        self,
        transport: Transport,
        library: Any,
        runtime: "CudaRuntime",
        communicator: Any,
        ranks: Sequence[int],
        tag: int = 0,
    ) -> None:
        self.transport = transport
        self.library = library
        self.runtime = runtime
        self.ranks: tuple[int, ...] = tuple(ranks)
        self.world_size: int = len(ranks)
        self.tag: int = tag
        self.is_revoked: bool = False
        self.stream: Stream = runtime.new_stream()
        self.failure: LanterneError | None = None
        # Whether it still has to be raised: the watch saw it, between calls.
        self._unraised = False
        self._abort: LimitedCall[object] | None = None
        self._aborted_by = 0.0
        self.closed: bool = False
        self._communicator = communicator
        # CuPy's object would destroy it once more when it goes, and hang where an abort or a destroy has hung: never.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
        self._ending = threading.Lock()
        self._connected: set[Connection] = set()
        # They must go before the communicator does.
        self._graphs: weakref.WeakSet[GraphHolder] = weakref.WeakSet()
        self._hears: weakref.WeakMethod[Callable[[], None]] | None = None
        self._watch = ChannelWatch(self)
        # Groups since the last call was queued whole.
        self._num_issued = 0

    # -- work

    def has_room(self) -> bool:
        """Whether another call may be queued: a stream that is full would hold the CPU up inside CUDA.

        Nobody could then ask CUDA whether the others have come, and end the wait for one that does not.
        """
        return self._watch.queued <= MAX_QUEUED or self._watch.look() <= MAX_QUEUED

    def overdue(self, what: str, limit_s: float) -> LanterneError:
        """The error of `what`, which its stream has not reached within `limit_s`; see ChannelWatch.overdue."""
        return self._watch.overdue(what, limit_s)

    def group(self, messages: Iterable[Message]) -> None:
        """Queue messages that go together, on the channel's stream.

        Raises:
            TransportError: the channel has failed, or NCCL refuses.
            TransportTimeout, PeerFailed: a member did not come to the first message with it.
        """
        self.check_open()
        messages = [message for message in messages if message[2]]
        pairs: set[Connection] = {(sends, member) for sends, _, _, member in messages}
        if pairs <= self._connected:
            self._issue(self._group, messages)
        else:
            self._connect(pairs, partial(self._group, messages))

    def all_reduce(self, source: int, target: int, count: int, datatype: int, op: str) -> None:
        """Queue NCCL's own all-reduce of `count` elements (ncclDataType_t), by address; op is ours."""
        self.check_open()
        arguments = source, target, count, datatype, OPS[op], self.stream.ptr
        # NCCL connects for an algorithm (ring, tree, NVLS) when it first takes it, and picks it by these.
        kind: Connection = None, (datatype, op, count.bit_length())
        if kind in self._connected:
            self._issue(self._communicator.allReduce, *arguments)
        else:
            self._connect({kind}, partial(self._communicator.allReduce, *arguments))

    def _group(self, messages: Iterable[Message]) -> None:
        library, communicator, stream = self.library, self._communicator, self.stream.ptr
        library.groupStart()
        try:
            for sends, address, nbytes, member in messages:
                verb = communicator.send if sends else communicator.recv
                verb(address, nbytes, UINT8, member, stream)
        finally:
            library.groupEnd()

    def _issue(self, function: Callable[..., object], *arguments: object) -> None:
        self._num_issued += 1
        try:
            function(*arguments)
        except Exception as error:
            raise self.fail(reported(self._name(), error)) from error

    def _connect(self, pairs: set[Connection], function: Callable[[], object]) -> None:
        """Call `function`, which makes new connections: NCCL returns only once the others have come as well."""
        collective = any(sends is None for sends, _ in pairs)
        members = range(self.world_size) if collective else {member for _, member in pairs - self._connected}
        peers = sorted(self.ranks[member] for member in members if self.ranks[member] != self.transport.rank)
        call = LimitedCall(function, f"{self._name()} connection", self.runtime)
        transport = self.transport
        look_at_peers = lambda _now_s: transport.check_peers(peers)  # noqa: E731
        try:
            if not wait(lambda: call.has_ended(0.0), transport.timeout_s, transport.pauses, look_at_peers):
                raise timeout_error(transport, peers, transport.timeout_s)
            call.result(0.0)
        except TransportError as error:
            raise self.fail(error) from None
        self._connected |= pairs

    def post(self, ops: Sequence[Operation], stream: Stream = None) -> ChannelRequest:
        """Start a batch of Send and Recv of device memory together.

        Args:
            stream: whose earlier work comes first and whose later work waits; None for the current one.
        """
        if not self.has_room():
            self._watch.settle(self.transport.timeout_s, MAX_QUEUED)
            self.check_open()
        runtime = self.runtime
        user = runtime.as_stream(stream)
        entry = runtime.record(user)
        runtime.wait_event(entry, self.stream)
        messages = [
            (type(op) is Send, op.region.address + op.offset, op.nbytes, self.ranks.index(op.peer)) for op in ops
        ]
        self.group(messages)
        done = runtime.record(self.stream)
        runtime.wait_event(done, user)
        peers = sorted({op.peer for op in ops if op.nbytes})
        pending = self.watch(entry, done, peers, f"messages with rank {', '.join(map(str, peers))}", regions=ops)
        return ChannelRequest(self, pending)

    # -- failure

    def check_open(self) -> None:
        """Raise what ended the channel, if anything did."""
        if self.failure is not None:
            self._unraised = False
            raise self.failure
        if self.closed:
            raise TransportError(f"{self._name()}: closed")

    def check(self, *, raised: bool = True) -> None:
        """Raise if the channel has failed; asks NCCL. `raised`: as of `fail`."""
        try:
            # An abort on another thread frees what NCCL is asked about here: it comes before or after.
            with self._ending:
                if self.failure is None and not self.closed:
                    self._communicator.check_async_error()
        except Exception as error:
            self.fail(reported(self._name(), error), raised=raised)
        if raised:
            self.check_open()

    def fail(self, error: LanterneError, *, raised: bool = True) -> LanterneError:
        """End the channel because of `error`, from any thread: frees its stream. Returns what ended it first.

        Args:
            raised: the caller raises it, once the stream is free. If not, whoever calls next does, or `settle`; if
                nobody does, it is logged at the end of the process.
        """
        with self._ending:
            if self.failure is not None or self.closed:
                # Whoever fails all channels of its own because of one raises that one's error.
                self._unraised = self._unraised and not raised
                return self.failure or error
            self.failure, self._unraised = error, not raised
        if not error.arrays:
            error.arrays = self._watch.arrays()
            error.add_note(error.arrays)
        if not raised:
            atexit.register(self._log_unraised)
        self._aborted_by = self.transport.machine.now_s() + ABORT_S
        self._abort = LimitedCall(self._free, f"{self._name()} abort")
        # It frees the stream, and then waits until no graph holds the communicator.
        self._drop_graphs()
        if raised:
            self._await_abort(self._abort)
        return error

    def _free(self) -> None:
        """Free the stream: the communicator is revoked where the binding can that, else aborted."""
        revoke = getattr(self._communicator, "revoke", None)
        if revoke is not None:
            with suppress(Exception):
                revoke()
                self.is_revoked = True
                return
        self._communicator.abort()

    def shrink(self, ranks: Sequence[int], limit_s: float) -> Any:
        """The NCCL communicator of the transport ranks `ranks`, members of this one in its order, all of whom call it.

        Raises:
            TransportError, TransportTimeout: NCCL cannot; it is not revoked any more then.
        """
        absent = [member for member, rank in enumerate(self.ranks) if rank not in ranks]
        self.is_revoked = False
        try:
            return self._communicator.shrink(absent, limit_s)
        finally:
            self._communicator.abort()

    def _await_abort(self, abort: LimitedCall[object]) -> None:
        with suppress(TransportError):
            abort.result(max(0.0, self._aborted_by - self.transport.machine.now_s()))

    def watch(
        self, entry: Event, done: Event, peers: Iterable[int], what: str, regions: Iterable[object] = ()
    ) -> Pending:
        """Look after queued work: it must be `done` within the transport's timeout from `entry` on. A Pending."""
        pending = Pending(entry, done, tuple(peers), what, regions, 1 + self._num_issued)
        self._num_issued = 0
        self._watch.add(pending)
        return pending

    def hear_by(self, listener: Callable[[], None]) -> None:
        """Ask `listener`, a method, whether a rank has failed: NCCL does not say so of one on the same host.

        It is called from another thread while work is under way, and raises what it has heard.
        """
        self._hears = weakref.WeakMethod(listener)

    def hear(self) -> None:
        """Raise the failure that another rank has told of, if one has."""
        if self._hears is not None and (listener := self._hears()) is not None:
            listener()

    def keep_graphs(self, holder: GraphHolder) -> None:
        """Call `holder.drop_graphs()` before the communicator goes."""
        self._graphs.add(holder)

    def settle(self) -> None:
        """Wait for all that is queued; call it before the end, since nobody else may ask whether that went well.

        Raises:
            TransportError: it failed, or an earlier call has and nobody was told.
            TransportTimeout: it takes longer than the transport's timeout.
        """
        self._settle()
        if self._unraised:
            self.check_open()

    def close(self) -> None:
        """Finish what is queued, then destroy the communicator, each within a limit; else abort. Idempotent.

        Graphs go first: a graph that is dropped after its communicator hangs or crashes.
        """
        if self.closed:
            return
        self._settle()
        self._log_unraised()
        # Else it would keep this channel, and what it has, to the end of the process.
        atexit.unregister(self._log_unraised)
        self._drop_graphs()
        self.closed = True
        self._watch.stop(2 * ABORT_S)
        if self._abort is not None:
            self._await_abort(self._abort)
            if self.is_revoked:
                self.is_revoked = False
                with suppress(TransportError):
                    call_with_limit(self._communicator.abort, f"{self._name()} abort", ABORT_S)
        elif self.failure is None:
            with suppress(TransportError):
                call_with_limit(self._communicator.destroy, f"{self._name()} destroy", DESTROY_S)

    def _settle(self) -> None:
        if self.failure is None and not self.closed:
            self._watch.settle(self.transport.timeout_s)

    def _log_unraised(self) -> None:
        if self._unraised:
            self._unraised = False
            log.error("%s; %s", self.failure, self.failure and self.failure.arrays)

    def _drop_graphs(self) -> None:
        for holder in list(self._graphs):
            with suppress(TransportError):
                call_with_limit(holder.drop_graphs, f"{self._name()} end of graphs", ABORT_S, self.runtime)

    def _name(self) -> str:
        return f"nccl rank {self.transport.rank}"
