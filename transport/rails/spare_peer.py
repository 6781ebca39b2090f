"""What a rank with spare rails knows of its peers and of its own operations (spare.py)."""

from dataclasses import dataclass
from math import inf

from lanterne.errors import TransportError
from lanterne.transport.base import PostedOperation
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


@dataclass(slots=True, eq=False)
class SpareOperation(PostedOperation):
    """A Send or Recv over a transport with spare rails.

    Attributes: `peer`, None to this rank itself; `number`, of a Recv, among those of its tag.
    """

    peer: SparePeer | None = None
    number: int = 0
