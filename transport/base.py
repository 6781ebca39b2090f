"""The transport interface: the verbs that move bytes between ranks, and the request they return.

A transport knows nothing of collectives, dtypes or reductions. Its one posting verb takes a *batch*, because NCCL has
no tags and must fuse the sends and receives of a round; elsewhere a batch is a loop.

Matching: messages of one (communicator, source, destination, lane) match in posting order, whatever else is in flight.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport.machine import THIS_MACHINE, Lock, Machine
from lanterne.transport.pauses import Pauses
from lanterne.transport.store.terms import Terms
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S, check_timeout_s
from lanterne.transport.waiting import MOVED, Pausing, wait

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime
    from lanterne.transport.board.seat import Seat
    from lanterne.transport.rank_group import Group
    from lanterne.transport.store.client import StoreClient
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


class OverTags:
    """The tags of communicators that are over: what still comes of them is nobody's."""

    def __init__(self) -> None:
        # By id; a set of all that a long job has closed would take megabytes.
        self._is_over = bytearray(1 << COMMUNICATOR_BITS)
        self._any = False

    def add(self, communicator_id: int) -> None:
        """That communicator is over."""
        self._is_over[communicator_id] = 1
        self._any = True

    def discard(self, communicator_id: int) -> None:
        """Another one has that id now."""
        self._is_over[communicator_id] = 0

    def __call__(self, tag: int) -> bool:
        """Whether `tag` is one of them."""
        return self._any and self._is_over[tag >> LANE_BITS] == 1

    def drop_from(self, *tables: dict[tuple[int, int], Any]) -> None:
        """Remove what `tables`, by tag and number, have of them."""
        for table in tables:
            for key in [key for key in table if self(key[0])]:
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


class Started(Protocol):
    """An operation that is under way."""

    @property
    def op(self) -> Operation: ...

    @property
    def done(self) -> bool: ...


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
            raise timeout_error(transport, self.awaited_peers(), limit_s)

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

    Attributes: `name`; `rank`; `world_size`; `capabilities`; `timeout_s` (the default of every wait, seconds);
    `machine`, on which it runs; `pauses`, what waits do between polls; `background_s`, how often another thread than
    the user's has to look for what has come, beside what `watch` tells, seconds; None: no other thread may use it;
    `wakes`, whether all that comes makes a descriptor of `watch` readable, and takes so long that waits sleep on these.
    """

    name: str = "?"
    machine: Machine = THIS_MACHINE
    rank: int
    world_size: int
    capabilities: Capabilities
    timeout_s: float = DEFAULT_TIMEOUT_S
    pauses: Pauses = THIS_MACHINE.pauses()
    background_s: float | None = None
    wakes: bool = False
    # What waits of one request do between polls, if it is not `pauses`; and whether the last take_in moved anything.
    woken: "Pausing | None" = None
    is_moving: bool = False
    # Of this rank's device, where the transport has chosen one.
    runtime: "CudaRuntime | None" = None
    # Whether ranks take turns on a device.
    shares_devices: bool = False
    closed: bool = False
    # The job of this rank, where the transport knows it.
    _job: "Group | None" = None

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
        """Take in what has come, for all requests, where `Request.poll` does not; return whether anything may have."""
        return False

    def barrier(self, timeout_s: float | None = None) -> None:
        """Return once every rank has called it: ceil(log2 n) rounds of empty messages. No schedule needs it.

        Raises:
            TransportTimeout, PeerFailed: as Request.wait.
        """
        limit_s = self.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        deadline = self.machine.now_s() + limit_s
        empty = self.register(bytearray(0))
        distance = 1
        while distance < self.world_size:
            after, before = (self.rank + distance) % self.world_size, (self.rank - distance) % self.world_size
            ops = (Recv(empty, 0, 0, before, BARRIER_TAG), Send(empty, 0, 0, after, BARRIER_TAG))
            self.post(ops).wait(max(0.0, deadline - self.machine.now_s()))
            distance *= 2

    def open_board(self, key: str, rank: int, world_size: int) -> "Seat | None":
        """The seat of `rank` at the arrival board `key` of `world_size` ranks; None: there is none."""
        return None if self._job is None else self._job.open_board(key, rank, world_size)

    def on_one_host(self, ranks: Iterable[int]) -> bool:
        """Whether these ranks are processes of one host, which may share memory; no wrapper of a transport says so."""
        job = self._job
        if job is None or job.machine is not THIS_MACHINE or self.capabilities.stream_ordered:
            return False
        return len({job.hosts[rank] for rank in ranks}) == 1

    @property
    def lock(self) -> Lock:
        """Whoever uses this transport beside other threads holds it meanwhile; of a wrapper, what it wraps has it."""
        lock: Lock | None = vars(self).get("_lock")
        return vars(self).setdefault("_lock", self.machine.lock()) if lock is None else lock

    def watch(self) -> tuple[int, ...] | None:
        """Descriptors that become readable when something has come; None if something has by now. Under `lock`."""
        return () if self.store is None else (self.store.fileno(),)

    @property
    def store(self) -> "StoreClient | None":
        """The client of the job's store (store/client.py) on this rank; None where the job has none."""
        return None if self._job is None else self._job.store

    def keep(self, thing: object) -> None:
        """Keep `thing` as long as this transport lives: operations that stay posted use its memory."""
        vars(self).setdefault("_kept", []).append(thing)

    def abandon(self, peer: int, requests: Sequence[Request]) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """Give up the path to rank `peer`, which is dead: nothing is posted with it any more, nothing waited for.

        Args:
            requests: those that are not done, of operations with `peer` only; memory that they receive into is not
                written to any more, as far as the library under this transport can promise that.
        """

    def check_peers(self, peers: Iterable[int]) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """Raise PeerFailed if one of `peers` is known to be dead; cheap enough to call from a waiting loop."""

    def survivors(
        self, name: str, ranks: Sequence[int], cut: Sequence[int], payload: bytes, limit_s: float
    ) -> dict[int, bytes]:
        """Those of `ranks` that still live, with what each brought, alike on all of them; see Group.survivors.

        Raises:
            Unavailable: over this transport no rank outlives another.
        """
        if self._job is None:
            what = f"got transport {self.name}, where no rank outlives another; expected tcp or ucx"
            raise Unavailable(f"shrink, agree: {what}")
        return self._job.survivors(name, ranks, cut, payload, limit_s)

    def somebody_waits(self) -> bool:
        """Whether a rank waits to be taken into the job, as far as this one has heard.

        Raises:
            Unavailable: over this transport nobody can be taken in.
        """
        raise Unavailable(f"grow: got transport {self.name}, over which no rank is taken in; expected tcp or ucx")

    def grow(self, name: str, ranks: Sequence[int], terms: Terms, limit_s: float) -> "tuple[Group, Group] | None":
        """This rank's Group, and that in the job's next epoch, with those that wait; None: there are none.

        All living ranks of the job call it; see Group.grow. Raises as that.
        """
        assert self._job is not None
        group = self._job.grow(name, ranks, terms, limit_s)
        return None if group is None else (self._job, group)

    def open_next(self, group: "Group", limit_s: float) -> "Transport | None":
        """That of the job's next epoch, between the ranks of `group`, made of this one, which stays as it is.

        All its ranks open it. None: nothing of this one is of use, and it is opened as any other.
        """
        return None

    def cut_off(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Those of `ranks` that no message reaches from here, dead or not."""
        return ()

    def forget(self, communicator_id: int) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """That communicator is over: what it still receives is not written any more, and its memory given back, as far
        as the library under this transport allows it."""

    def retire(self, communicator_id: int) -> bool:
        """As `forget`, of a communicator that was closed in order, if nothing of it has still to leave this rank.

        Returns False where that cannot be: what is posted stays so, and its memory has to be kept.
        """
        return False

    def reopen(self, communicator_id: int) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """All ranks have closed the communicators that had this id, and a new one has it."""

    @property
    def left(self) -> Collection[int]:
        """The ranks that have ended in order, as far as is known without asking."""
        return () if self._job is None else self._job.left

    def first_death(self, ranks: Iterable[int]) -> PeerFailed | None:
        """The death of that of `ranks` which died first, as far as is known without asking."""
        died = {} if self._job is None else self._job.failed()
        return next((PeerFailed(rank, reason) for rank, reason in died.items() if rank in ranks), None)

    def end_soon(self) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """A rank did not come: others are waited for at the end of this process (MPI_Finalize) for seconds only."""

    def settle(self) -> None:  # noqa: B027 (optional: does nothing unless overridden)
        """Wait for what was queued on streams, before `close`; raises what has failed and nobody was told of yet."""

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
