"""Emulated links over any transport: latency held back at the receiver, bandwidth occupying the link at both ends.

The messages that a rank has under way share its port as streams of TCP do: one after the other to each peer, at equal
rates to several. The receiver learns when a message's first and last byte left from a small message beside it, and
withholds completion for a latency more, or for longer where others come in at its port: what is late already, because
the receiver looked late, is not delayed again.

Paper: Chen et al. 2025 (CrossPipe), section 6.4, whose links each have their bandwidth to themselves (`separate`).
"""

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol, TypeAlias

from lanterne.errors import InputError
from lanterne.transport.base import (
    LANE_BITS,
    Operation,
    Recv,
    Region,
    Request,
    Send,
    Transport,
)
from lanterne.transport.waiting import wait
from lanterne.transport.wrapper import Wrapper

# Times of departure travel on the lane's twin: the lane with this bit set, which MPI's tags have room for.
TWIN = 1 << 12
# Who polls naps between (see pauses.py) and would be late by as much: a poll so shortly before the time waits for it.
NEAR_S = 80e-6
# When the first and the last byte left, on the machine's clock.
DEPARTURE = struct.Struct("<dd")


class Wire(Protocol):
    """What links share that are one physical link, whichever ranks' they are."""

    def turn(self, now_s: float, busy_s: float) -> float:
        """When a message that is there at `now_s` begins to cross it, which it then occupies for `busy_s`."""
        ...


@dataclass(frozen=True)
class Link:
    """One direction between two ranks: `latency_s` and `bandwidth_bytes_per_s` (None: unlimited).

    Attributes: `wire`: the physical link that it shares with others, where ends are `separate`; None: its own.
    """

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    wire: Wire | None = None

    def __post_init__(self) -> None:
        if self.latency_s < 0 or (self.bandwidth_bytes_per_s is not None and self.bandwidth_bytes_per_s <= 0):
            raise InputError(f"link: got {self}, expected a latency of at least 0 and a bandwidth above 0")

    def occupied_s(self, nbytes: int) -> float:
        """Seconds that a message of `nbytes` keeps the link busy."""
        return nbytes / self.bandwidth_bytes_per_s if self.bandwidth_bytes_per_s else 0.0


FREE = Link()
# By (source, destination).
Links: TypeAlias = Mapping[tuple[int, int], Link]


class Leaving:
    """A message on its way out of a Port.

    Attributes: `first_s` and `last_s`, of now_s, when its first and last byte left (inf: not yet); `told`,
    the request of the small message that says so.
    """

    __slots__ = ("busy_s", "first_s", "last_s", "peer", "tag", "told", "word")

    def __init__(self, peer: int, tag: int, busy_s: float, word: Region) -> None:
        self.peer: int = peer
        self.tag: int = tag
        # Of the whole port, what it still needs.
        self.busy_s: float = busy_s
        self.word: Region = word
        self.first_s: float = inf
        self.last_s: float = inf
        self.told: Request | None = None


class Port:
    """A rank's sending end, which all peers that it has bytes for share alike; those of one peer leave in turn.

    Attributes: `next_s`, of now_s, when the next message has left if none is added; inf where there is none.
    """

    __slots__ = ("_now_s", "_queues", "next_s")

    def __init__(self) -> None:
        self._queues: dict[int, deque[Leaving]] = {}
        self._now_s = 0.0
        self.next_s: float = inf

    def add(self, message: Leaving, now_s: float) -> list[Leaving]:
        """Let `message` begin behind those of its peer; as `advance`."""
        left = self.advance(now_s)
        queue = self._queues.setdefault(message.peer, deque())
        if not queue:
            message.first_s = now_s
        queue.append(message)
        return left + self.advance(now_s)

    def advance(self, now_s: float) -> list[Leaving]:
        """The messages whose last byte has left by `now_s` since the last call, in order."""
        left = []
        while self._queues:
            heads = [queue[0] for queue in self._queues.values()]
            first = min(heads, key=lambda head: head.busy_s)
            end_s = self._now_s + first.busy_s * len(heads)
            if end_s > now_s:
                break
            self._move(heads, end_s)
            first.last_s = end_s
            left.append(first)
            queue = self._queues[first.peer]
            queue.popleft()
            if queue:
                queue[0].first_s = end_s
            else:
                del self._queues[first.peer]
        heads = [queue[0] for queue in self._queues.values()]
        self._move(heads, max(now_s, self._now_s))
        self.next_s = self._now_s + min((head.busy_s for head in heads), default=inf) * len(heads) if heads else inf
        return left

    def _move(self, heads: Sequence[Leaving], to_s: float) -> None:
        for head in heads:
            head.busy_s = max(0.0, head.busy_s - (to_s - self._now_s) / len(heads))
        self._now_s = to_s


class Ends:
    """One rank's ends of emulated links: when each message leaves, where links do not share them, and has arrived.

    Args:
        rank: this one.
        links: pairs that are absent delay nothing.
        in_order, separate, rendezvous: see ShapedTransport.
    """

    __slots__ = ("_egress_free_s", "_ingress_free_s", "_met_s", "in_order", "links", "rank", "rendezvous", "separate")

    def __init__(
        self, rank: int, links: Links, *, in_order: bool = False, separate: bool = False, rendezvous: bool = False
    ) -> None:
        self.rank: int = rank
        self.links: dict[tuple[int, int], Link] = dict(links)
        self.in_order: bool = in_order
        self.separate: bool = separate
        self.rendezvous: bool = rendezvous
        # When this rank's end is free again, sending (None: to all peers) and receiving; for rendezvous, by peer.
        self._egress_free_s: dict[int | None, float] = {}
        self._ingress_free_s = 0.0
        self._met_s: dict[int, float] = {}

    @property
    def shared(self) -> bool:
        """Whether the messages of several peers share this rank's end."""
        return not (self.in_order or self.separate or self.rendezvous)

    def link(self, source: int, destination: int) -> Link:
        """The Link from `source` to `destination` as it is now."""
        return self.links.get((source, destination), FREE)

    def leave(self, peer: int, nbytes: int, now_s: float) -> tuple[float, float]:
        """(departure, end), on the machine's clock, of a message sent to `peer` now: it occupies the link between."""
        if self.rendezvous:
            return now_s, now_s  # The receiver knows better.
        link = self.link(self.rank, peer)
        busy_s = link.occupied_s(nbytes) + (link.latency_s if self.in_order else 0.0)
        if not busy_s and not self.in_order:
            return now_s, now_s
        if link.wire is not None:
            begins_s = link.wire.turn(now_s, busy_s)
            return begins_s, begins_s + busy_s
        end = None if self.in_order else peer
        departure_s = max(now_s, self._egress_free_s.get(end, 0.0))
        if departure_s + busy_s > now_s:
            self._egress_free_s[end] = departure_s + busy_s
        return departure_s, departure_s + busy_s

    def arrive(
        self, peer: int, nbytes: int, first_s: float, posted_s: float = 0.0, last_s: float | None = None
    ) -> float:
        """When a message has wholly arrived whose first byte left `peer` at `first_s`; occupies this rank's end.

        Args:
            posted_s: when it was posted for, which matters where ends have to meet.
            last_s: when its last byte left, where ends are shared.
        """
        link = self.link(peer, self.rank)
        occupied_s = link.occupied_s(nbytes)
        if self.rendezvous:
            self._met_s[peer] = max(first_s, posted_s, self._met_s.get(peer, 0.0)) + occupied_s
            return self._met_s[peer] + link.latency_s
        start_s = first_s + link.latency_s
        if last_s is None or not occupied_s:
            return start_s + occupied_s
        self._ingress_free_s = max(start_s, self._ingress_free_s) + occupied_s
        return max(self._ingress_free_s, last_s + link.latency_s)


class ShapedTransport(Wrapper):
    """`inner` with emulated links. All ranks of a job must shape alike; clocks must agree, as they do on one host.

    Args:
        inner: any transport with tags; closed with this one. Lanes of 4096 and above are not available.
        links: of pairs, or one Link for all; pairs that are absent are as `inner` has them.
        in_order: a rank has one message under way at a time, and the next leaves when it has arrived: as where one
            stream carries all sends and the delay is injected before each (ADAPTRA section 3.2).
        separate: a rank's links do not share its end: each has its bandwidth to itself, as streams of their own have.
        rendezvous: separate, and a message begins to move when its receive is posted too; sends are done when they are
            for `inner`, and receives from one rank are to be tested in order.
    """

    def __init__(
        self,
        inner: Transport,
        links: Links | Link,
        *,
        in_order: bool = False,
        separate: bool = False,
        rendezvous: bool = False,
    ) -> None:
        if not inner.capabilities.tags:
            raise InputError(f"shaped: got transport {inner.name}, expected one with tags")
        if isinstance(links, Link):
            n = inner.world_size
            links = {(a, b): links for a in range(n) for b in range(n) if a != b}
        self.ends: Ends = Ends(inner.rank, links, in_order=in_order, separate=separate, rendezvous=rendezvous)
        # What shares a port leaves whether it is posted for or not.
        paced_nbytes = None if self.ends.shared else inner.capabilities.receiver_paced_nbytes
        bits = min(inner.capabilities.lane_bits, TWIN.bit_length() - 1)
        capabilities = replace(inner.capabilities, receiver_paced_nbytes=paced_nbytes, lane_bits=bits)
        super().__init__(inner, f"shaped-{inner.name}", capabilities)
        self._port = Port()
        self._words: list[Region] = []

    def link(self, source: int, destination: int) -> Link:
        """The Link from `source` to `destination` as it is now."""
        return self.ends.link(source, destination)

    def set_link(self, source: int, destination: int, link: Link) -> None:
        """Change one link from now on; the messages under way keep their times. Call it alike on both ends."""
        self.ends.links[source, destination] = link

    def _post(self, ops: Sequence[Operation]) -> "ShapedRequest":
        # What posting itself takes is a part of the link's time.
        now_s = self.machine.now_s()
        for op in ops:
            if (lane := op.tag & ((1 << LANE_BITS) - 1)) >= TWIN:
                raise InputError(f"{self.name}: got lane {lane}, expected less than {TWIN}")
        inner_ops: list[Operation] = []
        leaving: list[Leaving] = []
        held: list[tuple[float, int]] = []
        arrivals: list[_Arrival] = []
        words: list[Region] = []
        for op in ops:
            inner_ops.append(op)
            if op.peer == self.rank:
                continue
            word = self._words.pop() if self._words else self.inner.register(bytearray(DEPARTURE.size))
            if type(op) is Recv:
                words.append(word)
                inner_ops.append(Recv(word, 0, DEPARTURE.size, op.peer, op.tag | TWIN))
                arrivals.append((op.peer, op.nbytes, word, now_s))
            elif self.ends.shared:
                busy_s = self.link(self.rank, op.peer).occupied_s(op.nbytes)
                leaving.append(Leaving(op.peer, op.tag | TWIN, busy_s, word))
            else:
                words.append(word)
                first_s, end_s = self.ends.leave(op.peer, op.nbytes, now_s)
                if end_s > now_s:
                    held.append((end_s, op.peer))
                inner_ops.append(_telling(word, first_s, end_s, op.peer, op.tag | TWIN))
        request = ShapedRequest(self, self.inner.post(inner_ops), leaving, held, arrivals, words)
        for message in leaving:
            self._tell(self._port.add(message, now_s))
        return request

    def advance(self, now_s: float) -> float:
        """Let go what has left this rank's port by `now_s`; when the next message will have."""
        if now_s >= self._port.next_s:
            self._tell(self._port.advance(now_s))
        return self._port.next_s

    def _tell(self, left: Iterable[Leaving]) -> None:
        for message in left:
            word = _telling(message.word, message.first_s, message.last_s, message.peer, message.tag)
            message.told = self.inner.post((word,))

    def give_back(self, words: Iterable[Region]) -> None:
        """Take the Regions of times of departure whose operations are complete."""
        self._words += words


def _telling(word: Region, first_s: float, last_s: float, peer: int, tag: int) -> Send:
    assert word.buffer is not None
    DEPARTURE.pack_into(word.buffer, 0, first_s, last_s)
    return Send(word, 0, DEPARTURE.size, peer, tag)


# (peer, nbytes, where its departure is told, when it was posted for).
_Arrival: TypeAlias = tuple[int, int, Region, float]


class ShapedRequest(Request):
    """Complete once the inner request is and the emulated links have let the last byte through."""

    __slots__ = ("_arrivals", "_held", "_inner", "_leaving", "_words")
    _transport: ShapedTransport

    def __init__(
        self,
        transport: ShapedTransport,
        inner: Request,
        leaving: list[Leaving],
        held: list[tuple[float, int]],
        arrivals: list[_Arrival],
        words: list[Region],
    ) -> None:
        super().__init__(transport, ())
        self._inner = inner
        self._leaving = leaving
        # (when a message is let through, its peer).
        self._held = held
        self._arrivals = arrivals
        self._words = words

    @property
    def due_s(self) -> float:
        """When the emulated links let the last byte through; inf while it is not known."""
        return inf if self._arrivals or self._leaving or not self._held else max(self._held)[0]

    def poll(self) -> bool:
        transport = self._transport
        transport.advance(transport.machine.now_s())
        if self._leaving:
            self._leaving = [message for message in self._leaving if not self._has_left(message)]
        if not self._inner.test():
            return False
        for peer, nbytes, word, posted_s in self._arrivals:
            assert word.buffer is not None
            first_s, last_s = DEPARTURE.unpack(word.buffer)
            ends = transport.ends
            arrival_s = ends.arrive(peer, nbytes, first_s, posted_s, last_s if ends.shared else None)
            self._held.append((arrival_s, peer))
        self._arrivals = []
        if self._words:
            transport.give_back(self._words)
            self._words = []
        if self._held:
            now = transport.machine.now_s
            now_s = now()
            last_s = max(self._held)[0]
            if now_s < last_s < now_s + NEAR_S:
                wait(lambda: now() >= last_s, NEAR_S, transport.pauses)
                now_s = now()
            self._held = [(release_s, peer) for release_s, peer in self._held if release_s > now_s]
        return not (self._held or self._leaving)

    def _has_left(self, message: Leaving) -> bool:
        if message.told is None or not message.told.test():
            return False
        self._transport.give_back((message.word,))
        return True

    def pending_peers(self) -> list[int]:
        # Not those of messages held back here: they need nothing more of their senders, who may have left.
        return sorted({*self._inner.pending_peers(), *(message.peer for message in self._leaving)})

    def awaited_peers(self) -> list[int]:
        return sorted({*self.pending_peers(), *(peer for _, peer in self._held)})
