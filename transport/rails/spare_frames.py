"""What peers say on spare rails, and what is asked of those that are quiet."""

import select
from typing import Protocol

from lanterne.errors import TransportError
from lanterne.transport.base import ClosedIds
from lanterne.transport.machine import Machine
from lanterne.transport.pauses import Pauses
from lanterne.transport.rails.rail import BYE, DATA, PING, PONG, RECEIPT, SWITCH, Frame, Rail
from lanterne.transport.rails.spare_paths import GO, SparePaths
from lanterne.transport.rails.spare_peer import DIRECT, SpareOperation, SparePeer
from lanterne.transport.waiting import wait

# Frames beside those of rail.py. SENT: a tag, how many messages were sent; ASK: for receipts.
SENT, ASK = 9, 11


# How often rails are looked at while the path lives; a peer of which nothing came for so long is asked; a path is
# dead so long after the peer first said that it had sent what has not come.
LOOK_S = 300e-6  # a poll costs 1 us
QUIET_S = 0.1
PATIENCE_S = 0.35  # above the stops of a busy host
# Between two looks this rank was elsewhere, and so may have been what held a message up: of that time so much is
# patience. Some must be: a rank that computes between its looks would wait for ever.
ABSENT_S = 0.05
# At the end, how often receipts are asked for.
ASK_S = 0.05


class SpareMessages(Protocol):
    """What is done with messages, by the SpareTransport."""

    def look(self, peer: SparePeer, /) -> None: ...
    def came(self, peer: SparePeer, operation: SpareOperation, /) -> None: ...
    def take(self, peer: SparePeer, operation: SpareOperation, message: memoryview, /) -> None: ...


class SpareFrames:
    """Reads and answers what comes on rails, and leaves a path on which nothing does.

    Args:
        closed_ids: communicators whose messages are dropped.
        direct_name: that of the direct paths, for errors.
    """

    def __init__(
        self, paths: SparePaths, messages: SpareMessages, machine: Machine, closed_ids: ClosedIds, direct_name: str
    ) -> None:
        self._paths = paths
        self._messages = messages
        self._machine = machine
        self._closed_ids = closed_ids
        self._direct_name = direct_name
        self._next_s = 0.0
        self._looked_s = 0.0

    def progress(self) -> None:
        """Look at rails if it is time; for every poll of a waiting loop."""
        now_s = self._machine.now_s()
        if now_s >= self._next_s:
            self.look(now_s)

    def look(self, now_s: float) -> None:
        """Read and write rails, and look for silence."""
        off = False
        for fd, event in self._paths.poll(0):
            rail = self._paths.by_fd.get(fd)
            if rail is None:
                continue
            try:
                if event & ~select.POLLOUT:
                    rail.read(self._on_frame)
            except (OSError, EOFError) as error:
                self._paths.drop(rail, error)
                continue
            self._paths.flush(rail)
            peer = self._paths.peers[rail.peer]
            if peer.path != DIRECT and peer.news_messages:
                self._paths.tell_receipts(peer, peer.ledger.news())
        away_s = max(0.0, now_s - self._looked_s - ABSENT_S)
        self._looked_s = now_s
        for peer in self._paths.peers.values():
            off = off or peer.path != DIRECT
            if peer.overdue_s is not None:
                peer.overdue_s += away_s
            if now_s > max(peer.heard_s, peer.asked_s) + QUIET_S:
                self._ask(peer, now_s)
        self._next_s = 0.0 if off else self._machine.now_s() + LOOK_S

    def wait_for_receipts(self, limit_s: float, pauses: Pauses) -> None:
        """Return once peers have told that they have all that was sent, or after `limit_s`; ask them for it."""
        asked_s = 0.0

        def look() -> bool:
            nonlocal asked_s
            lacking = [rail for peer in self._paths.peers.values() if peer.ledger.sent() and (rail := peer.rail)]
            now_s = self._machine.now_s()
            if lacking and now_s > asked_s + ASK_S:
                asked_s = now_s
                for rail in lacking:
                    rail.put(ASK)
                    self._paths.flush(rail)
            self.look(self._machine.now_s())
            return not lacking

        wait(look, limit_s, pauses)

    def _ask(self, peer: SparePeer, now_s: float) -> None:
        """Of a peer that has been quiet: ask what it has sent, or leave a rail that carries no question.

        The last one is left later: a peer that only computes, and so reads nothing, must not be taken for a lost host.
        """
        rail = peer.rail
        if rail is None or not (peer.receives or (peer.path != DIRECT and peer.ledger.sent())):
            return
        peer.asked_s = now_s
        if rail.is_silent if rail is peer.rails[-1] else rail.is_mute:
            self._paths.drop(rail, "nothing that is sent over it is acknowledged")
        else:
            rail.put(PING)
            self._paths.flush(rail)

    def _on_frame(self, rail: Rail, frame: Frame, is_whole: bool) -> memoryview | None:
        kind, *words = frame
        peer = self._paths.peers[rail.peer]
        if kind == DATA:
            number, nbytes, tag, _ = words
            return self._on_data(peer, (tag, number), nbytes, is_whole)
        if kind == RECEIPT:
            if not self._closed_ids.has(words[0]):
                peer.ledger.receipt(words[0], words[1])
        elif kind == SWITCH:
            if words[0] > peer.path:
                self._paths.switch(peer, words[0], "the peer gave the path up")
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
            self._messages.look(peer)
            self._paths.tell_receipts(peer, peer.ledger.news())
        return None

    def _on_data(self, peer: SparePeer, key: tuple[int, int], nbytes: int, is_whole: bool) -> memoryview | None:
        """Where a message that begins to come is to go; or it has come."""
        if self._closed_ids.has(key[0]):
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
            self._messages.take(peer, operation, message)
        else:
            operation.misfits(nbytes)
            self._messages.came(peer, operation)
        return None

    def _judge(self, peer: SparePeer) -> None:
        """The peer has told what it has sent: is something of it overdue?"""
        told, peer.told = peer.told, {}
        if peer.path != DIRECT:
            return
        self._messages.look(peer)
        now_s = self._machine.now_s()
        if peer.path != DIRECT or not any(peer.ledger.lacks(tag, count) for tag, count in told.items()):
            peer.overdue_s = None
        elif peer.overdue_s is None:
            peer.overdue_s = now_s
        elif now_s > peer.overdue_s + PATIENCE_S:
            why = f"{self._direct_name}: nothing comes from rank {peer.rank}, which has sent"
            self._paths.give_up(peer, DIRECT, TransportError(why))
