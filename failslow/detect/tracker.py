"""The streaming detector: one `update(time_s)` per iteration says when a job became slow, and when it recovered.

How it decides, all in log scale, where a slowdown is a shift whatever the length of an iteration:

1. *Level and noise* (level.py) are those of the last 64 iterations, the noise without spikes of some 200. Suspects stay
   outside until they are cleared, so that a slowdown does not become its own reference; what they were then tells what
   bursts look like (bursts.py).
2. *Votes.* Each sample votes with the log-likelihood ratio of "shifted by 10 % or more" against "not shifted", under a
   Student t with 2 degrees of freedom; in a noisy job not 10 %, but twice its scale. A vote is capped at log(0.9 / r),
   r being how often this job has spikes anyway: so no single spike counts for much, and a job full of spikes needs more
   samples than a quiet one. One against counts for as much, and for log((1 - r) / 0.1) where that is more.
3. *Votes add up* to a CUSUM in each direction. Its last zero is the onset. Odds of 100 to 1 are provisional.
4. *Weighing.* A slowdown of a healthy job is certain when at least five suspects speak for one lasting level rather
   than for bursts that happen to meet (evidence.py: both hypotheses model every row, autocorrelation
   included), and when healthy rows are seldom as high (Level.explains). A level that wanders is certain by votes alone,
   but from more rows, and where the median has moved by more than the noise explains. What is certain must also count:
   a shift of 10 % (ACCEPT). A healthy job that becomes faster is weighed alike, from 16 rows, or 8 where it is plain:
   nothing is lost by waiting.
5. *Reliefs* are voted on, the level before the incident against the incident, which has rows of any height. The first
   level of a job that falls at once and for good was slow from the start; what falls by and by is a warm-up.
6. *Slow path* (reference.py). The level is also compared with that at the last event: steps of less than 10 % add up.
   Inside an incident the last rows are, too: its noise is not known well, nor are its levels of one height.

One fact is one event: what is told of again within 8 rows, in the same direction, only makes the level better known.

Paper: Wu et al. (GREYHOUND), section 4.2; differs: no run-length posterior (bench/scores/detector/bocd.py has it),
medians instead of means, provisional and confirmed events, the slow path, re-anchoring.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log

from lanterne.errors import InputError
from lanterne.failslow.detect.decisions import (
    ACCEPT,
    MAX_WARM_UP_ROWS,
    MIN_FALL_ROWS,
    MIN_SAMPLES,
    SKIPPED_ROWS,
    EventFinding,
    JobState,
    findings,
    other_level,
)
from lanterne.failslow.detect.events import Incident, LevelEvent, incidents, latest
from lanterne.failslow.detect.evidence import Weighing
from lanterne.failslow.detect.held_rows import WINDOW_ROWS, HeldRows
from lanterne.failslow.detect.level import REVIEW_ROWS, Level
from lanterne.failslow.detect.reference import Healthy, Reference
from lanterne.failslow.detect.votes import MIN_RATE, PROVISIONAL, SHIFT, best_split, median, split

TAKEN_AGAIN = 8
# Rows from one event on in which another of its direction is the same fact, better known.
SAME_FACT_ROWS = 8


class Tracker:
    """Finds onsets, reliefs and other changes in a stream of iteration times.

    Attributes: `events`: confirmed events so far; `row`: rows seen; `warm`: warm-up is over.

    Cost: see bench/results/cpu-2-cores.md; memory is constant but for the confirmed events.
    """

    def __init__(self) -> None:
        self.events: list[LevelEvent] = []
        self.row: int = 0
        self.warm: bool = False
        level = Level(SKIPPED_ROWS)
        reference = Reference(Healthy(level, level.noise, MIN_RATE, MIN_RATE))
        self._job = JobState(level, reference, HeldRows(), Weighing())
        self._pushes = 0
        self._forget = 1 / 64

    @property
    def slow(self) -> bool:
        """Inside an incident."""
        return self._job.slow

    @property
    def incidents(self) -> list[Incident]:
        """The incidents so far, the last one open where its `relief` is None; its `ratio` follows the level."""
        found = incidents(self.events)
        if found and found[-1].relief is None:
            now = exp(self._job.level.median - self._job.reference.anchor)
            single = self.events[-1].confirmed_at == found[-1].confirmed_at
            found[-1] = replace(found[-1], ratio=now if single else max(found[-1].ratio, now))
        return found

    @property
    def level_s(self) -> float | None:
        """The current level, seconds; None before any row."""
        return exp(self._job.level.median) if self.row else None

    def forget(self, keep: int) -> int:
        """Keep the latest confirmed events, at most `keep`, once there are twice as many; the incidents forgotten."""
        if len(self.events) <= 2 * keep:
            return 0
        known = len(incidents(self.events))
        self.events = latest(self.events, keep)
        return known - len(incidents(self.events))

    def update(self, time_s: float) -> LevelEvent | None:
        """Take the next time in seconds; return the LevelEvent that it makes provisional or confirmed, if there is one.

        A provisional event is taken back silently when no confirmed one of that index follows.

        Raises:
            InputError: not a positive, finite number.
        """
        if not 0.0 < time_s < inf:
            raise InputError(f"iteration {self.row}: got {time_s!r}, expected a positive time in seconds")
        y = log(time_s)
        job = self._job
        job.held.recent.append(y)
        row = self.row
        self.row = row + 1
        if row < SKIPPED_ROWS:
            self._skip(y)
            return None
        event = self._take(y, row)
        return self._look_back(row) if event is None and job.slow and row % REVIEW_ROWS == 0 else event

    def _take(self, y: float, row: int) -> LevelEvent | None:
        job = self._job
        level, held, reference = job.level, job.held, job.reference
        last = held.see(y)
        near = 2 * abs(y - level.median) < level.shift
        if near and not held.rows and not (job.slow and y - reference.base < SHIFT / 2):
            return self._absorb(y, row)
        if not job.slow or len(level.window) >= SKIPPED_ROWS:
            held.count(y, row, level)
        if job.slow:
            held.count_back(y, last, row, (reference.base, reference.healthy.noise), (level.median, level.noise))
        if held.up.score == held.down.score == held.back.score == 0.0:
            return self._clear(y, row)
        return self._suspect(y, row)

    def _skip(self, y: float) -> None:
        job = self._job
        job.level.push(y)
        job.reference.drop(job.level.median)
        if self.row == SKIPPED_ROWS:
            job.level.review()
            job.weighing.bursts.pass_rows(SKIPPED_ROWS)
            for value in job.level.window.values:
                job.weighing.bursts.see(value - job.reference.anchor, job.level.core_scale)

    def _absorb(self, y: float, row: int) -> LevelEvent | None:
        """Let an ordinary row into the level."""
        self._job.level.push(y)
        self._pushes += 1
        return self._review(row) if self._pushes % REVIEW_ROWS == 0 else None

    def _clear(self, y: float, row: int) -> LevelEvent | None:
        """No run is alive any more: let the suspects and `y` into the window and learn how often such things happen."""
        held = self._job.held
        rows, held.rows = [*held.rows, y], []
        event: LevelEvent | None = None
        for value in rows:
            self._learn(value)
            event = self._absorb(value, row) or event
        return event

    def _learn(self, value: float) -> None:
        """Learn from a suspect that was cleared; among them rows that are none by themselves."""
        level, held, bursts = self._job.level, self._job.held, self._job.weighing.bursts
        z = value - level.median
        if self._job.slow:
            if value - self._job.reference.base < SHIFT / 2:
                held.back.set_rate(min(held.back.rate + 1 / 64, 0.2))
        elif 2 * z < level.shift:
            bursts.end()
        else:
            bursts.see(z, level.core_scale)
        if abs(z) > max(SHIFT / 2, 2 * level.scale):
            run = held.up if z > 0.0 else held.down
            run.set_rate(run.rate + self._forget)

    def _review(self, row: int) -> LevelEvent | None:
        """Every 8 samples: refresh the spread, forget old spikes, end the warm-up, walk the slow path."""
        job = self._job
        job.level.review()
        if not job.slow:
            job.weighing.bursts.pass_rows(REVIEW_ROWS)
        self._forget = 1 / min(64 + self._pushes, 256)
        job.held.up.forget(REVIEW_ROWS * self._forget)
        job.held.down.forget(REVIEW_ROWS * self._forget)
        if not self.warm:
            self._review_warm_up(row)
        full = len(job.level.window) >= WINDOW_ROWS // 2
        if job.slow:
            back = job.level.median - job.reference.base < SHIFT / 2
            return self._slow_path("relief", row) if full and back else None
        rises = job.reference.rises(job.level)
        return self._slow_path("onset", row) if rises and full else None

    def _slow_path(self, kind: str, row: int) -> LevelEvent | None:
        """Confirm what the window as a whole shows: it has left the anchor, or an incident's has come back to it."""
        job, values = self._job, list(self._job.level.window.values)
        old = job.reference.anchor if kind == "onset" else job.reference.told
        start = best_split(values, old, job.level.median, SHIFT)
        index = row + 1 - len(values) + start
        if job.last is not None:
            # The window may hold rows of before the last incident.
            index = max(index, job.last.index + 1)
        return self._confirm(kind, index, row, row, values[start:], old)

    def _look_back(self, row: int) -> LevelEvent | None:
        """Confirm another level inside an incident that its last rows show together."""
        found = other_level(self._job, row)
        if found is None:
            return None
        values, start, old = found
        return self._confirm("change", row + 1 - len(values) + start, row, row, values[start:], old)

    def _review_warm_up(self, row: int) -> None:
        """Warm-up is over once two successive half windows agree; until then the reference follows downwards."""
        level = self._job.level
        self._job.reference.drop(level.median)
        if len(level.window) < SKIPPED_ROWS:
            return
        values = list(level.window.values)
        older, newer = median(values[:8]), median(values[8:16])
        if row >= MAX_WARM_UP_ROWS or abs(newer - older) < max(0.01, 2 * level.error(8, 8)):
            self.warm = True
            level.window.capacity = WINDOW_ROWS

    def _suspect(self, y: float, row: int) -> LevelEvent | None:
        """Hold `y` back; return the event that it makes provisional or certain."""
        job, held = self._job, self._job.held
        held.rows.append(y)
        strongest = held.strongest
        for finding in findings(job, row):
            event = self._settle(finding, row)
            if event is not None or not held.rows:
                return event
        if len(held.rows) >= SKIPPED_ROWS and held.is_stale(row):
            return self._let_go(row)
        return held.suspected(row, job.level, "change" if job.slow else "onset") if strongest >= PROVISIONAL else None

    def _let_go(self, row: int) -> LevelEvent | None:
        """Neither certain nor cleared: noise, or a step too small to count. It is the level now.

        The last few suspects are taken once more: an incident may have begun with them.
        """
        held = self._job.held
        rows = held.rows
        held.clear()
        held.rows, again = rows[: -TAKEN_AGAIN - 1], rows[-TAKEN_AGAIN:]
        event = self._clear(rows[-TAKEN_AGAIN - 1], row - len(again))
        for y, its_row in zip(again, range(row + 1 - len(again), row + 1), strict=True):
            event = self._take(y, its_row) or event
            if event is not None and event.confirmed_at is not None:
                # All rows up to now have been counted.
                break
        return event

    def _settle(self, finding: EventFinding, row: int) -> LevelEvent | None:
        """Confirm the event of `finding` where its level began, if enough rows have followed."""
        job, (kind, suspects, run) = self._job, finding
        level, new = job.level, median(suspects[-8:])
        if kind == "warm":
            # A warm-up ends downwards; that is no event.
            self._restart(suspects[-SKIPPED_ROWS:])
            job.reference.drop(job.level.median)
            return None
        if kind == "relief" and job.slow:
            # It follows rows of any height, and begins where the last of them was: with the run.
            rows = list(job.held.recent)[-min(row + 1 - run.start, job.since(row) - 1) :]
            least = MIN_SAMPLES
            start = split(rows, level.median, new)
        else:
            rows, start = job.placed(suspects, row)
            least = {"onset": MIN_SAMPLES, "relief": MIN_FALL_ROWS, "change": 2 * MIN_SAMPLES}[kind]
        if len(rows) - start < least:
            return None
        index = row + 1 - len(rows) + start
        if job.last is not None and index <= job.last.index and kind != "change":
            index, start = job.last.index + 1, start + job.last.index + 1 - index
        if kind == "change" and self._is_same_fact(index, new > level.median):
            self._restart(rows[start:])
            if not job.slow:
                job.reference.drop(job.level.median)
            return None
        suspected = run.suspected if run.suspected is not None else row
        old = job.reference.anchor if kind == "onset" else level.median
        return self._confirm(kind, index, max(suspected, index), row, rows[start:], old)

    def _is_same_fact(self, index: int, slower: bool) -> bool:
        """Whether the last event told of a change in that direction at `index` already."""
        last = self._job.last
        return last is not None and index < last.index + SAME_FACT_ROWS and slower == (last.ratio > 1)

    def _confirm(
        self, kind: str, index: int, provisional_at: int, row: int, values: Sequence[float], old: float
    ) -> LevelEvent:
        job, new = self._job, median(values[-8:])
        small = kind == "change" and not job.slow and new - old > -ACCEPT
        if kind == "onset":
            job.reference.begin(Healthy(job.level, job.level.noise, job.held.up.rate, job.held.down.rate))
        self._restart(values)
        if kind == "relief":
            # What was known of the healthy job counts again.
            healthy = job.reference.healthy
            job.held.up.set_rate(healthy.up_rate)
            job.held.down.set_rate(healthy.down_rate)
            job.level = job.reference.recovered(job.level, values, WINDOW_ROWS)
        job.slow = kind == "onset" or (job.slow and kind != "relief")
        self.warm = True
        job.reference.told = job.level.median
        if not job.slow and not small:
            job.reference.drop(job.level.median)
        job.last = LevelEvent(kind, index, provisional_at, row, exp(new - old))
        self.events.append(job.last)
        return job.last

    def _restart(self, values: Sequence[float]) -> None:
        """Begin a new level with `values`; the spread stays until there are enough samples for another."""
        job = self._job
        job.level = Level(WINDOW_ROWS, list(values), job.level)
        job.held.clear()
        job.held.back.set_rate(MIN_RATE)
