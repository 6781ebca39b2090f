"""A world of virtual time: ports of a rate, ranks whose work costs nothing, letters to the board that take their time.

All ranks live in one thread. A message of more than SMALL_NBYTES leaves once its receive is posted and a start has
passed, and then takes the sender's port, and the receiver's, as long as the rate of each says, one message after the
other; it has come no sooner than the slower one has it.
Ranks of a node share its port, and what goes between them takes INSIDE of that time, of ports of their own. So what a
call takes is a number, the same on every machine: of protocol and schedules, not of whoever else computes here.
"""

import heapq
from collections import defaultdict, deque
from itertools import count

from ordered_world import OrderedTransport

from lanterne.transport.base import Capabilities, Send
from lanterne.transport.board.seat import LocalBoards, LocalSeat
from lanterne.transport.machine import Machine

RATE_BYTES_PER_S = 25e6
# From the match of a message to its first byte; of a letter to the board, and of a record from it.
START_S, LETTER_S = 1e-4, 1e-3
SMALL_NBYTES = 8192
INSIDE = 0.02


class TimedWorld(Machine):
    """What `world_size` ranks share; `run` lets time pass.

    Attributes: `at_s`, what the clock says.
    """

    def __init__(self, world_size, letter_s=LETTER_S, slowdown=None, nodes=()):
        self.world_size, self.letter_s, self.at_s = world_size, letter_s, 0.0
        # By rank, how much slower its ports are.
        self.slowdown = slowdown or [1.0] * world_size
        self.boards = LocalBoards(self)
        self.transports = [TimedTransport(self, rank) for rank in range(world_size)]
        self.seats = defaultdict(list)  # by board
        self._events, self._order = [], count()
        self._unmatched = defaultdict(lambda: (deque(), deque()))
        # The node of each rank; by node, or within one by rank, until when its ports are taken.
        self._node_of = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
        self._out_s, self._in_s = defaultdict(float), defaultdict(float)
        # Of a rank whose calls may have something to do now.
        self.woken = set()

    def now_s(self):
        """See Machine."""
        return self.at_s

    def sleep(self, seconds):
        """See Machine."""
        self.at_s += seconds

    def give_way(self):
        """See Machine."""
        self.at_s += 1e-6

    def at(self, at_s, event):
        """Let `event()` happen at `at_s`."""
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def run(self, polls, is_over):
        """Let things happen until `is_over()`; `polls`: of each rank, what makes progress."""
        while not is_over():
            while self.woken:
                for rank in sorted(self.woken):
                    self.woken.discard(rank)
                    if polls[rank]():
                        self.woken.add(rank)
            if is_over():
                break
            at_s, _, event = heapq.heappop(self._events)
            self.at_s = max(self.at_s, at_s)
            event()

    # -- messages

    def post(self, rank, op, request):
        """One operation of `rank`."""
        source, target = (rank, op.peer) if type(op) is Send else (op.peer, rank)
        sends, receives = self._unmatched[source, target, op.tag]
        if type(op) is Send:
            small = op.nbytes <= SMALL_NBYTES
            sends.append((source, op, request, _read(op) if small else None))
            if small:
                self.at(self.at_s, lambda: self._finish(source, request, target))
        else:
            receives.append((target, op, request))
        while sends and receives:
            nodes = self._node_of.get(source, -1), self._node_of.get(target, -2)
            inside = nodes[0] == nodes[1]
            slowdown = (INSIDE, INSIDE) if inside else (self.slowdown[source], self.slowdown[target])
            message = _Message(sends.popleft(), receives.popleft(), slowdown)
            if nodes[0] != nodes[1]:
                message.ports = tuple(
                    ("node", node) if node >= 0 else rank for node, rank in zip(nodes, (source, target), strict=True)
                )
            self.at(self.at_s + START_S, lambda message=message: self._leave(message))

    def _leave(self, message):
        """It stands behind what its sender has sent before."""
        begins_s = max(self.at_s, self._out_s[message.ports[0]])
        self._out_s[message.ports[0]] = begins_s + message.leaves_s
        self.at(begins_s, lambda: self._enter(message))
        self.at(begins_s + message.leaves_s, lambda: self._have_left(message))

    def _have_left(self, message):
        message.read()
        self._finish(message.source, message.send_request, message.target)

    def _enter(self, message):
        """The network holds it until its receiver's port has taken in what came before."""
        ends_s = max(self.at_s, self._in_s[message.ports[1]]) + message.enters_s
        self._in_s[message.ports[1]] = ends_s
        self.at(max(ends_s, self.at_s + message.leaves_s), lambda: self._arrive(message))

    def _arrive(self, message):
        message.deliver()
        self._finish(message.target, message.receive_request, message.source)

    def _finish(self, rank, request, peer):
        if peer in request.pending_peers():
            request.finish(peer)
        self.woken.add(rank)

    def seat(self, key, rank):
        """The seat of `rank` at board `key`."""
        return TimedSeat(self, key, rank)


def _read(op):
    return bytes(op.region.buffer[op.offset : op.offset + op.nbytes])


class _Message:
    """A message on its way."""

    def __init__(self, send, receive, slowdown):
        self.source, self._send, self.send_request, self._data = send
        self.target, self._receive, self.receive_request = receive
        assert self._send.nbytes == self._receive.nbytes, "a message met a receive of another size"
        self.leaves_s, self.enters_s = (each * self._send.nbytes / RATE_BYTES_PER_S for each in slowdown)
        # What it takes of its sender and its receiver.
        self.ports = self.source, self.target

    def read(self):
        if self._data is None:
            self._data = _read(self._send)

    def deliver(self):
        op = self._receive
        op.region.buffer[op.offset : op.offset + op.nbytes] = self._data


class TimedTransport(OrderedTransport):
    """One rank's end of a TimedWorld."""

    name = "timed"
    capabilities = Capabilities(receiver_paced_nbytes=SMALL_NBYTES + 1)

    def __init__(self, world, rank):
        super().__init__(world, rank)
        self.pauses = world.pauses(1)


class TimedSeat:
    """A seat whose letters and records take `letter_s` each."""

    def __init__(self, world, key, rank):
        self._world, self._rank, self._records = world, rank, deque()
        self._inner = LocalSeat(world.boards, key, rank, world.world_size)
        self._all = world.seats[key]
        self._all.append(self)

    def __getattr__(self, verb):
        def tell(*args, **options):
            self._world.at(self._world.at_s + self._world.letter_s, lambda: self._reach(verb, args, options))

        return tell

    def _reach(self, verb, args, options):
        getattr(self._inner, verb)(*args, **options)
        self._look()

    def _look(self):
        """What the board has said leaves for the ranks; it looks again when a window ends."""
        world = self._world
        for seat in self._all:
            while (record := seat._inner.take()) is not None:
                world.at(world.at_s + world.letter_s, lambda seat=seat, record=record: seat._bring(record))
        deadline_s = self._inner._sequencer.deadline_s()
        if deadline_s is not None:
            world.at(max(deadline_s, world.at_s), self._look if deadline_s > world.at_s else lambda: None)

    def _bring(self, record):
        self._records.append(record)
        self._world.woken.add(self._rank)

    def take(self):
        """As LocalSeat.take."""
        return self._records.popleft() if self._records else None
