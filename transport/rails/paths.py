"""Reliable paths: messages over rails of which any may die at any moment; none is lost and none comes twice.

A path joins two ranks, or their delegates. Its messages are numbered and acknowledged (failover.py), and go over the
first of its rails that lives. Whoever gives a rail up says SWITCH on the next one; the other end then gives it up as
well, and answers with the counts of all that it has received, and GO. What it lacks is sent again then, not before:
what was received may be written over. A dead rail is made again in the background (rail_return.py), and used again
while no message is on its way.

A path may begin `direct`: another transport carries its messages, until whoever uses it gives that up.
Paper: ADAPTRA, section 5.3; differs: no message is lost, and it returns to the first rail.
"""

import select
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from lanterne.errors import TransportError
from lanterne.transport.duplex import BYE, DATA, WHOLE_NBYTES, Garbled
from lanterne.transport.machine import Poller
from lanterne.transport.rails.failover import Incoming, Outgoing
from lanterne.transport.rails.rail import (
    DEPARTED,
    GO,
    MUTE_MS,
    PING,
    PONG,
    RECEIPT,
    SENT,
    SILENT_MS,
    SWITCH,
    Rail,
)
from lanterne.transport.rails.rail_return import RailReturn

Place = TypeVar("Place")
# Index and life of what a path is given up by: of a rail, or of the other transport.
DIRECT = (-1, 0)
# A peer is asked for a sign of life after so long a silence while something is due.
QUIET_S = 0.1


class Message(NamedTuple):
    """Message that may have to be sent again: its memory stays as it is until it is received.

    `landed`: a function that returns how many bytes are in memory by now; None: all of them.
    """

    payload: memoryview
    departure_ns: int = 0
    landed: Callable[[], int] | None = None


class Path(Generic[Place]):
    """What one end knows of the path to a peer.

    Args:
        granted: messages of a tag that may be sent before the peer has posted receives for them; inf: any number.
        is_direct: whether another transport carries the messages at first.

    Attributes:
        rails: the living ones, that in use first.
        awaits: index and life of what was given up while it was in use; None once the peer has said GO.
        receives: the places of messages that have not come, by tag and number; `unfinished`, messages not received.
        news: tags of which messages were received since the peer was told.
        heard_s, asked_s: when something was received, and when the peer was last asked for a sign of life.
        has_left: the peer has ended in order.
    """

    def __init__(self, rank: int, *, granted: float = 0, is_direct: bool = False) -> None:
        self.rank = rank
        self.is_direct = is_direct
        self.rails: list[Rail] = []
        self.awaits: tuple[int, int] | None = None
        self.receives: dict[tuple[int, int], Place] = {}
        self.unfinished = 0
        self.news: set[int] = set()
        self.heard_s: float = 0.0
        self.asked_s: float = 0.0
        self.has_left = False
        self._granted = granted
        # By tag.
        self._outgoing: dict[int, Outgoing[Message]] = {}
        self._incoming: dict[int, Incoming] = {}

    @property
    def is_due(self) -> bool:
        """Whether something is to come from the peer, or to be received by it."""
        return bool(self.receives) or (self.unfinished > 0 and not self.is_direct)

    # -- messages to the peer

    def submit(self, tag: int, message: Message) -> int:
        """Send `message` after those before of its tag; return its number."""
        self.unfinished += 1
        return self._flow(tag).submit(message)

    def receipt(self, tag: int, received: int, granted: int) -> list[Message]:
        """Take the counts of the peer; return the messages of which it is news that they were received."""
        if self._granted == inf and tag not in self._outgoing:
            return []  # The tag is over.
        flow = self._flow(tag)
        flow.grant(granted)
        news = flow.receipt(received)
        self.unfinished -= len(news)
        return news

    def _flow(self, tag: int) -> Outgoing[Message]:
        flow = self._outgoing.get(tag)
        if flow is None:
            flow = self._outgoing[tag] = Outgoing(self._granted)
        return flow

    def take(self) -> tuple[int, int, Message] | None:
        """(tag, number, message) of the one that is to be sent now; None if there is none."""
        for tag, flow in self._outgoing.items():
            if (item := flow.take()) is not None:
                return tag, *item
        return None

    def rewind(self) -> None:
        """See Outgoing.rewind, of all tags."""
        for flow in self._outgoing.values():
            flow.rewind()

    def sent(self) -> list[tuple[int, int]]:
        """[(tag, messages submitted)] of the tags of which the peer may lack some."""
        return [(tag, flow.submitted) for tag, flow in self._outgoing.items() if flow.unfinished]

    # -- messages from the peer

    def post(self, tag: int, place: Place) -> int:
        """Receive the next message of a tag in `place`; return its number."""
        flow = self._incoming.get(tag)
        if flow is None:
            flow = self._incoming[tag] = Incoming()
        number = flow.post()
        self.receives[tag, number] = place
        return number

    def has(self, tag: int, number: int) -> bool:
        """Return whether a message was received before."""
        flow = self._incoming.get(tag)
        return flow is not None and flow.has(number)

    def lacks(self, tag: int, sent: int) -> bool:
        """Return whether, of `sent` messages of a tag, one has not come that a receive waits for."""
        flow = self._incoming.get(tag)
        return flow is not None and flow.received < min(sent, flow.posted)

    def complete(self, tag: int, number: int) -> Place:
        """Record that a message was received whole; return its place."""
        self._incoming[tag].complete(number)
        self.news.add(tag)
        return self.receives.pop((tag, number))

    def forget(self, is_over: Callable[[int], bool]) -> None:
        """Drop all that is known of tags that are over."""
        for tag in [tag for tag in self._outgoing if is_over(tag)]:
            self.unfinished -= self._outgoing.pop(tag).unfinished
        for tag in [tag for tag in self._incoming if is_over(tag)]:
            del self._incoming[tag]
            self.news.discard(tag)
        for key in [key for key in self.receives if is_over(key[0])]:
            del self.receives[key]
        for rail in self.rails:
            rail.divert(is_over)

    def counts(self, tags: Iterable[int] | None = None) -> list[tuple[int, int, int]]:
        """[(tag, messages received, receives posted)] of `tags`, by default of all."""
        flows = self._incoming
        return [(tag, flows[tag].received, flows[tag].posted) for tag in (flows if tags is None else tags)]


PathOf = TypeVar("PathOf", bound=Path[Any])
PathOf_contra = TypeVar("PathOf_contra", bound=Path[Any], contravariant=True)


class PathOwner(Protocol[PathOf_contra]):
    """Part of whoever uses paths that is called back."""

    def on_place(self, path: PathOf_contra, tag: int, number: int, nbytes: int, /) -> memoryview | None:
        """Return the memory for a message that begins to come; None: it is not wanted.

        Raises:
            TransportError: it cannot be; its rail is given up.
        """
        ...

    def on_message(self, path: PathOf_contra, tag: int, number: int, nbytes: int, departure_ns: int, /) -> None:
        """Take a message that has come whole, wanted or not."""
        ...

    def on_received(self, path: PathOf_contra, messages: list[Message], /) -> None:
        """Take messages back that the peer has received."""
        ...

    def on_ping(self, path: PathOf_contra, /) -> None:
        """Look for messages that have come by another transport: the peer asks what has."""
        ...

    def on_pong(self, path: PathOf_contra, sent: dict[int, int], /) -> None:
        """Take the peer's answer to PING: by tag, how many messages it has sent."""
        ...

    def on_given_up(self, path: PathOf_contra, index: int, why: object, /, *, in_use: bool) -> None:
        """Note that a rail has died, or the other transport (DIRECT)."""
        ...

    def on_returned(self, path: PathOf_contra, index: int, /) -> None:
        """Note that a rail was made again."""
        ...

    def on_lost(self, path: PathOf_contra, why: object, /) -> None:
        """Note that the path is dead: no rail of it is left."""
        ...


class Paths(Generic[PathOf]):
    """The paths of a process to its peers: which rail of each is in use, what goes over it, and which is given up.

    Args:
        paths: one for each peer.
        found: the rails.
        order: rails where it is least are used first; alike at both ends.
        poller: polls rails, and `returns`; its events are for `serve`.
        returns: makes dead rails again; its machine is this one's.

    Attributes: `by_peer`, the paths; `by_fd`, rails by descriptor.
    """

    def __init__(
        self,
        paths: Iterable[PathOf],
        found: Iterable[Rail],
        owner: PathOwner[PathOf],
        order: Callable[[Rail], int],
        poller: Poller,
        returns: RailReturn,
    ) -> None:
        self.by_peer: dict[int, PathOf] = {path.rank: path for path in paths}
        self.by_fd: dict[int, Rail] = {}
        self._owner = owner
        self._order = order
        self._poller = poller
        self._returns = returns
        self._now_s = returns.machine.now_s
        self._told: dict[int, dict[int, int]] = {}  # what a peer says now that it has sent
        self._broken: dict[Rail, OSError] = {}  # rails that take nothing any more
        poller.register(returns, select.POLLIN)
        for rail in sorted(found, key=order):
            self._adopt(rail)

    # -- messages

    def submit(self, path: PathOf, tag: int, message: Message) -> int:
        """Send `message` to a peer; `push` moves it. Return its number."""
        self._settle(path)
        return path.submit(tag, message)

    def push(self, path: PathOf) -> None:
        """Put on the rail in use what may be sent now, and write what it takes."""
        if not path.rails:
            return
        rail = path.rails[0]
        self.flush(rail)
        while path.awaits is None and not path.is_direct and rail.idle and (item := path.take()) is not None:
            tag, number, (payload, departure_ns, landed) = item
            if landed is not None:  # Its first chunks leave while the others are copied.
                departure_ns = round(self._now_s() * 1e9)
            if departure_ns:
                rail.put(DEPARTED, nbytes=departure_ns)
            if landed is None and payload.nbytes <= WHOLE_NBYTES:
                rail.put(DATA, tag, number, payload.nbytes, payload)
            else:
                rail.put_message(tag, number, payload, landed=landed)
            self.flush(rail)

    def flush(self, rail: Rail) -> None:
        """Write what a rail takes."""
        try:
            rail.flush()
        except OSError as error:
            self._broken[rail] = error  # What it still holds is read first.
        self._poller.modify(rail, select.POLLIN if rail.idle else select.POLLIN | select.POLLOUT)

    def tell_counts(self, path: PathOf, tags: Iterable[int] | None = None) -> None:
        """Tell a peer what was received and what receives are posted of `tags`, by default where messages came since.

        `flush` or `push` moves it.
        """
        if path.rails:
            for counts in path.counts(path.news if tags is None else tags):
                path.rails[0].put(RECEIPT, *counts)
            path.news.clear()

    # -- which rail

    def _adopt(self, rail: Rail) -> None:
        """Serve a rail, after those that its path has."""
        path = self.by_peer[rail.peer]
        path.heard_s = self._now_s()
        rail.owner = self
        path.rails.append(rail)
        self.by_fd[rail.fileno()] = rail
        self._poller.register(rail, select.POLLIN)

    def _take_back(self, rail: Rail) -> None:
        """Serve a rail that was made again; it is used once no message is on its way."""
        path = self.by_peer.get(rail.peer)
        if path is None or path.has_left or not (path.rails or path.is_direct):
            rail.close()
            return
        before = [other for other in path.rails if other.index == rail.index]
        self._adopt(rail)
        for other in before:
            self.drop(other, "it was made again")
        self._settle(path)
        self._owner.on_returned(path, rail.index)

    def _settle(self, path: PathOf) -> None:
        """Use the first of the living rails, one that came back too; only while no message is on its way."""
        if len(path.rails) > 1 and path.awaits is None and (path.is_direct or not path.unfinished):
            path.rails.sort(key=self._order)

    def leave_direct(self, path: PathOf, why: object) -> None:
        """Use rails: the other transport, which has carried the messages of a path, is dead."""
        path.is_direct = False
        self._give_up(path, *DIRECT, why, in_use=True)

    def drop(self, rail: Rail, why: object) -> None:
        """Go on over the next rail: this one is dead."""
        path = self.by_peer[rail.peer]
        if rail not in path.rails:
            return
        in_use = path.rails[0] is rail and not path.is_direct
        path.rails.remove(rail)
        self._poller.unregister(rail)
        del self.by_fd[rail.fileno()]
        rail.close()
        if not path.has_left and (path.rails or path.is_direct):
            self._returns.lost(rail)
        self._give_up(path, rail.index, rail.life, why, in_use=in_use)

    def _give_up(self, path: PathOf, index: int, life: int, why: object, *, in_use: bool) -> None:
        self._owner.on_given_up(path, index, why, in_use=in_use)
        if not path.rails:
            if in_use:
                self._owner.on_lost(path, why)
            return
        if in_use:
            path.awaits = index, life
            path.rewind()
        path.rails[0].put(SWITCH, index, life, path.is_direct)
        self.push(path)

    # -- what comes

    def serve(self, fd: int, event: int) -> None:
        """Read and write what poll() has named; what is not of these paths is left alone."""
        if fd == self._returns.fileno():
            for found in self._returns.take():
                self._take_back(found)
        if (rail := self.by_fd.get(fd)) is not None:
            path = self.by_peer[rail.peer]
            if not path.is_direct:
                path.heard_s = self._now_s()
            if event & ~select.POLLOUT:
                self._read(rail)
            if rail in path.rails:
                self.flush(rail)
            if path.news and not path.is_direct:
                self.tell_counts(path)
            self.push(path)
        while self._broken:
            rail, error = self._broken.popitem()
            self._read(rail)
            self.drop(rail, error)

    def _read(self, rail: Rail) -> None:
        try:
            rail.read()
        except (OSError, EOFError, Garbled, TransportError) as error:
            self.drop(rail, error)

    def look_for_silence(self, now_s: float) -> None:
        """Ask silent peers for a sign of life, and give up rails that carry no question.

        The last one is given up later: a peer that only computes, and reads nothing, must not be taken for a lost host.
        """
        for path in self.by_peer.values():
            if now_s > max(path.heard_s, path.asked_s) + QUIET_S and path.rails and path.is_due:
                path.asked_s = now_s
                rail = path.rails[0]
                if rail.is_silent(SILENT_MS if len(path.rails) == 1 else MUTE_MS):
                    self.drop(rail, "nothing that is sent over it is acknowledged")
                else:
                    self.ask(path)

    def ask(self, path: PathOf) -> None:
        """Ask a peer for counts of what it has received and sent."""
        path.rails[0].put(PING)
        self.flush(path.rails[0])

    def on_rail_place(self, rail: Rail, tag: int, number: int, nbytes: int) -> memoryview:
        """See RailOwner."""
        path = self._path_of(rail)
        # What is left of it on a rail that its sender gave up must not be written over what takes its place later.
        for other in [each for each in path.rails if each.taking == (tag, number) and each is not rail]:
            self.drop(other, "the peer gave the path up")
        place = self._owner.on_place(path, tag, number, nbytes)
        return memoryview(bytearray(nbytes)) if place is None else place

    def _path_of(self, rail: Rail) -> PathOf:
        path = self.by_peer[rail.peer]
        if rail not in path.rails:
            raise EOFError("it was given up")
        return path

    def on_rail_frame(
        self, rail: Rail, kind: int, first: int, second: int, third: int, message: memoryview | None
    ) -> None:
        """See RailOwner."""
        path, owner = self._path_of(rail), self._owner
        if kind == DATA:
            if message is not None:  # It came as a part of the frame.
                self.on_rail_place(rail, first, second, third)[:] = message
            owner.on_message(path, first, second, third, rail.departed_ns)
            rail.departed_ns = 0
        elif kind == DEPARTED:
            rail.departed_ns = third
        elif kind == RECEIPT:
            if received := path.receipt(first, second, third):
                owner.on_received(path, received)
        elif kind == SWITCH:
            if path.is_direct and not third:
                self.leave_direct(path, "the peer gave the path up")
            for other in [each for each in path.rails if (each.index, each.life) == (first, second)]:
                if other is not rail:
                    self.drop(other, "the peer gave the path up")
            for counts in path.counts():
                rail.put(RECEIPT, *counts)
            rail.put(GO, first, second)
        elif kind == GO:
            if path.awaits == (first, second):
                path.awaits = None
        elif kind == PING:
            owner.on_ping(path)
            self.tell_counts(path)
            for tag, count in path.sent():
                rail.put(SENT, tag, count)
            rail.put(PONG)
        elif kind == SENT:
            self._told.setdefault(rail.peer, {})[first] = second
        elif kind == PONG:
            owner.on_pong(path, self._told.pop(rail.peer, {}))
        elif kind == BYE:
            path.has_left = True
        else:
            raise Garbled(f"got a frame of kind {kind}")

    def close(self) -> None:
        """Say goodbye on every rail, and make none again."""
        for rail in list(self.by_fd.values()):
            rail.put(BYE)
            with suppress(OSError):
                rail.flush()
            rail.close()
        self._returns.close()
