"""Emulated links over any transport: latency held back at the receiver, bandwidth occupying the link at both ends.

A message leaves when its sender's link is free and occupies it for nbytes / bandwidth; its first byte arrives one
latency later and it occupies the receiver's link as long. The receiver learns the time of departure from a small
message beside it and withholds completion until then: what is late already, because the receiver looked late, is not
delayed again.

Paper: Chen et al. 2025 (CrossPipe), section 6.4.
"""

import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from lanterne.errors import InputError
from lanterne.transport.base import (
    LANE_BITS,
    Operation,
    Recv,
    Region,
    Request,
    Send,
    Transport,
    check_ops,
    timeout_error,
)
from lanterne.transport.timeouts import check_timeout_s
from lanterne.transport.wrapper import Wrapper

# The departure times travel on the lane's twin: the lane with this bit set, which MPI's tags have room for.
TWIN = 1 << 12
# Sleeping overshoots by up to this; the last part of a wait yields instead.
SPIN_S = 200e-6
# Who polls naps between (see pauses.py) and would be late by as much: a poll so shortly before the time waits for it.
NEAR_S = 80e-6
DEPARTURE = struct.Struct("<d")


@dataclass(frozen=True)
class Link:
    """One direction between two ranks: `latency_s` and `bandwidth_bytes_per_s` (None: unlimited)."""

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.latency_s < 0 or (self.bandwidth_bytes_per_s is not None and self.bandwidth_bytes_per_s <= 0):
            raise InputError(f"link: got {self}, expected a latency of at least 0 and a bandwidth above 0")

    def occupied_s(self, nbytes: int) -> float:
        """Seconds that a message of `nbytes` keeps the link busy."""
        return nbytes / self.bandwidth_bytes_per_s if self.bandwidth_bytes_per_s else 0.0


FREE = Link()
# By (source, destination).
Links: TypeAlias = Mapping[tuple[int, int], Link]


class Ends:
    """One rank's ends of emulated links: when each message leaves, and when it has arrived.

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
        # When this rank's end is free again, sending (by peer, where links are separate) and receiving; for rendezvous,
        # by peer.
        self._egress_free_s: dict[int | None, float] = {}
        self._ingress_free_s = 0.0
        self._met_s: dict[int, float] = {}

    @property
    def shares_ingress(self) -> bool:
        """Whether messages of several senders come in one after the other, in the order in which they begin to."""
        return not (self.separate or self.rendezvous)

    def link(self, source: int, destination: int) -> Link:
        """The Link from `source` to `destination` as it is now."""
        return self.links.get((source, destination), FREE)

    def leave(self, peer: int, nbytes: int, now_s: float) -> tuple[float, float]:
        """(departure, end), of time.monotonic(), of a message sent to `peer` now: it occupies the link between."""
        if self.rendezvous:
            return now_s, now_s  # The receiver knows better.
        link = self.link(self.rank, peer)
        busy_s = link.occupied_s(nbytes) + (link.latency_s if self.in_order else 0.0)
        if not busy_s and not self.in_order:
            return now_s, now_s
        end = peer if self.separate and not self.in_order else None
        departure_s = max(now_s, self._egress_free_s.get(end, 0.0))
        if departure_s + busy_s > now_s:
            self._egress_free_s[end] = departure_s + busy_s
        return departure_s, departure_s + busy_s

    def arrive(self, peer: int, nbytes: int, departure_s: float, posted_s: float = 0.0) -> float:
        """When a message that left `peer` at `departure_s` has wholly arrived; occupies this rank's link till then.

        Args:
            posted_s: when it was posted for, which matters where ends have to meet.
        """
        link = self.link(peer, self.rank)
        occupied_s = link.occupied_s(nbytes)
        if self.rendezvous:
            self._met_s[peer] = max(departure_s, posted_s, self._met_s.get(peer, 0.0)) + occupied_s
            return self._met_s[peer] + link.latency_s
        start_s = departure_s + link.latency_s
        if not occupied_s or self.separate:
            return start_s + occupied_s
        self._ingress_free_s = max(start_s, self._ingress_free_s) + occupied_s
        return self._ingress_free_s


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
        super().__init__(inner, f"shaped-{inner.name}")
        self.ends: Ends = Ends(inner.rank, links, in_order=in_order, separate=separate, rendezvous=rendezvous)
        self._words: list[Region] = []

    def link(self, source: int, destination: int) -> Link:
        """The Link from `source` to `destination` as it is now."""
        return self.ends.link(source, destination)

    def set_link(self, source: int, destination: int, link: Link) -> None:
        """Change one link from now on; the messages under way keep their times. Call it alike on both ends."""
        self.ends.links[source, destination] = link

    def post(self, ops: Sequence[Operation]) -> "ShapedRequest":
        # What posting itself takes is a part of the link's time.
        now_s = time.monotonic()
        check_ops(self, ops)
        for op in ops:
            if (lane := op.tag & ((1 << LANE_BITS) - 1)) >= TWIN:
                raise InputError(f"{self.name}: got lane {lane}, expected less than {TWIN}")
        # Sends: when the link is free again. Receives: the link and the bytes that will tell the departure.
        inner_ops: list[Operation] = []
        releases: list[tuple[float, int]] = []
        arrivals: list[_Arrival] = []
        words: list[Region] = []
        for op in ops:
            inner_ops.append(op)
            if op.peer == self.rank:
                continue
            if type(op) is Send:
                departure_s, end_s = self.ends.leave(op.peer, op.nbytes, now_s)
                if end_s > now_s:
                    releases.append((end_s, op.peer))
                words.append(word := self._word())
                assert word.buffer is not None
                DEPARTURE.pack_into(word.buffer, 0, departure_s)
                inner_ops.append(Send(word, 0, DEPARTURE.size, op.peer, op.tag | TWIN))
            else:
                words.append(word := self._word())
                inner_ops.append(Recv(word, 0, DEPARTURE.size, op.peer, op.tag | TWIN))
                arrivals.append((op.peer, op.nbytes, word, now_s))
        return ShapedRequest(self, self.inner.post(inner_ops), releases, arrivals, words)

    def _word(self) -> Region:
        """A Region for a departure time; `give_back` takes it."""
        return self._words.pop() if self._words else self.inner.register(bytearray(DEPARTURE.size))

    def give_back(self, words: Iterable[Region]) -> None:
        """Take Regions that `_word` gave, of operations that are complete."""
        self._words += words


# (peer, nbytes, where its departure is told, when it was posted for).
_Arrival: TypeAlias = tuple[int, int, Region, float]


class ShapedRequest(Request):
    """Complete once the inner request is and the emulated links have let the last byte through."""

    __slots__ = ("_arrivals", "_coming", "_held", "_inner", "_transport", "_words")

    def __init__(
        self,
        transport: ShapedTransport,
        inner: Request,
        releases: list[tuple[float, int]],
        arrivals: list[_Arrival],
        words: list[Region],
    ) -> None:
        self._transport = transport
        self._inner = inner
        self._held = releases
        self._arrivals = arrivals
        # (first byte's arrival, departure, peer, nbytes) of messages that have not begun to come in yet.
        self._coming: list[tuple[float, float, int, int]] = []
        self._words = words

    @property
    def transport(self) -> ShapedTransport:
        return self._transport

    @property
    def due_s(self) -> float:
        """When the emulated links let the last byte through; inf while it is not known."""
        return inf if self._arrivals or self._coming or not self._held else max(self._held)[0]

    def test(self) -> bool:
        if not self._inner.test():
            return False
        if self._arrivals:
            transport = self._transport
            for peer, nbytes, word, posted_s in self._arrivals:
                assert word.buffer is not None
                (departure_s,) = DEPARTURE.unpack(word.buffer)
                link = transport.link(peer, transport.rank)
                if transport.ends.shares_ingress and link.occupied_s(nbytes):
                    first_s = departure_s + link.latency_s
                    self._coming.append((first_s, departure_s, peer, nbytes))
                else:
                    self._held.append((transport.ends.arrive(peer, nbytes, departure_s, posted_s), peer))
            self._arrivals = []
            self._coming.sort()
        if self._words:
            self._transport.give_back(self._words)
            self._words = []
        # A message that leaves a busy sender later must not hold up here what comes from another one before it.
        while self._coming and self._coming[0][0] <= time.monotonic():
            _, departure_s, peer, nbytes = self._coming.pop(0)
            self._held.append((self._transport.ends.arrive(peer, nbytes, departure_s), peer))
        if self._held:
            now_s = time.monotonic()
            last_s = max(release_s for release_s, _ in self._held)
            if now_s < last_s < now_s + NEAR_S:
                while (now_s := time.monotonic()) < last_s:
                    os.sched_yield()
            self._held = [(release_s, peer) for release_s, peer in self._held if release_s > now_s]
        return not (self._held or self._coming)

    def wait(self, timeout_s: float | None = None) -> None:
        # What the inner transport has is safe even if its sender is gone by now: only the clock is waited for.
        limit_s = self._transport.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        deadline_s = time.monotonic() + limit_s
        self._inner.wait(limit_s)
        while not self.test():
            release_s = max([release_s for release_s, _ in self._held] + [first_s for first_s, *_ in self._coming])
            if release_s > deadline_s:
                time.sleep(max(0.0, deadline_s - time.monotonic()))
                raise timeout_error(self._transport, self._held_peers(), limit_s)
            time.sleep(max(0.0, release_s - time.monotonic() - SPIN_S))
            os.sched_yield()

    def pending_peers(self) -> list[int]:
        # Not those of messages held back here: they need nothing more of their senders, who may have left.
        return self._inner.pending_peers()

    def awaited_peers(self) -> list[int]:
        return sorted({*self._inner.pending_peers(), *self._held_peers()})

    def _held_peers(self) -> list[int]:
        return sorted({*(peer for _, peer in self._held), *(peer for _, _, peer, _ in self._coming)})
