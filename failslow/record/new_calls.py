"""What the call logs of all ranks have new, as arrays: a call that is read must cost no Python object of its own."""

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.failslow.record.adapters import DDP_FORWARD
from lanterne.failslow.record.call_ring import RECORD, RecordedCall, recorded

# RECORD's.
ROW: np.dtype[np.void] = np.dtype(
    [
        ("number", "u8"),
        ("name", "u2"),
        ("ranks", "u2"),
        ("communicator", "u4"),
        ("nbytes", "i8"),
        ("waited_start_us", "u4"),
        ("waited_end_us", "u4"),
        ("start_s", "f8"),
        ("end_s", "f8"),
    ]
)
assert ROW.itemsize == RECORD.size

# A call's name, ranks, communicator and bytes, as its record has them; the first two; those without its bytes.
CallSymbol: TypeAlias = bytes
SYMBOL, HEAD, SIZELESS_NBYTES = struct.Struct("=8x16s8xd8x"), struct.Struct("=HH"), 8


class CallNames(Protocol):
    """Tells the names of calls in a log: a RingReader."""

    def name(self, number: int) -> str:
        """The name of a number."""
        ...

    def number(self, name: str) -> int | None:
        """The number of a name; None without one."""
        ...


class NewCalls:
    """Calls that have ended, by rank, and of each rank in its order.

    Args:
        records: of each rank, in ascending order, what RingReader.take_records found.
        logs: of each, what tells names.

    Attributes: `rows`, of ROW; `times`, (start, end) of each; `rank`, of each; `parts`: of each rank that has any, its
    rows; `forwards`: which rows are DDP_FORWARDs, None without any; `order`: the rows of calls of several ranks, by
    rank, communicator and number; `runs`: (rank, communicator, begin, end) of places in that order.
    """

    def __init__(self, records: Mapping[int, bytes], logs: Mapping[int, CallNames]) -> None:
        self._logs = logs
        self.rows: NDArray[np.void] = np.frombuffer(b"".join(records.values()), ROW)
        # Its last two columns.
        self.times: NDArray[np.float64] = self.rows.view(np.float64).reshape(-1, ROW.itemsize // 8)[:, -2:]
        self.parts: dict[int, slice] = {}
        begin = 0
        for rank, found in records.items():
            if found:
                end = begin + len(found) // RECORD.size
                self.parts[rank] = slice(begin, end)
                begin = end
        self.rank: NDArray[np.int64] = np.repeat(
            np.array([*self.parts], np.int64), [part.stop - part.start for part in self.parts.values()]
        )
        self.forwards: NDArray[np.bool_] | None = None
        for rank, part in self.parts.items():
            if (number := logs[rank].number(DDP_FORWARD)) is not None:
                if self.forwards is None:
                    self.forwards = np.zeros(len(self.rows), np.bool_)
                self.forwards[part] = self.rows["name"][part] == number
        shared = np.flatnonzero(self.rows["ranks"] > 1)
        pairs = self.rank[shared] << 32 | self.rows["communicator"][shared]
        order = np.argsort(pairs, kind="stable")
        pairs = pairs[order]
        begins = np.flatnonzero(np.diff(pairs, prepend=-1))
        self.order: NDArray[np.intp] = shared[order]
        self.runs: list[tuple[int, int, int, int]] = [
            (pair >> 32, pair & 0xFFFFFFFF, begin, end)
            for pair, (begin, end) in zip(pairs[begins].tolist(), pairwise([*begins.tolist(), len(pairs)]), strict=True)
        ]

    def core_waits_s(self, latest: dict[int, tuple[int, int]]) -> NDArray[np.float64]:
        """How long the rank of each call in `order` waited for a core, and whether it came from another such call.

        Args:
            latest: what each rank had waited by the end of its last call before these, and the communicator of that; is
                brought up to date.

        Returns:
            Columns: seconds since its last call of several ranks, seconds in it, 1 where that was of the same
            communicator, else 0.
        """
        rows = np.sort(self.order)
        came, ended = self.rows["waited_start_us"][rows], self.rows["waited_end_us"][rows]
        group = self.rows["communicator"][rows].astype(np.int64)
        last, last_group = (np.concatenate((column[:1], column[:-1])) for column in (ended, group))
        begins = np.flatnonzero(np.diff(self.rank[rows], prepend=-1))
        for begin, end in pairwise([*begins.tolist(), len(rows)]):
            rank = int(self.rank[rows[begin]])
            last[begin], last_group[begin] = latest.get(rank, (came[begin], -1))
            latest[rank] = int(ended[end - 1]), int(group[end - 1])
        # What goes round, and what a call of another thread tells late, are differences of a sign.
        before, inside = (np.maximum(waited.astype(np.int32), 0) / 1e6 for waited in (came - last, ended - came))
        return np.column_stack((before, inside, group == last_group))[rows.searchsorted(self.order)]

    def name(self, rank: int, number: int) -> str:
        """The name of calls of `rank` whose rows have this number."""
        return self._logs[rank].name(number)

    def call(self, row: int) -> RecordedCall:
        """As an object of its own."""
        return recorded(self.rows[row].tobytes(), partial(self.name, int(self.rank[row])))


def symbols_of(records: bytes, log: CallNames) -> tuple[Sequence[CallSymbol], Sequence[float], Sequence[int]]:
    """Of the calls of a log, at least one: their symbols, when they began, and which are DDP_FORWARDs of ranks."""
    symbols, starts_s = zip(*SYMBOL.iter_unpack(records), strict=True)
    number = log.number(DDP_FORWARD)
    if number is None:
        return symbols, starts_s, ()
    heads = [HEAD.unpack_from(symbol) for symbol in symbols]
    return symbols, starts_s, [at for at, (name, ranks) in enumerate(heads) if name == number and ranks]
