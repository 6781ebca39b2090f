"""A transport whose messages go over spare rails once the path to a peer has died, in the middle of whatever went on.

The path is the inner transport's own: MPI's or UCX's connection. It is dead when an operation on it fails although the
peer lives, or when it is silent: the peer says, over a spare rail, that it has sent what this rank waits for, says so
again patience_s later, and nothing has come meanwhile. Either end then says SWITCH; each tells what it has, and sends
again what the other lacks (ledger.py). So no message is lost, whatever it was for, and none comes twice; if the path
was only slow, nothing but time is lost. A rail is dead when it is reset, or when it is mute although there are others.

Rails (rail.py) are TCP connections of this process, served whenever a request is tested (spare_frames.py). While the
path lives, they carry receipts and, where this rank waits, questions; each message costs a copy.
Paper: ADAPTRA, section 5.3; differs: collectives and control messages are saved too, not only activations.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from lanterne.errors import InputError, TransportError, one_of
from lanterne.transport.base import Operation, Recv, Request, Send, Transport
from lanterne.transport.rails.rail import SILENT_MS, Rail
from lanterne.transport.rails.rail_names import Exchange, connect_rails
from lanterne.transport.rails.spare_frames import SpareFrames
from lanterne.transport.rails.spare_paths import SparePaths
from lanterne.transport.rails.spare_peer import DIRECT, SpareOperation, SparePeer, Swallowed, view_of
from lanterne.transport.wire import configure
from lanterne.transport.wrapper import Wrapper

HOWS = ("reset", "silent")


# Receipts are told after so many bytes or messages.
RECEIPT_NBYTES = 1 << 20  # chosen: a receipt costs 40 bytes
RECEIPT_MESSAGES = 64
# How long the job has to tell of the peer's death once all paths to it are dead, and `close` waits for receipts of
# what was sent.
NOTICE_S = 1.0  # notices of deaths take some 0.3 s
FAREWELL_S = 2.0


class SpareTransport(Wrapper):
    """`inner`, with spare rails between all ranks, which make it together. Closed with this one.

    Args:
        inner: a transport of host memory with tags.
        rails: addresses or interfaces of this host, or "tcp"; as many on every rank; the first that lives is used.
        exchange: called twice.
        check_dead: called with ranks, raises PeerFailed if one is known to be dead; None: nobody knows.

    Attributes:
        moved: the paths that died: (peer, name of the rail, why, when: now_s of the machine).

    Raises:
        InputError: rails that cannot be.
        TransportError: a rank did not come.
    """

    def __init__(
        self,
        inner: Transport,
        rails: Iterable[str],
        exchange: Exchange,
        check_dead: Callable[[Iterable[int]], object] | None = None,
    ) -> None:
        # Each message is copied, on the host.
        capabilities = replace(inner.capabilities, device_memory=False, connects_late=True)
        super().__init__(inner, f"spare-{inner.name}", capabilities)
        self.rails: tuple[str, ...] = tuple(rails)
        self._check_dead = check_dead
        # A lost path of `inner` is not the last one.
        self.unreachable: set[int] = set()
        self._paths = SparePaths(inner, self.rails, f"{self.name} rank {self.rank}", self.unreachable)
        self.peers: dict[int, SparePeer] = self._paths.peers
        self.moved: list[tuple[int, str, str, float]] = self._paths.moved
        self.frames: SpareFrames = SpareFrames(
            self._paths, self, self.machine, self.closed_ids, f"{inner.name} rank {self.rank}"
        )
        # Not told by `exchange`, which others may read.
        store = inner.membership.store
        token = None if store is None else store.secret(b"lanterne/spare").hex()
        reached = "" if store is None else store.reached_from
        found = connect_rails(self.rank, self.rails, exchange, self.machine, check_dead, token, reached)
        for (rank, index), (sock, seals) in sorted(found.items()):
            configure(sock, lost_ms=SILENT_MS, may_stand=True)
            self._paths.add(Rail(sock, rank, index + 1, seals=seals))

    # -- messages

    def _post(self, ops: Sequence[Operation]) -> Request:
        return Request(self, [self._start(op) for op in ops])

    def _start(self, op: Operation) -> SpareOperation:
        if op.peer == self.rank:
            return SpareOperation(op, None, 0, self.inner.post((op,)))
        peer = self.peers[op.peer]
        if type(op) is Send:
            number, copy = peer.ledger.keep(op.tag, view_of(op))
            operation = SpareOperation(op, peer, number)
            if peer.path != DIRECT:
                operation.done = peer.error is None  # The copy is what is sent.
                if peer.is_ready:
                    self._paths.put(peer, op.tag, number, copy)
                return operation
            peer.sends[operation] = None
        else:
            operation = SpareOperation(op, peer, peer.ledger.post(op.tag))
            peer.receives[op.tag, operation.number] = operation
            if peer.path != DIRECT:
                if (early := peer.early.pop(operation.key, None)) is not None:
                    self.take(peer, operation, early)
                return operation
        try:
            operation.request = self.inner.post((op,)) if peer.cut is None else Swallowed()
        except InputError:
            raise
        except TransportError as error:
            self._paths.give_up(peer, DIRECT, error)
        return operation

    def take_in(self) -> bool:
        self.frames.progress()
        self.inner.take_in()
        return True

    def _is_done(self, operation: SpareOperation) -> bool:
        """Return whether an operation is done; move to another path if this one turns out to be dead."""
        peer, request = operation.peer, operation.request
        if peer is None:
            assert request is not None
            return request.test()
        if operation.done or request is None:
            if operation.error is not None:
                raise operation.error
            if not operation.done and peer.error is not None:
                self._fail(peer, peer.error)
            return operation.done
        try:
            if not (peer.test_cut() if peer.cut is not None else request.test()):
                return False
        except TransportError as error:
            self._paths.give_up(peer, DIRECT, error)
            return operation.done
        operation.request, operation.done = None, True
        if type(operation.op) is Recv:
            peer.heard_s, peer.overdue_s = self.machine.now_s(), None
            self.came(peer, operation)
        else:
            peer.sends.pop(operation, None)
        return True

    def came(self, peer: SparePeer, operation: SpareOperation) -> None:
        """A receive has its message."""
        operation.done = True
        del peer.receives[operation.key]
        peer.ledger.complete(*operation.key)
        peer.news_nbytes += operation.op.nbytes
        peer.news_messages += 1
        if peer.news_nbytes >= RECEIPT_NBYTES or peer.news_messages >= RECEIPT_MESSAGES:
            self._paths.tell_receipts(peer, peer.ledger.news())

    def take(self, peer: SparePeer, operation: SpareOperation, message: memoryview) -> None:
        """A message has come on a rail before its receive was posted, or into memory of its own."""
        if not operation.misfits(len(message)):
            operation.view[:] = message
        self.came(peer, operation)

    # -- paths

    def cut(self, rank: int, how: str) -> None:
        """Break the path to a peer at this end, on purpose, as a failing card would; for tests and benchmarks.

        Args:
            how: "reset": every operation on it fails; "silent": none is ever done, nothing says why.
        """
        if how not in HOWS:
            raise InputError(f"cut: {one_of(how, HOWS)}")
        self.peers[rank].cut = how

    def _fail(self, peer: SparePeer, error: TransportError) -> None:
        """All paths to a peer are dead: raise why, the peer's death if it is that."""
        self.check_peers((peer.rank,))
        if self.machine.now_s() > peer.lost_s + NOTICE_S:
            raise error

    # -- what comes on rails

    def progress(self) -> None:
        """See SpareFrames."""
        self.frames.progress()

    def look(self, peer: SparePeer) -> None:
        """What nobody has asked for yet may be here."""
        for operation in list(peer.receives.values()):
            if operation.request is not None:
                self._is_done(operation)

    # -- communicators that are over

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        if orderly:
            return False  # A message may have to be sent again.
        self.closed_ids.add(communicator_id)
        self.inner.retire(communicator_id, orderly=False)
        for peer in self.peers.values():
            peer.ledger.forget(self.closed_ids.has)
            self.closed_ids.drop_from(peer.receives, peer.early)
            for rail in peer.rails:
                rail.divert(self.closed_ids.has)
        return True

    # -- the rest of a transport

    def check_peers(self, peers: Iterable[int]) -> None:
        if self._check_dead is not None:
            self._check_dead(peers)
        for rank in peers:
            peer = self.peers.get(rank)
            if peer is None or peer.path != DIRECT or peer.cut is not None:
                continue
            try:
                self.inner.check_peers((rank,))
            except TransportError as error:
                self._paths.give_up(peer, DIRECT, error)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        # The path may die with the last messages on it; and what was sent on a rail is lost if this end closes first.
        self.frames.wait_for_receipts(FAREWELL_S, self.pauses)
        self._paths.close()
        self.inner.close()
