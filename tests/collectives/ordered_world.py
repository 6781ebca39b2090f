"""A world in which a test decides what happens next: messages, arrivals at the board, records and the clock.

All ranks live in one thread, and their calls advance only when the world polls them. The communicators, the board's
sequencer and its seats are the real ones; only the order of events is the world's, drawn from a seed.
"""

import random
from collections import defaultdict, deque

from lanterne.transport.base import Capabilities, Request, Send, Transport
from lanterne.transport.board.seat import LocalBoards, LocalSeat
from lanterne.transport.machine import Machine
from lanterne.transport.membership import Membership

# What control and agreement messages are below: they leave at once, as they do on every transport.
SMALL_NBYTES = 1024


class World(Machine):
    """What `world_size` ranks share. `step` lets one event happen, drawn by `seed`.

    Attributes: `at_s`, what the clock says, which stands still between events; `random`.
    """

    def __init__(self, world_size, seed):
        self.world_size, self.random = world_size, random.Random(seed)
        self.boards = LocalBoards(self)
        self.transports = [OrderedTransport(self, rank) for rank in range(world_size)]
        self.at_s = 0.0
        self._unmatched = defaultdict(lambda: (deque(), deque()))
        self._matched, self._leaving = [], []
        self._seats = []
        # Some seeds starve messages, some records, some the clock.
        kinds = ("match", "leave", "letter", "record", "clock", "rank")
        self._weights = {kind: self.random.choice((1, 10, 100)) for kind in kinds}

    def be_fair(self):
        """From now on all kinds of events are alike."""
        self._weights = dict.fromkeys(self._weights, 1)

    def now_s(self):
        """See Machine."""
        return self.at_s

    def sleep(self, seconds):
        """See Machine."""
        self.at_s += seconds

    def give_way(self):
        """See Machine. It takes its time, or a wait would not see its end."""
        self.at_s += 1e-5

    def step(self, ranks):
        """Let something happen; `ranks` are callables, one for each rank that could do something."""
        possible = {
            "clock": [self._tick],
            "rank": ranks,
            "match": self._matched,
            "leave": self._leaving,
            "letter": [seat.post_letter for seat in self._seats if seat.letters],
            "record": [seat.bring_record for seat in self._seats],
        }
        kinds = [kind for kind, events in possible.items() if events]
        kind = self.random.choices(kinds, [self._weights[kind] for kind in kinds])[0]
        event = self.random.choice(possible[kind])
        if kind == "match":
            self._matched.remove(event)
            event.deliver()
        elif kind == "leave":
            self._leaving.remove(event)
            event.leave()
        else:
            event()

    def _tick(self):
        self.at_s += self.random.choice((1e-5, 1e-3, 0.1))

    def post(self, rank, op, request):
        """One operation; a send may leave before its receive is posted, as on MPI below the eager limit."""
        sending = type(op) is Send
        source, target = (rank, op.peer) if sending else (op.peer, rank)
        sends, receives = self._unmatched[source, target, op.tag]
        if sending:
            message = _Message(op, request)
            sends.append(message)
            if op.nbytes <= SMALL_NBYTES:
                message.leave()
            elif self.random.random() < 0.5:
                self._leaving.append(message)
        else:
            receives.append((op, request))
        while sends and receives:
            self._matched.append(_Pair(sends.popleft(), *receives.popleft()))

    def lose(self, key, rank):
        """The board `key` learns that `rank` has died."""
        sequencer, inboxes = self.boards.find(key, self.world_size)
        for other, record in sequencer.lose(rank, "it has died"):
            inboxes[other].append(record)

    def seat(self, key, rank):
        """The seat of `rank` at board `key`."""
        self._seats.append(OrderedSeat(self, LocalSeat(self.boards, key, rank, self.world_size)))
        return self._seats[-1]


class _Message:
    def __init__(self, op, request):
        self._op, self._request, self.data = op, request, None

    def leave(self):
        if self.data is None:
            self.data = bytes(self._op.region.buffer[self._op.offset : self._op.offset + self._op.nbytes])
            self._request.finish(self._op.peer)


class _Pair:
    def __init__(self, message, op, request):
        self._message, self._op, self._request = message, op, request

    def deliver(self):
        self._message.leave()
        assert len(self._message.data) == self._op.nbytes, "a message met a receive of another size"
        self._op.region.buffer[self._op.offset : self._op.offset + self._op.nbytes] = self._message.data
        self._request.finish(self._op.peer)


class OrderedRequest(Request):
    """Done when the world has let all its operations happen."""

    transport = None

    def __init__(self, transport, ops):
        self.transport, self._waiting = transport, [op.peer for op in ops]

    def finish(self, peer):
        self._waiting.remove(peer)

    def poll(self):
        return not self._waiting

    def pending_peers(self):
        return sorted(set(self._waiting))


class OrderedTransport(Transport):
    """One rank's end of a World."""

    name = "ordered"
    capabilities = Capabilities()

    def __init__(self, world, rank):
        super().__init__(rank, world.world_size, OrderedMembership(world), machine=world)
        self.world = world
        self.pauses = world.pauses(world.world_size)

    def _post(self, ops):
        request = OrderedRequest(self, ops)
        for op in ops:
            self.world.post(self.rank, op, request)
        return request

    def close(self):
        self.closed = True


class OrderedMembership(Membership):
    """What one rank of a World knows of the others: their board."""

    def __init__(self, world):
        self._world = world

    def open_board(self, key, rank, world_size):
        return self._world.seat(key, rank)


class OrderedSeat:
    """A seat between which and the board letters and records travel only when the world lets them, in order."""

    def __init__(self, world, inner):
        self._inner, self.letters, self._records = inner, deque(), deque()

    def __getattr__(self, verb):
        return lambda *args, **options: self.letters.append((verb, args, options))

    def post_letter(self):
        """The oldest letter reaches the board."""
        verb, args, options = self.letters.popleft()
        getattr(self._inner, verb)(*args, **options)

    def bring_record(self):
        """The board looks at its clock, and its oldest record for this rank arrives."""
        record = self._inner.take()
        if record is not None:
            self._records.append(record)

    def take(self):
        """As LocalSeat.take."""
        return self._records.popleft() if self._records else None
