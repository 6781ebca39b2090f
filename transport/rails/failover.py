"""Numbered messages and their acknowledgements: what both ends of a path remember, so that none is lost or repeated.

Messages of one tag between two ranks match in the order of their posts. So a tag and a number from 0 name a message.
The receiver reports how many it has received of a tag without a gap, and how many it has posted receives for. The
sender keeps a message until it is received. When the path dies it starts again, on another, at the first message that
is not received. The receiver drops by their numbers those that it has received before.

Nothing here does input or output. Paper: ADAPTRA, section 5.3; differs: no message is lost with the rail it was on.
"""

from collections import deque
from typing import Generic, TypeVar

from lanterne.errors import TransportError

Message = TypeVar("Message")


class Outgoing(Generic[Message]):
    """Sending end of a tag.

    Attributes: `granted`, how many messages may be sent before the receiver grants more; inf: any number.
    """

    __slots__ = ("_messages", "_next", "_received", "granted")

    def __init__(self, granted: float = 0) -> None:
        self._messages: deque[Message] = deque()
        self._received = 0
        self._next = 0
        self.granted: float = granted

    @property
    def submitted(self) -> int:
        """Messages that were submitted, ever."""
        return self._received + len(self._messages)

    @property
    def unfinished(self) -> int:
        """Messages that are not received, as far as is known."""
        return len(self._messages)

    def submit(self, message: Message) -> int:
        """Send `message` after those before; return its number."""
        self._messages.append(message)
        return self.submitted - 1

    def grant(self, count: int) -> None:
        """Record that the receiver has memory for `count` messages, ever."""
        self.granted = max(self.granted, count)

    def take(self) -> tuple[int, Message] | None:
        """(number, message) of the one that is to be sent now; None if there is none, or no grant for it."""
        number = self._next
        if number >= min(self.granted, self.submitted):
            return None
        self._next += 1
        return number, self._messages[number - self._received]

    def receipt(self, count: int) -> list[Message]:
        """Record that the receiver has `count` messages, ever; return those of which that is news.

        Raises:
            TransportError: so many were not submitted.
        """
        if count > self.submitted:
            raise TransportError(f"flow: got a receipt for {count} messages, expected at most {self.submitted}")
        news = [self._messages.popleft() for _ in range(count - self._received)]
        self._received += len(news)
        # Received on a rail that is dead by now, and not to be sent again.
        self._next = max(self._next, self._received)
        return news

    def rewind(self) -> None:
        """Send again, on another path, what is not received: the path is dead."""
        self._next = self._received


class Incoming:
    """Receiving end of a tag.

    Attributes: `posted`, how many receives there have been; `received`, how many messages without a gap.
    """

    __slots__ = ("_ahead", "posted", "received")

    def __init__(self) -> None:
        self.posted: int = 0
        self.received: int = 0
        self._ahead: set[int] = set()  # numbers beyond a gap

    def post(self) -> int:
        """Return the number of the message that a receive, posted now, is for."""
        self.posted += 1
        return self.posted - 1

    def has(self, number: int) -> bool:
        """Return whether message `number` was received before."""
        return number < self.received or number in self._ahead

    def complete(self, number: int) -> None:
        """Record that message `number` was received whole."""
        self._ahead.add(number)
        while self.received in self._ahead:
            self._ahead.remove(self.received)
            self.received += 1
