"""A transport whose messages go over spare rails once the path to a peer has died, in the middle of whatever went on.

The path is the inner transport's own: MPI's or UCX's connection. It is dead when an operation on it fails although the
peer lives, or when it is silent: the peer says, over a spare rail, that it has sent what this rank waits for, says so
again patience_s later, and nothing has come meanwhile. Either end then says SWITCH; each tells what it has, and sends
again what the other lacks (ledger.py). So no message is lost, whatever it was for, and none comes twice; if the path
was only slow, nothing but time is lost. A rail is dead when it is reset, or when it is mute although there are others.

Rails (rail.py) are TCP connections of this process, served whenever a request is tested. While the path lives, they
carry receipts and, where this rank waits, questions; each message costs a copy.
Paper: ADAPTRA, section 5.3; differs: collectives and control messages are saved too, not only activations.
"""

import select
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from lanterne.errors import InputError, TransportError, one_of
from lanterne.transport.base import Operation, OverTags, Recv, Request, Send, Transport, check_ops
from lanterne.transport.rails.rail import BYE, DATA, PING, PONG, RECEIPT, SWITCH, Frame, Rail
from lanterne.transport.rails.rail_names import Exchange, connect_rails
from lanterne.transport.rails.spare_peer import DIRECT, SpareOperation, SparePeer, Swallowed, view_of
from lanterne.transport.steering import steers, value
from lanterne.transport.waiting import wait
from lanterne.transport.wire import configure
from lanterne.transport.wrapper import Wrapper

# Frames beside those of rail.py. SENT: a tag, how many messages were sent; GO: all that this end has was told; ASK: for
# receipts.
SENT, GO, ASK = 9, 10, 11
HOWS = ("reset", "silent")


@steers
@dataclass(frozen=True)
class SparePolicy:
    """When a path to a peer is given up."""

    # How often rails are looked at while the path lives; a peer of which nothing came for so long is asked; a path is
    # dead so long after the peer first said that it had sent what has not come.
    look_s: float = value(
        300e-6,
        "a poll costs 1 us",
        half="rails cost twice the CPU",
        double="receipts come up to 0.6 ms late",
    )
    quiet_s: float = value(0.1, "chosen", half="twice the questions", double="a silent path is left 0.1 s later")
    patience_s: float = value(
        0.35,
        "above the stops of a busy host",
        half="slow paths are given up in vain",
        double="a silent path is left 0.35 s later",
    )
    # Between two looks this rank was elsewhere, and so may have been what held a message up.
    absent_s: float = value(
        0.05,
        "chosen",
        half="more starts anew where this rank was away",
        double="its own absence may cost a path",
    )
    # Receipts are told after so many bytes or messages.
    receipt_nbytes: int = value(
        1 << 20,
        "chosen: a receipt costs 40 bytes",
        half="twice the receipts of large messages",
        double="copies of 2 MiB are kept a peer",
    )
    receipt_messages: int = value(
        64,
        "chosen",
        half="twice the receipts of small messages",
        double="copies of 128 messages are kept",
    )
    # How long the job has to tell of the peer's death once all paths to it are dead, and `close` waits for receipts of
    # what was sent, asking every ask_s.
    notice_s: float = value(
        1.0,
        "notices of deaths take some 0.3 s",
        half="the cause is more often unknown",
        double="the error comes a second later",
    )
    farewell_s: float = value(
        2.0,
        "chosen",
        half="last messages over dying paths may be lost",
        double="such ends take 4 s",
    )
    ask_s: float = value(0.05, "chosen", half="twice the questions at the end", double="ends take up to 50 ms more")


POLICY = SparePolicy()


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
        self.moved: list[tuple[int, str, str, float]] = []
        self._check_dead = check_dead
        self._poll = inner.machine.poller()
        self._next_s = 0.0
        self._looked_s = 0.0
        self._by_fd: dict[int, Rail] = {}
        self._over = OverTags()
        # Not told by `exchange`, which others may read.
        token = None if inner.store is None else inner.store.secret(b"lanterne/spare").hex()
        found = connect_rails(self.rank, self.rails, exchange, self.machine, check_dead, token)
        self.peers: dict[int, SparePeer] = {
            rank: SparePeer(rank) for rank in range(self.world_size) if rank != self.rank
        }
        for (rank, index), (sock, seals) in sorted(found.items()):
            configure(sock, may_stand=True)
            rail = Rail(sock, rank, index + 1, seals=seals)
            self.peers[rank].rails.append(rail)
            self._by_fd[rail.fileno()] = rail
            self._poll.register(rail, select.POLLIN)

    # -- messages

    def post(self, ops: Sequence[Operation]) -> "SpareRequest":
        check_ops(self, ops)
        return SpareRequest(self, [self._start(op) for op in ops])

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
                    self._put(peer, op.tag, number, copy)
                return operation
            peer.sends[operation] = None
        else:
            operation = SpareOperation(op, peer, peer.ledger.post(op.tag))
            peer.receives[op.tag, operation.number] = operation
            if peer.path != DIRECT:
                if (early := peer.early.pop(operation.key, None)) is not None:
                    self._take(peer, operation, early)
                return operation
        try:
            operation.request = self.inner.post((op,)) if peer.cut is None else Swallowed()
        except InputError:
            raise
        except TransportError as error:
            self._give_up(peer, DIRECT, error)
        return operation

    def test(self, operation: SpareOperation) -> bool:
        """Whether an operation is done; moves to another path if this one turns out to be dead."""
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
            self._give_up(peer, DIRECT, error)
            return operation.done
        operation.request, operation.done = None, True
        if type(operation.op) is Recv:
            peer.heard_s, peer.overdue_s = self.machine.now_s(), None
            self._came(peer, operation)
        else:
            peer.sends.pop(operation, None)
        return True

    def _came(self, peer: SparePeer, operation: SpareOperation) -> None:
        """A receive has its message."""
        operation.done = True
        del peer.receives[operation.key]
        peer.ledger.complete(*operation.key)
        peer.news_nbytes += operation.op.nbytes
        peer.news_messages += 1
        if peer.news_nbytes >= POLICY.receipt_nbytes or peer.news_messages >= POLICY.receipt_messages:
            self._tell_receipts(peer, peer.ledger.news())

    def _take(self, peer: SparePeer, operation: SpareOperation, message: memoryview) -> None:
        """A message has come on a rail before its receive was posted, or into memory of its own."""
        if not operation.misfits(len(message)):
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

    def _give_up(self, peer: SparePeer, path: int, why: TransportError) -> None:
        """The path with this index is dead: go on over the next one, or raise `why` if there is none."""
        if path != peer.path:
            return
        living = [rail.index for rail in peer.rails if rail.index > path]
        if living:
            self._switch(peer, living[0], why)
        elif peer.error is None:
            peer.error, peer.lost_s = why, self.machine.now_s()
            if path == DIRECT:
                raise why

    def _switch(self, peer: SparePeer, path: int, why: object) -> None:
        """Use the rail with index `path`: say what has come; the peer does so too, and then what is missing is sent."""
        if peer.path == DIRECT:
            pending = [each for each in (*peer.receives.values(), *peer.sends) if each.request is not None]
            requests = [each.request for each in pending if isinstance(each.request, Request)]
            self.inner.abandon(peer.rank, requests)
            for each in pending:
                each.request, each.done = None, type(each.op) is Send
            peer.sends.clear()
        peer.path, peer.is_ready = path, False
        # What is left of a message in a rail that was given up must not be written over what takes its place later.
        for rail in [rail for rail in peer.rails if rail.index < path]:
            self._drop(rail, why)
        peer.coming = None
        self.moved.append((peer.rank, self.rails[path - 1], str(why), self.machine.now_s()))
        taken = peer.rail
        assert taken is not None
        taken.put(SWITCH, path)
        self._tell_receipts(peer, peer.ledger.counts())
        taken.put(GO)
        self._flush(taken)

    def _put(self, peer: SparePeer, tag: int, number: int, copy: memoryview) -> None:
        if (rail := peer.rail) is not None:
            rail.put(DATA, number, copy.nbytes, tag, payload=copy)
            self._flush(rail)

    def _tell_receipts(self, peer: SparePeer, counts: Iterable[tuple[int, int]]) -> None:
        peer.news_nbytes = peer.news_messages = 0
        if (rail := peer.rail) is not None:
            for tag, count in counts:
                rail.put(RECEIPT, tag, count)
            self._flush(rail)

    def _flush(self, rail: Rail) -> None:
        with suppress(OSError):  # What it still holds is read first, and then tells its end.
            rail.flush()
        self._poll.modify(rail, select.POLLIN if rail.idle else select.POLLIN | select.POLLOUT)

    def _drop(self, rail: Rail, why: object) -> None:
        peer = self.peers[rail.peer]
        if rail not in peer.rails:
            return
        peer.rails.remove(rail)
        self._poll.unregister(rail)
        del self._by_fd[rail.fileno()]
        rail.close()
        if not peer.has_left:
            error = TransportError(f"{self.name} rank {self.rank}: the path to rank {rail.peer}: {why}")
            error.rank_unknown = True  # Often the peer has ended because of another.
            self._give_up(peer, rail.index, error)

    def _fail(self, peer: SparePeer, error: TransportError) -> None:
        """All paths to a peer are dead: raise why, the peer's death if it is that."""
        self.check_peers((peer.rank,))
        if self.machine.now_s() > peer.lost_s + POLICY.notice_s:
            raise error

    # -- what comes on rails

    def progress(self) -> None:
        """Read and write rails, and look for silence; for every poll of a waiting loop."""
        now_s = self.machine.now_s()
        if now_s < self._next_s:
            return
        off = False
        for fd, event in self._poll.poll(0):
            rail = self._by_fd.get(fd)
            if rail is None:
                continue
            try:
                if event & ~select.POLLOUT:
                    rail.read(self._on_frame)
            except (OSError, EOFError) as error:
                self._drop(rail, error)
                continue
            self._flush(rail)
            peer = self.peers[rail.peer]
            if peer.path != DIRECT and peer.news_messages:
                self._tell_receipts(peer, peer.ledger.news())
        was_absent = now_s > self._looked_s + POLICY.absent_s
        self._looked_s = now_s
        for peer in self.peers.values():
            off = off or peer.path != DIRECT
            if was_absent:
                peer.overdue_s = None
            if now_s > max(peer.heard_s, peer.asked_s) + POLICY.quiet_s:
                self._ask(peer, now_s)
        self._next_s = 0.0 if off else self.machine.now_s() + POLICY.look_s

    def _ask(self, peer: SparePeer, now_s: float) -> None:
        """Of a peer that has been quiet: ask what it has sent, or leave a rail that carries no question.

        The last one is left later: a peer that only computes, and so reads nothing, must not be taken for a lost host.
        """
        rail = peer.rail
        if rail is None or not (peer.receives or (peer.path != DIRECT and peer.ledger.sent())):
            return
        peer.asked_s = now_s
        if rail.is_silent if rail is peer.rails[-1] else rail.is_mute:
            self._drop(rail, "nothing that is sent over it is acknowledged")
        else:
            rail.put(PING)
            self._flush(rail)

    def _on_frame(self, rail: Rail, frame: Frame, is_whole: bool) -> memoryview | None:
        kind, *words = frame
        peer = self.peers[rail.peer]
        if kind == DATA:
            number, nbytes, tag, _ = words
            return self._on_data(peer, (tag, number), nbytes, is_whole)
        if kind == RECEIPT:
            if not self._over(words[0]):
                peer.ledger.receipt(words[0], words[1])
        elif kind == SWITCH:
            if words[0] > peer.path:
                self._switch(peer, words[0], "the peer gave the path up")
        elif kind == GO and rail is peer.rail:
            peer.is_ready = True
            for tag, number, copy in peer.ledger.unreceipted():
                rail.put(DATA, number, copy.nbytes, tag, payload=copy)
        elif kind == PING:
            for tag, count in peer.ledger.sent():
                rail.put(SENT, tag, count)
            rail.put(PONG)
        elif kind == SENT:
            peer.told[words[0]] = words[1]
        elif kind == PONG:
            self._judge(peer)
        elif kind == BYE:
            peer.has_left = True
        elif kind == ASK:
            self._look(peer)
            self._tell_receipts(peer, peer.ledger.news())
        return None

    def _on_data(self, peer: SparePeer, key: tuple[int, int], nbytes: int, is_whole: bool) -> memoryview | None:
        """Where a message that begins to come is to go; or it has come."""
        if self._over(key[0]):
            return None
        operation = peer.receives.get(key)
        if not is_whole:
            if peer.ledger.has(*key):
                return None
            if operation is not None and nbytes == operation.op.nbytes:
                return operation.view
            peer.coming = memoryview(bytearray(nbytes))
            return peer.coming
        message, peer.coming = peer.coming, None
        if peer.ledger.has(*key) or key in peer.early:
            return None
        if operation is None:
            peer.early[key] = message if message is not None else memoryview(b"")
        elif message is not None:
            self._take(peer, operation, message)
        else:
            operation.misfits(nbytes)
            self._came(peer, operation)
        return None

    def _judge(self, peer: SparePeer) -> None:
        """The peer has told what it has sent: is something of it overdue?"""
        told, peer.told = peer.told, {}
        if peer.path != DIRECT:
            return
        self._look(peer)
        now_s = self.machine.now_s()
        if peer.path != DIRECT or not any(peer.ledger.lacks(tag, count) for tag, count in told.items()):
            peer.overdue_s = None
        elif peer.overdue_s is None:
            peer.overdue_s = now_s
        elif now_s > peer.overdue_s + POLICY.patience_s:
            why = f"{self.inner.name} rank {self.rank}: nothing comes from rank {peer.rank}, which has sent"
            self._give_up(peer, DIRECT, TransportError(why))

    def _look(self, peer: SparePeer) -> None:
        """What nobody has asked for yet may be here."""
        for operation in list(peer.receives.values()):
            if operation.request is not None:
                self.test(operation)

    def cut_off(self, ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(rank for rank in ranks if rank in self.peers and self.peers[rank].error is not None)

    # -- communicators that are over

    def forget(self, communicator_id: int) -> None:
        self._over.add(communicator_id)
        self.inner.forget(communicator_id)
        for peer in self.peers.values():
            peer.ledger.forget(self._over)
            self._over.drop_from(peer.receives, peer.early)
            for rail in peer.rails:
                rail.divert(self._over)

    def retire(self, communicator_id: int) -> bool:
        return False  # A message may have to be sent again.

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
                self._give_up(peer, DIRECT, error)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        # The path may die with the last messages on it; and what was sent on a rail is lost if this end closes first.
        asked_s = 0.0

        def look() -> bool:
            nonlocal asked_s
            lacking = [rail for peer in self.peers.values() if peer.ledger.sent() and (rail := peer.rail)]
            now_s = self.machine.now_s()
            if lacking and now_s > asked_s + POLICY.ask_s:
                asked_s = now_s
                for rail in lacking:
                    rail.put(ASK)
                    self._flush(rail)
            self._next_s = 0.0
            self.progress()
            return not lacking

        wait(look, POLICY.farewell_s, self.pauses)
        for rail in self._by_fd.values():
            rail.put(BYE)
            with suppress(OSError):
                rail.flush()
            rail.close()
        self.inner.close()


class SpareRequest(Request):
    """Complete once all its operations are, on whatever path."""

    __slots__ = ("_pending", "_transport")

    def __init__(self, transport: SpareTransport, pending: list[SpareOperation]) -> None:
        self._transport = transport
        self._pending = pending

    @property
    def transport(self) -> SpareTransport:
        return self._transport

    def test(self) -> bool:
        if self._pending:
            self._transport.progress()
            self._pending = [operation for operation in self._pending if not self._transport.test(operation)]
        return not self._pending

    def pending_peers(self) -> list[int]:
        return sorted({operation.op.peer for operation in self._pending if not operation.done})
