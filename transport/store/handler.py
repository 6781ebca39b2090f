"""What the store's handlers have in common: a client's connection, what they may do, and how they refuse.

A handler registers the requests that it answers. It lives in the store's one thread, so what it does for one request is
atomic. It answers at once by returning the reply's fields, or later by `reply`, and hears of every client that is gone.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from lanterne.transport.machine import Machine
from lanterne.transport.wire import FrameSeals, Kind

# Of ranks, of the places that they may claim, and of the processes that they are.
MAX_WORLD_SIZE = 1 << 16
# The fields of a reply; None: later, or none at all.
Answer: TypeAlias = Sequence[int | bytes] | None


class Refusal(Exception):
    """A request that cannot be granted; its text goes to the client."""


class Connection:
    """One client. `rank`, with its `epoch`, and `guards` are set once it has joined as a member, or a rank's parent."""

    __slots__ = ("epoch", "guards", "inbox", "lost", "outbox", "rank", "seals", "sock")

    def __init__(self, sock: socket.socket, seals: FrameSeals | None = None) -> None:
        self.sock: socket.socket = sock
        self.seals: FrameSeals | None = seals
        self.inbox: bytearray = bytearray()
        self.outbox: bytearray = bytearray()
        self.rank: int | None = None
        self.epoch: Roll | None = None
        self.guards: int | None = None
        self.lost: str = "its connection ended without goodbye"


class Roll(Protocol):
    """What a connection knows of the Epoch whose member it is."""

    number: int


class Service(Protocol):
    """What a handler may do: the Store."""

    machine: Machine
    term: int

    def route(self, kind: Kind, types: str, function: Callable[..., Answer]) -> None: ...
    def after(self, delay_s: float, function: Callable[[], object]) -> None: ...
    def send(self, connection: Connection, kind: Kind, request_id: int, fields: Iterable[int | bytes] = ()) -> None: ...
    def reply(self, connection: Connection, request_id: int, fields: Iterable[int | bytes] = ()) -> None: ...


class Handler(Protocol):
    """What the store knows of a handler."""

    def connection_closed(self, connection: Connection) -> None: ...
