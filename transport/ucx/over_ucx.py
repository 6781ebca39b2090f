"""Ranks as processes that talk over UCX: RDMA where there is a NIC, shared memory and TCP elsewhere. Needs no MPI.

UCXX's core API in blocking progress mode: a wait spins while something moves, then sleeps in the kernel, which stays
sane where ranks outnumber cores. Every endpoint handles errors, so a dead peer fails its requests; the job's control
connection (Group) tells of deaths too, whichever is first.
"""

import atexit
import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from lanterne.errors import InputError, PeerFailed, TransportError, Unavailable
from lanterne.transport.base import (
    Capabilities,
    Operation,
    PostedOperation,
    Recv,
    Region,
    Request,
    Send,
    Transport,
)
from lanterne.transport.job.bootstrap import interface_of, shown_address
from lanterne.transport.job.room import has_room_for_ucx
from lanterne.transport.networks import has_rdma, is_trusted
from lanterne.transport.pauses import WAKE_SLEEP_S, WAKE_SPIN_S, Woken
from lanterne.transport.rank_group import LEFT_GRACE_S, Group
from lanterne.transport.ucx.numbered_tags import TAG_BITS, NumberedTags
from lanterne.transport.ucx.worker import flush, load_ucxx, make_worker, receiver_paced_nbytes, settings
from lanterne.transport.waiting import never, wait

# After UCX refused to connect or to start: how long the group has to say that the peer is dead, or has left.
NOTICE_S = LEFT_GRACE_S + 0.5

log: logging.Logger = logging.getLogger(__name__)

# How long close() waits at most for what was sent to leave, once a peer has failed.
LAST_FLUSH_S = 1.0
# Descriptions of memory that a region keeps; making one costs 1 us, and schedules post the same slices again and
# again.
MAX_SPANS = 1024  # making one costs 1 us


def _agree(group: Group, timeout_s: float | None) -> dict[str, bool]:
    """What `settings` has to know of all ranks; rank 0 says what it means if there is no RDMA between their hosts."""
    one_host, trusted = len(set(group.hosts)) == 1, is_trusted()
    rdma, roomy = not one_host and has_rdma(), not one_host or has_room_for_ucx(group.world_size)
    told = group.exchange("lanterne/ucx-ways", bytes((rdma, trusted, roomy)), timeout_s)
    rdma, trusted, roomy = (all(column) for column in zip(*told, strict=True))
    if group.rank == 0 and not (one_host or rdma or trusted):
        log.warning(
            "lanterne: ucx between hosts without RDMA: whoever reaches its TCP ports can write to these processes' "
            "memory; transport tcp is closed to strangers, and LANTERNE_TRUSTED_NETWORK=1 says that there are none"
        )
    return {"rdma": rdma, "roomy": roomy}


def _interface(group: Group) -> str:
    """Return the interface by which this rank reaches those of other hosts; empty where that is not known."""
    with suppress(Unavailable):
        return interface_of(shown_address(group.reached_from, several_hosts=len(set(group.hosts)) > 1))
    return ""


def _failure(rank: int, text: str) -> TransportError:
    """That a path has failed: often its other end has ended, because of another perhaps; no word of a death yet."""
    failure = TransportError(f"ucx rank {rank}: {text}")
    failure.rank_unknown = True
    return failure


def _span(as_array: Callable[[Any], Any], region: Region, offset: int, nbytes: int) -> Any:
    """Return the memory of an operation as ucxx wants it, made by `as_array` and kept by the region."""
    if region.native is None or len(region.native) >= MAX_SPANS:
        region.native = {}
    if region.device:
        span = as_array(DeviceSpan(region, offset, nbytes))
    else:
        assert region.buffer is not None
        span = as_array(region.buffer[offset : offset + nbytes])
    region.native[offset, nbytes] = span
    return span


class UcxTransport(Transport):
    """Point to point over UCX. All ranks of `group` make it together.

    Args:
        timeout_s: the default of every wait.

    Raises:
        Unavailable: no ucxx of the right version.
        InputError: UCX refuses the user's UCX_... variables.
    """

    name = "ucx"
    shares_memory = True
    background_s: float | None = 0.05
    _context: Any
    _worker: Any

    def __init__(self, group: Group, timeout_s: float | None = None) -> None:
        self._ucxx, self._array = load_ucxx()
        super().__init__(group.rank, group.world_size, group, timeout_s=timeout_s)
        self._group = group
        self._tags = NumberedTags(self._ucxx, group.secret(b"lanterne/ucx-tags"), group.rank)
        self.closed_ids = self._tags
        chosen = settings(group.hosts, group.rank, os.environ, interface=_interface(group), **_agree(group, timeout_s))
        self._context, self._worker = make_worker(self._ucxx, chosen)
        self._addresses = group.exchange("lanterne/ucx", bytes(self._worker.address), timeout_s)
        self._peers: dict[int, tuple[Any, Any]] = {}
        # UCX uses the memory of these, whether or not anybody holds their requests; with the UCXXTag of each.
        self._under_way: dict[PostedOperation, Any] = {}
        self.is_moving = False
        self.capabilities: Capabilities = Capabilities(
            # A UCX with CUDA says so even where there is no driver; its context then has no CUDA component.
            device_memory=self._context.cuda_support and "cuda" in self._context.info,
            receiver_paced_nbytes=receiver_paced_nbytes(os.environ),
            connects_late=True,
            shrinks=True,
            grows=True,
        )
        # For waits of one request; those of several, and of collectives, poll.
        self.woken = Woken(self.machine, self._sleep, WAKE_SPIN_S)
        # Between the ranks of one host messages take microseconds.
        self.wakes: bool = len(set(group.hosts)) > 1
        self._pid = os.getpid()
        atexit.register(self.close)

    def _post(self, ops: Sequence[Operation]) -> Request:
        for op in ops:
            if op.tag >> TAG_BITS:
                raise InputError(f"post: got tag {op.tag}, expected one of make_tag()")
            if op.region.device and not self.capabilities.device_memory:
                raise InputError("post: got device memory, expected host memory: this host's UCX sees no CUDA device")
            if op.peer not in self._peers:
                self._peers[op.peer] = self._connect(op.peer)
        return Request(self, [self._start(op) for op in ops])

    def _start(self, op: Operation) -> PostedOperation:
        region, offset, nbytes, peer, tag = op
        span = (region.native and region.native.get((offset, nbytes))) or _span(self._array, region, offset, nbytes)
        try:
            if type(op) is Send:
                numbered = self._tags.next_sent(peer, tag, nbytes)
                operation = PostedOperation(op, self._peers[peer][0].tag_send(span, numbered))
            else:
                numbered = self._tags.next_received(peer, tag, nbytes)
                operation = PostedOperation(op, self._peers[peer][1].tag_recv(span, numbered))
        except self._ucxx.UCXError as error:
            self._explain(peer, "cannot send to" if type(op) is Send else "cannot receive from", error)
        self._under_way[operation] = numbered
        return operation

    def _is_done(self, operation: PostedOperation) -> bool:
        """See Transport. Deaths are for who waits (check_peers) to look for."""
        if operation.done:
            return True
        if operation.error is not None:
            raise operation.error
        if not operation.request.completed:
            self._check_open()
            return False
        self._under_way.pop(operation, None)
        try:
            operation.request.check_error()
        except self._ucxx.UCXError as error:
            self._check_open()
            op = operation.op
            self.check_peers((op.peer,))
            verb = "send to" if type(op) is Send else "receive from"
            raise _failure(self.rank, f"{verb} rank {op.peer} of {op.nbytes} bytes failed: {error}") from error
        operation.done = True
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise TransportError(f"ucx rank {self.rank}: closed before this request was complete")

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        """See Transport: UCX keeps what is posted."""
        self._tags.add(communicator_id)
        return False

    def _connect(self, peer: int) -> tuple[Any, Any]:
        """The endpoints to `peer`, for sends and for receives; made when first needed: n ranks could have n * n.

        Between hosts there are two connections, one for each direction. On a single one, the reply that lets one side
        send waits behind the bulk that the other side has queued: TCP becomes half duplex. UCX pairs the endpoints of
        two workers in the order in which they are made, so the first is for messages from the lower rank.
        """
        here = self._group.hosts[peer] == self._group.hosts[self.rank]
        try:
            address = self._ucxx.UCXAddress.create_from_buffer(self._addresses[peer])
            ends = [
                self._ucxx.UCXEndpoint.create_from_worker_address(self._worker, address, peer != self.rank)
                for _ in range(1 if here else 2)
            ]
        except self._ucxx.UCXError as error:
            self._explain(peer, "cannot connect to", error)
        return (ends[0], ends[-1]) if self.rank < peer else (ends[-1], ends[0])

    def _explain(self, peer: int, what: str, error: Exception) -> NoReturn:
        """Raise what UCX's `error` means: often the first sign of a death whose notice is on its way."""
        wait(never, NOTICE_S, self.pauses, lambda _now_s: self.check_peers((peer,)))
        if isinstance(error, self._ucxx.UCXUnreachableError):  # and no death: of its addresses none leads there
            cure = "set LANTERNE_BIND to an interface by which all hosts reach each other"
            raise TransportError(f"ucx rank {self.rank}: {what} rank {peer}: {error}; {cure}") from error
        raise _failure(self.rank, f"{what} rank {peer}: {error}") from error

    def take_in(self) -> bool:
        worker = self._worker
        self.is_moving = moved = worker.progress_once()
        if moved:
            # One step takes a part of what has come, and each look of ours costs as much as many of them.
            worker.progress()
        return True

    def watch(self) -> tuple[int, ...] | None:
        if self._worker.progress_once() or not self._worker.arm():
            return None
        return self._worker.epoll_file_descriptor, *(super().watch() or ())

    def _sleep(self, limit_s: float) -> None:
        self._worker.progress_worker_event(math.ceil(min(WAKE_SLEEP_S, limit_s) * 1e3))

    def check_peers(self, peers: Iterable[int]) -> None:
        """See Transport. Also gives receives from `peers` an error whose message has arrived with another length."""
        peers = list(peers)
        closed = [peer for peer in peers if not all(end.alive for end in self._peers.get(peer, ()))]
        self.unreachable.update(closed)
        self.membership.check_peers(peers)
        for peer in closed:
            raise PeerFailed(peer, "its connection is closed")
        self._under_way = {each: tag for each, tag in self._under_way.items() if not each.request.completed}
        for operation, tag in self._under_way.items():
            if type(operation.op) is Recv and operation.op.peer in peers:
                nbytes = self._tags.unmatched_nbytes(self._worker, tag)
                if nbytes is not None:
                    operation.misfits(self.name, nbytes)

    def abandon(self, peer: int, requests: Sequence[Request]) -> None:
        # Closing by force ends what is under way on them.
        for end in {id(end): end for end in self._peers.pop(peer, ())}.values():
            end.close_blocking()

    def close(self) -> None:
        """See Transport. What was sent has left this process; receives that are still posted are dropped."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return  # a forked child must not close its parent's connections
        ends = {id(end): end for ends in self._peers.values() for end in ends}.values()
        unharmed = all(end.alive for end in ends) and not self._group.failed() and not self._group.ends_soon
        limit_s = self.timeout_s if unharmed else min(self.timeout_s, LAST_FLUSH_S)
        flush(self._worker, self.machine.now_s() + limit_s)
        for end in ends:
            end.close_blocking()
        self._peers.clear()
        self._under_way.clear()
        self._worker = None
        self._context = None


class DeviceSpan:
    """Some bytes of a device region, for ucxx."""

    def __init__(self, region: Region, offset: int, nbytes: int) -> None:
        self.region = region
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (region.address + offset, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
