"""Ranks of one host: a message is handed over in memory that both map, and read where its sender wrote it.

There is no link that could be slow, so a send cannot be held up, and needs no process to send for it: it is one note in
a ring. The memory is the sender's again when the receiver has put a note into the ring back. A Unix socket between
the two hands over the memory's files, and tells when the other is gone.
"""

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from lanterne.errors import PeerFailed, TransportError
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.rails.delegate_memory import (
    RING_WORDS,
    Ring,
    landed_counter,
    landed_of,
    make_memory,
    map_memory,
)
from lanterne.transport.rails.rail import MEMORY, Address, Meeting, join

# Notes. NBYTES offset departure_ns: a message of at least 0 bytes lies in the arena of who says so, or a device copies
# it there, and a ticket stands for the departure; READ offset: it is not read any more; BYE: no further note comes.
READ, BYE = -1, -2
RING_NBYTES = 8 * RING_WORDS


# Called with a message's departure, in s, and its offset in the peer's arena; None where it has come into this rank's.
Done: TypeAlias = Callable[[float, int | None], object]


class Neighbour:
    """Another rank of this host, as this one sees it.

    Args:
        sock: a Unix socket to it, proven.
        words: memory of the ring to it.
        on_sent: see Delegates.

    Attributes: `outbox`, the Ring to it, for messages; `arena`, its own, once `hear` was called; `awaited`, the
        receives that there is no message for: their bytes, and whom to tell.
    """

    arena: memoryview
    _inbox: Ring
    _landed: memoryview  # how much of its arena has

    def __init__(self, rank: int, sock: socket.socket, words: memoryview, on_sent: Callable[[int], object]) -> None:
        self.rank = rank
        self.sock = sock
        self._on_sent = on_sent
        self.outbox: Ring = Ring(words)
        # Messages, of (nbytes, offset, departure_ns), that no receive is there for, or the other way round.
        self._early: deque[tuple[int, int, int]] = deque()
        self.awaited: deque[tuple[int, Done]] = deque()
        self.has_left: bool = False
        # Messages that have not landed, oldest first, and those after them.
        self._landing: deque[tuple[int, int, int]] = deque()

    def hear(self, arena_fd: int, ring_fd: int) -> None:
        """Take what it shares."""
        self.arena = map_memory(arena_fd, os.fstat(arena_fd).st_size)
        self._landed = landed_counter(self.arena)
        self._inbox = Ring(map_memory(ring_fd, RING_NBYTES, populate=True).cast("q"))

    def receive(self, nbytes: int, done: Done) -> None:
        """See Delegates.receive."""
        self.awaited.append((nbytes, done))
        while self._early and self.awaited:
            self._arrive(*self._early.popleft())

    def release(self, offset: int) -> None:
        """The message at `offset` of its arena is not read any more."""
        self.outbox.put(READ, offset)

    def progress(self) -> bool:
        """Take its notes, and messages that have landed; True if there were some."""
        self.outbox.flush()
        moved = self._settle() if self._landing else False
        if self._inbox.is_empty():
            return moved
        while (note := self._inbox.take()) is not None:
            kind, offset, departure_ns, *_ = note
            if kind == READ:
                self._on_sent(offset)
            elif kind == BYE:
                self.has_left = True
            elif departure_ns < 0 or self._landing:
                self._landing.append((kind, offset, departure_ns))
            else:
                self._come(kind, offset, departure_ns)
        self._settle()
        return True

    def _settle(self) -> bool:
        """Take the messages that have landed; True if there were some."""
        before = len(self._landing)
        while self._landing:
            nbytes, offset, departure_ns = self._landing[0]
            if departure_ns < 0:
                if landed_of(self._landed, departure_ns, nbytes) < nbytes:
                    break
                departure_ns = round(THIS_MACHINE.now_s() * 1e9)
            self._landing.popleft()
            self._come(nbytes, offset, departure_ns)
        return len(self._landing) < before

    def _come(self, nbytes: int, offset: int, departure_ns: int) -> None:
        if self.awaited:
            self._arrive(nbytes, offset, departure_ns)
        else:
            self._early.append((nbytes, offset, departure_ns))

    def _arrive(self, nbytes: int, offset: int, departure_ns: int) -> None:
        expected, done = self.awaited.popleft()
        if nbytes != expected:
            what = f"a message of {nbytes} bytes from rank {self.rank}"
            raise TransportError(f"delegate: got {what}, expected {expected}")
        done(departure_ns / 1e9, offset)

    def check(self) -> None:
        """It has closed its socket: raise PeerFailed if this rank needs it still."""
        self.progress()
        if self.awaited or self.outbox.backlog:
            raise PeerFailed(self.rank, "its data plane has left" if self.has_left else "it is gone")

    def close(self) -> None:
        """Say that no further note comes."""
        self.outbox.put(BYE, 0)
        self.sock.close()


class Neighbours(dict[int, Neighbour]):
    """Rank -> Neighbour, of those that `meet` has met."""

    def __init__(self, machine: Machine = THIS_MACHINE) -> None:
        self._poll = machine.poller()
        self._ranks: dict[int, int] = {}  # by socket

    def add(self, neighbour: Neighbour) -> None:
        """Serve it, too."""
        self[neighbour.rank] = neighbour
        self._ranks[neighbour.sock.fileno()] = neighbour.rank
        self._poll.register(neighbour.sock, select.POLLRDHUP)

    def progress(self) -> bool:
        """Take everybody's notes; True if there were some."""
        moved = False
        for neighbour in self.values():
            moved = neighbour.progress() or moved
        return moved

    def check(self) -> None:
        """Raise PeerFailed if one is gone that this rank needs still."""
        for fd, _ in self._poll.poll(0):
            self[self._ranks[fd]].check()

    def close(self) -> None:
        """Part from everybody."""
        for neighbour in self.values():
            neighbour.close()
        self.clear()


def meet(
    neighbours: Neighbours,
    rank: int,
    listener: socket.socket,
    addresses: Mapping[int, Address],
    token: str,
    arena_fd: int,
    on_sent: Callable[[int], object],
    limit_s: float,
) -> None:
    """Fill Neighbours with the ranks that `addresses` (rank -> where it listens) names; they all call it.

    Raises:
        TransportError: one cannot be reached, or does not come within `limit_s` seconds.
    """
    rails = {peer: [address] for peer, address in addresses.items()}
    found = join(Meeting([listener], [MEMORY], rails, rank, token), limit_s)
    for (peer, _), (sock, _seals) in sorted(found.items()):
        ring_fd = make_memory(RING_NBYTES)
        words = map_memory(ring_fd, RING_NBYTES, populate=True).cast("q")
        neighbours.add(Neighbour(peer, sock, words, on_sent))
        socket.send_fds(sock, [b"m"], [arena_fd, ring_fd])
        os.close(ring_fd)
    for neighbour in neighbours.values():
        neighbour.sock.settimeout(limit_s)
        fds: list[int] = []
        with suppress(OSError):
            fds = socket.recv_fds(neighbour.sock, 1, 2)[1]
        if len(fds) != 2:
            raise TransportError(f"delegate: rank {neighbour.rank}, of this host, has not shared its memory")
        neighbour.hear(fds[0], fds[1])
        for fd in fds:
            os.close(fd)
