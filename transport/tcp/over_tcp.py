"""Ranks as processes, over TCP connections of our own: host memory, no library.

What jobs go over where there is neither MPI nor UCX, and nccl's host messages with them. A message leaves from where it
lies, and comes to where its receive wants it. A large one (`paced_nbytes`) leaves only once its receive is posted, and
sends it a GRANT; a smaller one leaves at once, and waits in memory of its own where nobody has asked for it yet.

Between hosts all that is said is sealed (seal.py), unless LANTERNE_TRUSTED_NETWORK says on every rank that nobody else
reaches the network; between ranks of a host nobody but root could change it. With LANTERNE_ENCRYPT on every rank it is
encrypted instead (tls.py).
"""

import os
import select
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil

from lanterne.errors import TransportError
from lanterne.transport.base import (
    LANE_BITS,
    Capabilities,
    Operation,
    OverTags,
    Request,
    Send,
    Transport,
    check_ops,
    timeout_error,
)
from lanterne.transport.local import LocalWorld
from lanterne.transport.machine import Machine
from lanterne.transport.pauses import Pauses, Woken
from lanterne.transport.rank_group import Group
from lanterne.transport.steering import steers, value
from lanterne.transport.tcp.connections import connections
from lanterne.transport.tcp.duplex import BYE, DATA, GRANT, OFFER, Duplex, Garbled
from lanterne.transport.tcp.duplex import POLICY as DUPLEX
from lanterne.transport.tcp_info import tcp_info
from lanterne.transport.timeouts import check_timeout_s
from lanterne.transport.waiting import MOVED, Moved, wait


@steers
@dataclass(frozen=True)
class TcpPolicy:
    """How a rank over tcp waits."""

    # How long the job has to tell of a peer's death once the connection to it is dead, and `close` waits for what was
    # sent to leave.
    notice_s: float = value(
        1.0,
        "notices of deaths take some 0.3 s",
        half="the cause is more often unknown",
        double="the error comes a second later",
    )
    farewell_s: float = value(
        2.0,
        "chosen",
        half="last messages on slow networks may be lost",
        double="ends with dead peers take 4 s",
    )
    # How long a wait polls after the last thing that moved, and then sleeps before it looks for deaths.
    spin_s: float = value(
        50e-6,
        "waking costs 30 us",
        half="small messages wait for a wake-up",
        double="twice the CPU of waits",
    )
    silence_s: float = value(
        0.5, "chosen: 1 us a peer", half="a lost host is seen 0.25 s sooner", double="it is seen 0.5 s later"
    )
    sleep_s: float = value(0.05, "chosen", half="deaths are seen 25 ms sooner", double="deaths are seen 50 ms later")


POLICY = TcpPolicy()


class TcpTransport(Transport):
    """Connections between any two ranks, made at the start; to itself a rank sends in its own memory.

    Between ranks of one host there is one, in a job of several hosts two: one for messages, one for what is said of
    them. A GRANT behind all that the other direction has queued would make the pair half duplex.

    Args:
        timeout_s: the default of every wait.
        sealed: whether what is said between hosts is, unless all ranks trust the network.

    Raises:
        InputError: some ranks want encryption, others do not.
        TransportError: a rank did not come.
    """

    name = "tcp"
    capabilities: Capabilities = Capabilities(receiver_paced_nbytes=DUPLEX.paced_nbytes)

    def __init__(self, group: Group, timeout_s: float | None = None, *, sealed: bool = True) -> None:
        self.rank: int = group.rank
        self.world_size: int = group.world_size
        self.machine: Machine = group.machine
        if timeout_s is not None:
            self.timeout_s: float = check_timeout_s(timeout_s)
        self.pauses: Pauses = group.machine.pauses(group.ranks_here)
        self.background_s: float | None = POLICY.sleep_s
        self._job = group
        self._group = group
        self._own = LocalWorld(group.world_size, group.machine).transport(group.rank, timeout_s)
        self._poll = group.machine.poller()
        self.woken: Woken = Woken(group.machine, self._sleep, POLICY.spin_s)
        self.moved: bool = False
        self.peers: dict[int, TcpPeer] = {}
        self._by_fd: dict[int, tuple[TcpPeer, Duplex]] = {}
        self._full: set[Duplex] = set()  # with more to be written than the connection has taken
        self._over = OverTags()
        self._silence_s = 0.0  # when it looks next whether peers that are waited for answer
        self.wakes: bool = len(set(group.hosts)) > 1
        for (rank, _), (sock, seals) in connections(group, sealed=sealed).items():
            peer = self.peers.setdefault(rank, TcpPeer(rank, self._over))
            duplex = Duplex(sock, peer, seals)
            peer.duplexes.append(duplex)
            self._by_fd[sock.fileno()] = peer, duplex
            self._poll.register(duplex, select.POLLIN)
        self._pid = os.getpid()
        self.machine.at_exit(self.close)

    # -- messages

    def post(self, ops: Sequence[Operation]) -> "TcpRequest":
        check_ops(self, ops)
        pending: list[TcpOperation] = []
        for op in ops:
            pending.append(self._start(op))
        for peer in {op.peer for op in ops}:
            if peer != self.rank:
                self._flush(self.peers[peer])
        return TcpRequest(self, pending)

    def _start(self, op: Operation) -> "TcpOperation":
        if op.peer == self.rank:
            return TcpOperation(op, None, self._own.post((op,)))
        peer = self.peers[op.peer]
        operation = TcpOperation(op, peer)
        if type(op) is Send:
            peer.send(operation)
        else:
            peer.receive(operation)
        return operation

    def is_done(self, operation: "TcpOperation") -> bool:
        """Whether an operation is done; raises what has become of it."""
        peer = operation.peer
        if peer is None:
            assert operation.request is not None
            return operation.request.test()
        if operation.error is not None:
            raise operation.error
        if not operation.done and peer.error is not None:
            # Of a connection that was lost the job may know more in a moment.
            self._group.check_peers((peer.rank,))
            if self.machine.now_s() > peer.lost_s + POLICY.notice_s:
                raise peer.error
        return operation.done

    # -- connections

    def progress(self) -> bool:
        """Read and write what can be; True, and `moved`, if something was."""
        moved = False
        for fd, event in self._poll.poll(0):
            peer, duplex = self._by_fd.get(fd, (None, None))
            if peer is None or duplex is None:
                continue
            try:
                if event & ~select.POLLOUT:
                    moved = duplex.read() or moved
            except (OSError, EOFError, Garbled) as error:
                self._lose(peer, duplex, error)
                continue
            moved = self._flush(peer) or moved
        self.moved = moved
        return moved

    def _flush(self, peer: "TcpPeer") -> bool:
        moved, full = False, self._full
        for duplex in peer.duplexes:
            if not duplex.idle:
                with suppress(OSError):  # What it still holds is read first, and then tells its end.
                    moved = duplex.flush() or moved
            if (duplex in full) == duplex.idle:
                full ^= {duplex}
                self._poll.modify(duplex, select.POLLIN if duplex.idle else select.POLLIN | select.POLLOUT)
        return moved

    def _lose(self, peer: "TcpPeer", lost: Duplex, why: object) -> None:
        """A connection to a peer is dead, and so are all, unless it has left."""
        for duplex in [lost] if peer.has_left else list(peer.duplexes):
            peer.duplexes.remove(duplex)
            self._full.discard(duplex)
            self._poll.unregister(duplex)
            del self._by_fd[duplex.fileno()]
            duplex.close()
        if not peer.has_left and peer.error is None:
            peer.error = TransportError(f"tcp rank {self.rank}: the connection to rank {peer.rank}: {why}")
            peer.error.rank_unknown = True  # Often the peer has ended because of another.
            peer.lost_s = self.machine.now_s()

    def _sleep(self, limit_s: float) -> None:
        self._poll.poll(ceil(min(POLICY.sleep_s, limit_s) * 1e3))

    def watch(self) -> tuple[int, ...] | None:
        if self.progress() or self._full:
            return None
        return *self._by_fd, *(super().watch() or ())

    def check_peers(self, peers: Iterable[int]) -> None:
        ranks = tuple(peers)
        self._group.check_peers(ranks)
        asked = [self.peers[rank] for rank in ranks if rank in self.peers]
        for peer in asked:
            if peer.offer():
                self._flush(peer)
        now_s = self.machine.now_s()
        if now_s >= self._silence_s:
            self._silence_s = now_s + POLICY.silence_s
            for peer in asked:
                for duplex in [each for each in peer.duplexes if tcp_info(each.sock).is_silent][:1]:
                    self._lose(peer, duplex, "nothing answers there any more")

    def abandon(self, peer: int, requests: Sequence[Request]) -> None:
        self.peers[peer].forget()
        for duplex in self.peers[peer].duplexes[:1]:
            self._lose(self.peers[peer], duplex, "it was given up")

    # -- communicators that are over

    def somebody_waits(self) -> bool:
        self._group.check_peers(())
        return self._group.somebody_waits

    def cut_off(self, ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(rank for rank in ranks if rank in self.peers and self.peers[rank].error is not None)

    def forget(self, communicator_id: int) -> None:
        self._over.add(communicator_id)
        self._own.forget(communicator_id)
        for peer in self.peers.values():
            peer.drop_over()

    def retire(self, communicator_id: int) -> bool:
        if any(peer.holds(communicator_id) for peer in self.peers.values()) or not self._own.retire(communicator_id):
            return False
        self.forget(communicator_id)
        return True

    def reopen(self, communicator_id: int) -> None:
        self._over.discard(communicator_id)

    # -- the end

    def close(self) -> None:
        """See Transport. What was sent is with the other ranks' kernels; receives that are still posted are dropped."""
        if self.closed:
            return
        self.closed = True
        self.machine.not_at_exit(self.close)
        if os.getpid() == self._pid:
            for peer in self.peers.values():
                for duplex in peer.duplexes:
                    duplex.put(BYE)
                self._flush(peer)
            # What is on its way would be lost if this end closed while it has not read all.
            wait(self._has_left, POLICY.farewell_s, self.pauses)
        for _, duplex in self._by_fd.values():
            duplex.close()
        self._own.close()

    def _has_left(self) -> bool:
        self.progress()
        return all(duplex.idle and tcp_info(duplex.sock).has_arrived for _, duplex in self._by_fd.values())


class TcpPeer:
    """What a rank knows of another. Messages of a tag match in the order in which they are posted: by number, from 0.

    Args:
        over: the transport's.

    Attributes:
        duplexes: that for messages, and that for what is said of them where it is another; none once they are dead.
        error, lost_s: why, and when.
        has_left: in order.
    """

    def __init__(self, rank: int, over: OverTags) -> None:
        self.rank = rank
        self._over = over
        self.duplexes: list[Duplex] = []
        self.error: TransportError | None = None
        self.lost_s: float = 0.0
        self.has_left: bool = False
        # By tag, how many were posted; by tag and number: receives, messages and offers that came before theirs, sends
        # that wait for a grant, and grants that came before theirs.
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._receives: dict[tuple[int, int], TcpOperation] = {}
        self._early: dict[tuple[int, int], memoryview] = {}
        self._offers: dict[tuple[int, int], int] = {}
        self._held: dict[tuple[int, int], TcpOperation] = {}
        self._grants: set[tuple[int, int]] = set()
        self._coming: memoryview | None = None

    def send(self, operation: "TcpOperation") -> None:
        """Start a Send."""
        tag, nbytes = operation.op.tag, operation.op.nbytes
        number = self._sent[tag]
        self._sent[tag] = number + 1
        if not self.duplexes:
            return
        if nbytes <= DUPLEX.whole_nbytes:
            self.duplexes[0].put(DATA, tag, number, nbytes, operation.view, operation.finish)
        elif nbytes < DUPLEX.paced_nbytes or (tag, number) in self._grants:
            self._grants.discard((tag, number))
            self.duplexes[0].put_message(tag, number, operation.view, operation.finish)
        else:
            self._held[tag, number] = operation

    def receive(self, operation: "TcpOperation") -> None:
        """Start a Recv."""
        tag = operation.op.tag
        number = self._received[tag]
        self._received[tag] = number + 1
        key = tag, number
        if (message := self._early.pop(key, None)) is not None:
            self._take(operation, message)
        elif operation.misfits(self._offers.pop(key, operation.op.nbytes)):
            pass
        else:
            self._receives[key] = operation
            if operation.op.nbytes >= DUPLEX.paced_nbytes and self.duplexes:
                self.duplexes[-1].put(GRANT, tag, number, operation.op.nbytes)

    def offer(self) -> bool:
        """Tell of sends that wait for a grant: a receive of less sends none. True if there are some."""
        if not self.duplexes:
            return False
        waiting = [(key, operation) for key, operation in self._held.items() if not operation.offered]
        for key, operation in waiting:
            operation.offered = True
            self.duplexes[-1].put(OFFER, *key, operation.op.nbytes)
        return bool(waiting)

    def on_place(self, tag: int, number: int, nbytes: int) -> memoryview:
        """See Owner."""
        operation = self._receives.get((tag, number))
        if operation is not None and operation.op.nbytes == nbytes:
            self._coming = None
            return operation.view
        self._coming = memoryview(bytearray(nbytes))
        return self._coming

    def on_frame(self, kind: int, tag: int, number: int, nbytes: int, message: memoryview | None) -> None:
        """See Owner."""
        key = tag, number
        if kind != BYE and self._over(tag):
            self._coming = None
        elif kind == DATA:
            self._on_data(key, nbytes, message)
        elif kind == GRANT:
            if (operation := self._held.pop(key, None)) is None:
                self._grants.add(key)
            elif self.duplexes:
                self.duplexes[0].put_message(tag, number, operation.view, operation.finish)
        elif kind == OFFER:
            if (operation := self._receives.get(key)) is None:
                # An offer may come after its message, which was on the other connection.
                if number >= self._received.get(tag, 0) and key not in self._early:
                    self._offers[key] = nbytes
            elif operation.misfits(nbytes):
                del self._receives[key]
        else:
            self.has_left = True

    def _on_data(self, key: tuple[int, int], nbytes: int, message: memoryview | None) -> None:
        operation = self._receives.pop(key, None)
        if operation is None:
            if key in self._early or key[1] < self._received.get(key[0], 0):
                raise Garbled(f"got message {key[1]} of tag {key[0]} twice")
            self._offers.pop(key, None)
            self._early[key] = memoryview(bytes(message)) if message is not None else self._coming or _NOTHING
        elif message is None and self._coming is None:
            operation.done = True
        else:
            self._take(operation, message if message is not None else self._coming or _NOTHING)
        self._coming = None

    def _take(self, operation: "TcpOperation", message: memoryview) -> None:
        """A message has come elsewhere than where it goes."""
        if not operation.misfits(message.nbytes):
            operation.view[:] = message
        operation.done = True

    def holds(self, communicator_id: int) -> bool:
        """Whether a message of a communicator waits for its grant."""
        return any(tag >> LANE_BITS == communicator_id for tag, _ in self._held)

    def drop_over(self) -> None:
        """Nothing is kept of tags that are over."""
        over = self._over
        over.drop_from(self._receives, self._early, self._offers, self._held)
        for counts in (self._sent, self._received):
            for tag in [tag for tag in counts if over(tag)]:
                del counts[tag]
        self._grants = {key for key in self._grants if not over(key[0])}
        for duplex in self.duplexes:
            duplex.divert(over)

    def forget(self) -> None:
        """Nothing that is posted is waited for, or written to, any more."""
        self._receives.clear()
        self._held.clear()


_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class TcpOperation:
    """A Send or Recv: `peer` is None to this rank itself; `request` is then of its own memory's transport."""

    op: Operation
    peer: TcpPeer | None
    request: Request | None = None
    done: bool = False
    offered: bool = False
    error: TransportError | None = None

    @property
    def view(self) -> memoryview:
        """The bytes to be sent, or written."""
        region, offset, nbytes, _, _ = self.op
        assert region.buffer is not None
        return region.buffer[offset : offset + nbytes]

    def finish(self) -> None:
        """It is done."""
        self.done = True

    def misfits(self, nbytes: int) -> bool:
        """Whether a message of `nbytes` is not what this receives, which then raises that whenever it is asked."""
        if nbytes != self.op.nbytes:
            self.error = TransportError(
                f"tcp: rank {self.op.peer} sent {nbytes} bytes, expected {self.op.nbytes}, as its receive is"
            )
        return nbytes != self.op.nbytes


class TcpRequest(Request):
    """Complete once all its operations are."""

    __slots__ = ("_pending", "_transport")

    def __init__(self, transport: TcpTransport, pending: list[TcpOperation]) -> None:
        self._transport = transport
        self._pending = pending

    @property
    def transport(self) -> TcpTransport:
        return self._transport

    def test(self) -> bool:
        if self._reap():
            return True
        if self._transport.closed:
            raise TransportError(f"tcp rank {self._transport.rank}: closed before this request was complete")
        return self._transport.progress() and self._reap()

    def _reap(self) -> bool:
        """Drop the last operations, as far as they are done; True if none is left."""
        pending, is_done = self._pending, self._transport.is_done
        while pending and is_done(pending[-1]):
            pending.pop()
        return not pending

    def pending_peers(self) -> list[int]:
        return sorted({operation.op.peer for operation in self._pending if not operation.done})

    def wait(self, timeout_s: float | None = None) -> None:
        if self.test():
            return
        transport = self._transport
        limit_s = transport.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        look_at_peers = lambda _now_s: transport.check_peers(self.pending_peers())  # noqa: E731
        if not wait(self._test_and_tell, limit_s, transport.woken, look_at_peers):
            raise timeout_error(transport, self.pending_peers(), limit_s)

    def _test_and_tell(self) -> bool | Moved:
        """As `test`; MOVED while something moves."""
        return self.test() or (MOVED if self._transport.moved else False)
