"""Groups of messages through one NCCL communicator, on a stream of its own.

Messages have no tags: those of one pair match in the order of their groups. All members issue the same groups in the
same order, so a channel has one stream for them.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.errors import TransportError
from lanterne.kernels.arrays import Stream
from lanterne.transport.base import Operation, Send, Transport, timeout_error
from lanterne.transport.nccl.binding import OPS, UINT8, LimitedCall, reported
from lanterne.transport.nccl.watchdog import ChannelRequest, Event, Pending
from lanterne.transport.nccl.watched_communicator import WatchedCommunicator
from lanterne.transport.waiting import wait

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

log: logging.Logger = logging.getLogger(__name__)

# The lane of a communicator on which its members meet before NCCL's start-up (plans.py hands out those from 0 to 255).
MEETING_LANE = 256

# Whether it is sent, its address, its bytes, and with which member.
Message: TypeAlias = tuple[bool, int, int, int]
# (sends, member) where there is one; (None, what it goes by) for those of NCCL's own collectives.
Connection: TypeAlias = tuple[bool | None, Any]


# Groups and calls that may be queued when another call comes. A group is three pieces of work: an event to wait
# for, messages, an event.
MAX_QUEUED = 256  # a stream takes some thousand pieces of work


class NcclChannel(WatchedCommunicator):
    """The NCCL communicator of some ranks of a transport, and the stream on which their messages go.

    Args:
        transport, communicator, ranks, tag, order: as WatchedCommunicator has them.
        library: cupy.cuda.nccl, or a stand-in.

    Attributes: `world_size`; `stream`, which carries all groups; see WatchedCommunicator, too.
    """

    def __init__(
        self,
        transport: Transport,
        library: Any,
        runtime: "CudaRuntime",
        communicator: Any,
        ranks: Sequence[int],
        tag: int = 0,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__(transport, runtime, communicator, ranks, tag, order)
        self.library = library
        self.world_size: int = len(ranks)
        self.stream: Stream = runtime.new_stream()
        # By member, its rank of NCCL's.
        self._places: list[int] = [self.order.index(rank) for rank in self.ranks]
        self._connected: set[Connection] = set()
        # Groups since the last call was queued whole.
        self._num_issued = 0

    def has_room(self) -> bool:
        """Whether another call may be queued: a stream that is full would hold the CPU up inside CUDA.

        Nobody could then ask CUDA whether the others have come, and end the wait for one that does not.
        """
        return self._watch.queued <= MAX_QUEUED or self._watch.look() <= MAX_QUEUED

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

    @property
    def can_grow(self) -> bool:
        """Whether NCCL can take others in, as far as is known."""
        return self.failure is None and not self.closed and hasattr(self._communicator, "grow")

    def growth_id(self) -> bytes:
        """What newcomers come in by, empty where NCCL has none; one member asks for it, and gives it to its `grow`."""
        try:
            return bytes(self._communicator.growth_id())
        except Exception as error:  # Of a binding, or of an NCCL that is too old, in whichever way.
            log.info("%s: cannot grow: %s", self._name(), error)
            return b""

    def grow(self, world_size: int, growth_id: bytes, limit_s: float) -> Any:
        """The NCCL communicator of this one's ranks, in their order, and newcomers behind them; all call it.

        This one stays as it is, unless that fails.

        Args:
            world_size: how many they are together.
            growth_id: of the member that has made it; empty on others.

        Raises:
            TransportError, TransportTimeout: NCCL cannot.
        """
        try:
            return self._communicator.grow(world_size, growth_id, limit_s)
        except Exception as error:
            # Where one does not come the others' are in progress for ever, and carry nothing any more.
            raise self.fail(reported(self._name(), error)) from error

    def _group(self, messages: Iterable[Message]) -> None:
        library, communicator, stream = self.library, self._communicator, self.stream.ptr
        library.groupStart()
        try:
            for sends, address, nbytes, member in messages:
                verb = communicator.send if sends else communicator.recv
                verb(address, nbytes, UINT8, self._places[member], stream)
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

    def watch(
        self, entry: Event, done: Event, peers: Iterable[int], what: str, regions: Iterable[object] = ()
    ) -> Pending:
        """Look after queued work: it must be `done` within the transport's timeout from `entry` on. A Pending."""
        pending = Pending(entry, done, tuple(peers), what, regions, 1 + self._num_issued)
        self._num_issued = 0
        self._watch.add(pending)
        return pending
