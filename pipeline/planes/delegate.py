"""The data plane of delegates: CPU processes send and receive, and the computing rank never waits for a send.

Stages write what they send into shared memory that they are lent, and read what they receive there, between ranks of
one host where the sender wrote it, which needs no process; see transport/rails/delegate_transport.py. Links that have
no delegates are served directly, as Inline does.
Paper: ADAPTRA, section 5.2.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.collectives.communicator import Communicator, core_of, gather_bytes
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportTimeout, Unavailable
from lanterne.pipeline.device.message_staging import MessageStaging
from lanterne.pipeline.planes.arena_arrays import NearArrays, OwnArrays, nbytes_of
from lanterne.pipeline.planes.data_plane import Buffer, DataPlane, Receive, Shape, free_nbytes
from lanterne.pipeline.planes.inline import Inline
from lanterne.transport.base import timeout_error
from lanterne.transport.pauses import SPIN_S
from lanterne.transport.rails.delegate_memory import check_machine, landed_counter
from lanterne.transport.rails.delegate_transport import DEFAULT_RAILS, Delegates, queues_needed
from lanterne.transport.rails.rail_names import network_host
from lanterne.transport.shaped import Ends, Link, Links

if TYPE_CHECKING:
    from lanterne.pipeline.device.device_stage import Device

WITHOUT = "without a direct plane every pair has delegates"

# Of the memory that the host has free, for all ranks together.
MEMORY_SHARE = 0.5
# Messages with which the rate of a queue is measured, and their size.
PROBES, PROBE_NBYTES = 16, 1 << 20


class DelegatePlane(DataPlane):
    """Delegates for some of the ranks' pairs; the others directly. All ranks of `comm` call it alike.

    Args:
        comm: a Communicator of this plane's own, on a transport that delays nothing; closed with it.
        direct: the DataPlane of the pairs without delegates; closed with this one. None: every pair has them.
        links: {(source, destination): Link}, ranks of `comm`: emulated for messages through delegates.
        pairs: pairs of ranks, in either order, that have delegates; None for all.
        queues: delegates of a rank; messages of a pair go to them in turn.
        rails: see transport/rails/delegate_transport.py; the first that lives is used.
        memory_nbytes: shared memory of a rank, for all messages that it sends and receives in an iteration; taken as
            needed. None for its share of half the memory that this host has free.
        rendezvous: a message begins to cross its link once its receive is posted, too: when it is first looked for,
            with those before it from the same peer (paired.py). Otherwise receives are posted when they are asked for.

    Attributes: `delegates`, the transport's Delegates; its `dropped` tells of rails that died.

    Raises:
        InputError: options that cannot be, or differ between ranks.
        TransportError: a delegate did not start.
    """

    def __init__(
        self,
        comm: Communicator,
        direct: DataPlane | None = None,
        links: Links | None = None,
        pairs: Collection[tuple[int, int]] | None = None,
        queues: int = 1,
        rails: Sequence[str] = DEFAULT_RAILS,
        memory_nbytes: int | None = None,
        *,
        rendezvous: bool = False,
    ) -> None:
        self.comm = comm
        self.direct = direct
        self._failing = core_of(comm).failing
        self._peers = _delegated_peers(pairs, direct, comm.rank, comm.world_size)
        self._ends = Ends(comm.rank, links or {}, separate=True, rendezvous=rendezvous)
        self._links = self._ends.links
        # By peer, receives that are asked for and not posted, in order; None: there are none.
        self._asked: dict[int, deque[DelegateReceive]] | None = None
        if rendezvous:
            self._asked = {peer: deque() for peer in self._peers}
        if memory_nbytes is None:
            memory_nbytes = int(MEMORY_SHARE * free_nbytes() / comm.world_size)
        store = core_of(comm).transport.membership.store
        self.delegates: Delegates = Delegates(
            comm.rank,
            self._peers,
            lambda told: gather_bytes(comm, told),
            queues,
            rails,
            memory_nbytes,
            self._sent,
            token=None if store is None else store.secret(b"lanterne/delegates").hex(),
            check_dead=lambda peers: core_of(comm).transport.check_peers([comm.ranks[peer] for peer in peers]),
            reached="" if store is None else store.reached_from,
        )
        self.near: NearArrays = NearArrays(self.delegates.arenas)
        self._senders = self.delegates.senders
        self._arrays = OwnArrays(self.delegates.arena, self._staged)
        # Held here as well, since every message touches them: see `send`.
        self._free = self._arrays.free
        self._lent = self._arrays.lent
        self._give = self._arrays.give
        # Offset -> array of those that are sent and not released yet; offsets of those from earlier iterations.
        self._out: dict[int, Buffer] = {}
        self._earlier: set[int] = set()
        # Of stages on a device; buffers that were released while it copies from them.
        self._staging: MessageStaging | None = None
        self._copied: list[Buffer] = []

    def lend(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Buffer:
        if peer in self._peers:
            return self._take(shape, dtype)
        assert self.direct is not None, WITHOUT
        return self.direct.lend(shape, dtype, peer)

    def send(self, buffer: Buffer, peer: int, timeout_s: float | None = None) -> bool:
        # The stage has swept the caches: each object that is touched here costs a tenth of a microsecond or more.
        send = self._senders.get(peer)
        if send is None:
            assert self.direct is not None, WITHOUT
            return self.direct.send(buffer, peer, timeout_s)
        try:
            offset, nbytes, _ = self._lent[id(buffer)]
        except KeyError:
            raise InputError("send: got an array that was not lent, expected the one that `lend` gave") from None
        staging = self._staging
        departure_ns = now_ns() if staging is None else self._departure_ns(staging, buffer, timeout_s)
        if self._links:
            departure_ns = int(1e9 * self._ends.leave(peer, nbytes, departure_ns / 1e9)[0])
        self._out[offset] = buffer
        send(nbytes, offset, departure_ns)
        return False

    def _departure_ns(self, staging: MessageStaging, buffer: Buffer, timeout_s: float | None) -> int:
        """As MessageStaging has it."""
        limit_s = self.comm.timeout_s if timeout_s is None else timeout_s
        return staging.departure_ns(buffer, limit_s if self._links else None)

    def _sent(self, offset: int) -> None:
        self._earlier.discard(offset)
        self._give(self._out.pop(offset))

    def receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Receive:
        if peer not in self._peers:
            assert self.direct is not None, WITHOUT
            return self.direct.receive(shape, dtype, peer)
        # What a neighbour sends is read in its memory.
        buffer = None if peer in self.near.arenas else self._take(shape, dtype)
        offset, nbytes = (0, nbytes_of(shape, dtype)) if buffer is None else self._lent[id(buffer)][:2]
        receive = DelegateReceive(self, shape, dtype, peer, buffer)
        if self._asked is None:
            receive.post(-math.inf)
        else:
            self._asked[peer].append(receive)
        self.delegates.receive(offset, nbytes, peer, receive.arrived)
        return receive

    def post(self, receive: "DelegateReceive") -> None:
        """Post the receives up to `receive` from its peer, which matches them in order."""
        assert self._asked is not None, "it is not posted yet"
        asked, now_s = self._asked[receive.peer], time.monotonic()
        while not receive.is_posted:
            asked.popleft().post(now_s)

    def read(self, peer: int, offset: int, shape: Shape, dtype: np.dtype[Any]) -> Buffer:
        """The array for a message that lies in a peer's arena."""
        return self.near.read(peer, offset, shape, dtype, self._staged)

    def release(self, buffer: Buffer) -> None:
        if self._staging is not None and not self._staging.is_free(buffer):
            self._copied.append(buffer)
        elif (place := self.near.take_place(buffer)) is not None:
            self.delegates.release(*place)
        elif id(buffer) in self._lent:
            self._give(buffer)
        else:
            assert self.direct is not None, WITHOUT
            self.direct.release(buffer)

    def finish(self, timeout_s: float | None = None) -> None:
        if self.direct is not None:
            self.direct.finish(timeout_s)
        if self.delegates.under_way:
            _Wait(self, lambda: not self.delegates.under_way, self.delegates.peers).wait(timeout_s)
        self._earlier = set(self._out)

    def arrival_s(self, peer: int, nbytes: int, departure_s: float) -> float:
        """When the emulated link lets the last byte of a message through that left `peer` at `departure_s`."""
        return self._ends.arrive(peer, nbytes, departure_s)

    def set_link(self, source: int, destination: int, link: Link) -> None:
        self._links[source, destination] = link
        if self.direct is not None:
            self.direct.set_link(source, destination, link)

    def stage_on(self, device: "Device") -> None:
        self._staging = MessageStaging(device, landed_counter(self.delegates.arena.view))
        if self.direct is not None:
            self.direct.stage_on(device)

    def progress(self) -> None:
        """Take in what the delegates have done. Raises TransportError, PeerFailed; the communicator is closed then."""
        if self._copied:
            released, self._copied = self._copied, []
            for buffer in released:
                self.release(buffer)
        with self._failing:
            try:
                self.delegates.progress()
            except PeerFailed as error:
                # As all errors do, it names a rank of the job, and not of the pipeline.
                raise PeerFailed(self.comm.ranks[error.rank], error.reason) from error

    def fail(self, error: LanterneError) -> None:
        core_of(self.comm).fail(error)

    def close(self) -> None:
        try:
            if self._staging is not None:
                self._staging.close()
        finally:
            self.delegates.close()
            if self.direct is not None:
                self.direct.close()
            self.comm.close()

    def _take(self, shape: Shape, dtype: np.dtype[Any]) -> Buffer:
        free = self._free.setdefault((shape, dtype), [])
        if not free:
            self.progress()
        if not free:
            try:
                self._arrays.extend(shape, dtype)
            except InputError:
                if not self._earlier:
                    raise
                # An iteration of both would not fit: what was sent in an earlier one is about to be released.
                _Wait(self, lambda: bool(free) or not self._earlier, self.delegates.peers).wait()
                if not free:
                    self._arrays.extend(shape, dtype)
        return free.pop()

    def _staged(self, array: Buffer) -> Buffer:
        if self._staging is not None:
            self._staging.adopt(array)
        return array


def near_pairs(comm: Communicator) -> list[tuple[int, int]]:
    """The pairs of ranks of `comm` that hand messages over in memory that they share; all of them call it."""
    try:
        check_machine()
        host = network_host()
    except Unavailable:
        host = f"rank {comm.rank}"
    hosts = gather_bytes(comm, host.encode())
    return [pair for pair in combinations(range(comm.world_size), 2) if hosts[pair[0]] == hosts[pair[1]]]


def measured_queues(
    comm: Communicator,
    produced_bytes_per_s: float,
    nbytes: int = PROBE_NBYTES,
    rails: Sequence[str] = DEFAULT_RAILS,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> int:
    """How many queues keep up with stages that send `produced_bytes_per_s` to one peer: over what one queue carries.

    Measured on all pairs at once, as in a pipeline; the same number on every rank. All of them call it.

    Args:
        nbytes: of a message.
        pairs: of ranks; None for neighbours.

    Raises:
        InputError: a rate that is not positive, or that no number of queues carries.

    Cost: PROBES messages of `nbytes`, and delegates that are started for it.
    Paper: ADAPTRA, section 5.2.
    """
    slowest = np.full(1, np.inf)
    if pairs is None:
        pairs = [(rank, rank + 1) for rank in range(comm.world_size - 1)]
    peers = [sum(pair) - comm.rank for pair in pairs if comm.rank in pair]
    with DelegatePlane(comm.split(0, comm.rank), Inline(comm), None, pairs, rails=rails) as plane:
        # The second time no page is new.
        for _ in range(2):
            receives = [plane.receive((nbytes,), np.dtype(np.uint8), peer) for _ in range(PROBES) for peer in peers]
            comm.barrier()
            start_s = time.monotonic()
            for _ in range(PROBES):
                for peer in peers:
                    plane.send(plane.lend((nbytes,), np.dtype(np.uint8), peer), peer)
            for receive in receives:
                plane.release(receive.wait())
            plane.finish()
            if peers:
                slowest[0] = PROBES * nbytes / (time.monotonic() - start_s)
    comm.all_reduce(slowest, slowest, op="min")
    return queues_needed(produced_bytes_per_s, float(slowest[0]))


class DelegateReceive(Receive):
    """A message that the delegates receive; on an emulated link it counts as here once that lets it through.

    Attributes: `peer`, the rank that sends it.
    """

    __slots__ = (
        *("_arrival_s", "_buffer", "_departure_s", "_is_here", "_looked_s", "_message", "_plane", "_posted_s"),
        "peer",
    )

    def __init__(
        self, plane: DelegatePlane, shape: Shape, dtype: np.dtype[Any], peer: int, buffer: Buffer | None
    ) -> None:
        self._plane = plane
        self._message = shape, dtype
        self.peer: int = peer
        # None until the message is here, where it is read in its sender's memory.
        self._buffer = buffer
        self._departure_s: float | None = None
        self._posted_s: float | None = None
        self._arrival_s: float | None = None
        self._is_here = False
        self._looked_s = -math.inf

    @property
    def looked_s(self) -> float:
        return self._looked_s

    @property
    def is_posted(self) -> bool:
        """Whether `post` was called."""
        return self._posted_s is not None

    def post(self, now_s: float) -> None:
        """The receive is posted at `now_s`; called in the order of the messages of a peer."""
        self._posted_s = now_s
        self._cross()

    def arrived(self, departure_s: float, place: int | None) -> None:
        """The message, which left at `departure_s`, is in the buffer, or in its sender's memory, at offset `place`."""
        if place is not None:
            self._buffer = self._plane.read(self.peer, place, *self._message)
        self._departure_s = departure_s
        self._cross()

    def _cross(self) -> None:
        """Find out when the message has crossed its link, once it has left and its receive is posted."""
        if self._departure_s is not None and self._posted_s is not None:
            assert self._buffer is not None, "the message is here"
            begins_s = max(self._departure_s, self._posted_s)
            self._arrival_s = self._plane.arrival_s(self.peer, self._buffer.nbytes, begins_s)

    def test(self) -> bool:
        if self._posted_s is None:
            self._plane.post(self)
        if not self._is_here:
            now_s = time.monotonic()
            if self._arrival_s is None:
                self._plane.progress()
            self._is_here = self._arrival_s is not None and time.monotonic() >= self._arrival_s
            if not self._is_here:
                self._looked_s = now_s
        return self._is_here

    def wait(self, timeout_s: float | None = None) -> Buffer:
        if self.test():
            assert self._buffer is not None
            return self._buffer
        comm = self._plane.comm
        limit_s = comm.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        delivery = _Wait(self._plane, lambda: self._arrival_s is not None, (self.peer,))
        delivery.wait(limit_s)
        late = timeout_error(comm.transport, (comm.ranks[self.peer],), limit_s)
        assert self._arrival_s is not None and self._buffer is not None, "delivered"
        with self._plane._failing:
            self._looked_s = max(delivery._looked_s, _wait_until(self._arrival_s, deadline_s, late), self._looked_s)
        return self._buffer


class _Wait(CollectiveRequest):
    """Waits as all requests of a communicator do, for delegates to have done something; `_looked_s` as Receive's."""

    __slots__ = ("_is_done", "_looked_s", "_peers", "_plane")

    def __init__(self, plane: DelegatePlane, is_done: Callable[[], bool], peers: Sequence[int]) -> None:
        super().__init__(core_of(plane.comm))
        self._plane = plane
        self._is_done = is_done
        self._peers = peers
        self._looked_s = -math.inf

    def _poll(self) -> bool:
        now_s = time.monotonic()
        self._plane.progress()
        self.done = self._is_done()
        if not self.done:
            self._looked_s = now_s
        return self.done

    def _expire(self, limit_s: float) -> None:
        raise timeout_error(self._communicator.transport, self._pending_peers(), limit_s)

    def _pending_peers(self) -> Sequence[int]:
        self._plane.delegates.check()
        return [self._plane.comm.ranks[peer] for peer in self._peers]


def _wait_until(arrival_s: float, deadline_s: float, late: TransportTimeout) -> float:
    """Return at `arrival_s`, to a poll; raise the error `late` at `deadline_s` if that is earlier.

    Returns when it last was too early; -inf: never.
    """
    end_s, looked_s = min(arrival_s, deadline_s), -math.inf
    while (now_s := time.monotonic()) < end_s:
        looked_s, left_s = now_s, end_s - now_s
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)
        else:
            os.sched_yield()
    if arrival_s > deadline_s:
        raise late
    return looked_s


def _delegated_peers(
    pairs: Collection[tuple[int, int]] | None, direct: DataPlane | None, rank: int, world_size: int
) -> frozenset[int]:
    """The ranks that `rank` has delegates for."""
    if pairs is None:
        return frozenset(range(world_size)) - {rank}
    both = [frozenset(pair) for pair in pairs]
    for pair in both:
        if len(pair) != 2 or not pair <= frozenset(range(world_size)):
            raise InputError(f"pairs: got {tuple(pair)}, expected two different ranks of {world_size}")
    if direct is None:
        raise InputError("pairs: got no data plane for the others, expected `direct`")
    return frozenset(peer for pair in both if rank in pair for peer in pair - {rank})
