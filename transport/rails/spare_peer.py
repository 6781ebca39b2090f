"""What a rank with spare rails knows of its peers and of its own operations (spare.py)."""

from lanterne.errors import TransportError
from lanterne.transport.base import Request
from lanterne.transport.rails.ledger import Ledger

# The index of the inner transport among the paths to a peer; that of rail i is i + 1.
DIRECT = 0


class SparePeer:
    """What a rank knows of another.

    Attributes:
        ledger; rails, the living ones, a list; path, the index of the one in use; is_ready: on a rail, whether the peer
        has told what it has. receives: (tag, number) -> Operation; sends: those that may be on their way directly.
        early: (tag, number) -> a message that came on a rail before its receive; coming: one that comes now.
        heard_s, asked_s, overdue_s: when something came directly; when the peer was last asked what it has sent, and
        when it first said that something has been which has not come. told: tag -> count, what it says now.
        error, lost_s: why the last path died, and when. cut: how the direct one was broken on purpose. has_left: in
        order.
    """

    def __init__(self, rank):
        self.rank, self.ledger, self.rails, self.path, self.is_ready = rank, Ledger(), [], DIRECT, False
        self.receives, self.sends, self.early, self.coming = {}, set(), {}, None
        self.heard_s, self.asked_s, self.overdue_s, self.told = 0.0, 0.0, None, {}
        self.news_nbytes, self.news_messages = 0, 0
        self.error, self.lost_s, self.cut, self.has_left = None, 0.0, None, False

    @property
    def rail(self):
        """The rail in use, or that would be next; None if none lives."""
        return next((rail for rail in self.rails if rail.index >= self.path), None)

    def test_cut(self):
        """The test of an operation on the direct path, which was broken on purpose."""
        if self.cut == "reset":
            raise TransportError(f"the connection to rank {self.rank} was reset")
        return False


class Operation:
    """A Send or Recv: `request`, the inner transport's, while it is on the direct path."""

    __slots__ = ("done", "error", "number", "op", "peer", "request")

    def __init__(self, op, peer, number, request=None):
        self.op, self.peer, self.number, self.request, self.done, self.error = op, peer, number, request, False, None

    @property
    def key(self):
        return self.op.tag, self.number

    @property
    def view(self):
        """The bytes to be sent, or written."""
        return view_of(self.op)

    def misfits(self, nbytes):
        """Whether a message of `nbytes` is not what this receives, which then raises that whenever it is asked."""
        if nbytes != self.op.nbytes:
            text = f"spare: rank {self.op.peer} sent {nbytes} bytes, expected {self.op.nbytes}"
            self.error = TransportError(text)
        return nbytes != self.op.nbytes


class SpareRequest(Request):
    """Complete once all its operations are, on whatever path."""

    __slots__ = ("_pending", "transport")

    def __init__(self, transport, pending):
        self.transport, self._pending = transport, pending

    def test(self):
        if self._pending:
            self.transport.progress()
            self._pending = [operation for operation in self._pending if not self.transport.test(operation)]
        return not self._pending

    def pending_peers(self):
        return sorted({operation.op.peer for operation in self._pending if not operation.done})


class Swallowed:
    """What was posted on a path that had been broken on purpose."""

    def test(self):
        return False


def view_of(op):
    """The bytes that a Send sends or a Recv writes."""
    return op.region.buffer[op.offset : op.offset + op.nbytes]
