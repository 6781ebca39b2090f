"""What a rank's delegates have under way: messages to and from each peer, in the queues whose turn it is."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

from lanterne.errors import PeerFailed, TransportError
from lanterne.transport.machine import Machine
from lanterne.transport.rails.delegate_handle import Handle
from lanterne.transport.rails.delegate_process import (
    DROPPED,
    LOST,
    MISFIT,
    RECEIVE,
    RECEIVED,
    RETURNED,
    SEND,
    SENT,
)
from lanterne.transport.rails.neighbours import Done
from lanterne.transport.rank_group import LEFT_GRACE_S


class _Flow:
    """What is under way with one peer in one queue, oldest first: messages, and what to call when one has come."""

    __slots__ = ("receives", "sends")

    def __init__(self) -> None:
        self.sends: deque[int] = deque()
        self.receives: deque[Done] = deque()


class DelegateFlows:
    """Messages that delegates carry, from when they are handed over until the delegate's note that they are done.

    Args:
        on_sent: called with the offset of a message once its memory may change.

    Attributes:
        under_way: how many messages to peers are not sent yet.
        dropped: (peer, queue, rail, when: now_s of the machine) of the rails that died; returned: of those of them that
            were made anew, and are used again.
    """

    def __init__(self, on_sent: Callable[[int], object], machine: Machine) -> None:
        self.under_way: int = 0
        self.dropped: list[tuple[int, int, int, float]] = []
        self.returned: list[tuple[int, int, int, float]] = []
        self._on_sent = on_sent
        self._machine = machine
        self._flows: dict[int, list[_Flow]] = {}
        # Peers that have left although something is due. Most do because of a death, of which this rank hears soon.
        self._left_s: dict[int, float] = {}
        # By peer, without end: what is under way in a queue, and its delegate, whose turn it is.
        self._sends: dict[int, Iterator[tuple[deque[int], Handle]]] = {}
        self._receives: dict[int, Iterator[tuple[deque[Done], Handle]]] = {}

    def open(self, peer: int, handles: Sequence[Handle]) -> None:
        """Carry messages of `peer` by these delegates, one for each queue, in turn."""
        flows = self._flows[peer] = [_Flow() for _ in handles]
        pairs = list(zip(flows, handles, strict=True))
        self._sends[peer] = cycle([(flow.sends, handle) for flow, handle in pairs])
        self._receives[peer] = cycle([(flow.receives, handle) for flow, handle in pairs])

    def send(self, peer: int, nbytes: int, offset: int, departure_ns: int) -> None:
        """Send `nbytes` bytes at `offset` of the arena."""
        waiting, handle = next(self._sends[peer])
        waiting.append(offset)
        self.under_way += 1
        handle.put(SEND, peer, offset, nbytes, departure_ns)

    def receive(self, peer: int, offset: int, nbytes: int, done: Done) -> None:
        """Receive the next message from `peer` at `offset` of the arena; then `done(departure_s, None)` is called."""
        waiting, handle = next(self._receives[peer])
        waiting.append(done)
        handle.put(RECEIVE, peer, offset, nbytes)

    def check(self) -> None:
        """Raise PeerFailed if a peer has left LEFT_GRACE_S ago although something is due."""
        for peer, left_s in self._left_s.items():
            if self._machine.now_s() > left_s + LEFT_GRACE_S:
                raise PeerFailed(peer, "its delegates have left")

    def hear(self, queue: int, kind: int, peer: int, first: int, second: int, _third: int) -> None:
        """Take a note of the delegate of `queue`.

        Raises:
            TransportError: a message has another size than its receive.
            PeerFailed: a peer's delegates are gone.
        """
        flow = self._flows[peer][queue]
        if kind == SENT:
            self.under_way -= first
            for _ in range(first):
                self._on_sent(flow.sends.popleft())
        elif kind == RECEIVED:
            flow.receives.popleft()(first / 1e9, None)
        elif kind == DROPPED:
            self.dropped.append((peer, queue, first, self._machine.now_s()))
        elif kind == RETURNED:
            self.returned.append((peer, queue, first, self._machine.now_s()))
        elif kind == LOST and first:
            self._left_s.setdefault(peer, self._machine.now_s())
        elif kind == LOST:
            raise PeerFailed(peer, "its delegates are gone, on every rail")
        elif kind == MISFIT:
            raise TransportError(f"delegate: got a message of {first} bytes from rank {peer}, expected {second}")
