"""What both ends of a path remember of the messages between two ranks, so that none is lost with it, and none repeated.

Messages of one tag match in the order in which they are posted, so the tag and a number from 0 name a message without a
word beside it. The sender keeps a copy until the receiver has told how many of that tag it has; the receiver knows
which it has, and drops what comes again.

Nothing here does input or output.
"""

from collections import deque
from collections.abc import Callable, Iterator

from lanterne.errors import TransportError


class Ledger:
    """The messages with one peer, both ways."""

    __slots__ = ("_came", "_pool", "_sent", "_touched")

    def __init__(self) -> None:
        # By tag.
        self._sent: dict[int, _Sent] = {}
        self._came: dict[int, _Came] = {}
        # Copies to be used again, by size; tags of which something came since the last `news`.
        self._pool: dict[int, list[memoryview]] = {}
        self._touched: set[int] = set()

    # -- what this rank sends

    def keep(self, tag: int, message: memoryview) -> tuple[int, memoryview]:
        """(number, copy) of a message (buffer of bytes) that is sent now."""
        free = self._pool.get(message.nbytes)
        copy = free.pop() if free else memoryview(bytearray(message.nbytes))
        copy[:] = message
        sent = self._sent.setdefault(tag, _Sent())
        sent.copies.append(copy)
        return sent.count - 1, copy

    def receipt(self, tag: int, count: int) -> None:
        """The peer has the first `count` messages of a tag."""
        sent = self._sent.get(tag) or _Sent()
        if count > sent.count:
            raise TransportError(f"spare: got a receipt for {count} messages, expected at most {sent.count}")
        while sent.first < count:
            copy = sent.copies.popleft()
            self._pool.setdefault(copy.nbytes, []).append(copy)
            sent.first += 1

    def unreceipted(self) -> Iterator[tuple[int, int, memoryview]]:
        """(tag, number, copy) of all messages that the peer may lack, those of a tag in order."""
        for tag, sent in self._sent.items():
            for index, copy in enumerate(sent.copies):
                yield tag, sent.first + index, copy

    def sent(self) -> list[tuple[int, int]]:
        """[(tag, how many messages were sent)] of the tags of which the peer may lack some."""
        return [(tag, sent.count) for tag, sent in self._sent.items() if sent.copies]

    def forget(self, is_over: Callable[[int], bool]) -> None:
        """Nothing is kept of tags that are over, both ways."""
        for table in (self._sent, self._came):
            for tag in [tag for tag in table if is_over(tag)]:
                del table[tag]
        self._touched = {tag for tag in self._touched if not is_over(tag)}

    # -- what it receives

    def post(self, tag: int) -> int:
        """The number of the message that a receive, posted now, is for."""
        came = self._came.setdefault(tag, _Came())
        came.posted += 1
        return came.posted - 1

    def complete(self, tag: int, number: int) -> None:
        """A message has come."""
        came = self._came[tag]
        came.ahead.add(number)
        while came.count in came.ahead:
            came.ahead.remove(came.count)
            came.count += 1
        self._touched.add(tag)

    def has(self, tag: int, number: int) -> bool:
        """Whether a message has come before."""
        came = self._came.get(tag)
        return came is not None and (number < came.count or number in came.ahead)

    def lacks(self, tag: int, sent: int) -> bool:
        """Whether, of `sent` messages of a tag, one has not come that a receive waits for."""
        came = self._came.get(tag)
        return came is not None and came.count < min(sent, came.posted)

    def counts(self) -> list[tuple[int, int]]:
        """As `news`, of all tags."""
        return [(tag, came.count) for tag, came in self._came.items()]

    def news(self) -> list[tuple[int, int]]:
        """[(tag, count)] to tell the sender: the first `count` messages have come; of tags where that has changed."""
        touched, self._touched = self._touched, set()
        return [(tag, self._came[tag].count) for tag in touched]


class _Sent:
    """Of one tag: copies of the messages from number `first` on."""

    __slots__ = ("copies", "first")

    def __init__(self) -> None:
        self.copies: deque[memoryview] = deque()
        self.first = 0

    @property
    def count(self) -> int:
        return self.first + len(self.copies)


class _Came:
    """Of one tag: receives posted, how many messages have come without a gap, and the numbers beyond it."""

    __slots__ = ("ahead", "count", "posted")

    def __init__(self) -> None:
        self.posted = 0
        self.count = 0
        self.ahead: set[int] = set()
