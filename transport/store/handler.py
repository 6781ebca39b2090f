"""Interface between the store and its services: a client's connection, the store's methods, and refusals.

A handler registers the requests that it answers. It runs in the store's one thread, so each request is atomic. It
answers at once by returning the reply's fields, or later by `reply`, and is called when a client has gone.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from lanterne.transport.machine import Machine
from lanterne.transport.wire import FrameSeals, Kind

# Limit of ranks, of places that they claim, and of processes.
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
    """Part of an Epoch that its members' connections need."""

    number: int


class Service(Protocol):
    """Part of the Store that handlers need."""

    machine: Machine
    term: int

    def route(self, kind: Kind, types: str, function: Callable[..., Answer]) -> None: ...
    def after(self, delay_s: float, function: Callable[[], object]) -> None: ...
    def send(self, connection: Connection, kind: Kind, request_id: int, fields: Iterable[int | bytes] = ()) -> None: ...
    def reply(self, connection: Connection, request_id: int, fields: Iterable[int | bytes] = ()) -> None: ...


class Handler(Protocol):
    """Part of a handler that the store needs."""

    def connection_closed(self, connection: Connection) -> None: ...
