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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from lanterne.errors import LanterneError, TransportError
from lanterne.transport.duplex import BYE
from lanterne.transport.machine import THIS_MACHINE, Machine, Poller, Wakeup
from lanterne.transport.rails import rail as rails
from lanterne.transport.rails.delegate_memory import RING_WORDS, Ring, landed_counter, landed_of, map_memory
from lanterne.transport.rails.paths import QUIET_S, Message, Path, Paths
from lanterne.transport.rails.rail import Address, Meeting, Rail
from lanterne.transport.rails.rail_return import RailReturn
from lanterne.transport.timeouts import FAREWELL_S, SETUP_S

# Notes of the rank: SEND peer offset nbytes departure_ns, or the ticket of a message that a device still copies there;
# RECEIVE peer offset nbytes; CLOSE 0.
SEND, RECEIVE, CLOSE = range(1, 4)
# Notes to it: SENT peer count: messages that are news; RECEIVED peer departure_ns; DROPPED peer rail left: a rail has
# died; RETURNED peer rail: it was made anew; LOST peer: the last has died; MISFIT peer got expected: a message has
# another size than its receive.
SENT, RECEIVED, DROPPED, RETURNED, LOST, MISFIT = range(1, 7)


# Messages to a peer, and from it, are of one tag.
TAG = 0
# The places of messages are (offset, nbytes) in the arena.
DelegatePath: TypeAlias = Path[tuple[int, int]]


class DelegateLoop:
    """The loop of one delegate.

    Args:
        control: the socket whose other end the rank holds.
        wakeup: what the rank sets when this process sleeps.
        ring, back: from the rank and to it.
        arena: the rank's arena.
        order: rails where it is least are used first.
        returns: makes dead rails again; its machine is this one's.
    """

    def __init__(
        self,
        control: socket.socket,
        wakeup: Wakeup,
        ring: Ring,
        back: Ring,
        arena: memoryview,
        found: Collection[Rail],
        order: Callable[[Rail], int],
        returns: RailReturn,
    ) -> None:
        self.control = control
        self.wakeup = wakeup
        self.ring = ring
        self.back = back
        self.arena = arena
        self.landed: memoryview = landed_counter(arena)
        self.now_s: Callable[[], float] = returns.machine.now_s
        self.poll: Poller = returns.machine.poller()
        for each in (control, wakeup):
            self.poll.register(each, select.POLLIN)
        self.peers: dict[int, DelegatePath] = {rail.peer: Path(rail.peer) for rail in found}
        self.lost: set[int] = set()
        self.paths: Paths[DelegatePath] = Paths(self.peers.values(), found, self, order, self.poll, returns)

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
                else:
                    self.paths.serve(fd, event)
            self.paths.look_for_silence(self.now_s())
            self.back.flush()
        self.say_goodbye()

    def sleep_ms(self) -> float | None:
        """How long to sleep at most; None: until something comes."""
        if self.back.backlog:
            return 1
        return 1e3 * QUIET_S if any(path.is_due and path.rails for path in self.peers.values()) else None

    def take_notes(self) -> bool:
        """Do what the rank has asked for; False once that is to end."""
        posted: dict[int, bool] = {}
        goes_on = True
        while (note := self.ring.take()) is not None:
            kind, number, offset, nbytes, departure_ns = note
            if kind == CLOSE:
                goes_on = False
                break
            path = self.peers[number]
            if kind == SEND:
                landed = partial(landed_of, self.landed, departure_ns, nbytes) if departure_ns < 0 else None
                self.paths.submit(path, TAG, Message(self.arena[offset : offset + nbytes], departure_ns, landed))
            else:
                path.post(TAG, (offset, nbytes))
            posted[number] = posted.get(number, False) or kind != SEND
        for number, has_receives in posted.items():
            path = self.peers[number]
            if not path.rails:
                self.lose(path)
                continue
            if has_receives:
                self.paths.tell_counts(path, (TAG,))
            self.paths.push(path)
        return goes_on

    def lose(self, path: DelegatePath) -> None:
        """Tell the rank, once, that the last rail to a peer is dead."""
        if path.rank not in self.lost:
            self.lost.add(path.rank)
            self.back.put(LOST, path.rank, int(path.has_left))

    # -- see PathOwner

    def on_place(self, path: DelegatePath, tag: int, number: int, nbytes: int) -> memoryview | None:
        if path.has(tag, number):
            return None
        ((_, received, granted),) = path.counts((tag,))
        if number != received or (place := path.receives.get((tag, number))) is None:
            raise TransportError(f"flow: got message {number}, expected {received} of {granted} granted")
        offset, expected = place
        if nbytes != expected:
            self.back.put(MISFIT, path.rank, nbytes, expected)
            raise TransportError(f"got a message of {nbytes} bytes, expected {expected}")
        return self.arena[offset : offset + nbytes]

    def on_message(self, path: DelegatePath, tag: int, number: int, nbytes: int, departure_ns: int) -> None:
        if not path.has(tag, number):
            path.complete(tag, number)
            self.back.put(RECEIVED, path.rank, departure_ns)

    def on_received(self, path: DelegatePath, messages: Sequence[Message]) -> None:
        self.back.put(SENT, path.rank, len(messages))

    def on_ping(self, path: DelegatePath) -> None:
        pass

    def on_pong(self, path: DelegatePath, sent: Mapping[int, int]) -> None:
        pass

    def on_given_up(self, path: DelegatePath, index: int, why: object, *, in_use: bool) -> None:
        if path.rails:
            self.back.put(DROPPED, path.rank, index, len(path.rails))

    def on_returned(self, path: DelegatePath, index: int) -> None:
        self.back.put(RETURNED, path.rank, index)

    def on_lost(self, path: DelegatePath, why: object) -> None:
        if not path.has_left or path.unfinished:
            self.lose(path)

    def say_goodbye(self) -> None:
        """Get out what is under way, and tell the peers that the end of this process is no death."""
        for rail in list(self.paths.by_fd.values()):
            rail.put(BYE)
            self.paths.flush(rail)
        deadline_s = self.now_s() + FAREWELL_S
        while self.now_s() < deadline_s and any(not rail.idle for rail in self.paths.by_fd.values()):
            for fd, event in self.poll.poll(10):
                self.paths.serve(fd, event)


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
    meeting = Meeting([each[0] for each in listening if each], hosts, addresses, rank, token, machine)
    found = rails.join(meeting, SETUP_S)
    # The same order at both ends. Each queue begins with another rail, so that all network cards are used.
    count, queue = len(hosts), config["queue"]
    made = [proven.rail(*key) for key, proven in sorted(found.items())]
    return made, lambda rail: (rail.index - queue) % count, RailReturn(meeting)


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
