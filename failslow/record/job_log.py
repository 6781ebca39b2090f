"""A job as its call logs show it: iteration times, incidents as they happen, which rank comes last, and a report.

One rank, the lead, gives the iterations: synchronous jobs have the same on every rank. It is the lowest that reports
at first, of those that are started again, too.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lanterne.failslow.operate.thresholds import USUAL_THRESHOLDS, Thresholds
from lanterne.failslow.record.adapters import DDP_BACKWARD, DDP_FORWARD
from lanterne.failslow.record.blame import APART, LATEST
from lanterne.failslow.record.bounds import KEPT
from lanterne.failslow.record.call_ring import RECORD, RingReader
from lanterne.failslow.record.hangs import STATUS_ITERATIONS, Hang, HangFinder, Standstill, join_ranks
from lanterne.failslow.record.iteration_log import IterationLog, Notice
from lanterne.failslow.record.lateness import Matcher
from lanterne.failslow.record.new_calls import NewCalls, symbols_of
from lanterne.failslow.record.recorder import PATH_SUFFIX
from lanterne.failslow.record.whereabouts import Whereabouts, whereabouts

# Calls are judged when that tells something, or so many have come, or a status is made so long after the last
# time.
MAX_UNSETTLED_NBYTES = 1 << 20  # chosen: memory; fewer calls at once cost more each
SETTLE_S = 5.0  # chosen: a status a second need not cost that
LOOK_S = 16.0  # chosen: once every rank reports, until further logs are looked for


# States of a process (whereabouts.py) that makes no calls any more, where another reports as its rank.
OVER = ("ended", "gone", "unresponsive")
# Bits of a name's number.
NAME_BITS = 16


# Between two looks at how many calls there are: as often as logs fill to `filled`, no more often or seldom than
# `longest_s`, or `calm_s` while iterations are as usual and nothing is open.
SHORTEST_S = 0.05
LONGEST_S = 0.5
# The share of a log that is read at once.
FILLED = 1 / 16
CALM_S = 1.0  # a look costs some 0.5 ms where Python is slow, most of it for caches that have gone cold
# How old what was read may be then.
READ_S = 4.0  # a read costs some 2 ms for cold caches, and some 50 us an iteration
# It is not calm where the lead begins no call for so many times as long as an iteration takes as a rule.
LATE_ITERATIONS = 1.25


class CallTotals:
    """How often calls were made, and how long they took, by name and size; of KEPT at most."""

    def __init__(self) -> None:
        # (name, bytes) -> [calls, seconds].
        self._calls: dict[tuple[str, int], list[Any]] = {}

    def add(self, new: NewCalls, rank: int) -> None:
        """Count the calls of `rank`."""
        rows = new.rows[new.parts[rank]]
        codes, which, counts = np.unique(
            rows["nbytes"] << NAME_BITS | rows["name"], return_inverse=True, return_counts=True
        )
        took_s = np.bincount(which, rows["end_s"] - rows["start_s"])
        for code, count, total_s in zip(codes.tolist(), counts.tolist(), took_s.tolist(), strict=True):
            symbol = new.name(rank, code & (1 << NAME_BITS) - 1), code >> NAME_BITS
            if symbol in self._calls or len(self._calls) < KEPT:
                known = self._calls.setdefault(symbol, [0, 0.0])
                known[0] += count
                known[1] += total_s

    def names(self) -> set[str]:
        """Of the calls."""
        return {name for name, _ in self._calls}

    def report(self) -> list[dict[str, Any]]:
        """Those that took longest first."""
        return [
            {"name": name, "nbytes": nbytes, "count": count, "mean_s": total_s / count}
            for (name, nbytes), (count, total_s) in sorted(self._calls.items(), key=lambda item: -item[1][1])
        ]


class CallLogs:
    """The call logs in `folder`.

    Attributes: `readers`, by rank; `refused`: why other files are not read; `restarts`: how often all ranks were
    started again.
    """

    def __init__(self, folder: Path) -> None:
        self.readers: dict[int, RingReader] = {}
        self.refused: list[str] = []
        self._folder = folder
        self.restarts: int = 0
        self._seen: set[Path] = set()
        # Ranks whose log can be read no further.
        self._broken: list[int] = []
        # Of ranks whose first log is not over, as far as is known.
        self._next: dict[int, RingReader] = {}
        self._found_s = -inf  # when logs were looked for

    def find(self, world_size: int | None, *, now: bool = False) -> list[int]:
        """Look for logs, where not all of so many ranks report, or now and then, or `now`; whose logs are new."""
        now_s = time.monotonic()
        if len(self.readers) == world_size and now_s < self._found_s + LOOK_S and not now:
            return []
        self._found_s = now_s
        found = []
        for path in sorted({*self._folder.glob("rank-*.calls")} - self._seen):
            self._seen.add(path)
            try:
                reader = RingReader(path)
                rank = int(reader.header["rank"])
                int(reader.header.get("world_size") or 0)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.refused.append(f"{path.name} cannot be read: {error}")
                continue
            if rank in self.readers:
                known = self._next.get(rank)
                if known is None or known.beat_s < reader.beat_s:
                    self._next[rank] = reader
                continue
            self.readers[rank] = reader
            found.append(rank)
        return found

    def take(self) -> tuple[dict[int, bytes], list[int]]:
        """What is new, as RECORDs by rank, and the ranks of whose calls some are lost; `drop` is to follow these."""
        records: dict[int, bytes] = {}
        lost = []
        for rank, reader in sorted(self.readers.items()):
            known = reader.lost
            try:
                records[rank] = reader.take_records()
            except ValueError as error:
                self.refused.append(f"the log of rank {rank} is read no further: {error}")
                self._broken.append(rank)
            if rank not in records or reader.lost > known:
                lost.append(rank)
        return records, lost

    def drop(self) -> None:
        """Read no further the logs that cannot be."""
        for rank in self._broken:
            self.readers.pop(rank).close()
        self._broken.clear()

    def are_over(self, where: Callable[[int], Whereabouts]) -> bool:
        """Whether the processes that are read make no calls any more, and others report as the same ranks."""
        return bool(self._next) and all(where(rank).state in OVER for rank in self.readers)

    def restart(self) -> None:
        """Read the others' logs instead."""
        for reader in self.readers.values():
            reader.close()
        self.readers.clear()
        self.readers.update(self._next)
        self._next.clear()
        self.restarts += 1

    def notes(self) -> list[str]:
        """What there is to say of the files."""
        twice = [
            f"rank {rank} reported from two processes; that of {self.readers[rank].header['pid']} counts"
            for rank in sorted(self._next)
        ]
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        again = [f"the job was started again {times}: its iterations are counted on"] if self.restarts else []
        return [*self.refused, *twice, *again]

    @property
    def filled(self) -> float:
        """The share of the fullest that is new."""
        return max((reader.unread for reader in self.readers.values()), default=0.0)

    def begun(self) -> dict[int, int]:
        """How many calls each rank has begun that has not ended."""
        return {rank: reader.begun for rank, reader in self.readers.items() if not reader.ended}

    def close(self) -> None:
        """Unmap them."""
        for reader in (*self.readers.values(), *self._next.values()):
            reader.close()


class JobLog:
    """Reads the call logs in `folder`; call `poll()` every now and then, less often while it `is_calm`.

    Args:
        world_size: ranks that should report; None: as many as their launcher says.
        thresholds: from when on a call is told of that ranks have not come to.

    Attributes: `iterations`, the latest (index, end_s, seconds), counted from the first call on as far as known;
    `lead`, the rank that gives them; `notices`, the latest; `hangs`, what the last poll found of calls that do not end;
    `logs`, the CallLogs; `lock`, to be held by those who use it in several threads.

    Memory is bounded: the logs are rings, and so is what is kept of them.
    """

    def __init__(
        self, folder: str | Path, world_size: int | None = None, thresholds: Thresholds = USUAL_THRESHOLDS
    ) -> None:
        self.folder: Path = Path(folder)
        self.lock: threading.RLock = threading.RLock()
        self.world_size = world_size
        self.lead: int | None = None
        self.notices: list[Notice] = []
        self.hangs: list[Hang] = []
        # What was found when somebody asked how the job is, for the next poll.
        self._untold: tuple[list[Notice], list[Hang]] = [], []
        self._finder = HangFinder(self.folder, self.where, thresholds, self._settle)
        self._beats = Standstill()
        self.logs: CallLogs = CallLogs(self.folder)
        self._readers = self.logs.readers
        self._matcher = Matcher()
        self._iterations = IterationLog(self._matcher, self._settle)
        self.iterations: deque[tuple[int, float, float]] = self._iterations.iterations
        self._calls = CallTotals()
        self._per_rank: dict[int, int] = {}
        # Records of each rank of which only the iterations are known yet.
        self._unsettled: dict[int, list[bytes]] = {}
        self._unsettled_nbytes = 0
        self._settled_s = -inf  # when there were none

    def is_calm(self) -> bool:
        """Whether a poll would hardly find something to say: calls are made as they are as a rule.

        Cost: some 2 us a rank.
        """
        now_s = time.monotonic()
        if len(self._readers) != self.world_size or self.lead is None or any(self._untold):
            return False
        usual_s = self._iterations.stretch.usual_s or 0.0
        still, lead = self._finder.still, self._readers[self.lead]
        return (
            still.see(now_s, self.logs.begun()) < max(self.thresholds.status_s, STATUS_ITERATIONS * usual_s)
            and still.age_s(self.lead) <= LATE_ITERATIONS * usual_s
            and not self._finder.told.lasts
            and not self._iterations.stretch.is_watched
            and lead.spacing_s(self._iterations.records) <= (1 + APART) * usual_s
        )

    def poll(self) -> list[Notice]:
        """Read what is new; return the Notices of it."""
        self._read()
        (found, self.hangs), self._untold = self._untold, ([], [])
        self.notices = (self.notices + found)[-KEPT:]
        return found

    def _read(self) -> None:
        """Read what is new; what there is to say of it is `_untold`."""
        self._find_logs()
        self._take_records()
        if self._unsettled_nbytes >= MAX_UNSETTLED_NBYTES:
            self._iterations.judge(self.world_size)
        self._untold[1].extend(self._find_hangs())
        self._untold[0].extend(self._iterations.take(self.world_size))

    def _take_records(self) -> None:
        """Take the calls that are new."""
        records, lost = self.logs.take()
        if lost:
            self._settle()
            for rank in lost:
                self._matcher.lose(rank)
            self.logs.drop()
        if self.lead not in self._readers and self._readers:
            self.lead = min(self._readers)
        before = self._per_rank.get(self.lead, 0) if self.lead is not None else 0
        for rank, read in records.items():
            if read:
                self._unsettled.setdefault(rank, []).append(read)
                self._unsettled_nbytes += len(read)
                self._per_rank[rank] = self._per_rank.get(rank, 0) + len(read) // RECORD.size
        if self.lead is not None and (own := records.get(self.lead)):
            self._iterations.add(*symbols_of(own, self._readers[self.lead]), before, self.world_size)

    def _settle(self) -> None:
        """Judge all calls up to now: many at a time cost less, and mostly nobody asks who came last."""
        self._settled_s = time.monotonic()
        if self._unsettled:
            new = NewCalls({rank: b"".join(parts) for rank, parts in sorted(self._unsettled.items())}, self._readers)
            self._unsettled, self._unsettled_nbytes = {}, 0
            self._finder.add(new)
            self._matcher.add(new)
            if self.lead in new.parts:
                self._calls.add(new, self.lead)

    def _find_hangs(self) -> list[Hang]:
        now_s = time.monotonic()
        self._finder.still.see(now_s, self.logs.begun())
        self._beats.see(now_s, {rank: reader.beat_s for rank, reader in self._readers.items()})
        for rank, reader in self._readers.items():
            if reader.lost or reader.faults:
                self._finder.lose(rank)
        opened = {rank: {} if reader.ended else reader.open for rank, reader in self._readers.items()}
        ended = {rank: reader.latest for rank, reader in self._readers.items()}
        return self._finder.look(now_s, opened, self._iterations.stretch.usual_s or 0.0, self.world_size, ended)

    def _find_logs(self) -> None:
        # Where a call hangs, or a program has ended, others may have been started instead.
        is_odd = self._finder.told.lasts or any(reader.ended for reader in self._readers.values())
        for rank in self.logs.find(self.world_size, now=is_odd):
            self._settle()
            self._expect(rank)
        if self.logs.are_over(self.where):
            self._restart()

    def _expect(self, rank: int) -> None:
        header = self._readers[rank].header
        self._matcher.add_rank(rank, header.get("boot"))
        self._finder.add_rank(rank, header.get("queued", ()))
        self.world_size = self.world_size or int(header.get("world_size") or 0) or None

    def _restart(self) -> None:
        # What they wrote last.
        self._take_records()
        self._settle()
        self.logs.restart()
        self._finder.restart()
        self._iterations.restart(self.world_size)
        for rank in sorted(self._readers):
            self._expect(rank)

    def report(self) -> dict[str, Any]:
        """What is known up to now, as a document of lists, dicts, numbers and texts."""
        self._iterations.judge(self.world_size)
        return {
            "ranks": self.world_size or max(1, len(self._readers)),
            "reported": sorted(self._readers),
            "paths": _paths(self.folder),
            "lead": self.lead,
            "iterations": {"calls": self._iterations.calls, **_iteration_times(self.iterations)},
            "events": self._iterations.stretch.events(),
            "incidents": self.incidents(),
            "hangs": self._finder.told.report(),
            "arrivals": _arrivals(self._readers, self._matcher, self._per_rank),
            "calls": self._calls.report(),
            "notes": self._notes(),
        }

    @property
    def thresholds(self) -> Thresholds:
        """From when on something is told; may be set."""
        return self._finder.thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._finder.thresholds = thresholds

    def status(self) -> dict[str, Any]:
        """How the job is now: the parts of a status document (job_ledger.py) that call logs tell. Cost: some 0.3 ms.

        What is new is read; what there is to say of it is left to the next poll.
        """
        self._read()
        if time.monotonic() - self._settled_s >= SETTLE_S:
            self._iterations.judge(self.world_size)
        return {
            "ranks": self.world_size or max(1, len(self._readers)),
            "reported": len(self._readers),
            "iterations": _iterations_now(self._iterations),
            "late": _late_now(self._readers, self._matcher, self._iterations),
            "thresholds": self.thresholds.to_json(),
            "notes": self._notes(runs=True),
        }

    def incidents(self) -> list[dict[str, Any]]:
        """The slow spells up to now, each with its cause, counted in iterations of the job."""
        return self._iterations.incidents()

    def age_s(self, index: int) -> float:
        """How long before the latest iteration iteration `index` ended; 0 where neither is known."""
        return self._iterations.age_s(index)

    def where(self, rank: int) -> Whereabouts:
        """Where `rank` is now."""
        return whereabouts(self.folder, rank, self._readers.get(rank), self._beats.age_s(rank))

    def _notes(self, *, runs: bool = False) -> list[str]:
        """What there is to say beside it; not of the end, while the job runs."""
        names = self._calls.names()
        notes = [*self.logs.notes(), *_log_notes(self._readers, self.world_size, names, runs=runs)]
        return [*notes, *self._iterations.notes(self.lead, runs=runs)]

    def close(self) -> None:
        """Unmap the logs."""
        self.logs.close()


def _paths(folder: Path) -> list[str]:
    """Over what the calls went that were recorded, such as "lanterne over nccl"."""
    found: set[str] = set()
    for path in folder.glob(f"*{PATH_SUFFIX}"):
        with suppress(OSError, ValueError):
            found.add(str(json.loads(path.read_text())))
    return sorted(found)


def _iterations_now(log: IterationLog) -> dict[str, Any]:
    times_s = [time_s for *_, time_s in islice(reversed(log.iterations), LATEST)]
    lasting = log.stretch.lasting
    return {
        "count": log.iterations[-1][0] + 1 if log.iterations else 0,
        "total_s": log.total_s,
        "last_s": times_s[0] if times_s else None,
        "median_s": median(times_s) if times_s else None,
        "usual_s": log.stretch.usual_s,
        "ratio": 1.0 if lasting is None else lasting.ratio,
        "slow": lasting is not None,
        "recent": [[*one] for one in log.recent()],
    }


def _iteration_times(iterations: Sequence[tuple[int, float, float]]) -> dict[str, Any]:
    times_s = [time_s for *_, time_s in iterations]
    ordered = sorted(times_s)
    return {
        "count": iterations[-1][0] + 1 if iterations else 0,
        "median_s": median(times_s) if times_s else None,
        "p90_s": ordered[int(0.9 * (len(ordered) - 1))] if times_s else None,
        "time_s": times_s,
    }


def _log_notes(readers: Mapping[int, RingReader], world_size: int | None, names: set[str], *, runs: bool) -> list[str]:
    """What there is to say of the logs themselves; `names`, of the calls in them."""
    notes: list[str] = []
    if silent := [rank for rank in range(world_size or int(not readers)) if rank not in readers]:
        notes.append(f"{join_ranks(silent)} reported nothing: no call that is recorded before the end")
    for rank, reader in sorted(readers.items()):
        notes += [note for note in reader.header.get("notes", ()) if note not in notes]
        if reader.lost:
            notes.append(f"rank {rank}: {reader.lost} calls came faster than they were read and are not counted")
        if reader.faults:
            notes.append(f"rank {rank}: {reader.faults} calls could not be recorded")
    made = names - {DDP_FORWARD}
    queues = [rank for rank, one in readers.items() if made.intersection(one.header.get("queued", ()))]
    if untimed := [rank for rank in queues if not readers[rank].timed]:
        notes.append(f"{join_ranks(sorted(untimed))}: calls on GPUs show when they were queued, not what they took")
    elif any(reader.timed for reader in readers.values()):
        notes.append("calls on GPUs are timed by the device, by events around them")
    broken = [rank for rank, reader in sorted(readers.items()) if not reader.ended]
    if broken and not runs:
        notes.append(f"{join_ranks(broken)} did not end in order")
    if DDP_FORWARD in names and DDP_BACKWARD not in names:
        seen = "not seen, the ends of its forwards are"
        notes.append(f"torch's DistributedDataParallel issues its all-reduces from C++: {seen}")
    return notes


def _late_now(readers: Mapping[int, RingReader], matcher: Matcher, log: IterationLog) -> list[dict[str, Any]]:
    """Return how late each rank arrives now."""
    last = log.iterations[-1][0] if log.iterations else -1
    late_s = (
        dict(enumerate(np.median(rows, axis=0).tolist()))
        if len(rows := log.late.between(last + 1 - LATEST).late_s)
        else None
    )
    return [
        {
            "rank": rank,
            "host": reader.header.get("host"),
            "late_s": None if late_s is None else late_s.get(rank, 0.0),
            "last": matcher.last.get(rank, 0),
            "waited_s": matcher.waited_s.get(rank, 0.0),
        }
        for rank, reader in sorted(readers.items())
    ]


def _arrivals(readers: Mapping[int, RingReader], matcher: Matcher, calls: Mapping[int, int]) -> dict[str, Any]:
    """Of each rank, how often and by how much it came last to calls; `calls`: how many it made."""
    ranks = []
    delays_s = matcher.delays_s()
    for rank in sorted(readers):
        own = delays_s.get(rank)
        ranks.append(
            {
                "rank": rank,
                "host": readers[rank].header.get("host"),
                "calls": calls.get(rank, 0),
                "timed_on_device": readers[rank].timed,
                "last": matcher.last.get(rank, 0),
                "late_median_s": own[len(own) // 2] if own else None,
                "late_max_s": own[-1] if own else None,
                "waited_s": matcher.waited_s.get(rank, 0.0),
            }
        )
    return {"matched": matcher.calls, "ranks": ranks}
