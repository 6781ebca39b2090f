"""A call log in a file that two processes map: the watched one writes, the watching one reads; neither waits.

A ring of fixed size behind a header. Each record carries its number, so the reader knows a record that has been written
from one that has not, and one that it came too late for. A call is written when it begins, and its end when it ends:
who reads sees also those that do not end. What was written stays readable when the writer is killed.
Standard library only: it is loaded into programs that know nothing of lanterne.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from itertools import count, takewhile
from operator import eq
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lanterne.failslow.operate.core_waits import CoreWaits

if TYPE_CHECKING:
    from pathlib import Path

# number (from 1), name, ranks that take part, communicator, bytes, us that the thread had waited for a core by the
# start and by the end (core_waits.py), start, end
RECORD = struct.Struct("=QHHIqIIdd")
# Its parts: the number is written last, so that what it stands for is there; the end, when there is one.
NUMBER, BODY, WAITED, END = struct.Struct("=Q"), struct.Struct("=HHIqIIdd"), struct.Struct("=I"), struct.Struct("=d")
BODY_OFFSET, END_OFFSET = NUMBER.size, RECORD.size - END.size
START_OFFSET = END_OFFSET - END.size
WAITED_OFFSET = START_OFFSET - WAITED.size
# The end of a call that has not ended.
OPEN_S = -1.0
OPEN_END = END.pack(OPEN_S)
MAX_NAMES, NAME_NBYTES = 64, 48
HEADER_NBYTES = 4096 + MAX_NAMES * NAME_NBYTES
ENDED_OFFSET = 4095
FAULTS = struct.Struct("=Q")
FAULTS_OFFSET = ENDED_OFFSET - FAULTS.size
BEAT_OFFSET = FAULTS_OFFSET - END.size
TIMED_OFFSET = BEAT_OFFSET - FAULTS.size
# How many calls have begun; a number of 8 bytes that is set, not packed: at a multiple of 8.
BEGUN_OFFSET = (TIMED_OFFSET - NUMBER.size) // NUMBER.size * NUMBER.size
CAPACITY = 16_384

# Writes the beginning of a call, (nbytes, start_s), and returns its index in the log; its end: (index, end_s), or when
# it really began, which is known later of what was queued.
Begin: TypeAlias = Callable[[int, float], int]
End: TypeAlias = Callable[[int, float], None]


class RecordedCall(NamedTuple):
    """A recorded call.

    Attributes: `name`; `ranks`, how many take part (0: not a collective, or not known); `communicator`, a number, the
    same on all of them; `nbytes`, -1 where it is not known; `start_s`, `end_s`, of time.monotonic(), OPEN_S where it
    has not ended.
    """

    name: str
    ranks: int
    communicator: int
    nbytes: int
    start_s: float
    end_s: float


class Channel(NamedTuple):
    """Writes the calls of one name on one communicator; any thread may use it."""

    begin: Begin
    end: End
    begun: End

    def __call__(self, nbytes: int, start_s: float, end_s: float) -> None:
        """Write a whole call."""
        self.end(self.begin(nbytes, start_s), end_s)


class RingWriter:
    """Makes file `path` and writes calls into it.

    Args:
        header: a dict of JSON values for the reader, at most 4 kB.
        capacity: records that the ring holds.
        waits: tell for how long the calling thread has waited for a core; as a rule nobody knows.

    Cost: 0.9 us a call; memory and file: 48 bytes a record.
    """

    def __init__(
        self, path: str | Path, header: Mapping[str, Any], capacity: int = CAPACITY, waits: CoreWaits | None = None
    ) -> None:
        about = {"capacity": capacity, "record_nbytes": RECORD.size}
        text = json.dumps({**header, **about}).encode()
        if len(text) >= BEGUN_OFFSET:
            raise ValueError(f"call log: got a header of {len(text)} bytes, expected fewer than {BEGUN_OFFSET}")
        size = HEADER_NBYTES + capacity * RECORD.size
        # The reader finds the file complete, or not at all.
        partial = f"{path}.new"
        with open(partial, "w+b") as file:
            try:
                # Where there is no room this raises; a page without room ends the program as it is written to.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                os.unlink(partial)
                raise
            self._map = mmap.mmap(file.fileno(), size)
        self._map[: len(text)] = text
        os.rename(partial, path)
        # As numbers of 8 bytes: one of these is set several times as fast as it is packed.
        self._longs, self._doubles = memoryview(self._map).cast("Q"), memoryview(self._map).cast("d")
        self._ints = memoryview(self._map).cast("I")
        self._waits = waits or CoreWaits()
        self._capacity = capacity
        self._numbers = count()
        self._names: dict[str, int] = {}

    @property
    def begun(self) -> int:
        """How many calls have begun."""
        return self._longs[BEGUN_OFFSET // NUMBER.size]

    def channel(self, name: str, ranks: int, communicator: int) -> Channel:
        """The Channel of calls of these."""
        number, numbers, capacity, memory = self._name_number(name), self._numbers, self._capacity, self._map
        longs, doubles, ints, pack_body = self._longs, self._doubles, self._ints, BODY.pack_into
        first, size, width, begun_at = HEADER_NBYTES, RECORD.size, END.size, BEGUN_OFFSET // NUMBER.size
        waits = self._waits

        def begin(nbytes: int, start_s: float) -> int:
            index = next(numbers)
            offset = first + index % capacity * size
            waited_us = waits.waited_us if start_s < waits.due_s else waits.read(start_s)
            pack_body(memory, offset + BODY_OFFSET, number, ranks, communicator, nbytes, waited_us, 0, start_s, OPEN_S)
            longs[offset // width] = longs[begun_at] = index + 1
            return index

        def end(index: int, end_s: float) -> None:
            offset = first + index % capacity * size
            # A call that lasted for a whole turn of the ring has lost its place.
            if longs[offset // width] == index + 1:
                waited_us = waits.waited_us if end_s < waits.due_s else waits.read(end_s)
                ints[(offset + WAITED_OFFSET) // WAITED.size] = waited_us
                doubles[(offset + END_OFFSET) // width] = end_s

        def begun(index: int, start_s: float) -> None:
            offset = first + index % capacity * size
            if longs[offset // width] == index + 1:
                doubles[(offset + START_OFFSET) // width] = start_s
                FAULTS.pack_into(memory, TIMED_OFFSET, FAULTS.unpack_from(memory, TIMED_OFFSET)[0] + 1)

        return Channel(begin, end, begun)

    def beat(self, now_s: float) -> None:
        """Say that the program's Python still runs."""
        END.pack_into(self._map, BEAT_OFFSET, now_s)

    def _name_number(self, name: str) -> int:
        """The number of a call's name; names beyond the last share its number."""
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = min(len(self._names), MAX_NAMES - 1)
            offset = 4096 + number * NAME_NBYTES
            self._map[offset : offset + NAME_NBYTES] = name.encode()[: NAME_NBYTES - 1].ljust(NAME_NBYTES, b"\0")
        return number

    def fault(self) -> None:
        """Say that a call could not be written."""
        (faults,) = FAULTS.unpack_from(self._map, FAULTS_OFFSET)
        FAULTS.pack_into(self._map, FAULTS_OFFSET, faults + 1)

    def end(self) -> None:
        """Say that the program ended in order."""
        self._map[ENDED_OFFSET] = 1


class RingReader:
    """Reads what a RingWriter writes into file `path`, from its oldest record on.

    Attributes: `header`; `lost`, records that were overwritten before they were read; `open`, by index, the calls that
    have begun and not ended, as of the last take; `latest`, the index of the latest call that has, -1 before.

    Raises:
        ValueError, OSError: no such log.
    """

    def __init__(self, path: str | Path) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.header: dict[str, Any] = json.loads(self._map[:BEGUN_OFFSET].rstrip(b"\0"))
        if not isinstance(self.header, dict) or not isinstance(self.header.get("capacity"), int):
            raise ValueError("call log: its header has no capacity")
        self._capacity: int = self.header["capacity"]
        if (size := self.header.get("record_nbytes")) != RECORD.size:
            raise ValueError(f"call log: got records of {size} bytes, expected {RECORD.size}: of another version")
        self._ring_end = HEADER_NBYTES + self._capacity * RECORD.size
        if self._capacity < 1 or len(self._map) < self._ring_end:
            told = f"{self._ring_end}, for {self._capacity} records"
            raise ValueError(f"call log: got {len(self._map)} bytes, expected {told}: it is cut off")
        self._next = 1
        self._names: dict[int, str] = {}
        self.lost: int = 0
        self.open: dict[int, RecordedCall] = {}
        self.latest: int = -1

    @property
    def beat_s(self) -> float:
        """When the program last said that its Python runs, of its time.monotonic(); 0 where it has not."""
        return float(END.unpack_from(self._map, BEAT_OFFSET)[0])

    @property
    def begun(self) -> int:
        """How many calls the program has begun: all that a look costs where nothing is new."""
        (begun,) = NUMBER.unpack_from(self._map, BEGUN_OFFSET)
        return int(begun)

    @property
    def unread(self) -> float:
        """The share of the ring that has been written since the last take."""
        return (self.begun + 1 - self._next) / self._capacity

    def spacing_s(self, calls: int) -> float:
        """What so many calls take, the mean since the last take; 0 where fewer have begun since."""
        begun = self.begun
        times = (begun + 1 - self._next) // max(calls, 1)
        if times < 1:
            return 0.0
        return (self._start_s(begun) - self._start_s(begun - times * calls)) / times

    def _start_s(self, number: int) -> float:
        """When call `number`, from 1 on, began."""
        at = HEADER_NBYTES + (number - 1) % self._capacity * RECORD.size + END_OFFSET - END.size
        return float(END.unpack_from(self._map, at)[0])

    @property
    def ended(self) -> bool:
        """Whether the program has said that it ended in order."""
        return self._map[ENDED_OFFSET] == 1

    @property
    def faults(self) -> int:
        """Calls that the program made and its recorder failed to write."""
        (faults,) = FAULTS.unpack_from(self._map, FAULTS_OFFSET)
        return int(faults)

    @property
    def timed(self) -> int:
        """Calls whose times are those of a device."""
        (timed,) = FAULTS.unpack_from(self._map, TIMED_OFFSET)
        return int(timed)

    def take(self) -> list[RecordedCall]:
        """The RecordedCalls that have ended since the last take, in the order of their beginnings but for late ones."""
        records = self.take_records()
        return [self._call(records[at : at + RECORD.size]) for at in range(0, len(records), RECORD.size)]

    def take_records(self) -> bytes:
        """As `take`, the calls as RECORDs; `name` tells their names.

        Raises:
            ValueError: another program has cut the file short.
        """
        if self._map.size() != len(self._map):
            # What is mapped there would end this program, not raise.
            raise ValueError("call log: it was cut short while it was read")
        found = self._take_open() if self.open else []
        while self._take_on(found):
            pass
        records = b"".join(found)
        return records

    def _take_open(self) -> list[bytes]:
        """Those of `open` that have ended, or are gone: overwritten."""
        found: list[bytes] = []
        for index in list(self.open):
            at = HEADER_NBYTES + index % self._capacity * RECORD.size
            record = self._map[at : at + RECORD.size]
            if NUMBER.unpack_from(record)[0] != index + 1:
                self.lost += 1
                del self.open[index]
            elif END.unpack_from(record, END_OFFSET)[0] != OPEN_S:
                found.append(record)
                self.latest = max(index, self.latest)
                del self.open[index]
        return found

    def _take_on(self, found: list[bytes]) -> bool:
        """Append to `found` what there is up to the end of the ring; whether there may be more: from its beginning on,
        or after having been overtaken."""
        size, due, ring_end = RECORD.size, self._next, self._ring_end
        first = HEADER_NBYTES + (due - 1) % self._capacity * size
        # Most of what a watched job pays for: nothing is done for each call but by what is written in C.
        with memoryview(self._map) as whole, whole[first:ring_end] as rest, rest.cast("Q")[:: size // 8] as numbers:
            ready = sum(takewhile(bool, map(eq, numbers, count(due))))
            records = rest[: ready * size].tobytes()
            if ready and numbers[0] != due:
                # It was overwritten while it was copied.
                ready, records = 0, b""
            self._next = due + ready
            goes_on = ready == len(numbers)
            # One that is not whole turns ahead is rubbish, by which reading would not get on.
            if not goes_on and (ahead := numbers[ready] - due - ready) > 0 and ahead % self._capacity == 0:
                # What is overwritten next is half a ring away from where reading goes on.
                behind = numbers[ready] - self._capacity // 2
                self.lost += behind - self._next
                self._next = behind
                goes_on = True
        begin = ended = 0
        at = records.find(OPEN_END)
        while at >= 0:
            if at % size == END_OFFSET:
                found.append(records[begin : at - END_OFFSET])
                ended = begin // size + len(found[-1]) // size if found[-1] else ended
                self.open[due - 1 + at // size] = self._call(records[at - END_OFFSET : at + END.size])
                begin = at + END.size
            at = records.find(OPEN_END, at + 1)
        found.append(records[begin:])
        ended = ready if found[-1] else ended
        self.latest = max(due + ended - 2 if ended else -1, self.latest)
        return goes_on

    def _call(self, record: bytes) -> RecordedCall:
        return recorded(record, self.name)

    def name(self, number: int) -> str:
        """The name of calls whose record has this number."""
        name = self._names.get(number)
        if name is None:
            offset = 4096 + number * NAME_NBYTES
            name = self._names[number] = self._map[offset : offset + NAME_NBYTES].rstrip(b"\0").decode()
        return name

    def number(self, name: str) -> int | None:
        """The number of calls of this name; None where there is none yet."""
        at = self._map.find(sought := name.encode() + b"\0", 4096, HEADER_NBYTES)
        # It may be the end of another's.
        while at >= 0 and (at - 4096) % NAME_NBYTES:
            at = self._map.find(sought, at + 1, HEADER_NBYTES)
        return (at - 4096) // NAME_NBYTES if at >= 0 else None

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def recorded(record: bytes, name_of: Callable[[int], str]) -> RecordedCall:
    """A RECORD as an object; `name_of` tells the name of a number."""
    _, name, ranks, communicator, nbytes, _, _, start_s, end_s = RECORD.unpack(record)
    return RecordedCall(name_of(name), ranks, communicator, nbytes, start_s, end_s)
