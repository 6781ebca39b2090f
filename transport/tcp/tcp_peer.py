"""What a rank knows of another over tcp: what was posted and what has come, and the connections that it polls."""

import select
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from lanterne.errors import TransportError
from lanterne.transport.base import LANE_BITS, ClosedIds, PostedOperation
from lanterne.transport.duplex import BYE, DATA, GRANT, OFFER, PACED_NBYTES, WHOLE_NBYTES, Duplex, Garbled
from lanterne.transport.machine import Machine

_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class TcpOperation(PostedOperation):
    """A Send or Recv over tcp.

    Attributes:
        peer: None to this rank itself: `request` is then of its own memory's transport.
        offer_s: when to tell of a send that still waits for its grant; inf: it was told of, None: nobody has looked.
    """

    peer: "TcpPeer | None" = None
    offer_s: float | None = None

    def finish(self) -> None:
        """Note that it is done."""
        self.done = True


class TcpPeer:
    """What a rank knows of another. Messages of a tag match in the order in which they are posted: by number, from 0.

    Args:
        closed_ids: the transport's.

    Attributes:
        duplexes: that for messages, and that for what is said of them where it is another; none once they are dead.
        error, lost_s: why, and when.
        has_left: in order.
    """

    def __init__(self, rank: int, closed_ids: ClosedIds) -> None:
        self.rank = rank
        self._closed_ids = closed_ids
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

    def send(self, operation: TcpOperation) -> None:
        """Start a Send."""
        tag, nbytes = operation.op.tag, operation.op.nbytes
        number = self._sent[tag]
        self._sent[tag] = number + 1
        if not self.duplexes:
            return
        if nbytes <= WHOLE_NBYTES:
            self.duplexes[0].put(DATA, tag, number, nbytes, operation.view, operation.finish)
        elif nbytes < PACED_NBYTES or (tag, number) in self._grants:
            self._grants.discard((tag, number))
            self.duplexes[0].put_message(tag, number, operation.view, operation.finish)
        else:
            self._held[tag, number] = operation

    def receive(self, operation: TcpOperation) -> None:
        """Start a Recv."""
        tag = operation.op.tag
        number = self._received[tag]
        self._received[tag] = number + 1
        key = tag, number
        if (message := self._early.pop(key, None)) is not None:
            self._take(operation, message)
        elif operation.misfits("tcp", self._offers.pop(key, operation.op.nbytes)):
            pass
        else:
            self._receives[key] = operation
            if operation.op.nbytes >= PACED_NBYTES and self.duplexes:
                self.duplexes[-1].put(GRANT, tag, number, operation.op.nbytes)

    def offer(self, now_s: float, wait_s: float) -> bool:
        """Offer sends that wait `wait_s` for a grant: a receive of less sends none. Return whether there are any."""
        if not self.duplexes:
            return False
        told = False
        for key, operation in self._held.items():
            if operation.offer_s is None:
                operation.offer_s = now_s + wait_s
            elif now_s >= operation.offer_s:
                operation.offer_s, told = inf, True
                self.duplexes[-1].put(OFFER, *key, operation.op.nbytes)
        return told

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
        if kind != BYE and self._closed_ids.has(tag):
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
            elif operation.misfits("tcp", nbytes):
                del self._receives[key]
        elif kind == BYE:
            self.has_left = True
        else:
            raise Garbled(f"got a frame of kind {kind}")

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

    def _take(self, operation: TcpOperation, message: memoryview) -> None:
        """A message has come elsewhere than where it goes."""
        if not operation.misfits("tcp", message.nbytes):
            operation.view[:] = message
        operation.done = True

    def holds(self, communicator_id: int) -> bool:
        """Whether a message of a communicator waits for its grant."""
        return any(tag >> LANE_BITS == communicator_id for tag, _ in self._held)

    def drop_closed(self) -> None:
        """Drop the messages of closed communicators."""
        closed_ids = self._closed_ids
        closed_ids.drop_from(self._receives, self._early, self._offers, self._held)
        for counts in (self._sent, self._received):
            for tag in [tag for tag in counts if closed_ids.has(tag)]:
                del counts[tag]
        self._grants = {key for key in self._grants if not closed_ids.has(key[0])}
        for duplex in self.duplexes:
            duplex.divert(closed_ids.has)

    def forget(self) -> None:
        """Nothing that is posted is waited for, or written to, any more."""
        self._receives.clear()
        self._held.clear()


class PolledConnections:
    """The connections that a rank polls, those to write to as well on which more waits than they have taken.

    Attributes: `poll`, which tells descriptors and events; `by_fd`, the peer and its connection of each descriptor.
    """

    def __init__(self, machine: Machine) -> None:
        self._poller = machine.deep_poller()
        self.poll: Callable[[float], list[tuple[int, int]]] = self._poller.poll
        self.by_fd: dict[int, tuple[TcpPeer, Duplex]] = {}
        self._full: set[Duplex] = set()

    def fileno(self) -> int:
        """Readable while one of them can be read, or takes more of what waits for it."""
        return self._poller.fileno()

    def close_all(self) -> None:
        """All are over."""
        for _, duplex in self.by_fd.values():
            duplex.close()
        self.poll = lambda _timeout_ms: []
        self._poller.close()

    def add(self, peer: TcpPeer, duplex: Duplex) -> None:
        """Poll one more, to `peer`."""
        peer.duplexes.append(duplex)
        self.by_fd[duplex.fileno()] = peer, duplex
        self._poller.register(duplex, select.POLLIN)

    def close(self, peer: TcpPeer, duplex: Duplex) -> None:
        """That one is over."""
        peer.duplexes.remove(duplex)
        self._full.discard(duplex)
        self._poller.unregister(duplex)
        del self.by_fd[duplex.fileno()]
        duplex.close()

    def flush(self, peer: TcpPeer) -> bool:
        """Write to a peer what its connections take; True if that is something."""
        moved, full = False, self._full
        for duplex in peer.duplexes:
            if not duplex.idle:
                with suppress(OSError):  # What it still holds is read first, and then tells its end.
                    moved = duplex.flush() or moved
            if (duplex in full) == duplex.idle:
                full ^= {duplex}
                self._poller.modify(duplex, select.POLLIN if duplex.idle else select.POLLIN | select.POLLOUT)
        return moved
