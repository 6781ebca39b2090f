"""What a rank with spare rails knows of its peers and of its own operations (spare.py)."""

from dataclasses import dataclass

from lanterne.errors import TransportError
from lanterne.transport.base import Operation, Request
from lanterne.transport.rails.ledger import Ledger
from lanterne.transport.rails.rail import Rail

# The index of the inner transport among the paths to a peer; that of rail i is i + 1.
DIRECT = 0


class SparePeer:
    """What a rank knows of another.

    Attributes:
        rails: the living ones.
        path: the index of the one in use; is_ready: on a rail, whether the peer has told what it has.
        receives: by tag and number; sends: those that may be on their way directly.
        early: by tag and number, messages that came on a rail before their receive; coming: one that comes now.
        heard_s, asked_s, overdue_s: when something came directly; when the peer was last asked what it has sent, and
            when it first said that something has been which has not come.
        told: what it says now, a count by tag.
        error, lost_s: why the last path died, and when.
        cut: how the direct one was broken on purpose.
        has_left: in order.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ledger: Ledger = Ledger()
        self.rails: list[Rail] = []
        self.path = DIRECT
        self.is_ready = False
        self.receives: dict[tuple[int, int], SpareOperation] = {}
        self.sends: dict[SpareOperation, None] = {}  # in the order in which they were given
        self.early: dict[tuple[int, int], memoryview] = {}
        self.coming: memoryview | None = None
        self.heard_s: float = 0.0
        self.asked_s: float = 0.0
        self.overdue_s: float | None = None
        self.told: dict[int, int] = {}
        self.news_nbytes = 0
        self.news_messages = 0
        self.error: TransportError | None = None
        self.lost_s: float = 0.0
        self.cut: str | None = None
        self.has_left = False

    @property
    def rail(self) -> Rail | None:
        """The rail in use, or that would be next; None if none lives."""
        return next((rail for rail in self.rails if rail.index >= self.path), None)

    def test_cut(self) -> bool:
        """The test of an operation on the direct path, which was broken on purpose."""
        if self.cut == "reset":
            raise TransportError(f"the connection to rank {self.rank} was reset")
        return False


@dataclass(slots=True, eq=False)
class SpareOperation:
    """A Send or Recv: `peer` is None to this rank itself; `request` is the inner transport's, while it is there."""

    op: Operation
    peer: SparePeer | None
    number: int
    request: "Request | Swallowed | None" = None
    done: bool = False
    error: TransportError | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Tag and number."""
        return self.op.tag, self.number

    @property
    def view(self) -> memoryview:
        """The bytes to be sent, or written."""
        return view_of(self.op)

    def misfits(self, nbytes: int) -> bool:
        """Whether a message of `nbytes` is not what this receives, which then raises that whenever it is asked."""
        if nbytes != self.op.nbytes:
            text = f"spare: rank {self.op.peer} sent {nbytes} bytes, expected {self.op.nbytes}"
            self.error = TransportError(text)
        return nbytes != self.op.nbytes


class Swallowed:
    """What was posted on a path that had been broken on purpose."""

    def test(self) -> bool:
        """It is never done."""
        return False


def view_of(op: Operation) -> memoryview:
    """The bytes that a Send sends or a Recv writes."""
    assert op.region.buffer is not None
    return op.region.buffer[op.offset : op.offset + op.nbytes]
