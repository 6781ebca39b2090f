"""The iterations of a job: when each ended, what the detector says of their times, and who made them slow."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, NamedTuple

from lanterne.failslow.detect.events import Incident, LevelEvent
from lanterne.failslow.detect.tracker import SKIPPED_ROWS, Tracker
from lanterne.failslow.record.blame import Blame, Cause, LateArrivals, Latecomer
from lanterne.failslow.record.bounds import KEPT, MANY
from lanterne.failslow.record.lateness import Matcher
from lanterne.failslow.record.new_calls import SIZELESS_NBYTES, CallSymbol
from lanterne.failslow.record.period import PeriodTracker


class Notice(NamedTuple):
    """Something that happened: a detector's `event` in iteration times, in words, and its Cause once it is certain."""

    event: LevelEvent
    text: str
    cause: Cause | None


class Marks:
    """Which calls of the lead end iterations: those of a marker that recurs, or DDP_FORWARDs."""

    def __init__(self) -> None:
        self._period = PeriodTracker()
        self._generation = self._forwards = 0
        self._per_forward = 1.0

    @property
    def spacing(self) -> int | None:
        """How many calls an iteration has, or DDP_FORWARDs where there are any; None where none recurs evenly."""
        return None if self._period.marker is None else self._period.marker.spacing

    @property
    def records(self) -> int:
        """How many calls of any kind an iteration has, at least 1."""
        return max(round((self.spacing or 1) * self._per_forward), 1)

    @property
    def dropped(self) -> int:
        """How often the clock went backwards."""
        return self._period.dropped

    def take(
        self, symbols: Sequence[CallSymbol], times_s: Sequence[float], forwards: Sequence[int], before: int
    ) -> Iterator[tuple[float, float | None, int | None]]:
        """Take calls, `before` of which others came; of those that end an iteration when they were made, and its time.

        And, where iterations are marked otherwise from there on, how many marks had come by then.
        """
        if not self._forwards:
            first = forwards[0] if forwards else len(symbols)
            yield from self._time(symbols[:first], times_s[:first], before)
        if forwards:
            if not self._forwards:
                self._period = PeriodTracker()
                self._generation = 0
            # They mark an iteration, whatever its batch; other calls come less often, as those that sum up a loss do.
            marks = [symbols[at][:SIZELESS_NBYTES] for at in forwards]
            yield from self._time(marks, [times_s[at] for at in forwards], self._forwards)
            self._forwards += len(forwards)
            self._per_forward = (before + len(symbols)) / self._forwards

    def _time(
        self, symbols: Sequence[CallSymbol], times_s: Sequence[float], before: int
    ) -> Iterator[tuple[float, float | None, int | None]]:
        for at, time_s in self._period.record_all(symbols, times_s):
            is_new = self._period.generation != self._generation
            self._generation = self._period.generation
            yield times_s[at], time_s, before + at + 1 if is_new else None


class Stretch:
    """Iterations that end with one marker: what their times show, and whom slow ones are put down to.

    Args:
        iterations: the latest (index, end_s, seconds); `late`: the Arrivals of them.
        first_row: the index of the first.
        spacing: how many calls one has; None where that is not known.

    Attributes: `tracker`, which has taken their times; `first_row`.
    """

    def __init__(
        self,
        iterations: deque[tuple[int, float, float]],
        late: LateArrivals,
        matcher: Matcher,
        first_row: int = 0,
        spacing: int | None = None,
    ) -> None:
        self.tracker: Tracker = Tracker()
        self.first_row: int = first_row
        self._spacing = spacing
        self._blame = Blame(iterations, late, matcher, first_row)

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes when nothing is slow."""
        lasting = self._blame.lasting
        return self.tracker.level_s if lasting is None else lasting.usual_s

    @property
    def is_watched(self) -> bool:
        """Whether iterations are slow, or may be: the next ones tell."""
        return (
            self._blame.lasting is not None
            or self.tracker.slow
            or self.tracker.doubtful
            or self._blame.latecomers.doubtful
        )

    @property
    def lasting(self) -> Incident | None:
        """The incident that lasts."""
        return self.tracker.incidents[-1] if self.tracker.slow else None

    def events(self) -> list[dict[str, Any]]:
        """The detector's, counted in iterations of the job."""
        return [_shifted(asdict(event), self.first_row) for event in self.tracker.events]

    def incidents(self) -> list[dict[str, Any]]:
        """The slow spells, each with its cause, counted in iterations of the job."""
        return [self._incident(incident) for incident in self.tracker.incidents]

    def asks(self, event: LevelEvent | None) -> bool:
        """Whether it matters who came late to an iteration, of whose time the tracker says `event`.

        Of most iterations nothing is to be said, or nothing is certain, whoever came late in them.
        """
        is_sure = event is not None and event.confirmed_at is not None
        return is_sure or self._blame.lasting is not None or self._arrivals_tell

    def notices(self, index: int, event: LevelEvent | None, *, asks: bool) -> Iterator[Notice]:
        """What is to be said after an iteration: its event, with who is to blame, or that it is another now.

        Args:
            asks: whether it matters who came late.
        """
        late: Latecomer | None = None
        if asks:
            late = self._blame.latecomers.see(index, self.usual_s or 0.0, learns=self._blame.lasting is None)
        if event is not None and event.confirmed_at is not None:
            yield Notice(event, self._words(event), self._blame.judge(event, index, slow=self.tracker.slow))
            return
        if event is not None and event.kind == "onset":
            yield Notice(event, self._words(event), None)
        if (spell := self._blame.lasting) is not None and (cause := self._blame.follow(index, late)) is not None:
            yield Notice(spell.event, f"iteration {index}: slow for another reason now", cause)
        elif asks and (shown := self._shown(index, late)) is not None:
            slow = self.tracker.slow
            yield Notice(shown, self._words(shown), self._blame.judge(shown, index, slow=slow, late=late))

    @property
    def _arrivals_tell(self) -> bool:
        """Whether who comes late may tell what times alone do not: they vary much, or are of two minds."""
        return self.tracker.noisy or self.tracker.doubtful

    def _words(self, event: LevelEvent) -> str:
        at = self.first_row + event.index
        slower = event.ratio >= 1
        level = f"{event.ratio:.2f} times as long as before" if slower else f"{1 / event.ratio:.2f} times faster"
        level_s = self.tracker.level_s
        if event.kind == "relief" and level_s is not None:
            level = f"back to {level_s * 1e3:.4g} ms"
        sure = "" if event.confirmed_at is not None else "perhaps "
        return f"iteration {self.first_row + self.tracker.row - 1}: {sure}{event.kind} at {at}: {level}"

    def _shown(self, index: int, late: Latecomer | None) -> LevelEvent | None:
        """The event that is certain by iteration `index` since ranks come late by themselves, or do so no more.

        Times that vary much tell it late, or never. Those that do not are certain of 10 % by themselves, of less only
        where it lasts; and that a slow start is over they tell a row later than both together.
        """
        if not self._arrivals_tell:
            return None
        if self._blame.lasting is not None:
            gone = self._blame.gone(index) if self.tracker.noisy else None
            return None if gone is None else self.tracker.believe_relief(gone - self.first_row)
        left = self._blame.latecomers.left
        if late is None and left is not None and not self._blame.causes:
            return self.tracker.believe_relief(left - self.first_row)
        if late is None or not self._blame.blames(late, index):
            return None
        return self.tracker.believe_onset(late.since - self.first_row)

    def _incident(self, incident: Incident) -> dict[str, Any]:
        record = _shifted(asdict(incident), self.first_row)
        causes = self._blame.of(record["onset"], record["relief"])
        about = {"lasts": record["relief"] is None, "calls": self._spacing, "cause": causes[0], "causes": causes}
        return record | about


class IterationLog:
    """The iterations as the calls of one rank, the lead, show them.

    Args:
        matcher: tells who came last to calls.
        settle: tells it of all calls up to now.

    Attributes: `iterations`, the latest (index, end_s, seconds), counted from the first call on as far as known;
    `total_s`, of all; `late`: who came last in them; `stretch`, the one that lasts.
    """

    def __init__(self, matcher: Matcher, settle: Callable[[], object]) -> None:
        self.iterations: deque[tuple[int, float, float]] = deque(maxlen=MANY)
        self.total_s: float = 0.0
        self.late: LateArrivals = LateArrivals()
        self._matcher = matcher
        self._settle = settle
        self.stretch: Stretch = Stretch(self.iterations, self.late, matcher)
        # How many iterations there are whose calls are not known yet; those that nothing was made of, and their times.
        self._unjudged = 0
        self._ended: list[tuple[int, float]] = []
        self._found: list[Notice] = []
        self._earlier: deque[dict[str, Any]] = deque(maxlen=256)
        # Incidents that are neither there nor in the Stretch.
        self._unlisted = 0
        self._marks = Marks()

    @property
    def calls(self) -> int | None:
        """How many calls an iteration has; None where none recurs evenly."""
        return self._marks.spacing

    @property
    def records(self) -> int:
        """How many calls of the lead an iteration has, at least 1."""
        return self._marks.records

    def recent(self) -> list[tuple[int, float]]:
        """The latest (index, seconds) that a status shows."""
        return [(index, time_s) for index, _, time_s in islice(reversed(self.iterations), KEPT)][::-1]

    def add(
        self,
        symbols: Sequence[CallSymbol],
        times_s: Sequence[float],
        forwards: Sequence[int],
        before: int,
        world_size: int | None,
    ) -> None:
        """Time the iterations that end with these calls, as symbols_of has them; `before`: how many came before."""
        for end_s, time_s, begun in self._marks.take(symbols, times_s, forwards, before):
            if begun is not None:
                self._new_marker(begun, world_size)
            if time_s is not None and time_s > 0.0:
                self._end(end_s, time_s)

    def _end(self, end_s: float, time_s: float) -> None:
        """An iteration has ended."""
        index = self.iterations[-1][0] + 1 if self.iterations else self.stretch.first_row
        self.iterations.append((index, end_s, time_s))
        self.total_s += time_s
        self.late.end(index, end_s)
        self._unjudged += 1
        self._ended.append((index, time_s))

    def judge(self, world_size: int | None) -> None:
        """See what there is to say of the iterations since the last time, all calls up to now being known."""
        self._learn(world_size)
        self._tell(world_size)

    def _learn(self, world_size: int | None) -> None:
        """See who came late to the calls up to now."""
        self._settle()
        self._unjudged = 0
        if world_size and len(self.iterations) > SKIPPED_ROWS:
            self._matcher.find_silent(world_size)
        self.late.add(self._matcher.take())

    def take(self, world_size: int | None) -> list[Notice]:
        """What there is to say since the last time."""
        self._tell(world_size)
        if self._unjudged >= KEPT:
            self._learn(world_size)
        self._unlisted += self.stretch.tracker.forget(KEPT)
        found, self._found = self._found, []
        return found

    def restart(self, world_size: int | None) -> None:
        """The job was started again: its iterations go on, and are learned anew."""
        end = self._close(world_size)
        self._marks = Marks()
        self._matcher.restart()
        self.stretch = Stretch(self.iterations, self.late, self._matcher, end)

    def _new_marker(self, calls: int, world_size: int | None) -> None:
        """Iterations begin elsewhere, or are longer, than was thought: what is known of them counts no more."""
        end = self._close(world_size)
        spacing = self._marks.spacing
        assert spacing is not None
        self._matcher.set_spacing(spacing)
        # Where spells are known, no iteration has the number of one before it.
        first_row = max(calls // spacing, end if self._earlier else 0)
        self.stretch = Stretch(self.iterations, self.late, self._matcher, first_row, spacing)

    def _close(self, world_size: int | None) -> int:
        """The iterations up to now are all of their kind: the number of the next one.

        Incidents of before remain, which end where these iterations do, if they had not ended.
        """
        self.judge(world_size)
        stretch = self.stretch
        self._unlisted += stretch.tracker.forget(KEPT)
        end = stretch.first_row + stretch.tracker.row
        for record in stretch.incidents():
            self._unlisted += len(self._earlier) == self._earlier.maxlen
            self._earlier.append(record | {"lasts": False, "relief": end if record["lasts"] else record["relief"]})
        self.iterations.clear()
        self.late.clear()
        return end

    def age_s(self, index: int) -> float:
        """How long before the latest iteration iteration `index` ended; 0 where neither is known."""
        if not self.iterations:
            return 0.0
        at = max(index - self.iterations[0][0], 0)
        return max(self.iterations[-1][1] - self.iterations[min(at, len(self.iterations) - 1)][1], 0.0)

    def incidents(self) -> list[dict[str, Any]]:
        """The slow spells up to now, each with its cause, counted in iterations of the job."""
        return [*self._earlier, *self.stretch.incidents()]

    def notes(self, lead: int | None, *, runs: bool) -> Iterator[str]:
        """What there is to say beside, `lead` giving the iterations; not of the end, while the job runs."""
        if dropped := self._marks.dropped:
            yield f"the clock of rank {lead} went backwards {dropped} times"
        if lead is not None and not self.iterations:
            yield "no call recurs evenly: no iterations were found"
        tracker = self.stretch.tracker
        if self.iterations and tracker.row < 2 * SKIPPED_ROWS:
            timed = f"{tracker.row} of the iterations were timed, too few to judge"
            yield f"{timed}: the first {SKIPPED_ROWS} show what is normal"
        if self._unlisted:
            yield f"{self._unlisted} incidents before those listed are only counted"
        if not runs and any(incident.relief is None for incident in tracker.incidents):
            yield "the job ended inside an incident"

    def _tell(self, world_size: int | None) -> None:
        """See what there is to say of the iterations that have ended."""
        for index, time_s in self._ended:
            event = self.stretch.tracker.update(time_s)
            asks = self.stretch.asks(event)
            if asks and self._unjudged:
                self._learn(world_size)
            self._found += self.stretch.notices(index, event, asks=asks)
        self._ended.clear()


def _shifted(record: dict[str, Any], first_row: int) -> dict[str, Any]:
    """A record whose rows are counted from the first iteration of the job."""
    rows = ("index", "provisional_at", "confirmed_at", "onset", "relief")
    return record | {name: first_row + record[name] for name in rows if record.get(name) is not None}
