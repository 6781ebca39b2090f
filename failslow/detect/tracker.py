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
   level of a job that falls at once and for good was slow from the start, by a quarter certainly after five rows; what
   falls by and by is a warm-up.
6. *Slow path* (reference.py). The level is also compared with that at the last event: steps of less than 10 % add up.
   Inside an incident the last rows are, too: its noise is not known well, nor are its levels of one height.

One fact is one event: what is told of again within 8 rows, in the same direction, only makes the level better known.

Paper: Wu et al. (GREYHOUND), section 4.2; differs: no run-length posterior (evaluation/detector/bocd.py has it),
medians instead of means, provisional and confirmed events, the slow path, re-anchoring.
"""

from math import exp, inf, log

from lanterne.errors import InputError
from lanterne.failslow.detect.confirmed import ConfirmedEvents
from lanterne.failslow.detect.decisions import (
    MIN_SAMPLES,
    SKIPPED_ROWS,
    EventFinding,
    JobState,
    findings,
    level_before,
    other_level,
    seen_in_window,
    seen_level,
    seen_onset,
    seen_recovery,
    seen_relief,
    seen_return,
)
from lanterne.failslow.detect.events import Incident, LevelEvent
from lanterne.failslow.detect.evidence import Weighing
from lanterne.failslow.detect.held_rows import WINDOW_ROWS, HeldRows
from lanterne.failslow.detect.learning import Learning
from lanterne.failslow.detect.level import REVIEW_ROWS, Level
from lanterne.failslow.detect.reference import Healthy, Reference
from lanterne.failslow.detect.votes import MIN_RATE, PROVISIONAL, SHIFT, median


class Tracker:
    """Finds onsets, reliefs and other changes in a stream of iteration times.

    Attributes: `row`: rows seen.

    Cost: see evaluation/results/cpu-2-cores.md; memory is constant but for the confirmed events.
    """

    def __init__(self) -> None:
        self.row: int = 0
        level = Level(SKIPPED_ROWS)
        reference = Reference(Healthy(level, level.noise, MIN_RATE, MIN_RATE))
        self._job = JobState(level, reference, HeldRows(), Weighing())
        self._confirmed = ConfirmedEvents(self._job)
        self._learning = Learning(self._job)

    @property
    def events(self) -> list[LevelEvent]:
        """Confirmed events so far."""
        return self._confirmed.events

    @property
    def warm(self) -> bool:
        """Warm-up is over."""
        return self._job.warm

    @property
    def slow(self) -> bool:
        """Inside an incident."""
        return self._job.slow

    @property
    def doubtful(self) -> bool:
        """The last rows may be of another level: by their votes, or since so many in a row lie between the two."""
        held = self._job.held
        return held.strongest >= PROVISIONAL or len(held.rows) >= MIN_SAMPLES

    @property
    def noisy(self) -> bool:
        """Times vary so much that a few rows cannot tell a shift of 10 %."""
        return self._job.level.shift > SHIFT

    @property
    def incidents(self) -> list[Incident]:
        """The incidents so far, the last one open where its `relief` is None; its `ratio` follows the level."""
        return self._confirmed.incidents

    @property
    def level_s(self) -> float | None:
        """The current level, seconds; None before any row."""
        return exp(self._job.level.median) if self.row else None

    def forget(self, keep: int) -> int:
        """Keep the latest confirmed events, at most `keep`, once there are twice as many; the incidents forgotten."""
        return self._confirmed.forget(keep)

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
            self._learning.skip(y, row)
            return None
        event = self._take(y, row)
        return self._look_back(row) if event is None and job.slow and row % REVIEW_ROWS == 0 else event

    def believe_onset(self, index: int) -> LevelEvent | None:
        """Confirm an onset at row `index` that something else than times tells; None where times do not bear it out.

        They need not be certain of it, but rows since then must be slower, and no incident last.
        """
        job, row = self._job, self.row - 1
        if (seen := seen_onset(job, index, row)) is None:
            return None
        old = level_before(job, seen.first, row)
        job.reference.drop(old)
        return self._confirmed.confirm("onset", seen.first, row, row, seen.values, old)

    def believe_relief(self, index: int) -> LevelEvent | None:
        """Confirm the end of an incident, or of a slow start, at row `index` likewise."""
        job, row = self._job, self.row - 1
        if (seen := (seen_relief if job.slow else seen_recovery)(job, index, row)) is None:
            return None
        old = job.reference.told if job.slow else job.level.median
        return self._confirmed.confirm("relief", seen.first, row, row, seen.values, old)

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

    def _absorb(self, y: float, row: int) -> LevelEvent | None:
        """Let an ordinary row into the level."""
        return self._review(row) if self._learning.push(y) else None

    def _clear(self, y: float, row: int) -> LevelEvent | None:
        """No run is alive any more: let the suspects and `y` into the window and learn how often such things happen."""
        held = self._job.held
        rows, held.rows = [*held.rows, y], []
        event: LevelEvent | None = None
        for value in rows:
            self._learning.learn(value)
            event = self._absorb(value, row) or event
        return event

    def _review(self, row: int) -> LevelEvent | None:
        """Every 8 samples: learn from them, walk the slow path."""
        job = self._job
        self._learning.review(row)
        full = len(job.level.window) >= WINDOW_ROWS // 2
        if job.slow:
            reference = job.reference
            back = job.level.median - reference.base < min(SHIFT, reference.told - reference.base) / 2
            return self._slow_path("relief", row) if full and back else None
        rises = job.reference.rises(job.level)
        return self._slow_path("onset", row) if rises and full else None

    def _slow_path(self, kind: str, row: int) -> LevelEvent | None:
        """Confirm what the window as a whole shows: it has left the anchor, or an incident's has come back to it."""
        old = self._job.reference.anchor if kind == "onset" else self._job.reference.told
        seen = seen_in_window(self._job, old, row)
        return self._confirmed.confirm(kind, seen.first, row, row, seen.values, old)

    def _look_back(self, row: int) -> LevelEvent | None:
        """Confirm another level inside an incident, or its end, that its last rows show together."""
        if (seen := seen_return(self._job, row)) is not None:
            return self._confirmed.confirm("relief", seen.first, row, row, seen.values, self._job.reference.told)
        if (found := other_level(self._job, row)) is None:
            return None
        values, start, old = found
        return self._confirmed.confirm("change", row + 1 - len(values) + start, row, row, values[start:], old)

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
        """Take suspects that are neither certain nor cleared into the level: noise, or a step too small to count."""
        held = self._job.held
        *held.rows, last = held.rows
        for run in (held.up, held.down, held.back):
            run.clear()
        return self._clear(last, row)

    def _settle(self, finding: EventFinding, row: int) -> LevelEvent | None:
        """Confirm the event of `finding` where its level began, if enough rows have followed."""
        job, (kind, suspects, run) = self._job, finding
        if kind == "warm":
            # A warm-up ends downwards; that is no event.
            self._confirmed.restart(suspects[-SKIPPED_ROWS:])
            job.reference.drop(job.level.median)
            return None
        if (seen := seen_level(job, finding, row)) is None:
            return None
        level = job.level
        if kind == "change" and self._confirmed.is_same_fact(seen.first, median(suspects[-8:]) > level.median):
            self._confirmed.restart(seen.values)
            if not job.slow:
                job.reference.drop(job.level.median)
            return None
        suspected = run.suspected if run.suspected is not None else row
        old = job.reference.anchor if kind == "onset" else level.median
        return self._confirmed.confirm(kind, seen.first, max(suspected, seen.first), row, seen.values, old)
