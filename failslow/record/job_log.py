"""A job as its call logs show it: iteration times, incidents as they happen, which rank comes last, and a report.

One rank, the lead, gives the iterations: synchronous jobs have the same on every rank. It is the lowest that reports.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lanterne.failslow.detect.decisions import SKIPPED_ROWS
from lanterne.failslow.detect.events import Incident, LevelEvent
from lanterne.failslow.detect.tracker import Tracker
from lanterne.failslow.operate.thresholds import USUAL_THRESHOLDS, Thresholds
from lanterne.failslow.record.adapters import DDP_BACKWARD, DDP_FORWARD
from lanterne.failslow.record.blame import UNKNOWN, USUAL, Blame, Cause, LateArrivals
from lanterne.failslow.record.call_ring import RecordedCall, RingReader
from lanterne.failslow.record.hangs import Hang, HangFinder, join_ranks
from lanterne.failslow.record.lateness import Matcher
from lanterne.failslow.record.period import PeriodTracker
from lanterne.failslow.record.whereabouts import Whereabouts, whereabouts

MAX_ITERATIONS = 1 << 16
MAX_SYMBOLS = 256
# Of confirmed events, twice as many at most; and of notices.
KEPT_EVENTS, KEPT_NOTICES = 256, 256
# Once every rank reports, look for further logs only so often.
LOOK_EVERY = 32
# The latest iterations that tell how long they take now.
LATEST_TIMES = 6
# Those that a status shows, and those of which it says who comes late.
RECENT, LATE_ROWS = 256, 16


class Notice(NamedTuple):
    """Something that happened: a detector's `event` in iteration times, in words, and its Cause once it is certain."""

    event: LevelEvent
    text: str
    cause: Cause | None


class JobLog:
    """Reads the call logs in `folder`; call `poll()` every now and then.

    Args:
        world_size: ranks that should report; None: as many as their launcher says.
        thresholds: from when on a call is told of that ranks have not come to.

    Attributes: `iterations`, the latest (index, end_s, seconds), counted from the first call on as far as known;
    `lead`, the rank that gives them; `notices`, the latest; `hangs`, what the last poll found of calls that do not end;
    `filled`, the share of the fullest log that was new to the last poll.

    Memory is bounded: the logs are rings, and so is what is kept of them.
    """

    def __init__(
        self, folder: str | Path, world_size: int | None = None, thresholds: Thresholds = USUAL_THRESHOLDS
    ) -> None:
        self.folder: Path = Path(folder)
        self.world_size = world_size
        self.lead: int | None = None
        self.iterations: deque[tuple[int, float, float]] = deque(maxlen=MAX_ITERATIONS)
        self.notices: list[Notice] = []
        self.filled: float = 0.0
        self.hangs: list[Hang] = []
        self._finder = HangFinder(self.folder, self.where, thresholds)
        # rank -> what its clock said last, and when that was by ours.
        self._beats: dict[int, tuple[float, float]] = {}
        self._readers: dict[int, RingReader] = {}
        self._seen: set[Path] = set()
        self._matcher = Matcher()
        self._late = LateArrivals()
        self._blame = Blame(self._late)
        # The onset of the spell that lasts, its event, and what an iteration took before.
        self._spell: tuple[int, LevelEvent, float] | None = None
        # Iterations that nothing was said of yet: index, event, its words.
        self._iterated: list[tuple[int, LevelEvent | None, str]] = []
        self._found: list[Notice] = []
        # (name, bytes) -> [calls, seconds].
        self._calls: dict[tuple[str, int], list[Any]] = {}
        self._per_rank: dict[int, int] = {}
        self._tracker = Tracker()
        self._first_row = 0
        self._spacing: int | None = None
        self._earlier: deque[dict[str, Any]] = deque(maxlen=256)
        self._unlisted = 0
        self._generation = self._polls = self._forwards = 0
        self._total_s = 0.0
        self._period = PeriodTracker()
        self._refused: list[str] = []

    def _new_marker(self, calls: int) -> None:
        """Iterations begin elsewhere, or are longer, than was thought: what is known of them counts no more.

        Incidents of before remain, which end where these iterations do, if they had not ended.
        """
        self._judge_iterations()
        for incident in self._tracker.incidents:
            record = self._incident(incident)
            end = self._first_row + self._tracker.row
            self._earlier.append(record | {"lasts": False, "relief": end if record["lasts"] else record["relief"]})
        marker = self._period.marker
        assert marker is not None
        self._generation = self._period.generation
        self._spacing = marker.spacing
        self._matcher.set_spacing(marker.spacing)
        self._tracker = Tracker()
        self._first_row = calls // marker.spacing
        self.iterations.clear()
        self._late.clear()
        self._blame = Blame(self._late)
        self._spell = None

    def poll(self) -> list[Notice]:
        """Read what is new; return the Notices of it."""
        self._polls += 1
        if len(self._readers) != self.world_size or self._polls % LOOK_EVERY == 0:
            self._find_logs()
        if self.lead is None and self._readers:
            self.lead = min(self._readers)
        leading: Sequence[RecordedCall] = ()
        before = self._per_rank.get(self.lead, 0) if self.lead is not None else 0
        self.filled = 0.0
        for rank, reader in sorted(self._readers.items()):
            lost = reader.lost
            calls = reader.take()
            self.filled = max(self.filled, len(calls) / reader.header["capacity"])
            if reader.lost > lost:
                self._matcher.lose(rank)
            self._finder.add(rank, calls)
            self._per_rank[rank] = self._per_rank.get(rank, 0) + len(calls)
            # Where the backward is not seen, its all-reduces begin when the last rank's forward has ended.
            self._matcher.add(rank, [c._replace(start_s=c.end_s) if c.name == DDP_FORWARD else c for c in calls])
            if rank == self.lead:
                leading = calls
        for number, call in enumerate(leading, before + 1):
            self._count(call)
            self._iterate(call, number)
        self.hangs = self._find_hangs()
        self._judge_iterations()
        found, self._found = self._found, []
        self.notices = (self.notices + found)[-KEPT_NOTICES:]
        return found

    def _find_hangs(self) -> list[Hang]:
        now_s = time.monotonic()
        for rank, reader in self._readers.items():
            if self._beats.get(rank, (None, 0.0))[0] != reader.beat_s:
                self._beats[rank] = reader.beat_s, now_s
            if reader.lost or reader.faults:
                self._finder.lose(rank)
        opened = {rank: {} if reader.ended else reader.open for rank, reader in self._readers.items()}
        latest = [time_s for _, _, time_s in islice(reversed(self.iterations), USUAL)]
        ended = {rank: reader.latest for rank, reader in self._readers.items()}
        return self._finder.look(now_s, opened, median(latest) if latest else 0.0, self.world_size, ended)

    def _find_logs(self) -> None:
        for path in sorted(self.folder.glob("rank-*.calls")):
            if path in self._seen:
                continue
            self._seen.add(path)
            try:
                reader = RingReader(path)
                rank = int(reader.header["rank"])
            except (OSError, ValueError, KeyError) as error:
                self._refused.append(f"{path.name} cannot be read: {error}")
                continue
            if rank in self._readers:
                text = f"rank {rank} reported from two processes; that of {self._readers[rank].header['pid']} counts"
                self._refused.append(text)
                continue
            self._readers[rank] = reader
            self._matcher.add_rank(rank, reader.header.get("boot"))
            self._finder.add_rank(rank, reader.header.get("queued", ()))
            self.world_size = self.world_size or int(reader.header.get("world_size", 0)) or None

    def _count(self, call: RecordedCall) -> None:
        name, _, _, nbytes, start_s, end_s = call
        known = self._calls.get((name, nbytes))
        if known is None and len(self._calls) < MAX_SYMBOLS:
            known = self._calls[name, nbytes] = [0, 0.0]
        if known is not None:
            known[0] += 1
            known[1] += end_s - start_s

    def _iterate(self, call: RecordedCall, calls: int) -> None:
        """Time the iteration that ends with this call, if one does."""
        name, ranks, communicator, nbytes, start_s, _ = call
        symbol = name, nbytes, communicator
        if name == DDP_FORWARD and ranks:
            # Marks an iteration, whatever its batch; other calls come less often, as those that sum up a loss do.
            symbol = name, 0, communicator
            if not self._forwards:
                self._period = PeriodTracker()
                self._generation = 0
            self._forwards = calls = self._forwards + 1
        elif self._forwards:
            return
        time_s = self._period.record(symbol, start_s)
        if self._period.generation != self._generation:
            self._new_marker(calls)
        if time_s is None or time_s <= 0.0:
            return
        index = self.iterations[-1][0] + 1 if self.iterations else self._first_row
        self.iterations.append((index, start_s, time_s))
        self._total_s += time_s
        self._late.end(index, start_s)
        event = self._tracker.update(time_s)
        if event is None or (event.confirmed_at is None and event.kind != "onset"):
            self._iterated.append((index, None, ""))
        else:
            self._iterated.append((index, event, self._words(event)))

    def _judge_iterations(self) -> None:
        """Say what there is to say of the iterations since the last time, all calls up to now being known."""
        if self.world_size and len(self.iterations) > SKIPPED_ROWS:
            self._matcher.find_silent(self.world_size)
        self._late.add(self._matcher.take())
        for index, event, text in self._iterated:
            self._found += self._notices(index, event, text)
        self._iterated.clear()
        self._unlisted += self._tracker.forget(KEPT_EVENTS)

    def _words(self, event: LevelEvent) -> str:
        at = self._first_row + event.index
        slower = event.ratio >= 1
        level = f"{event.ratio:.2f} times as long as before" if slower else f"{1 / event.ratio:.2f} times faster"
        level_s = self._tracker.level_s
        if event.kind == "relief" and level_s is not None:
            level = f"back to {level_s * 1e3:.4g} ms"
        sure = "" if event.confirmed_at is not None else "perhaps "
        return f"iteration {self._first_row + self._tracker.row - 1}: {sure}{event.kind} at {at}: {level}"

    def _notices(self, index: int, event: LevelEvent | None, text: str) -> Iterator[Notice]:
        """What is to be said after iteration `index`: its event, with who is to blame, or that it is another now."""
        if event is not None:
            cause = self._judge(event, index) if event.confirmed_at is not None else None
            yield Notice(event, text, cause)
        elif self._spell is not None:
            onset, event, usual_s = self._spell
            latest_s = self._time_s(index - LATEST_TIMES + 1, index)
            cause = self._blame.follow(onset, usual_s, latest_s, index, self._silent())
            if cause is not None:
                yield Notice(event, f"iteration {index}: slow for another reason now", cause)

    def _judge(self, event: LevelEvent, index: int) -> Cause | None:
        """Who made iterations slow, as known at `index`; None of an event that says nothing about it."""
        at, usual = self._first_row + event.index, self._usual(self._first_row + event.index)
        if event.ratio > 1.0 and self._spell is None:
            if usual is None:
                return UNKNOWN
            self._spell = at, event, usual[1]
            return self._blame.begin(usual[0], at, index, usual[1], self._time_s(at, index), self._silent())
        if event.ratio < 1.0 and (event.kind == "relief" or not self._tracker.slow):
            first, self._spell = self._spell is None and not self._blame.causes, None
            if first and event.kind == "relief":
                first_row = max(self.iterations[0][0] + 1, self._first_row + SKIPPED_ROWS // 2)
                usual_s, slow_s = self._time_s(at, index), self._time_s(first_row, at - 1)
                return self._blame.recovered(first_row, at, index, usual_s, slow_s, self._silent())
        return None

    def _usual(self, onset: int) -> tuple[int, float] | None:
        """The first of the iterations before `onset` that say what is usual, and what they took; None without any."""
        first = max(onset - USUAL, self._first_row + SKIPPED_ROWS // 2, self.iterations[0][0] + 1)
        return (first, self._time_s(first, onset - 1)) if first < onset else None

    def _time_s(self, first: int, last: int) -> float:
        """The median time of iterations [first, last]."""
        begin = self.iterations[0][0]
        rows = islice(self.iterations, max(first - begin, 0), last - begin + 1)
        return median([time_s for _, _, time_s in rows] or [0.0])

    def _silent(self) -> tuple[int, ...]:
        """Ranks of which nothing is known."""
        return tuple(sorted(self._matcher.silent))

    def report(self) -> dict[str, Any]:
        """What is known up to now, as a document of lists, dicts, numbers and texts."""
        times_s = [time_s for _, _, time_s in self.iterations]
        ordered = sorted(times_s)
        marker = self._period.marker
        return {
            "ranks": self.world_size or max(1, len(self._readers)),
            "reported": sorted(self._readers),
            "lead": self.lead,
            "iterations": {
                "count": self.iterations[-1][0] + 1 if self.iterations else 0,
                "calls": None if marker is None else marker.spacing,
                "median_s": median(times_s) if times_s else None,
                "p90_s": ordered[int(0.9 * (len(ordered) - 1))] if times_s else None,
                "time_s": times_s,
            },
            "events": [self._shifted(asdict(event)) for event in self._tracker.events],
            "incidents": self.incidents(),
            "hangs": self._finder.report(),
            "arrivals": self._arrivals(),
            "calls": [
                {"name": name, "nbytes": nbytes, "count": count, "mean_s": total_s / count}
                for (name, nbytes), (count, total_s) in sorted(self._calls.items(), key=lambda item: -item[1][1])
            ],
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
        """How the job is now: the parts of a status document (job_ledger.py) that call logs tell. Cost: some 0.3 ms."""
        latest = list(islice(reversed(self.iterations), RECENT))[::-1]
        now_s = median(times_s) if (times_s := [time_s for *_, time_s in latest[-LATEST_TIMES:]]) else None
        usual_s = self._spell[2] if self._spell is not None else self._tracker.level_s
        open_now = self._tracker.incidents[-1:] if self._tracker.slow else []
        return {
            "ranks": self.world_size or max(1, len(self._readers)),
            "reported": len(self._readers),
            "iterations": {
                "count": self.iterations[-1][0] + 1 if self.iterations else 0,
                "total_s": self._total_s,
                "last_s": latest[-1][2] if latest else None,
                "median_s": now_s,
                "usual_s": usual_s,
                "ratio": open_now[0].ratio if open_now else 1.0,
                "slow": bool(open_now),
                "recent": [[index, time_s] for index, _, time_s in latest],
            },
            "late": self._late_now(),
            "thresholds": self.thresholds.to_json(),
            "notes": self._notes(runs=True),
        }

    def _late_now(self) -> list[dict[str, Any]]:
        rows = [row for row in islice(reversed(self._late.rows), LATE_ROWS) if row.calls]
        return [
            {
                "rank": rank,
                "host": reader.header.get("host"),
                "late_s": median(row.late_s.get(rank, 0.0) for row in rows) if rows else None,
                "last": self._matcher.last.get(rank, 0),
                "waited_s": self._matcher.waited_s.get(rank, 0.0),
            }
            for rank, reader in sorted(self._readers.items())
        ]

    def age_s(self, index: int) -> float:
        """How long before the latest iteration iteration `index` ended; 0 where neither is known."""
        if not self.iterations:
            return 0.0
        at = max(index - self.iterations[0][0], 0)
        return max(self.iterations[-1][1] - self.iterations[min(at, len(self.iterations) - 1)][1], 0.0)

    def incidents(self) -> list[dict[str, Any]]:
        """The slow spells up to now, each with its cause, counted in iterations of the job."""
        return [*self._earlier, *(self._incident(incident) for incident in self._tracker.incidents)]

    def where(self, rank: int) -> Whereabouts:
        """Where `rank` is now."""
        beat_s = self._beats.get(rank)
        age_s = None if beat_s is None else time.monotonic() - beat_s[1]
        return whereabouts(self.folder, rank, self._readers.get(rank), age_s)

    def _shifted(self, record: dict[str, Any]) -> dict[str, Any]:
        """A record whose rows are counted from the first iteration of the job."""
        rows = ("index", "provisional_at", "confirmed_at", "onset", "relief")
        known = {name: self._first_row + record[name] for name in rows if record.get(name) is not None}
        return record | known

    def _incident(self, incident: Incident) -> dict[str, Any]:
        record = self._shifted(asdict(incident))
        causes = self._blame.of(record["onset"], record["relief"])
        about = {"lasts": record["relief"] is None, "calls": self._spacing, "cause": causes[0], "causes": causes}
        return record | about

    def _arrivals(self) -> dict[str, Any]:
        matcher, ranks = self._matcher, []
        delays: dict[int, list[float]] = {}
        for call in matcher.matched:
            delays.setdefault(call.last, []).append(call.late_s)
        for rank in sorted(self._readers):
            own = sorted(delays.get(rank, ()))
            ranks.append(
                {
                    "rank": rank,
                    "host": self._readers[rank].header.get("host"),
                    "calls": self._per_rank.get(rank, 0),
                    "timed_on_device": self._readers[rank].timed,
                    "last": matcher.last.get(rank, 0),
                    "late_median_s": own[len(own) // 2] if own else None,
                    "late_max_s": own[-1] if own else None,
                    "waited_s": matcher.waited_s.get(rank, 0.0),
                }
            )
        return {"matched": matcher.calls, "ranks": ranks}

    def _notes(self, *, runs: bool = False) -> list[str]:
        """What there is to say beside it; not of the end, while the job runs."""
        notes = list(self._refused)
        expected = range(self.world_size or int(not self._readers))
        if silent := [rank for rank in expected if rank not in self._readers]:
            notes.append(f"{join_ranks(silent)} reported nothing: no call that is recorded before the end")
        for rank, reader in sorted(self._readers.items()):
            notes += [note for note in reader.header.get("notes", ()) if note not in notes]
            if reader.lost:
                notes.append(f"rank {rank}: {reader.lost} calls came faster than they were read and are not counted")
            if reader.faults:
                notes.append(f"rank {rank}: {reader.faults} calls could not be recorded")
        names = {name for name, _ in self._calls}
        made = names - {DDP_FORWARD}
        queues = [rank for rank, one in self._readers.items() if made.intersection(one.header.get("queued", ()))]
        if untimed := [rank for rank in queues if not self._readers[rank].timed]:
            notes.append(f"{join_ranks(sorted(untimed))}: calls on GPUs show when they were queued, not what they took")
        elif any(reader.timed for reader in self._readers.values()):
            notes.append("calls on GPUs are timed by the device, by events around them")
        broken = [rank for rank, reader in sorted(self._readers.items()) if not reader.ended]
        if broken and not runs:
            notes.append(f"{join_ranks(broken)} did not end in order")
        if self._period.dropped:
            notes.append(f"the clock of rank {self.lead} went backwards {self._period.dropped} times")
        if self._readers and not self.iterations:
            notes.append("no call recurs evenly: no iterations were found")
        elif self.iterations and self._tracker.row < 2 * SKIPPED_ROWS:
            timed = f"{self._tracker.row} of the iterations were timed, too few to judge"
            notes.append(f"{timed}: the first {SKIPPED_ROWS} show what is normal")
        if self._unlisted:
            notes.append(f"{self._unlisted} incidents before those listed are only counted")
        if not runs and any(incident.relief is None for incident in self._tracker.incidents):
            notes.append("the job ended inside an incident")
        if DDP_FORWARD in names and DDP_BACKWARD not in names:
            seen = "not seen, the ends of its forwards are"
            notes.append(f"torch's DistributedDataParallel issues its all-reduces from C++: {seen}")
        return notes

    def close(self) -> None:
        """Unmap the logs."""
        for reader in self._readers.values():
            reader.close()

