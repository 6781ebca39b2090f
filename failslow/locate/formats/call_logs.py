"""Our own records: the call logs that `lanterne watch --keep` leaves of each rank (record/call_ring.py)."""

from __future__ import annotations

import json
from collections import Counter
from math import nan
from pathlib import Path

from lanterne.failslow.locate.formats.foreign_calls import (
    DONE,
    STARTED,
    CallBuilder,
    Process,
    rank_told,
    ranks_in,
    size_told,
)
from lanterne.failslow.record.call_ring import RecordedCall, RingReader

NAME = "lanterne's call log"


def read(path: Path, into: CallBuilder) -> None:
    """Take the calls of one rank's log; raises ValueError, OSError or KeyError where it is none."""
    reader = RingReader(path)
    try:
        header, calls = reader.header, reader.take()
        rank = rank_told(header["rank"])
        if rank < 0:
            raise ValueError(f"got rank {header['rank']}, expected one of a job's")
        into.expected.update(range(size_told(header.get("world_size"))))
        into.processes.setdefault(rank, Process(header.get("host"), header.get("pid")))
        numbers: Counter[int] = Counter()
        rows: list[tuple[RecordedCall, int]] = [(call, DONE) for call in calls]
        rows += [(call, STARTED) for _, call in sorted(reader.open.items())]
        for call, state in rows:
            if call.ranks < 2:
                # A message's other rank is not recorded.
                into.skipped["a message of lanterne's call log, without its other rank"] += 1
                continue
            numbers[call.communicator] += 1
            number = -1 if reader.lost else numbers[call.communicator]
            ranks = _group(path.parent / f"group-{call.communicator}.json")
            group = into.group(("log", call.communicator), str(call.communicator), call.ranks, ranks)
            took_s = call.end_s - call.start_s if state == DONE else nan
            into.used[NAME] += 1
            into.add(rank, group, call.name, number, -1, call.nbytes, call.start_s, took_s, state)
        if reader.lost:
            into.skipped["a call of lanterne's log that was overwritten"] += reader.lost
    finally:
        reader.close()


def _group(path: Path) -> tuple[int, ...]:
    try:
        return ranks_in(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError):
        return ()
