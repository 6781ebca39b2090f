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
   a shift of 10 % (ACCEPT). A healthy job that becomes faster is weighed alike, from 16 rows: nothing is lost by
   waiting.
5. *Reliefs* are voted on, the level before the incident against the incident, which has rows of any height.
6. *Slow path* (level.py). The level is also compared with that at the last event: steps of less than 10 % add up.

Paper: Wu et al. (GREYHOUND), section 4.2; differs: no run-length posterior (bench/scores/detector/bocd.py has it), medians
instead of means, provisional and confirmed events, the slow path, re-anchoring.
"""

from collections import deque
from collections.abc import Sequence
from math import exp, inf, log
from typing import NamedTuple

from lanterne.errors import InputError
from lanterne.failslow.detect.bursts import NoiseDensity
from lanterne.failslow.detect.events import Incident, LevelEvent, incidents
from lanterne.failslow.detect.evidence import Weighing, back_vote, level_start
from lanterne.failslow.detect.level import IGNORED, REVIEW_ROWS, Anchor, Level
from lanterne.failslow.detect.votes import (
    CERTAIN,
    LIKELY,
    MIN_RATE,
    PROVISIONAL,
    SHIFT,
    VoteRun,
    best_split,
    median,
    split,
    vote,
)

# A shift that lasts 8 rows counts from one standard error below 10 %, but never below 8 %. Half of one is a step
# worth recording.
ACCEPT = log(1.08)
SMALL = log(1.05)
MIN_SAMPLES = 5
# Three of the votes may come from a jitter, once in some hundred iterations: the rest must still make 250 to 1.
JITTER = log(250)
SKIPPED_ROWS = 16
TAKEN_AGAIN = 8
# Odds of votes from which suspects are weighed.
CANDIDATE = 3.9
# Suspects and odds from which on a level that wanders is no chance meeting of bursts.
WANDERING_ROWS = 8
WANDERING = 18.0
MAX_WARM_UP_ROWS = 300
WINDOW_ROWS = 64
# Rows before the suspects among which a level may have begun already.
LOOK_BACK = 16


class _Healthy(NamedTuple):
    """What was known of the job before an incident."""

    level: Level
    noise: NoiseDensity
    up_rate: float
    down_rate: float


class Tracker:
    """Finds onsets, reliefs and other changes in a stream of iteration times.

    Attributes: `events`: confirmed events so far; `row`: rows seen; `slow`: inside an incident; `warm`: warm-up is
    over.

    Cost: see bench/results/cpu-2-cores.md; memory is constant but for the confirmed events.
    """

    def __init__(self) -> None:
        self.events: list[LevelEvent] = []
        self.row: int = 0
        self.slow: bool = False
        self.warm: bool = False
        self._level = Level(SKIPPED_ROWS)
        self._anchor = Anchor()
        self._base = self._last = 0.0
        self._up = VoteRun(MIN_RATE)
        self._down = VoteRun(MIN_RATE)
        self._back = VoteRun(MIN_RATE)
        self._weighing = Weighing()
        self._pending: list[float] = []
        self._recent: deque[float] = deque(maxlen=WINDOW_ROWS)
        self._pushes = 0
        self._forget = 1 / 64
        self._healthy = _Healthy(self._level, self._level.noise, MIN_RATE, MIN_RATE)

    @property
    def incidents(self) -> list[Incident]:
        """The incidents so far, the last one open where its `relief` is None."""
        return incidents(self.events)

    @property
    def level_s(self) -> float | None:
        """The current level, seconds; None before any row."""
        return exp(self._level.median) if self.row else None

    def update(self, time_s: float) -> LevelEvent | None:
        """Take the next time in seconds; return the LevelEvent that it makes provisional or confirmed, if there is one.

        A provisional event is taken back silently when no confirmed one of that index follows.

        Raises:
            InputError: not a positive, finite number.
        """
        if not 0.0 < time_s < inf:
            raise InputError(f"iteration {self.row}: got {time_s!r}, expected a positive time in seconds")
        y = log(time_s)
        self._recent.append(y)
        row = self.row
        self.row = row + 1
        if row < SKIPPED_ROWS:
            self._skip(y)
            return None
        return self._take(y, row)

    def _take(self, y: float, row: int) -> LevelEvent | None:
        level = self._level
        z, shift = y - level.median, level.shift
        last, self._last = self._last, y
        up, down, back = self._up, self._down, self._back
        if 2 * abs(z) < shift and not self._pending and not (self.slow and y - self._base < SHIFT / 2):
            return self._absorb(y, row)
        if not self.slow or len(level.window) >= SKIPPED_ROWS:
            # A vote against is none where there is nothing to take back.
            if up.score or 2 * z > shift:
                up.add(vote(z, level.spread2, shift), row)
            if down.score or -2 * z > shift:
                down.add(vote(-z, level.spread2, shift), row)
        if self.slow:
            was, now = (self._base, self._healthy.noise), (level.median, level.noise)
            back.add(back_vote(y, last, was, now, up.rate), row)
        if up.score == down.score == back.score == 0.0:
            return self._clear(y, row)
        return self._suspect(y, row)

    def _skip(self, y: float) -> None:
        self._level.push(y)
        self._anchor.drop(self._level.median)
        if self.row == SKIPPED_ROWS:
            self._level.review()
            self._weighing.bursts.pass_rows(SKIPPED_ROWS)
            for value in self._level.window.values:
                self._weighing.bursts.see(value - self._anchor.value, self._level.core_scale)

    def _absorb(self, y: float, row: int) -> LevelEvent | None:
        """Let an ordinary row into the level."""
        self._level.push(y)
        self._pushes += 1
        return self._review(row) if self._pushes % REVIEW_ROWS == 0 else None

    def _clear(self, y: float, row: int) -> LevelEvent | None:
        """No run is alive any more: let the suspects and `y` into the window and learn how often such things happen."""
        pending = self._pending
        pending.append(y)
        self._pending = []
        event: LevelEvent | None = None
        for value in pending:
            self._learn(value)
            event = self._absorb(value, row) or event
        return event

    def _learn(self, value: float) -> None:
        """Learn from a suspect that was cleared; among them rows that are none by themselves."""
        level, bursts = self._level, self._weighing.bursts
        z = value - level.median
        if self.slow:
            if value - self._base < SHIFT / 2:
                self._back.set_rate(min(self._back.rate + 1 / 64, 0.2))
        elif 2 * z < level.shift:
            bursts.end()
        else:
            bursts.see(z, level.core_scale)
        if abs(z) > max(SHIFT / 2, 2 * level.scale):
            run = self._up if z > 0.0 else self._down
            run.set_rate(run.rate + self._forget)

    def _review(self, row: int) -> LevelEvent | None:
        """Every 8 samples: refresh the spread, forget old spikes, end the warm-up, walk the slow path."""
        self._level.review()
        if not self.slow:
            self._weighing.bursts.pass_rows(REVIEW_ROWS)
        self._forget = 1 / min(64 + self._pushes, 256)
        self._up.forget(REVIEW_ROWS * self._forget)
        self._down.forget(REVIEW_ROWS * self._forget)
        if not self.warm:
            self._review_warm_up(row)
        full = len(self._level.window) >= WINDOW_ROWS // 2
        if self.slow:
            return self._slow_path("relief", row) if full and self._level.median - self._base < SHIFT / 2 else None
        rises = self._anchor.rises(self._level)
        return self._slow_path("onset", row) if rises and full else None

    def _slow_path(self, kind: str, row: int) -> LevelEvent | None:
        """Confirm what the window as a whole shows: it has left the anchor, or an incident's has come back to it."""
        values = list(self._level.window.values)
        old = self._anchor.value if kind == "onset" else self._anchor.told
        start = best_split(values, old, self._level.median, SHIFT)
        return self._confirm(kind, row + 1 - len(values) + start, row, row, values[start:], old)

    def _review_warm_up(self, row: int) -> None:
        """Warm-up is over once two successive half windows agree; until then the reference follows downwards."""
        self._anchor.drop(self._level.median)
        if len(self._level.window) < SKIPPED_ROWS:
            return
        values = list(self._level.window.values)
        older, newer = median(values[:8]), median(values[8:16])
        if row >= MAX_WARM_UP_ROWS or abs(newer - older) < max(0.01, 2 * self._level.error(8, 8)):
            self.warm = True
            self._level.window.capacity = WINDOW_ROWS

    def _suspect(self, y: float, row: int) -> LevelEvent | None:
        """Hold `y` back; return the event that it makes provisional or certain."""
        pending = self._pending
        pending.append(y)
        strongest = max(self._up.score, self._down.score, self._back.score)
        event = self._weigh(row) or (self._count_votes(row) if strongest >= LIKELY else None)
        if event is not None:
            return event
        if len(pending) >= SKIPPED_ROWS and self._is_stale(row):
            return self._let_go(row)
        return self._suspected(row) if strongest >= PROVISIONAL else None

    def _suspected(self, row: int) -> LevelEvent | None:
        """The event that `row` makes provisional."""
        rise = "change" if self.slow else "onset"
        for run, sign, kind in ((self._back, -1, "relief"), (self._up, 1, rise), (self._down, -1, "change")):
            if run.score and run.suspected == row:
                ratio = exp(median(self._pending[run.start - row - 1 :]) - self._level.median)
                if sign * (ratio - 1) > 0:
                    return LevelEvent(kind, run.start, row, None, ratio)
        return None

    def _weigh(self, row: int) -> LevelEvent | None:
        """An onset, where suspects of a healthy job speak for one level rather than for bursts."""
        up = self._up
        if self.slow or not up.grew or up.score < CANDIDATE or not self._weighing.is_due(row + 1 - up.start, row):
            return None
        suspects = self._pending[max(up.start - row - 1, -WINDOW_ROWS) :]
        # Weighing costs 30 times as much as to see that _rise() will refuse, wherever a level may begin: among all
        # suspects or the last few.
        most = max(median(suspects[-rows:]) for rows in range(MIN_SAMPLES, 9)) - self._level.median
        few = suspects[-MIN_SAMPLES:]
        if most < SMALL or (self._level.explains(few, most) and self._level.explains(suspects, most)):
            return None
        first = self._weighing.slower(suspects, self._level, self._anchor.value)
        return self._rise(suspects[first:], row) if first is not None else None

    def _count_votes(self, row: int) -> LevelEvent | None:
        """The event that the votes of a run decide, where verification agrees."""
        for run, decide in ((self._back, self._relief), (self._up, self._rise), (self._down, self._fall)):
            if run.score < LIKELY or not run.grew or row - run.start < MIN_SAMPLES - 1:
                continue
            suspects = self._pending[run.start - row - 1 :]
            if run is self._up and not self.slow:
                decided = self._wanders(suspects)
            else:
                enough = run is self._back or run.score >= max(CERTAIN, JITTER + 3 * run.cap)
                decided = enough or self._level.agree(suspects)
            event = decide(suspects, row) if decided else None
            if event is not None:
                return event
        return None

    def _wanders(self, suspects: Sequence[float]) -> bool:
        """Whether `suspects` of a healthy job, of whatever heights, are too many and too dense for bursts."""
        odds = max(WANDERING, JITTER + 3 * self._up.cap)
        return len(suspects) >= WANDERING_ROWS and self._up.score >= odds and self._level.moved(suspects) != 0.0

    def _is_stale(self, row: int) -> bool:
        """Whether suspects have been held back for too long; in a noisy job a run is often alive and means nothing."""
        doubtful = max(self._up.score, self._down.score) < PROVISIONAL
        long = len(self._pending) >= (SKIPPED_ROWS if doubtful else WINDOW_ROWS)
        return long and (self._back.score == 0.0 or self._back.start <= row - WINDOW_ROWS // 2)

    def _let_go(self, row: int) -> LevelEvent | None:
        """Neither certain nor cleared: noise, or a step too small to count. It is the level now.

        The last few suspects are taken once more: an incident may have begun with them.
        """
        for run in (self._up, self._down, self._back):
            run.clear()
        again = self._pending[-TAKEN_AGAIN:]
        del self._pending[-TAKEN_AGAIN:]
        event = self._clear(self._pending.pop(), row - len(again))
        for y, its_row in zip(again, range(row + 1 - len(again), row + 1), strict=True):
            event = self._take(y, its_row) or event
            if event is not None and event.confirmed_at is not None:
                # All rows up to now have been counted.
                break
        return event

    def _counts(self, shift: float, suspects: Sequence[float]) -> bool:
        """Whether `shift`, measured on `suspects`, is 10 %; within its standard error where it lasts."""
        allowance = self._level.error(8, len(self._level.window)) if len(suspects) >= 8 else 0.0
        return shift >= max(ACCEPT, SHIFT - allowance)

    def _rise(self, suspects: Sequence[float], row: int) -> LevelEvent | None:
        if self.slow:
            shift = self._level.moved(suspects)
        else:
            shift = min(median(suspects[-8:]), median(suspects)) - self._level.median
        if len(suspects) < MIN_SAMPLES or shift < SMALL:
            return None
        if self.slow:
            return self._other_level(suspects, shift, row, self._up)
        if self._level.explains(suspects, shift):
            return None
        if self._counts(self._level.median + shift - self._anchor.value, suspects):
            return self._settle("onset", suspects, self._up, row)
        return self._small_step(suspects, shift, row, self._up)

    def _fall(self, suspects: Sequence[float], row: int) -> LevelEvent | None:
        shift = self._level.moved(suspects)
        if len(suspects) < MIN_SAMPLES or shift > -SMALL:
            return None
        if self.slow:
            if self._level.median + shift - self._base < SHIFT:
                return self._settle("relief", suspects, self._down, row)
            return self._other_level(suspects, -shift, row, self._down)
        # Waiting until a faster job is certain loses nothing.
        if len(suspects) < SKIPPED_ROWS or not self._weighing.is_due(len(suspects), row):
            return None
        if not self._weighing.is_faster(suspects, self._level, self._anchor.value):
            return None
        if row < MAX_WARM_UP_ROWS and not self.events:
            # A warm-up ends downwards; that is no event.
            self._restart(suspects[-SKIPPED_ROWS:])
            self._anchor.drop(self._level.median)
            return None
        if self._counts(-shift, suspects):
            return self._settle("change", suspects, self._down, row)
        return self._small_step(suspects, -shift, row, self._down)

    def _relief(self, suspects: Sequence[float], row: int) -> LevelEvent | None:
        over = median(suspects[-8:]) - self._base
        near = max(SMALL, 2 * self._level.error(min(len(suspects), 8), len(self._healthy.level.window)))
        if len(suspects) < MIN_SAMPLES or over > min(near, (self._level.median - self._base) / 2):
            return None
        return self._settle("relief", suspects, self._back, row)

    def _other_level(self, suspects: Sequence[float], shift: float, row: int, run: VoteRun) -> LevelEvent | None:
        """Another level inside an incident: it must stand clear of the incident's own noise."""
        if len(suspects) >= 2 * MIN_SAMPLES and shift >= 3 * self._level.scale and self._counts(shift, suspects):
            return self._settle("change", suspects, run, row)
        return self._small_step(suspects, shift, row, run)

    def _small_step(self, suspects: Sequence[float], shift: float, row: int, run: VoteRun) -> LevelEvent | None:
        """A step below 10 % counts where it lasts and hardly a sample of the one level could be of the other."""
        level = self._level
        if len(suspects) < SKIPPED_ROWS or shift < 6 * level.scale or abs(level.moved(suspects[:8])) < SMALL:
            return None
        return self._settle("change", suspects, run, row)

    def _settle(self, kind: str, suspects: Sequence[float], run: VoteRun, row: int) -> LevelEvent | None:
        """Confirm an event of `run` where its level began, if enough rows have followed."""
        level, new = self._level, median(suspects[-8:])
        if kind == "relief":
            # It follows rows of any height, and begins where the last of them was: with the run.
            rows, least = list(self._recent)[run.start - self.row :], MIN_SAMPLES
            start = split(rows, level.median, new)
        else:
            rows, least = list(self._recent)[-len(suspects) - LOOK_BACK :], 2 * MIN_SAMPLES
            start = level_start(rows, level.median, level.core_scale, self._weighing.bursts.rate)
        index = self.row - len(rows) + start
        if row - index < (MIN_SAMPLES if kind == "onset" else least) - 1:
            return None
        suspected = run.suspected if run.suspected is not None else row
        old = self._anchor.value if kind == "onset" else level.median
        return self._confirm(kind, index, max(suspected, index), row, rows[start:], old)

    def _confirm(
        self, kind: str, index: int, provisional_at: int, row: int, values: Sequence[float], old: float
    ) -> LevelEvent:
        new = median(values[-8:])
        small = kind == "change" and not self.slow and new - old > -ACCEPT
        if kind == "onset":
            # What counts as recovered is the level just before, be it that of the last event or a little above.
            level = self._level.median
            self._base = max(self._anchor.value, level) if level < self._anchor.value + SHIFT else self._anchor.value
            self._healthy = _Healthy(self._level, self._level.noise, self._up.rate, self._down.rate)
        self._restart(values)
        if kind == "relief":
            self._recover(values)
        self.slow = kind == "onset" or (self.slow and kind != "relief")
        self.warm = True
        self._anchor.told = self._level.median
        if not self.slow and not small:
            self._anchor.drop(self._level.median)
        event = LevelEvent(kind, index, provisional_at, row, exp(new - old))
        self.events.append(event)
        return event

    def _restart(self, values: Sequence[float]) -> None:
        """Begin a new level with `values`; the spread stays until there are enough samples for another."""
        self._level = Level(WINDOW_ROWS, list(values), self._level)
        self._pending = []
        for run in (self._up, self._down, self._back):
            run.clear()
        self._back.set_rate(MIN_RATE)

    def _recover(self, values: Sequence[float]) -> None:
        """After a relief: what was known of the healthy job counts again, its level too where that is the same."""
        healthy, _, up_rate, down_rate = self._healthy
        self._up.set_rate(up_rate)
        self._down.set_rate(down_rate)
        error = healthy.error(len(values), len(healthy.window))
        if abs(self._level.median - healthy.median) < max(IGNORED / 2, 4 * error):
            for value in values:
                healthy.push(value)
            self._level = healthy
        else:
            self._level = Level(WINDOW_ROWS, list(values), healthy)
