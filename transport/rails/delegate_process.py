"""A delegate: the process that sends and receives one queue of a rank's messages, so that the rank never waits.

Started by delegate_transport.py as `python -m lanterne.transport.rails.delegate_process FD ...`. It takes notes from
its rank's ring ("send these bytes of the arena to rank 2", "receive into these"), moves messages over its rails, and
puts notes into the ring back. It ends when its rank closes the control socket, however that came about.
Paper: ADAPTRA, section 5.2, figure 10; differs: a delegate serves all neighbours and both directions, a slow one
holding up no other.
"""

import json
import os
import select
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lanterne.errors import LanterneError, TransportError
from lanterne.transport.machine import THIS_MACHINE, Machine, Poller, Wakeup
from lanterne.transport.rails import rail as rails
from lanterne.transport.rails.delegate_memory import RING_WORDS, Ring, landed_counter, landed_of, map_memory
from lanterne.transport.rails.failover import Incoming, Outgoing
from lanterne.transport.rails.rail import BYE, DATA, GRANT, PING, PONG, RECEIPT, SILENT_MS, SWITCH, Address, Frame, Rail
from lanterne.transport.rails.rail_return import RailReturn
from lanterne.transport.wire import configure

# Notes of the rank: SEND peer offset nbytes departure_ns, or the ticket of a message that a device still copies there;
# RECEIVE peer offset nbytes; CLOSE 0.
SEND, RECEIVE, CLOSE = range(1, 4)
# Notes to it: SENT peer count: messages that are news; RECEIVED peer departure_ns; DROPPED peer rail left: a rail has
# died; RETURNED peer rail: it was made anew; LOST peer: the last has died; MISFIT peer got expected: a message has
# another size than its receive.
SENT, RECEIVED, DROPPED, RETURNED, LOST, MISFIT = range(1, 7)


SETUP_S = 30.0  # a large job on a busy machine
# A rail over which something is due is asked for a sign of life after ping_s of silence, and given up, if there is
# another, when none came for answer_s.
PING_S = 0.15  # a tenth of a pipeline's iteration
ANSWER_S = 0.35  # above the stops of a busy host
# How often the last rail to a peer of which something is due is looked at: whether its kernel answers at all.
SILENCE_S = 0.5  # chosen: 1 us a peer
# How long a delegate that is to end tries to get the last receipts out.
FAREWELL_S = 1.0


class DelegatePeer:
    """What a delegate knows of another rank: a flow each way, and the living rails, the one in use first."""

    __slots__ = ("has_left", "incoming", "is_lost", "outgoing", "rails")

    def __init__(self) -> None:
        # Messages of (offset, nbytes, departure_ns), and places of (offset, nbytes).
        self.outgoing: Outgoing[tuple[int, int, int]] = Outgoing()
        self.incoming: Incoming[tuple[int, int]] = Incoming()
        self.rails: list[Rail] = []
        self.has_left: bool = False
        self.is_lost: bool = False

    @property
    def is_due(self) -> bool:
        """Whether something is to come from the peer, or to be received by it."""
        return bool(self.outgoing.unfinished) or self.incoming.granted > self.incoming.received


class DelegateRails:
    """The living rails of a delegate to all peers: which of a peer's is used, what goes on it, and which is given up.

    Args:
        poll: they are put into it.
        back: the ring to the rank.
        arena: the rank's arena.
        order: rails where it is least are used first.
        returns: makes dead rails anew; its machine is this one's.

    Attributes: `peers`, and `by_fd`, rails by descriptor.
    """

    def __init__(
        self,
        poll: Poller,
        back: Ring,
        arena: memoryview,
        found: Iterable[Rail],
        order: Callable[[Rail], int],
        returns: RailReturn,
    ) -> None:
        self.poll = poll
        self.back = back
        self.arena = arena
        self.order = order
        self.returns = returns
        self.now_s: Callable[[], float] = returns.machine.now_s
        self.landed: memoryview = landed_counter(arena)
        self.peers: dict[int, DelegatePeer] = {}
        self.by_fd: dict[int, Rail] = {}
        self._look_s = 0.0  # when the last rails are looked at next
        for rail in sorted(found, key=order):
            rail.sock.setblocking(False)
            self.peers.setdefault(rail.peer, DelegatePeer())
            self.adopt(rail)

    @property
    def patience_s(self) -> float | None:
        """After which time silence has to be looked for; None: nothing is due."""
        have_several = [len(peer.rails) > 1 for peer in self.peers.values() if peer.rails and peer.is_due]
        return min((PING_S if several else SILENCE_S for several in have_several), default=None)

    def adopt(self, rail: Rail) -> None:
        """Serve a rail, after those that its peer has."""
        rail.alive_s = self.now_s()
        self.peers[rail.peer].rails.append(rail)
        self.by_fd[rail.fileno()] = rail
        self.poll.register(rail, select.POLLIN)

    def take_back(self, rail: Rail) -> None:
        """A rail was made anew: it is used once nothing is on its way, see `settle`."""
        peer = self.peers.get(rail.peer)
        if peer is None or not peer.rails or peer.has_left:
            rail.close()
            return
        before = [other for other in peer.rails if other.index == rail.index]
        self.adopt(rail)
        for other in before:
            self.drop(other, tell=False)
        self.back.put(RETURNED, rail.peer, rail.index)

    def settle(self, peer: DelegatePeer) -> None:
        """Use the first of the living rails, one that came back too; only while nothing is on its way on another."""
        if len(peer.rails) > 1 and not peer.outgoing.unfinished:
            before = peer.rails[0]
            peer.rails.sort(key=self.order)
            if peer.rails[0] is not before:
                self.tell_counts(peer)

    def tell_counts(self, peer: DelegatePeer) -> None:
        """Another rail is used: say there what may have been lost with the one before."""
        peer.rails[0].put(RECEIPT, peer.incoming.received)
        peer.rails[0].put(GRANT, peer.incoming.granted)
        self.push(peer.rails[0])

    def push(self, rail: Rail) -> None:
        """Put on a rail what may be sent now, if it is the one in use, and write what the rail takes."""
        peer = self.peers[rail.peer]
        if rail not in peer.rails:
            return
        try:
            rail.flush()
            while peer.rails[0] is rail and rail.idle and (item := peer.outgoing.take()) is not None:
                number, (offset, nbytes, departure_ns) = item
                landed = None
                if departure_ns < 0:
                    # Its first chunks leave while the others are copied.
                    landed = partial(landed_of, self.landed, departure_ns, nbytes)
                    departure_ns = round(self.now_s() * 1e9)
                payload = self.arena[offset : offset + nbytes]
                rail.put(DATA, number, nbytes, departure_ns, payload=payload, landed=landed)
                rail.flush()
        except OSError:
            self.drop(rail)
            return
        self.poll.modify(rail, select.POLLIN if rail.idle else select.POLLIN | select.POLLOUT)

    def drop(self, rail: Rail, *, tell: bool = True) -> None:
        """A rail is dead: go on over the next. `tell`: the peer does not know."""
        peer = self.peers[rail.peer]
        if rail not in peer.rails:
            return
        was_in_use = peer.rails[0] is rail
        peer.rails.remove(rail)
        self.poll.unregister(rail)
        del self.by_fd[rail.fileno()]
        rail.close()
        if not peer.rails:
            if not peer.has_left or peer.outgoing.unfinished:
                self.lose(rail.peer)
            return
        self.back.put(DROPPED, rail.peer, rail.index, len(peer.rails))
        if not peer.has_left:
            self.returns.lost(rail)
        following = peer.rails[0]
        if tell:
            following.put(SWITCH, rail.index, rail.life)
        if was_in_use:
            peer.outgoing.rewind()
            self.tell_counts(peer)
        else:
            self.push(following)

    def lose(self, number: int) -> None:
        """The last rail to a peer is dead: tell the rank, once."""
        peer = self.peers[number]
        if not peer.is_lost:
            peer.is_lost = True
            self.back.put(LOST, number, int(peer.has_left))

    def look_for_silence(self) -> None:
        """Ask silent rails for a sign of life, and drop those that did not give it; a last one, if its host is lost."""
        now_s = self.now_s()
        look = now_s >= self._look_s
        if look:
            self._look_s = now_s + SILENCE_S
        for peer in self.peers.values():
            if not peer.rails or not peer.is_due:
                continue
            rail = peer.rails[0]
            if len(peer.rails) == 1:
                if look and rail.is_silent:
                    self.drop(rail)
            elif rail.pinged_s is not None and now_s > rail.pinged_s + ANSWER_S:
                self.drop(rail)
            elif rail.pinged_s is None and now_s > rail.alive_s + PING_S:
                rail.pinged_s = now_s
                rail.put(PING)
                self.push(rail)


class DelegateLoop:
    """The loop of one delegate.

    Args:
        control: the socket whose other end the rank holds.
        wakeup: what the rank sets when this process sleeps.
        ring, back: from the rank and to it.
        arena: the rank's arena.
        order: rails where it is least are used first.
        returns: makes dead rails anew; its machine is this one's.
    """

    def __init__(
        self,
        control: socket.socket,
        wakeup: Wakeup,
        ring: Ring,
        back: Ring,
        arena: memoryview,
        found: Iterable[Rail],
        order: Callable[[Rail], int],
        returns: RailReturn,
    ) -> None:
        self.control = control
        self.wakeup = wakeup
        self.ring = ring
        self.back = back
        self.arena = arena
        self.returns = returns
        self.now_s: Callable[[], float] = returns.machine.now_s
        self.poll: Poller = returns.machine.poller()
        for each in (control, wakeup, returns):
            self.poll.register(each, select.POLLIN)
        self.rails: DelegateRails = DelegateRails(self.poll, back, arena, found, order, returns)
        self.peers: dict[int, DelegatePeer] = self.rails.peers

    def run(self) -> None:
        """Serve until the rank says CLOSE, or is gone.

        It sleeps whenever nothing is to be done: polling on would take the core of a rank that computes.
        """
        control = self.control.fileno()
        while self.take_notes():
            events = self.poll.poll(self.sleep_ms()) if self.ring.may_sleep() else self.poll.poll(0)
            self.ring.awake()
            for fd, event in events:
                if fd == control:
                    return
                if fd == self.wakeup.fileno():
                    self.wakeup.clear()
                elif fd == self.returns.fileno():
                    for rail in self.returns.take():
                        self.rails.take_back(rail)
                elif fd in self.rails.by_fd:
                    self.serve(self.rails.by_fd[fd], event)
            self.rails.look_for_silence()
            self.back.flush()
        self.say_goodbye()

    def sleep_ms(self) -> float | None:
        """How long to sleep at most; None: until something comes."""
        if self.back.backlog:
            return 1
        patience_s = self.rails.patience_s
        return None if patience_s is None else 1e3 * patience_s

    def take_notes(self) -> bool:
        """Do what the rank has asked for; False once that is to end."""
        sending: set[int] = set()
        posted: set[int] = set()
        goes_on = True
        while (note := self.ring.take()) is not None:
            kind, number, offset, nbytes, departure_ns = note
            if kind == CLOSE:
                goes_on = False
                break
            self.rails.settle(self.peers[number])
            if kind == SEND:
                self.peers[number].outgoing.submit((offset, nbytes, departure_ns))
                sending.add(number)
            else:
                self.peers[number].incoming.post((offset, nbytes))
                posted.add(number)
        for number in sending | posted:
            peer = self.peers[number]
            if not peer.rails:
                self.rails.lose(number)
                continue
            if number in posted:
                peer.rails[0].put(GRANT, peer.incoming.granted)
            self.rails.push(peer.rails[0])
        return goes_on

    def serve(self, rail: Rail, event: int) -> None:
        """Read and write a rail that poll() named."""
        try:
            # Room for more, where there was none, is a sign of life too.
            rail.alive_s, rail.pinged_s = self.now_s(), None
            if event & ~select.POLLOUT:
                rail.read(self.on_frame)
        except (OSError, EOFError, TransportError):
            self.rails.drop(rail)
            return
        self.rails.push(rail)

    def on_frame(self, rail: Rail, frame: Frame, is_whole: bool) -> memoryview | None:
        """See Rail.read."""
        kind, word, nbytes, departure_ns, _ = frame
        peer = self.peers[rail.peer]
        if rail not in peer.rails:
            raise EOFError("it was given up")
        if kind == DATA and not (is_whole and nbytes):
            place = self.place(rail, peer, word, nbytes)
            if not is_whole:
                return place
        if kind == DATA:
            if peer.incoming.complete(word) is not None:
                self.back.put(RECEIVED, rail.peer, departure_ns)
            # There the sender looks for silence.
            rail.put(RECEIPT, peer.incoming.received)
        elif kind == RECEIPT:
            if received := peer.outgoing.receipt(word):
                self.back.put(SENT, rail.peer, received)
        elif kind == GRANT:
            peer.outgoing.grant(word)
        elif kind == SWITCH:
            given_up = word, nbytes
            for other in [other for other in peer.rails if (other.index, other.life) == given_up and other is not rail]:
                self.rails.drop(other, tell=False)
        elif kind == PING:
            rail.put(PONG)
        elif kind == BYE:
            peer.has_left = True
        return None

    def place(self, rail: Rail, peer: DelegatePeer, number: int, nbytes: int) -> memoryview | None:
        """The memory for the message that begins to come; None: it has come before."""
        place = peer.incoming.place(number)
        # What is left of it on a rail that its sender gave up must not be written over what takes its place later.
        for other in [other for other in peer.rails if other.taking == number and other is not rail]:
            self.rails.drop(other, tell=False)
        if place is None:
            return None
        offset, expected = place
        if nbytes != expected:
            self.back.put(MISFIT, rail.peer, nbytes, expected)
            raise TransportError(f"got a message of {nbytes} bytes, expected {expected}")
        return self.arena[offset : offset + nbytes]

    def say_goodbye(self) -> None:
        """Get out what is under way, and tell the peers that the end of this process is no death."""
        for rail in list(self.rails.by_fd.values()):
            rail.put(BYE)
            self.rails.push(rail)
        deadline_s = self.now_s() + FAREWELL_S
        while self.now_s() < deadline_s and any(not rail.idle for rail in self.rails.by_fd.values()):
            for fd, event in self.poll.poll(10):
                if fd in self.rails.by_fd:
                    self.serve(self.rails.by_fd[fd], event)


def set_up(
    control: socket.socket, config: Mapping[str, Any], machine: Machine
) -> tuple[list[Rail], Callable[[Rail], int], RailReturn]:
    """Listen, tell where, connect to the peers: what DelegateLoop takes last."""
    token: str = config["token"]
    rank: int = config["rank"]
    hosts: list[str | None] = config["rails"]
    listening = [None if host is None else rails.listen(host, machine) for host in hosts]
    say(control, listen=[each and each[1] for each in listening])
    # Peer -> the address of each of its rails, None where there is no such rail between the two.
    addresses: dict[int, list[Address | None]] = {int(peer): theirs for peer, theirs in hear(control).items()}
    meeting = [each[0] for each in listening if each], hosts, addresses, rank, token
    found = rails.join(*meeting, SETUP_S, machine)
    for sock, _ in found.values():
        configure(sock, lost_ms=SILENT_MS, may_stand=True)
    # The same order at both ends. Each queue begins with another rail, so that all network cards are used.
    count, queue = len(hosts), config["queue"]
    made = [Rail(sock, peer, index, seals=seals) for (peer, index), (sock, seals) in sorted(found.items())]
    return made, lambda rail: (rail.index - queue) % count, RailReturn(*meeting, machine)


def say(control: socket.socket, **content: object) -> None:
    """Tell the rank; ends this process if it is gone."""
    try:
        control.sendall(json.dumps(content).encode())
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(0)


def hear(control: socket.socket) -> dict[str, Any]:
    """What the rank tells; ends this process if it is gone."""
    data = control.recv(1 << 20)
    if not data:
        sys.exit(0)
    told: dict[str, Any] = json.loads(data)
    return told


def serve(control: socket.socket, wakeup: Wakeup, arena_fd: int, ring_fd: int, machine: Machine) -> None:
    """Be a delegate until the rank is gone, or has said CLOSE."""
    words = map_memory(ring_fd, 16 * RING_WORDS).cast("q")
    config = hear(control)
    arena = map_memory(arena_fd, os.fstat(arena_fd).st_size)
    try:
        found = set_up(control, config, machine)
    except (LanterneError, OSError) as error:
        say(control, error=str(error))
        return
    say(control, pid=os.getpid())
    ring, back = Ring(words[:RING_WORDS]), Ring(words[RING_WORDS:])
    DelegateLoop(control, wakeup, ring, back, arena, *found).run()


def main(arguments: Sequence[str]) -> None:
    control_fd, wakeup_fd, arena_fd, ring_fd = map(int, arguments)
    control = socket.socket(fileno=control_fd)
    control.settimeout(None)
    # Where it takes the core of a rank that computes, it waits for its turn instead.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(KeyboardInterrupt):
        serve(control, Wakeup(wakeup_fd), arena_fd, ring_fd, THIS_MACHINE)


if __name__ == "__main__":
    main(sys.argv[1:])
