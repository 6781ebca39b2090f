"""A transport whose messages go over spare rails once the path to a peer has died, in the middle of whatever went on.

The path is the inner transport's own: MPI's or UCX's connection. It is dead when an operation on it fails although the
peer lives, or when it is silent: the peer says, over a spare rail, that it has sent what this rank waits for, says so
again PATIENCE_S later, and nothing has come meanwhile. The messages then go over rails (paths.py). So no message is
lost, whatever it was for, and none comes twice; if the path was only slow, nothing but time is lost.

Rails are TCP connections of this process, served whenever a request is tested. While the path lives, they carry
receipts and, where this rank waits, questions; each message costs a copy.
Paper: ADAPTRA, section 5.3; differs: collectives and control messages are saved too, not only activations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from lanterne.errors import InputError, TransportError, one_of
from lanterne.transport.base import Operation, Recv, Request, Send, Transport
from lanterne.transport.rails.paths import DIRECT, QUIET_S, Message, Paths
from lanterne.transport.rails.rail_names import Exchange, connect_rails
from lanterne.transport.rails.rail_return import RailReturn
from lanterne.transport.rails.spare_peer import SpareOperation, SparePeer
from lanterne.transport.timeouts import FAREWELL_S, NOTICE_S
from lanterne.transport.waiting import wait
from lanterne.transport.wrapper import Wrapper

HOWS = ("reset", "silent")


# Receipts are told after so many bytes or messages.
RECEIPT_NBYTES = 1 << 20  # chosen: a receipt costs 40 bytes
RECEIPT_MESSAGES = 64
# How often rails are looked at while the path lives. A path is dead so long after the peer first said that it had sent
# what has not come.
LOOK_S = 300e-6  # a poll costs 1 us
PATIENCE_S = 0.35  # above the stops of a busy host
# Between two looks this rank was elsewhere, and so may have been what held a message up: of that time so much is
# patience. Some must be: a rank that computes between its looks would wait for ever.
ABSENT_S = 0.05


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
        self.moved: list[tuple[int, str, str, float]] = []
        ranks = range(self.world_size)
        self.peers: dict[int, SparePeer] = {rank: SparePeer(rank) for rank in ranks if rank != self.rank}
        self._next_s = self._looked_s = 0.0
        # Not told by `exchange`, which others may read.
        store = inner.membership.store
        token = None if store is None else store.secret(b"lanterne/spare").hex()
        reached = "" if store is None else store.reached_from
        meeting, found = connect_rails(self.rank, self.rails, exchange, self.machine, check_dead, token, reached)
        made = [proven.rail(*key) for key, proven in sorted(found.items())]
        poller = self.machine.poller()
        self._poll: Callable[[float], list[tuple[int, int]]] = poller.poll
        self.paths: Paths[SparePeer] = Paths(
            self.peers.values(), made, self, lambda rail: rail.index, poller, RailReturn(meeting)
        )

    # -- messages

    def _post(self, ops: Sequence[Operation]) -> Request:
        return Request(self, [self._start(op) for op in ops])

    def _start(self, op: Operation) -> SpareOperation:
        if op.peer == self.rank:
            return SpareOperation(op, self.inner.post((op,)))
        peer = self.peers[op.peer]
        operation = SpareOperation(op, peer=peer)
        if type(op) is Send:
            self.paths.submit(peer, op.tag, Message(peer.copy_of(operation.view)))
            if not peer.is_direct:
                operation.done = peer.error is None  # The copy is what is sent.
                self.paths.push(peer)
                return operation
            peer.sends[operation] = None
        else:
            operation.number = peer.post(op.tag, operation)
            if not peer.is_direct:
                if (early := peer.early.pop((op.tag, operation.number), None)) is not None:
                    self._take(peer, operation, early)
                return operation
        try:
            if peer.cut is None:
                operation.request = self.inner.post((op,))
        except InputError:
            raise
        except TransportError as error:
            self._leave_direct(peer, error)
        return operation

    def take_in(self) -> bool:
        self.progress()
        self.inner.take_in()
        return True

    def _is_done(self, operation: SpareOperation) -> bool:
        """Return whether an operation is done; move to another path if this one turns out to be dead."""
        peer, request = operation.peer, operation.request
        if peer is None:
            assert request is not None
            return request.test()
        if operation.done or not peer.is_direct:
            if operation.error is not None:
                raise operation.error
            if not operation.done and peer.error is not None:
                self._fail(peer, peer.error)
            return operation.done
        if peer.cut is not None:
            if peer.cut == "reset":
                self._leave_direct(peer, f"the connection to rank {peer.rank} was reset")
            return operation.done
        assert request is not None
        try:
            if not request.test():
                return False
        except TransportError as error:
            self._leave_direct(peer, error)
            return operation.done
        operation.request, operation.done = None, True
        if type(operation.op) is Recv:
            peer.heard_s, peer.overdue_s = self.machine.now_s(), None
            self._came(peer, operation)
        else:
            peer.sends.pop(operation, None)
        return True

    def _came(self, peer: SparePeer, operation: SpareOperation) -> None:
        """Note that a receive has its message."""
        operation.done = True
        peer.complete(operation.op.tag, operation.number)
        peer.news_nbytes += operation.op.nbytes
        peer.news_messages += 1
        if peer.news_nbytes >= RECEIPT_NBYTES or peer.news_messages >= RECEIPT_MESSAGES:
            peer.news_nbytes = peer.news_messages = 0
            self.paths.tell_counts(peer)
            self.paths.push(peer)

    def _take(self, peer: SparePeer, operation: SpareOperation, message: memoryview) -> None:
        """Complete a receive by a message that came before it was posted, or into memory of its own."""
        if not operation.misfits("spare", len(message)):
            operation.view[:] = message
        self._came(peer, operation)

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

    def _leave_direct(self, peer: SparePeer, why: object) -> None:
        """Give up the direct path to a peer, and go on over its rails."""
        if peer.is_direct and peer.error is None:
            self.paths.leave_direct(peer, why)

    # -- rails

    def progress(self) -> None:
        """Look at rails if it is time; for every poll of a waiting loop."""
        now_s = self.machine.now_s()
        if now_s >= self._next_s:
            self._look_at_rails(now_s)

    def _look_at_rails(self, now_s: float) -> None:
        for fd, event in self._poll(0):
            self.paths.serve(fd, event)
        away_s = max(0.0, now_s - self._looked_s - ABSENT_S)
        self._looked_s = now_s
        for peer in self.peers.values():
            if peer.overdue_s is not None:
                peer.overdue_s += away_s
        self.paths.look_for_silence(now_s)
        is_off = any(not peer.is_direct for peer in self.peers.values())
        self._next_s = 0.0 if is_off else self.machine.now_s() + LOOK_S

    # -- see PathOwner

    def on_place(self, peer: SparePeer, tag: int, number: int, nbytes: int) -> memoryview | None:
        if self.closed_ids.has(tag) or peer.has(tag, number):
            return None
        operation = peer.receives.get((tag, number))
        if operation is not None and nbytes == operation.op.nbytes:
            peer.coming.pop((tag, number), None)  # of a rail that has died
            return operation.view
        peer.coming[tag, number] = memoryview(bytearray(nbytes))
        return peer.coming[tag, number]

    def on_message(self, peer: SparePeer, tag: int, number: int, nbytes: int, _departure_ns: int) -> None:
        key = tag, number
        message = peer.coming.pop(key, None)
        if self.closed_ids.has(tag) or peer.has(*key) or key in peer.early:
            return
        operation = peer.receives.get(key)
        if operation is None:
            peer.early[key] = memoryview(b"") if message is None else message
        elif message is None:
            self._came(peer, operation)
        else:
            self._take(peer, operation, message)

    def on_received(self, peer: SparePeer, messages: Iterable[Message]) -> None:
        # One that was sent again may still be on its way.
        if peer.is_direct:
            for copy, _, _ in messages:
                peer.copies.setdefault(copy.nbytes, []).append(copy)

    def on_ping(self, peer: SparePeer) -> None:
        for operation in list(peer.receives.values()):
            if peer.is_direct:
                self._is_done(operation)

    def on_pong(self, peer: SparePeer, sent: Mapping[int, int]) -> None:
        """Leave the direct path if something that the peer has sent is overdue."""
        self.on_ping(peer)
        now_s = self.machine.now_s()
        if not peer.is_direct or not any(peer.lacks(tag, count) for tag, count in sent.items()):
            peer.overdue_s = None
        elif peer.overdue_s is None:
            peer.overdue_s = now_s
        elif now_s > peer.overdue_s + PATIENCE_S:
            name = f"{self.inner.name} rank {self.rank}"
            self._leave_direct(peer, f"{name}: nothing comes from rank {peer.rank}, which has sent")

    def on_given_up(self, peer: SparePeer, index: int, why: object, *, in_use: bool) -> None:
        if index == DIRECT[0]:
            pending = [*peer.receives.values(), *peer.sends]
            self.inner.abandon(peer.rank, [each.request for each in pending if each.request is not None])
            for each in peer.receives.values():
                each.request = None
            for each in peer.sends:
                each.request, each.done = None, bool(peer.rails)  # Their copies are sent.
            peer.sends.clear()
        if in_use and peer.rails and not peer.has_left:
            self.moved.append((peer.rank, self.rails[peer.rails[0].index], str(why), self.machine.now_s()))

    def on_returned(self, peer: SparePeer, index: int) -> None:
        pass

    def on_lost(self, peer: SparePeer, why: object) -> None:
        if peer.has_left or peer.error is not None:
            return
        peer.error = TransportError(f"{self.name} rank {self.rank}: the path to rank {peer.rank}: {why}")
        peer.error.rank_unknown = True  # Often the peer has ended because of another.
        peer.lost_s = self.machine.now_s()
        self.unreachable.add(peer.rank)

    # -- communicators that are over

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        if orderly:
            return False  # A message may have to be sent again.
        self.closed_ids.add(communicator_id)
        self.inner.retire(communicator_id, orderly=False)
        for peer in self.peers.values():
            peer.forget(self.closed_ids.has)
            self.closed_ids.drop_from(peer.early, peer.coming)
        return True

    # -- the rest of a transport

    def check_peers(self, peers: Iterable[int]) -> None:
        if self._check_dead is not None:
            self._check_dead(peers)
        for rank in peers:
            peer = self.peers.get(rank)
            if peer is None or not peer.is_direct or peer.cut is not None:
                continue
            try:
                self.inner.check_peers((rank,))
            except TransportError as error:
                self._leave_direct(peer, error)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        # The path may die with the last messages on it; and what was sent on a rail is lost if this end closes first.
        wait(self._all_have_received, FAREWELL_S, self.pauses)
        self.paths.close()
        self.inner.close()

    def _all_have_received(self) -> bool:
        """Return whether peers have told that they have all that was sent; else ask them now and then."""
        lacking = [peer for peer in self.peers.values() if peer.unfinished and peer.rails]
        now_s = self.machine.now_s()
        for peer in lacking:
            if now_s > peer.asked_s + QUIET_S:
                peer.asked_s = now_s
                self.paths.ask(peer)
        self._look_at_rails(now_s)
        return not lacking
