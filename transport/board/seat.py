"""A rank's seat at an arrival board: it says that it has come to a call, and takes what was decided about it.

The board is in the store's process, or, for ranks that are threads, an object they share.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Protocol, TypeAlias

from lanterne.transport.board.late_policy import from_text
from lanterne.transport.board.sequencer import Record, Sequencer, Told
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.wire import MAX_KEY_NBYTES, Kind, unpack_fields

_RECORD_TYPES = "biiiiibibib"
MAX_BOARDS = 1024
# (when, on the machine's clock, signature of the call).
Arrival: TypeAlias = tuple[float, str]
# (number of a call that is over, what it took from its outcome on, s).
TookCall: TypeAlias = tuple[int, float]


class Seat(Protocol):
    """The seat of one rank at one board: a StoreSeat, or a LocalSeat."""

    def arrive(
        self,
        number: int,
        signature: str,
        policy: str,
        ready: bool = True,
        *,
        prepared: bool = False,
        took: Sequence[TookCall] = (),
    ) -> None: ...
    def be_ready(self, number: int) -> None: ...
    def report(self, arrivals: Sequence[Arrival]) -> None: ...
    def progress(self, number: int, done: int) -> None: ...
    def give_up(self, number: int) -> None: ...
    def take(self) -> Record | None: ...


class Teller(Protocol):
    """What a seat needs of the StoreClient."""

    machine: Machine

    def tell(self, kind: Kind, fields: Iterable[int | bytes] = ()) -> None: ...


class StoreSeat:
    """The seat of `rank` at board `key` of the store. For the thread of the store's client.

    Args:
        store: the StoreClient.
        look: takes in what the store has sent.
        records: where that puts records, by key.
    """

    def __init__(
        self,
        store: Teller,
        look: Callable[[], object],
        records: MutableMapping[bytes, deque[Record]],
        key: str,
        rank: int,
        world_size: int,
    ) -> None:
        self._store = store
        self._look = look
        self._key = key.encode()
        self._rank = rank
        self._world_size = world_size
        self._records: deque[Record] = deque()
        records[self._key] = self._records

    def arrive(
        self,
        number: int,
        signature: str,
        policy: str,
        ready: bool = True,
        *,
        prepared: bool = False,
        took: Sequence[TookCall] = (),
    ) -> None:
        """This rank has come to call `number` (1, 2, ...) with `signature`; `policy` is late_policy.to_text's.

        Args:
            ready: as if it had said so (`be_ready`), too.
            prepared, took: see Sequencer.arrive.
        """
        fields = (self._key, self._rank, self._world_size, number, signature.encode(), policy.encode())
        self._store.tell(Kind.ARRIVE, (*fields, ready, prepared, pack_took(took)))

    def be_ready(self, number: int) -> None:
        """This rank has nothing left to do before call `number` that does not need a late rank."""
        self._store.tell(Kind.READY, [self._key, self._rank, number])

    def report(self, arrivals: Sequence[Arrival]) -> None:
        """This rank came to calls that were not asked about."""
        now_ns, text = round(self._store.machine.now_s() * 1e9), pack_arrivals(arrivals)
        self._store.tell(Kind.REPORT, [self._key, self._rank, self._world_size, now_ns, text])

    def progress(self, number: int, done: int) -> None:
        """This rank has done the first `done` rounds of call `number`, which began by SPREAD."""
        self._store.tell(Kind.PROGRESS, [self._key, self._rank, number, done])

    def give_up(self, number: int) -> None:
        """This rank has waited long enough in call `number` and asks for its end."""
        self._store.tell(Kind.GIVE_UP, [self._key, self._rank, number])

    def take(self) -> Record | None:
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

    def __init__(self, machine: Machine = THIS_MACHINE) -> None:
        self.machine = machine
        self.lock: threading.Lock = threading.Lock()
        self._boards: OrderedDict[str, tuple[Sequencer, list[deque[Record]]]] = OrderedDict()

    def find(self, key: str, world_size: int) -> tuple[Sequencer, list[deque[Record]]]:
        """(Sequencer, inboxes by rank) of board `key`."""
        with self.lock:
            if key not in self._boards:
                self._boards[key] = Sequencer(world_size), [deque() for _ in range(world_size)]
                if len(self._boards) > MAX_BOARDS:
                    self._boards.popitem(last=False)
            return self._boards[key]


class LocalSeat:
    """As StoreSeat, between threads."""

    def __init__(self, boards: LocalBoards, key: str, rank: int, world_size: int) -> None:
        self._lock = boards.lock
        self._now_s = boards.machine.now_s
        self._rank = rank
        self._sequencer, self._inboxes = boards.find(key, world_size)

    def arrive(
        self,
        number: int,
        signature: str,
        policy: str,
        ready: bool = True,
        *,
        prepared: bool = False,
        took: Sequence[TookCall] = (),
    ) -> None:
        """As StoreSeat.arrive."""
        parsed = from_text(policy)
        with self._lock:
            now_s = self._now_s()
            told = self._sequencer.arrive(
                self._rank, number, signature, parsed, now_s, ready, prepared=prepared, took=took
            )
            self._tell(told)

    def be_ready(self, number: int) -> None:
        """As StoreSeat.be_ready."""
        with self._lock:
            self._tell(self._sequencer.be_ready(self._rank, number, self._now_s()))

    def report(self, arrivals: Sequence[Arrival]) -> None:
        """As StoreSeat.report."""
        with self._lock:
            now_s = self._now_s()
            self._tell(self._sequencer.report(self._rank, now_s, arrivals, now_s))

    def progress(self, number: int, done: int) -> None:
        """As StoreSeat.progress."""
        with self._lock:
            self._tell(self._sequencer.progress(self._rank, number, done))

    def give_up(self, number: int) -> None:
        """As StoreSeat.give_up."""
        with self._lock:
            self._tell(self._sequencer.give_up(self._rank, number))

    def take(self) -> Record | None:
        """As StoreSeat.take."""
        inbox = self._inboxes[self._rank]
        if not inbox:
            with self._lock:
                self._tell(self._sequencer.expire(self._now_s()))
        return inbox.popleft() if inbox else None

    def _tell(self, told: Told) -> None:
        for rank, record in told:
            self._inboxes[rank].append(record)


def pack_record(key: bytes, record: Record) -> list[int | bytes]:
    """Return the fields of a RECORD_NOTICE."""
    number, verdict, rank, delay_s, cause, choice, late, text, free, arrivals = record
    numbers = number, verdict, rank, round(delay_s * 1e9), cause
    return [key, *numbers, choice.encode(), late, text.encode(), free, arrivals.encode()]


def unpack_record(body: bytes) -> tuple[bytes, Record]:
    """Return (key, Record) of a RECORD_NOTICE's body."""
    key, number, verdict, rank, delay_ns, cause, choice, late, text, free, arrivals = unpack_fields(body, _RECORD_TYPES)
    choice, text, arrivals = choice.decode(), text.decode(errors="replace"), arrivals.decode()
    return key, Record(number, verdict, rank, delay_ns / 1e9, cause, choice, late, text, free, arrivals)


def pack_took(took: Iterable[TookCall]) -> bytes:
    """The bytes of a list of TookCall."""
    return " ".join(f"{number} {round(took_s * 1e9)}" for number, took_s in took).encode()


def unpack_took(text: bytes) -> list[TookCall]:
    """The list that `pack_took` packed.

    Raises:
        ValueError: it did not.
    """
    numbers = list(map(int, text.decode().split()))
    if not all(0 <= number < 1 << 63 for number in numbers):
        raise ValueError("got calls that took no time")
    return [(number, took_ns / 1e9) for number, took_ns in zip(numbers[::2], numbers[1::2], strict=True)]


def pack_arrivals(arrivals: Iterable[Arrival]) -> bytes:
    """The bytes of a list of (s, signature)."""
    return "\n".join(f"{round(at_s * 1e9)} {signature}" for at_s, signature in arrivals).encode()


def unpack_arrivals(text: bytes) -> list[Arrival]:
    """The list that `pack_arrivals` packed.

    Raises:
        ValueError: it did not.
    """
    arrivals: list[Arrival] = []
    for line in text.decode().split("\n"):
        at_ns, _, signature = line.partition(" ")
        if len(signature) > MAX_KEY_NBYTES or not -(1 << 63) <= int(at_ns) < 1 << 63:
            raise ValueError(f"got the arrival {line[:40]!r}")
        arrivals.append((int(at_ns) / 1e9, signature))
    return arrivals
