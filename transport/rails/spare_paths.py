"""The paths to all peers: the inner transport's own, and spare rails after it, in the order in which they are used."""

import select
from collections.abc import Callable, Iterable
from contextlib import suppress

from lanterne.errors import TransportError
from lanterne.transport.base import Request, Send, Transport
from lanterne.transport.rails.rail import BYE, DATA, RECEIPT, SWITCH, Rail
from lanterne.transport.rails.spare_peer import DIRECT, SparePeer

# A frame beside those of rail.py: all that this end has was told.
GO = 10


class SparePaths:
    """Which path to each peer is in use, and how the next one comes to be.

    Args:
        inner: the transport whose paths are used first.
        rails: the names of a peer's rails, in order.
        name: this rank's, for errors.
        unreachable: takes the ranks to which no path is left.

    Attributes: `peers`, by rank; `moved`, as SpareTransport has it; `poll`, which tells descriptors and events of
    rails; `by_fd`, the rail of each descriptor.
    """

    def __init__(self, inner: Transport, rails: tuple[str, ...], name: str, unreachable: set[int]) -> None:
        ranks = range(inner.world_size)
        self.peers: dict[int, SparePeer] = {rank: SparePeer(rank) for rank in ranks if rank != inner.rank}
        self.moved: list[tuple[int, str, str, float]] = []
        self.by_fd: dict[int, Rail] = {}
        self._inner = inner
        self._machine = inner.machine
        self._names = rails
        self._name = name
        self._unreachable = unreachable
        self._poller = inner.machine.poller()
        self.poll: Callable[[float], list[tuple[int, int]]] = self._poller.poll

    def add(self, rail: Rail) -> None:
        """One more path to a peer, after those that it has."""
        self.peers[rail.peer].rails.append(rail)
        self.by_fd[rail.fileno()] = rail
        self._poller.register(rail, select.POLLIN)

    def give_up(self, peer: SparePeer, path: int, why: TransportError) -> None:
        """The path with this index is dead: go on over the next one, or raise `why` if there is none."""
        if path != peer.path:
            return
        living = [rail.index for rail in peer.rails if rail.index > path]
        if living:
            self.switch(peer, living[0], why)
        elif peer.error is None:
            peer.error, peer.lost_s = why, self._machine.now_s()
            self._unreachable.add(peer.rank)
            if path == DIRECT:
                raise why

    def switch(self, peer: SparePeer, path: int, why: object) -> None:
        """Use the rail with index `path`: say what has come; the peer does so too, and then what is missing is sent."""
        if peer.path == DIRECT:
            pending = [each for each in (*peer.receives.values(), *peer.sends) if each.request is not None]
            requests = [each.request for each in pending if isinstance(each.request, Request)]
            self._inner.abandon(peer.rank, requests)
            for each in pending:
                each.request, each.done = None, type(each.op) is Send
            peer.sends.clear()
        peer.path, peer.is_ready = path, False
        # What is left of a message in a rail that was given up must not be written over what takes its place later.
        for rail in [rail for rail in peer.rails if rail.index < path]:
            self.drop(rail, why)
        peer.coming = None
        self.moved.append((peer.rank, self._names[path - 1], str(why), self._machine.now_s()))
        taken = peer.rail
        assert taken is not None
        taken.put(SWITCH, path)
        self.tell_receipts(peer, peer.ledger.counts())
        taken.put(GO)
        self.flush(taken)

    def put(self, peer: SparePeer, tag: int, number: int, copy: memoryview) -> None:
        """Send a message on the rail in use."""
        if (rail := peer.rail) is not None:
            rail.put(DATA, number, copy.nbytes, tag, payload=copy)
            self.flush(rail)

    def tell_receipts(self, peer: SparePeer, counts: Iterable[tuple[int, int]]) -> None:
        """Tell a peer what has come: tags, and how many messages of each."""
        peer.news_nbytes = peer.news_messages = 0
        if (rail := peer.rail) is not None:
            for tag, count in counts:
                rail.put(RECEIPT, tag, count)
            self.flush(rail)

    def flush(self, rail: Rail) -> None:
        """Write what a rail takes."""
        with suppress(OSError):  # What it still holds is read first, and then tells its end.
            rail.flush()
        self._poller.modify(rail, select.POLLIN if rail.idle else select.POLLIN | select.POLLOUT)

    def drop(self, rail: Rail, why: object) -> None:
        """A rail is dead."""
        peer = self.peers[rail.peer]
        if rail not in peer.rails:
            return
        peer.rails.remove(rail)
        self._poller.unregister(rail)
        del self.by_fd[rail.fileno()]
        rail.close()
        if not peer.has_left:
            error = TransportError(f"{self._name}: the path to rank {rail.peer}: {why}")
            error.rank_unknown = True  # Often the peer has ended because of another.
            self.give_up(peer, rail.index, error)

    def close(self) -> None:
        """Say goodbye on every rail."""
        for rail in self.by_fd.values():
            rail.put(BYE)
            with suppress(OSError):
                rail.flush()
            rail.close()
