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
from collections.abc import Iterable, Sequence
from math import ceil

from lanterne.errors import TransportError
from lanterne.transport import wire
from lanterne.transport.base import (
    Capabilities,
    Operation,
    Request,
    Send,
    Transport,
)
from lanterne.transport.duplex import BYE, PACED_NBYTES, Duplex, Garbled
from lanterne.transport.local import LocalWorld
from lanterne.transport.pauses import WAKE_SLEEP_S, WAKE_SPIN_S, Pauses, Woken
from lanterne.transport.rank_group import Group
from lanterne.transport.tcp.connections import connections
from lanterne.transport.tcp.tcp_peer import PolledConnections, TcpOperation, TcpPeer
from lanterne.transport.tcp_info import tcp_info
from lanterne.transport.timeouts import FAREWELL_S, NOTICE_S
from lanterne.transport.waiting import wait

# How often peers that are waited for are looked at: whether their kernels answer.
SILENCE_S = 0.5  # chosen: 1 us a peer
# How long a send waits for its grant before the receiver is told of it, whose receive may be too short for one.
OFFER_S = 0.2  # 8 hosts at 25 MB/s, ring: a message waits 10 ms; told of at once, each took one frame more


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
    capabilities: Capabilities = Capabilities(receiver_paced_nbytes=PACED_NBYTES, shrinks=True, grows=True)
    shares_memory = True

    def __init__(self, group: Group, timeout_s: float | None = None, *, sealed: bool = True) -> None:
        super().__init__(group.rank, group.world_size, group, machine=group.machine, timeout_s=timeout_s)
        self.pauses: Pauses = group.machine.pauses(group.ranks_here)
        self.background_s: float | None = WAKE_SLEEP_S
        self._own = LocalWorld(group.world_size, group.machine).transport(group.rank, timeout_s)
        self._polled = PolledConnections(group.machine)
        self.woken = Woken(group.machine, self._sleep, WAKE_SPIN_S)
        self.is_moving: bool = False
        self.peers: dict[int, TcpPeer] = {}
        self._silence_s = 0.0  # when it looks next whether peers that are waited for answer
        self.wakes: bool = len(set(group.hosts)) > 1
        for (rank, _), (sock, seals) in connections(group, sealed=sealed).items():
            peer = self.peers.setdefault(rank, TcpPeer(rank, self.closed_ids))
            self._polled.add(peer, Duplex(sock, peer, seals))
        self._pid = os.getpid()
        self.machine.at_exit(self.close)

    # -- messages

    def _post(self, ops: Sequence[Operation]) -> Request:
        pending: list[TcpOperation] = []
        for op in ops:
            pending.append(self._start(op))
        for peer in {op.peer for op in ops}:
            if peer != self.rank:
                self._polled.flush(self.peers[peer])
        return Request(self, pending)

    def _start(self, op: Operation) -> TcpOperation:
        if op.peer == self.rank:
            return TcpOperation(op, self._own.post((op,)))
        peer = self.peers[op.peer]
        operation = TcpOperation(op)
        operation.peer = peer
        if type(op) is Send:
            peer.send(operation)
        else:
            peer.receive(operation)
        return operation

    def _is_done(self, operation: TcpOperation) -> bool:
        peer = operation.peer
        if peer is None:
            assert operation.request is not None
            return operation.request.test()
        if operation.error is not None:
            raise operation.error
        if not operation.done and peer.error is not None:
            # Of a connection that was lost the job may know more in a moment.
            self.membership.check_peers((peer.rank,))
            if self.machine.now_s() > peer.lost_s + NOTICE_S:
                raise peer.error
        if self.closed and not operation.done:
            raise TransportError(f"tcp rank {self.rank}: closed before this request was complete")
        return operation.done

    # -- connections

    def progress(self) -> bool:
        """Read and write what can be; True, and `is_moving`, if something was."""
        moved = False
        polled = self._polled
        for fd, event in polled.poll(0):
            peer, duplex = polled.by_fd.get(fd, (None, None))
            if peer is None or duplex is None:
                continue
            try:
                if event & ~select.POLLOUT:
                    moved = duplex.read() or moved
            except (OSError, EOFError, Garbled) as error:
                self._lose(peer, duplex, error)
                continue
            moved = polled.flush(peer) or moved
        self.is_moving = moved
        return moved

    def take_in(self) -> bool:
        return self.progress()

    def _lose(self, peer: TcpPeer, lost: Duplex, why: object) -> None:
        """A connection to a peer is dead, and so are all, unless it has left."""
        for duplex in [lost] if peer.has_left else list(peer.duplexes):
            self._polled.close(peer, duplex)
        if not peer.has_left and peer.error is None:
            peer.error = TransportError(f"tcp rank {self.rank}: the connection to rank {peer.rank}: {why}")
            peer.error.rank_unknown = True  # Often the peer has ended because of another.
            peer.lost_s = self.machine.now_s()
            self.unreachable.add(peer.rank)

    def _sleep(self, limit_s: float) -> None:
        self._polled.poll(ceil(min(WAKE_SLEEP_S, limit_s) * 1e3))

    def watch(self) -> tuple[int, ...] | None:
        if self.progress():
            return None
        return self._polled.fileno(), *(super().watch() or ())

    def check_peers(self, peers: Iterable[int]) -> None:
        ranks = tuple(peers)
        asked = [self.peers[rank] for rank in ranks if rank in self.peers]
        # What a rank sent before it left comes as long as its connection lives, and then BYE: a path may be cut longer
        # than ranks wait after they have heard that it left.
        coming = {peer.rank for peer in asked if peer.duplexes and not peer.has_left}
        self.membership.check_peers(ranks, [rank for rank in ranks if rank not in coming])
        now_s = self.machine.now_s()
        for peer in asked:
            if peer.offer(now_s, OFFER_S):
                self._polled.flush(peer)
        if now_s >= self._silence_s:
            self._silence_s = now_s + SILENCE_S
            for peer in asked:
                for duplex in [each for each in peer.duplexes if tcp_info(each.sock).is_silent(wire.LOST_MS)][:1]:
                    self._lose(peer, duplex, "nothing answers there any more")

    def abandon(self, peer: int, requests: Sequence[Request]) -> None:
        self.peers[peer].forget()
        for duplex in self.peers[peer].duplexes[:1]:
            self._lose(self.peers[peer], duplex, "it was given up")

    # -- communicators that are over

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        if orderly and any(peer.holds(communicator_id) for peer in self.peers.values()):
            return False
        if not self._own.retire(communicator_id, orderly=orderly):
            return False
        self.closed_ids.add(communicator_id)
        for peer in self.peers.values():
            peer.drop_closed()
        return True

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
                self._polled.flush(peer)
            # What is on its way would be lost if this end closed while it has not read all.
            wait(self._has_left, FAREWELL_S, self.pauses)
        self._polled.close_all()
        self._own.close()

    def _has_left(self) -> bool:
        self.progress()
        return all(duplex.idle and tcp_info(duplex.sock).has_arrived for _, duplex in self._polled.by_fd.values())
