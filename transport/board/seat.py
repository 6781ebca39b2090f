"""A rank's seat at an arrival board: it says that it has come to a call, and takes what was decided about it.

The board is in the store's process, or, for ranks that are threads, an object they share.
"""

import threading
import time
from collections import OrderedDict, deque

from lanterne.transport.board.late_policy import from_text
from lanterne.transport.board.sequencer import Record, Sequencer
from lanterne.transport.wire import MAX_KEY_NBYTES, Kind, unpack_fields

_RECORD_TYPES = "biiiiibibi"
MAX_BOARDS = 1024


class StoreSeat:
    """The seat of `rank` at board `key` (str) of the store. For the thread of the store's client.

    Args:
        store: the StoreClient.
        look: takes in what the store has sent.
        records: where that puts records: {key: deque of Record}.
    """

    def __init__(self, store, look, records, key, rank, world_size):
        self._store, self._look = store, look
        self._key, self._rank, self._world_size = key.encode(), rank, world_size
        self._records = records[self._key] = deque()

    def arrive(self, number, signature, policy):
        """This rank has come to call `number` (1, 2, ...) with `signature`; `policy` is late_policy.to_text's."""
        fields = [self._key, self._rank, self._world_size, number, signature.encode(), policy.encode()]
        self._store.tell(Kind.ARRIVE, fields)

    def report(self, arrivals):
        """This rank came to calls that were not asked about: `arrivals`, a list of (time.monotonic(), signature)."""
        now_ns, text = round(time.monotonic() * 1e9), pack_arrivals(arrivals)
        self._store.tell(Kind.REPORT, [self._key, self._rank, self._world_size, now_ns, text])

    def give_up(self, number):
        """This rank has waited long enough in call `number` and asks for its end."""
        self._store.tell(Kind.GIVE_UP, [self._key, self._rank, number])

    def take(self):
        """The next Record for this rank, or None. Never waits.

        Raises:
            TransportError: the store is lost.

        Cost: a system call, 1 us.
        """
        if not self._records:
            self._look()
        return self._records.popleft() if self._records else None


class LocalBoards:
    """The boards of ranks that are threads of one process."""

    def __init__(self):
        self.lock = threading.Lock()
        self._boards = OrderedDict()

    def find(self, key, world_size):
        """(Sequencer, inboxes by rank) of board `key`."""
        with self.lock:
            if key not in self._boards:
                self._boards[key] = Sequencer(world_size), [deque() for _ in range(world_size)]
                if len(self._boards) > MAX_BOARDS:
                    self._boards.popitem(last=False)
            return self._boards[key]


class LocalSeat:
    """As StoreSeat, between threads."""

    def __init__(self, boards, key, rank, world_size):
        self._lock, self._rank = boards.lock, rank
        self._sequencer, self._inboxes = boards.find(key, world_size)

    def arrive(self, number, signature, policy):
        """As StoreSeat.arrive."""
        parsed = from_text(policy)
        with self._lock:
            self._tell(self._sequencer.arrive(self._rank, number, signature, parsed, time.monotonic()))

    def report(self, arrivals):
        """As StoreSeat.report."""
        with self._lock:
            now_s = time.monotonic()
            self._tell(self._sequencer.report(self._rank, now_s, arrivals, now_s))

    def give_up(self, number):
        """As StoreSeat.give_up."""
        with self._lock:
            self._tell(self._sequencer.give_up(self._rank, number))

    def take(self):
        """As StoreSeat.take."""
        inbox = self._inboxes[self._rank]
        if not inbox:
            with self._lock:
                self._tell(self._sequencer.expire(time.monotonic()))
        return inbox.popleft() if inbox else None

    def _tell(self, told):
        for rank, record in told:
            self._inboxes[rank].append(record)


def pack_record(key, record):
    """The fields of a RECORD_NOTICE."""
    number, verdict, rank, delay_s, cause, choice, late, text, free = record
    return [key, number, verdict, rank, round(delay_s * 1e9), cause, choice.encode(), late, text.encode(), free]


def unpack_record(body):
    """(key, Record) of a RECORD_NOTICE's body."""
    key, number, verdict, rank, delay_ns, cause, choice, late, text, free = unpack_fields(body, _RECORD_TYPES)
    text = text.decode(errors="replace")
    return key, Record(number, verdict, rank, delay_ns / 1e9, cause, choice.decode(), late, text, free)


def pack_arrivals(arrivals):
    """The bytes of a list of (s, signature)."""
    return "\n".join(f"{round(at_s * 1e9)} {signature}" for at_s, signature in arrivals).encode()


def unpack_arrivals(text):
    """The list that `pack_arrivals` packed.

    Raises:
        ValueError: it did not.
    """
    arrivals = []
    for line in text.decode().split("\n"):
        at_ns, _, signature = line.partition(" ")
        if len(signature) > MAX_KEY_NBYTES or not -(1 << 63) <= int(at_ns) < 1 << 63:
            raise ValueError(f"got the arrival {line[:40]!r}")
        arrivals.append((int(at_ns) / 1e9, signature))
    return arrivals
