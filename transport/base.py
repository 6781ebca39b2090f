"""The transport interface: the verbs that move bytes between ranks, and the request they return.

A transport knows nothing of collectives, dtypes or reductions. Its one posting verb takes a *batch*, because NCCL has
no tags and must fuse the sends and receives of a round; elsewhere a batch is a loop.

Matching: messages of one (communicator, source, destination, lane) match in posting order, whatever else is in flight.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias

from lanterne.errors import InputError, TransportError, TransportTimeout
from lanterne.transport.machine import THIS_MACHINE, Lock, Machine
from lanterne.transport.membership import Membership
from lanterne.transport.pauses import Pauses
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S, check_timeout_s
from lanterne.transport.waiting import MOVED, Pausing, wait

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

COMMUNICATOR_BITS = 16
LANE_BITS = 32


def make_tag(communicator: int, lane: int = 0) -> int:
    """The tag of a message: communicator (16 bits) above lane (32 bits). Transports add the source where they must.

    Raises:
        InputError: a part does not fit its bits.
    """
    if not 0 <= communicator < 1 << COMMUNICATOR_BITS or not 0 <= lane < 1 << LANE_BITS:
        raise InputError(
            f"tag: got communicator {communicator}, lane {lane}, expected 0 to {(1 << COMMUNICATOR_BITS) - 1} "
            f"and 0 to {(1 << LANE_BITS) - 1}"
        )
    return communicator << LANE_BITS | lane


class ClosedIds:
    """Ids of communicators that are closed, whose messages are dropped when they arrive."""

    def __init__(self) -> None:
        # By id; a set of all that a long job has closed would take megabytes.
        self._is_closed = bytearray(1 << COMMUNICATOR_BITS)
        self._any = False

    def add(self, communicator_id: int) -> None:
        """Mark the communicator as closed."""
        self._is_closed[communicator_id] = 1
        self._any = True

    def discard(self, communicator_id: int) -> None:
        """Open the id for a new communicator. All ranks that had the old one have closed it."""
        self._is_closed[communicator_id] = 0

    def has(self, tag: int) -> bool:
        """Return whether `tag` belongs to a closed communicator."""
        return self._any and self._is_closed[tag >> LANE_BITS] == 1

    def drop_from(self, *tables: dict[tuple[int, int], Any]) -> None:
        """Remove from `tables`, keyed by tag and number, the entries of closed communicators."""
        for table in tables:
            for key in [key for key in table if self.has(key[0])]:
                del table[key]


# The last communicator id belongs to the transports themselves.
BARRIER_TAG = make_tag((1 << COMMUNICATOR_BITS) - 1)


class Region:
    """Registered memory: a C-contiguous array, seen as bytes. Keeps the array alive.

    Attributes: `array`; `nbytes`; `address`, of the first byte; `device`, True for device memory; `buffer`, its bytes,
    writable or read-only, None for device memory; `native`, what the transport keeps.
    """

    __slots__ = ("address", "array", "buffer", "device", "native", "nbytes")
    address: int
    nbytes: int
    buffer: memoryview | None

    def __init__(self, array: Any, native: Any = None) -> None:
        self.point(array)
        self.native: Any = native

    def point(self, array: Any) -> None:
        """Be the memory of `array` from now on.

        Raises:
            InputError: not contiguous, or no array.
        """
        self.array: Any = array
        self.native = None
        interface = getattr(array, "__cuda_array_interface__", None)
        self.device: bool = interface is not None
        if self.device:
            from lanterne.kernels.cuda.device_view import view_device

            found = view_device(array, "register")
            self.buffer = None
            self.address = found.address
            self.nbytes = found.nbytes
            return
        try:
            view = memoryview(array)
            if not view.c_contiguous:
                raise InputError("register: got a non-contiguous array, expected a C-contiguous one")
            if view.nbytes == 0:
                buffer = memoryview(bytearray(0))
            elif hasattr(array, "view") and hasattr(array, "reshape"):
                # NumPy first: memoryview.cast refuses formats such as float16's "e" and bfloat16's void types.
                buffer = memoryview(array.reshape(-1).view("u1"))
            else:
                buffer = view.cast("B")
        except (TypeError, BufferError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"register: got {type(array).__name__}, expected an array with the buffer protocol"
            ) from error
        self.buffer = buffer
        self.nbytes = buffer.nbytes
        self.address = address_of(buffer)


def address_of(buffer: memoryview) -> int:
    """The address of the first byte of a buffer of bytes; 0 of an empty one."""
    if not buffer.nbytes:
        return 0
    if not buffer.readonly:
        # A microsecond faster than asking NumPy, but refuses read-only memory.
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    import numpy as np

    return np.frombuffer(buffer, np.uint8).ctypes.data


class Send(NamedTuple):
    """Send `nbytes` bytes of `region` from `offset` to rank `peer`. `tag` is a make_tag()."""

    region: Region
    offset: int
    nbytes: int
    peer: int
    tag: int = 0


class Recv(NamedTuple):
    """Receive exactly `nbytes` bytes into `region` at `offset` from rank `peer`. `tag` is a make_tag()."""

    region: Region
    offset: int
    nbytes: int
    peer: int
    tag: int = 0


Operation: TypeAlias = Send | Recv


@dataclass(frozen=True)
class Capabilities:
    """What a transport can do; an executor checks its plan against this before the first byte moves."""

    tags: bool = True
    host_memory: bool = True
    device_memory: bool = False
    stream_ordered: bool = False
    max_message_nbytes: int = 2**63 - 1
    # Device memory moves best in multiples of this; `tags` are of host messages only where it is stream_ordered.
    device_alignment_nbytes: int = 1
    # From this size up a message leaves its sender only once the receive is posted, so posting receives paces senders;
    # None: never.
    receiver_paced_nbytes: int | None = None
    # Lanes are numbers of so many bits.
    lane_bits: int = LANE_BITS
    # A first message makes the connection, which a peer that has left would hold up: what it sent before is lost.
    connects_late: bool = False
    # Ranks outlive the death of another (shrink, agree); the job takes processes in (grow).
    shrinks: bool = False
    grows: bool = False


class Started(Protocol):
    """An operation that is under way."""

    @property
    def op(self) -> Operation: ...

    @property
    def done(self) -> bool: ...


@dataclass(slots=True, eq=False)
class PostedOperation:
    """A Send or Recv that is under way.

    Attributes: `request`, of the transport or the library that carries it where that is another one; `error`, raised
    whenever it is asked whether it is done.
    """

    op: Operation
    request: Any = None
    done: bool = False
    error: TransportError | None = None

    @property
    def view(self) -> memoryview:
        """The bytes to be sent, or written."""
        region, offset, nbytes, _, _ = self.op
        assert region.buffer is not None
        return region.buffer[offset : offset + nbytes]

    def misfits(self, name: str, nbytes: int) -> bool:
        """Return whether a message of `nbytes` is not what this receives: an error of the transport `name`."""
        if nbytes != self.op.nbytes:
            self.error = TransportError(
                f"{name}: rank {self.op.peer} sent {nbytes} bytes, expected {self.op.nbytes}, as its receive is"
            )
        return nbytes != self.op.nbytes


class Request:
    """The completion of one post. It keeps the posted regions alive until it is done.

    Args:
        transport: the transport that it was posted on, which knows of each operation whether it is done.
        pending: the operations, as that transport has started them.
    """

    __slots__ = ("_pending", "_transport")

    def __init__(self, transport: "Transport", pending: Sequence[Started]) -> None:
        self._transport = transport
        self._pending = pending

    @property
    def transport(self) -> "Transport":
        """The transport that this request was posted on."""
        return self._transport

    @property
    def due_s(self) -> float:
        """When it will be complete, on the machine's clock; inf if that is unknown."""
        return inf

    def poll(self) -> bool:
        """Return whether every operation of the post is complete, by what Transport.take_in has taken in.

        Raises:
            PeerFailed: a peer of this request is known to be dead.
            TransportError: an operation failed.
        """
        is_done, pending = self._transport._is_done, self._pending
        # An executor posts operations one by one.
        if len(pending) == 1:
            if not is_done(pending[0]):
                return False
            pending = ()
        elif pending:
            pending = [each for each in pending if not is_done(each)]
        self._pending = pending
        return not pending

    def test(self) -> bool:
        """Make progress; return and raise as `poll`."""
        return self.poll() or (self.transport.take_in() and self.poll())

    def pending_peers(self) -> list[int]:
        """Return the ranks whose operations are not complete, sorted: those that must be alive."""
        return sorted({each.op.peer for each in self._pending if not each.done})

    def awaited_peers(self) -> list[int]:
        """Return the ranks that a timeout names."""
        return self.pending_peers()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once every operation is complete.

        Args:
            timeout_s: seconds to wait at most; None for the transport's `timeout_s`.

        Raises:
            TransportTimeout: time ran out; names the ranks. The operations stay posted and their buffers in use.
            PeerFailed, TransportError: as `test`.
        """
        if self.test():
            return
        transport = self.transport
        limit_s = transport.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        look = lambda: self.test() or (MOVED if transport.is_moving else False)  # noqa: E731
        if not wait(look, limit_s, transport.woken or transport.pauses, self._look_at_peers, lambda: self.due_s):
            raise self.overdue(self.awaited_peers(), limit_s)

    def overdue(self, peers: Iterable[int], limit_s: float) -> TransportTimeout:
        """Return the error of a wait for this that lasted `limit_s`: no message from or to `peers`."""
        return timeout_error(self.transport, peers, limit_s)

    def _look_at_peers(self, _now_s: float) -> None:
        self.transport.check_peers(self.pending_peers())


def timeout_error(transport: "Transport", peers: Iterable[int], limit_s: float) -> TransportTimeout:
    """The TransportTimeout of a wait on `peers` that lasted `limit_s`."""
    names = ", ".join(map(str, peers)) or "none"
    return TransportTimeout(
        f"{transport.name} rank {transport.rank}: no message from or to rank {names} within {limit_s:g} s", peers
    )


class Transport(ABC):
    """Moves bytes between `world_size` ranks.

    Args:
        membership: what the ranks know of each other's lives; None: nothing.
        timeout_s: the default of every wait, seconds.

    Attributes:
        name, rank, world_size, capabilities, membership, timeout_s, machine
        pauses: what waits do between polls; `woken`, instead of it in waits of one request; None: `pauses` there too.
        is_moving: whether the last take_in moved anything.
        background_s: interval at which a thread that is not the user's has to look for arrivals, beside what `watch`
            reports, seconds; None: only the user's may use this transport.
        wakes: whether every arrival makes a descriptor of `watch` readable, and takes so long that waits sleep.
        lock: held by each thread that uses this transport beside other threads; a wrapper shares the inner one's.
        unreachable: ranks to which this one has lost its path, dead or not, as of the last `check_peers` of them.
        kept: objects that live as long as this transport: operations that stay posted use their memory.
        closed_ids: communicators that are closed. A new communicator takes its id out of it.
        shares_memory: whether ranks of one host may share memory instead of sending messages.
        runtime: of this rank's device, where the transport has chosen one; `shares_devices`, whether ranks take turns.
    """

    name: str = "?"
    capabilities: Capabilities
    timeout_s: float = DEFAULT_TIMEOUT_S
    background_s: float | None = None
    wakes: bool = False
    woken: "Pausing | None" = None
    is_moving: bool = False
    shares_memory: bool = False
    runtime: "CudaRuntime | None" = None
    shares_devices: bool = False
    closed: bool = False

    def __init__(
        self,
        rank: int,
        world_size: int,
        membership: Membership | None = None,
        *,
        machine: Machine = THIS_MACHINE,
        timeout_s: float | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.membership: Membership = Membership() if membership is None else membership
        self.machine = machine
        self.pauses: Pauses = machine.pauses()
        self.lock: Lock = machine.lock()
        self.unreachable: set[int] = set()
        self.kept: list[object] = []
        self.closed_ids: ClosedIds = ClosedIds()
        if timeout_s is not None:
            self.timeout_s = check_timeout_s(timeout_s)

    def register(self, array: Any) -> Region:
        """Make `array` known to the transport and return its Region.

        Args:
            array: any C-contiguous array with the buffer protocol or `__cuda_array_interface__`.

        Raises:
            InputError: not contiguous, or no array.
        """
        return Region(array)

    def post(self, ops: Sequence[Operation]) -> Request:
        """Start a batch of Send and Recv together and return the Request of the whole.

        Raises:
            InputError: an operation is out of its region's range, names no rank, or receives into read-only memory.
            TransportError: the transport is closed.
        """
        check_ops(self, ops)
        return self._post(ops)

    @abstractmethod
    def _post(self, ops: Sequence[Operation]) -> Request:
        """Do `post`, of operations that were checked."""

    def _is_done(self, operation: Any) -> bool:
        """Return whether one operation of a Request is complete; raise as `Request.poll`."""
        raise NotImplementedError

    def take_in(self) -> bool:
        """Receive what has arrived, for all requests, where `Request.poll` does not; return whether anything has."""
        return False

    def barrier(self, timeout_s: float | None = None) -> None:
        """Return once every rank has called it: ceil(log2 n) rounds of empty messages. No schedule needs it.

        Raises:
            TransportTimeout, PeerFailed: as Request.wait.
            TransportError: the transport is closed.
        """
        check_ops(self, ())
        limit_s = self.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        until_s = self.machine.now_s() + limit_s
        empty = self.register(bytearray(0))
        distance = 1
        while distance < self.world_size:
            after, before = (self.rank + distance) % self.world_size, (self.rank - distance) % self.world_size
            ops = (Recv(empty, 0, 0, before, BARRIER_TAG), Send(empty, 0, 0, after, BARRIER_TAG))
            self.post(ops).wait(max(0.0, until_s - self.machine.now_s()))
            distance *= 2

    def watch(self) -> tuple[int, ...] | None:
        """Return descriptors that become readable when something arrives; None if something just has. Under `lock`."""
        store = self.membership.store
        return () if store is None else (store.fileno(),)

    def check_peers(self, peers: Iterable[int]) -> None:
        """Raise PeerFailed if one of `peers` is known to be dead, and look whether paths to them are lost.

        Cost: cheap enough for a waiting loop.
        """
        self.membership.check_peers(peers)

    def abandon(self, peer: int, requests: Sequence[Request]) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """Give up the path to rank `peer`, which is dead: nothing is posted or waited for with it any more.

        Args:
            requests: those that are not done, of operations with `peer` only; memory that they receive into is not
                written to any more, as far as the library under this transport can promise that.
        """

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        """Drop what a closed communicator still receives; return whether its memory is free.

        Args:
            orderly: all its ranks have closed it, so that what it sent has to leave: while something of it has, nothing
                is dropped. Otherwise everything is.

        Returns:
            False where operations stay posted, so that their memory has to be kept.
        """
        return False

    def settle(self) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """Wait for what was queued on streams, before `close`; raise an error of it that was not reported yet."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; a second call does nothing, any other verb raises TransportError afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_ops(transport: Transport, ops: Iterable[Operation]) -> None:
    """Raise if `ops` cannot be posted on `transport`; see Transport.post."""
    if transport.closed:
        raise TransportError(f"{transport.name} rank {transport.rank}: post on a closed transport")
    for op in ops:
        region, offset, nbytes, peer, _tag = op
        if not 0 <= peer < transport.world_size:
            raise InputError(f"post: got peer {peer}, expected 0 to {transport.world_size - 1}")
        if offset < 0 or nbytes < 0 or offset + nbytes > region.nbytes:
            raise InputError(f"post: got bytes {offset} to {offset + nbytes} of a region of {region.nbytes}")
        if nbytes > transport.capabilities.max_message_nbytes:
            raise InputError(
                f"post: got a message of {nbytes} bytes, expected at most {transport.capabilities.max_message_nbytes}"
            )
        if region.buffer is not None and region.buffer.readonly and type(op) is Recv:
            raise InputError("post: got a receive into read-only memory, expected a writable array")
