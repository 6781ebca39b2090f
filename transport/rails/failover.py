"""Messages in order over rails that may die: what both ends remember, so that none is lost and none comes twice.

A flow is the messages from one rank to another in one queue, numbered from 0. Its receiver tells two counts, over
whatever rail lives: `granted`, how many messages it has memory for, so that none is ever stuck half-way in a rail and
silence means that the rail is dead; and `received`, how many have come whole. The sender keeps a message until it is
received. When a rail dies the sender goes back to the first message that is not received, on the next rail; what comes
twice for that is dropped by its number.

Nothing here does input or output. Paper: ADAPTRA, section 5.3; differs: no message is lost with the rail it was on.
"""

from collections import deque
from typing import Generic, TypeVar

from lanterne.errors import TransportError

Message = TypeVar("Message")
Place = TypeVar("Place")


class Outgoing(Generic[Message]):
    """The sending end of a flow."""

    __slots__ = ("_messages", "_next", "_received", "granted")

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._received = 0
        self._next = 0
        self.granted: int = 0

    @property
    def unfinished(self) -> int:
        """Messages that are not received, as far as is known."""
        return len(self._messages)

    def submit(self, message: Message) -> None:
        """Send `message` after those before."""
        self._messages.append(message)

    def grant(self, count: int) -> None:
        """The receiver has memory for `count` messages, ever."""
        self.granted = max(self.granted, count)

    def take(self) -> tuple[int, Message] | None:
        """(number, message) of the one that is to be sent now; None if there is none, or no grant for it."""
        number = self._next
        if number >= min(self.granted, self._received + len(self._messages)):
            return None
        self._next += 1
        return number, self._messages[number - self._received]

    def receipt(self, count: int) -> int:
        """The receiver has `count` messages, ever; returns how many of them are news."""
        news = count - self._received
        if news <= 0:
            return 0
        if news > len(self._messages):
            raise TransportError(
                f"flow: got a receipt for {count} messages, expected at most {self._received + len(self._messages)}"
            )
        for _ in range(news):
            self._messages.popleft()
        self._received = count
        # Received on a rail that is dead by now, and not to be sent again.
        self._next = max(self._next, count)
        return news

    def rewind(self) -> None:
        """The rail is dead: send again, on another, what is not received."""
        self._next = self._received


class Incoming(Generic[Place]):
    """The receiving end of a flow."""

    __slots__ = ("_places", "received")

    def __init__(self) -> None:
        self._places: deque[Place] = deque()
        self.received: int = 0

    @property
    def granted(self) -> int:
        """How many messages there has been memory for."""
        return self.received + len(self._places)

    def post(self, place: Place) -> None:
        """Receive the next message in `place`."""
        self._places.append(place)

    def place(self, number: int) -> Place | None:
        """Where message `number`, which now comes, is to go; None if it has come before and is to be dropped.

        Raises:
            TransportError: a message before it is missing, or there is no memory for it.
        """
        if number < self.received:
            return None
        if number > self.received or not self._places:
            raise TransportError(f"flow: got message {number}, expected {self.received} of {self.granted} granted")
        return self._places[0]

    def complete(self, number: int) -> Place | None:
        """Message `number` has come whole; returns its place, None if it had come before."""
        if number < self.received:
            return None
        self.received += 1
        return self._places.popleft()
