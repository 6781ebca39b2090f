"""What a rank with spare rails knows of its peers and of its own operations (spare.py)."""

from dataclasses import dataclass
from math import inf

from lanterne.errors import TransportError
from lanterne.transport.base import Operation, Request
from lanterne.transport.rails.paths import Path


class SparePeer(Path["SpareOperation"]):
    """Path to another rank: the inner transport's own, and rails after it.

    Attributes:
        sends: those that may be on their way directly, in the order of their posts.
        copies: by size, copies of messages that may be written over.
        early: by tag and number, messages that came on a rail before their receive; coming: those that come now.
        overdue_s: when the peer first said that something has been sent which has not come directly.
        news_nbytes, news_messages: received since the peer was told.
        error, lost_s: why the last path died, and when.
        cut: how the direct one was broken on purpose.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank, granted=inf, is_direct=True)
        self.sends: dict[SpareOperation, None] = {}
        self.copies: dict[int, list[memoryview]] = {}
        self.early: dict[tuple[int, int], memoryview] = {}
        self.coming: dict[tuple[int, int], memoryview] = {}
        self.overdue_s: float | None = None
        self.news_nbytes = 0
        self.news_messages = 0
        self.error: TransportError | None = None
        self.lost_s: float = 0.0
        self.cut: str | None = None

    def copy_of(self, message: memoryview) -> memoryview:
        """Return a copy of a message, which the peer may ask for again."""
        free = self.copies.get(message.nbytes)
        copy = free.pop() if free else memoryview(bytearray(message.nbytes))
        copy[:] = message
        return copy

    def test_cut(self) -> bool:
        """Test an operation on the direct path, which was broken on purpose."""
        if self.cut == "reset":
            raise TransportError(f"the connection to rank {self.rank} was reset")
        return False


@dataclass(slots=True, eq=False)
class SpareOperation:
    """A Send or Recv: `peer` is None to this rank itself; `request` is the inner transport's, while it is there.

    `number`: of a Recv, among those of its tag.
    """

    op: Operation
    peer: SparePeer | None
    number: int = 0
    request: "Request | Swallowed | None" = None
    done: bool = False
    error: TransportError | None = None

    @property
    def view(self) -> memoryview:
        """The bytes to be sent, or written."""
        assert self.op.region.buffer is not None
        return self.op.region.buffer[self.op.offset : self.op.offset + self.op.nbytes]

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
