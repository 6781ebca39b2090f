"""The streaming detector: one `update(time_s)` per iteration says when a job became slow, and when it recovered.

How it decides, all in log scale, where a slowdown is a shift whatever the length of an iteration:

1. *Level and noise* (evidence/series.py) are those of the last 64 iterations. Suspects stay outside until they are
   cleared, so that a slowdown does not become its own reference; what they were then says how often bursts come.
2. *Votes.* Each row votes with the log-likelihood ratio of "shifted by 10 % or more" against "not shifted", under a
   Student t with 2 degrees of freedom; in a noisy job not 10 %, but twice its scale; in an incident downwards by as
   much as it lies above the level of before. Votes add up to a CUSUM in each direction (evidence/persistence.py), in
   which no single spike counts for much. Odds of 100 to 1 are provisional.
3. *Weighing* (weighing.py). A slowdown of a healthy job is certain when at least five suspects speak for one lasting
   level rather than for bursts that happen to meet, and when healthy rows are seldom as high. Everything else is
   certain by votes where the median has moved by more than the noise explains. What is certain must also count: a
   shift of 10 % (SHIFT). Of a healthy job that becomes faster nothing is lost by waiting for 16 rows.
4. The first level of a job that falls at once and for good was slow from the start; what falls by and by is a warm-up.
5. *Slow path.* The level is also compared with that at the last event: steps of less than 10 % add up.

Paper: Wu et al. (GREYHOUND), section 4.2; differs: no run-length posterior (evaluation/detector/bocd.py has it),
medians instead of means, provisional and confirmed events, the slow path.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, log

from lanterne.errors import InputError
from lanterne.failslow.detect.events import STILL_SLOW, Incident, LevelEvent, incidents, latest
from lanterne.failslow.detect.weighing import HIGH, IGNORED, Bursts, level_start, log_odds
from lanterne.failslow.evidence.comparison import CLEAR_ERRORS, MIN_STEPS
from lanterne.failslow.evidence.persistence import LIKELY, PROVISIONAL, VoteRun
from lanterne.failslow.evidence.series import REVIEW_ROWS, SHIFT, Level, median

WINDOW_ROWS = 64
# Rows that are never judged; and those of a step below 10 %, or of a faster job, that lasts.
SKIPPED_ROWS = 16
# A fall before this row ends a warm-up, unless it is abrupt: then the job was slow from its start.
MAX_WARM_UP_ROWS = 300
# A step worth recording. A shift that lasts 8 rows counts from one standard error below 10 %, but never below this.
SMALL = log(1.05)
# Log odds of a level that are certain.
SURE = 8.0


class Tracker:
    """Finds onsets, reliefs and other changes in a stream of iteration times.

    Attributes: `row`: rows seen; `events`: confirmed ones so far; `slow`: inside an incident; `warm`: warm-up is over.

    Cost: see evaluation/results/cpu-2-cores.md; memory is constant but for the confirmed events.
    """

    def __init__(self) -> None:
        self.row: int = 0
        self.events: list[LevelEvent] = []
        self.slow: bool = False
        self.warm: bool = False
        self._level = self._healthy = Level(SKIPPED_ROWS)
        # The level at the last event, the last that an event has told of, and the one that counts as recovered.
        self._anchor = self._told = self._base = 0.0
        self._bursts = Bursts()
        self._up, self._down = VoteRun(), VoteRun()
        # Suspects in order, and the last rows of any kind.
        self._held: list[float] = []
        self._recent: deque[float] = deque(maxlen=WINDOW_ROWS)
        self._pushes = 0
        # When weighing is worth its cost again: of many suspects, one more tells little.
        self._weighed_row = 0
        self._last: LevelEvent | None = None

    @property
    def doubtful(self) -> bool:
        """The last rows may be of another level: by their votes, or since so many in a row lie between the two."""
        return max(self._up.score, self._down.score) >= PROVISIONAL or len(self._held) >= MIN_STEPS

    @property
    def noisy(self) -> bool:
        """Times vary so much that a few rows cannot tell a shift of 10 %."""
        return self._level.shift > SHIFT

    @property
    def incidents(self) -> list[Incident]:
        """The incidents so far, the last one open where its `relief` is None; its `ratio` follows the level."""
        found = incidents(self.events)
        if found and found[-1].relief is None:
            now = exp(self._level.median - self._anchor)
            single = self.events[-1].confirmed_at == found[-1].confirmed_at
            found[-1] = replace(found[-1], ratio=now if single else max(found[-1].ratio, now))
        return found

    @property
    def level_s(self) -> float | None:
        """The current level, seconds; None before any row."""
        return exp(self._level.median) if self.row else None

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
        y, row = log(time_s), self.row
        self._recent.append(y)
        self.row = row + 1
        if row >= SKIPPED_ROWS:
            return self._take(y, row)
        self._level.push(y)
        self._drop(self._level.median)
        if row + 1 == SKIPPED_ROWS:
            self._level.review()
            self._bursts.pass_rows(SKIPPED_ROWS)
            for value in self._level.values:
                self._bursts.see(value - self._anchor, self._level.core_scale)
        return None

    def believe_onset(self, index: int) -> LevelEvent | None:
        """Confirm an onset at row `index` that something else than times tells; None where times do not bear it out.

        They need not be certain of it, but rows since then must be slower, and no incident last.
        """
        index = max(index, self._first)
        values, before = self._since(index), list(self._recent)[: index - self.row][-SKIPPED_ROWS:]
        if self.slow or len(values) < MIN_STEPS:
            return None
        # A job may have become calmer just before.
        old = self._level.median
        old = min(old, median(before)) if len(before) >= SKIPPED_ROWS // 2 else old
        if min(median(values), median(values[-8:])) - old < log(STILL_SLOW):
            return None
        self._drop(old)
        return self._confirm("onset", index, self.row - 1, values, old)

    def believe_relief(self, index: int) -> LevelEvent | None:
        """Confirm the end of an incident, or of a slow start, at row `index` likewise."""
        values = self._since(index)
        if index < self._first or len(values) < MIN_STEPS - (not self.slow):
            return None
        new = max(median(values), median(values[-8:]))
        if self.slow:
            is_over, old = new - self._base <= (self._told - self._base) / 2, self._told
        else:
            old = self._level.median
            is_over = self._last is None and index >= SKIPPED_ROWS and old - new >= SMALL
        return self._confirm("relief", index, self.row - 1, values, old) if is_over else None

    @property
    def _first(self) -> int:
        """The first row at which another event may begin."""
        return 0 if self._last is None else self._last.index + 1

    def _since(self, index: int) -> list[float]:
        """Return the rows from row `index` on."""
        return list(self._recent)[index - self.row :]

    # -- ordinary rows

    def _take(self, y: float, row: int) -> LevelEvent | None:
        level, shift = self._level, self._level.shift
        z = y - level.median
        back = min(shift, max(level.median - self._base, SMALL)) if self.slow else shift
        if not self._held and -back < 2 * z < shift:
            return self._absorb(y, row)
        if (self._up.score or 2 * z > shift) and (not self.slow or len(level) >= SKIPPED_ROWS):
            self._up.add(_vote(z, level.scale, shift), row)
        if self._down.score or -2 * z > back:
            self._down.add(_vote(-z, level.scale, back), row)
        self._held.append(y)
        if self._up.score == self._down.score == 0.0:
            return self._clear(row)
        event = self._decide(row)
        if event is None and len(self._held) >= WINDOW_ROWS:
            # Noise, or a step too small to count.
            return self._clear(row)
        return event or self._suspected(row)

    def _clear(self, row: int) -> LevelEvent | None:
        """Let the suspects into the level, and learn how often such things happen."""
        event: LevelEvent | None = None
        held, self._held = self._held, []
        self._up.clear()
        self._down.clear()
        for value in held:
            if not self.slow:
                self._bursts.see(value - self._level.median, self._level.core_scale)
            event = self._absorb(value, row) or event
        return event

    def _absorb(self, y: float, row: int) -> LevelEvent | None:
        """Let an ordinary row into the level; every 8 of them, learn from these and walk the slow path."""
        level = self._level
        level.push(y)
        self._pushes += 1
        if self._pushes % REVIEW_ROWS:
            return None
        level.review()
        if not self.slow:
            self._bursts.pass_rows(REVIEW_ROWS)
            self._up.set_rate(self._bursts.share)
        if not self.warm:
            self._review_warm_up(row)
        drift = level.median - self._anchor
        error = level.error(len(level) / 2, WINDOW_ROWS) * max(1.0, level.core_scale / level.scale)
        if not self.slow and drift < -max(IGNORED, CLEAR_ERRORS * error):
            # Downwards the anchor follows.
            self._drop(level.median)
        if len(level) < WINDOW_ROWS // 2:
            return None
        if self.slow:
            back = level.median - self._base < min(SHIFT, self._told - self._base) / 2
            return self._slow_path("relief", self._told, row) if back else None
        # What a small step has told already is no slow drift.
        rises = drift > max(SHIFT, CLEAR_ERRORS * error, self._told - self._anchor + IGNORED)
        return self._slow_path("onset", self._anchor, row) if rises else None

    def _slow_path(self, kind: str, old: float, row: int) -> LevelEvent:
        """Confirm what the window as a whole shows: it has left the level `old`."""
        values = list(self._level.values)
        start = level_start(values, old, self._level.core_scale, self._bursts.rate)
        return self._confirm(kind, row + 1 - len(values) + start, row, values[start:], old)

    def _review_warm_up(self, row: int) -> None:
        """Warm-up is over once two successive half windows agree; until then the anchor follows downwards."""
        level = self._level
        self._drop(level.median)
        if len(level) == SKIPPED_ROWS:
            values = list(level.values)
            apart = abs(median(values[8:]) - median(values[:8]))
            if row >= MAX_WARM_UP_ROWS or apart < max(0.01, 2 * level.error(8, 8)):
                self.warm = True
                level.capacity = WINDOW_ROWS

    def _drop(self, level: float) -> None:
        """From now on `level` is the one at the last event."""
        self._anchor = self._told = level

    # -- suspects

    def _suspected(self, row: int) -> LevelEvent | None:
        """Return the event that `row` makes provisional."""
        rise, fall = ("change", "relief") if self.slow else ("onset", "change")
        for run, sign, kind in ((self._up, 1, rise), (self._down, -1, fall)):
            if run.score and run.suspected == row:
                ratio = exp(median(self._held[run.start - row - 1 :]) - self._level.median)
                if sign * (ratio - 1) > 0:
                    return LevelEvent(kind, run.start, row, None, ratio)
        return None

    def _decide(self, row: int) -> LevelEvent | None:
        """Return the event that the suspects make certain."""
        up, down = self._up, self._down
        suspects = self._held[up.start - row - 1 :]
        if not self.slow and up.grew and up.score >= PROVISIONAL and len(suspects) >= MIN_STEPS:
            if row >= self._weighed_row:
                self._weighed_row = row + max(1, len(suspects) // 8)
                odds, first = log_odds(suspects, self._level, self._anchor, self._bursts)
                if odds >= SURE:
                    return self._rise(suspects[first:], row)
            # A level that wanders is no chance meeting of bursts, even if two of the votes are of one.
            wanders = len(suspects) >= 8 and up.score >= LIKELY + 2 * up.cap and self._moved(suspects) != 0.0
            return self._rise(suspects, row) if wanders else None
        if down.grew and down.score >= LIKELY and row - down.start >= MIN_STEPS - 1:
            return self._fall(self._held[down.start - row - 1 :], row)
        if self.slow and up.grew and up.score >= LIKELY:
            return self._step(suspects, up, row)
        return None

    def _rise(self, suspects: Sequence[float], row: int) -> LevelEvent | None:
        """Confirm that a healthy job has become slow, where healthy rows are seldom as high."""
        level, count = self._level, len(suspects)
        shift = min(median(suspects[-8:]), median(suspects)) - level.median
        least = max(SMALL, 2 * level.error(min(count, 16), len(level)))
        if shift < least or level.odds_beyond(suspects, 1) < LIKELY:
            return None
        if self._counts(level.median + shift - self._anchor, count):
            return self._place("onset", suspects, self._up, row, self._anchor)
        return self._small_step(suspects, shift, self._up, row)

    def _fall(self, suspects: Sequence[float], row: int) -> LevelEvent | None:
        level, shift = self._level, self._moved(suspects)
        if not self.slow:
            return self._faster(suspects, -shift, row) if shift <= -SMALL else None
        over, count = median(suspects[-8:]) - self._base, len(suspects)
        near = max(SMALL, 2 * level.error(min(count, 8), len(self._healthy)))
        # A few rows may as well be of another level of the incident.
        sure = count >= 2 * MIN_STEPS or over + 2 * self._healthy.error(count, len(self._healthy)) <= SHIFT
        if (over <= min(near, (level.median - self._base) / 2) and sure) or (
            shift <= -SMALL and level.median + shift - self._base < SHIFT
        ):
            return self._place("relief", suspects, self._down, row, level.median)
        return self._step(suspects, self._down, row)

    def _faster(self, suspects: Sequence[float], fall: float, row: int) -> LevelEvent | None:
        """A job that is not slow becomes faster: waiting until that is certain loses nothing."""
        level, counts = self._level, self._counts(fall, len(suspects))
        least = MIN_STEPS if fall > HIGH else SKIPPED_ROWS
        if len(suspects) < least or level.odds_beyond(suspects, -1) < LIKELY:
            return None
        if self._last is None and counts and (index := self._start(suspects, row)) >= SKIPPED_ROWS:
            before, after = list(self._recent)[: index - row - 1], self._since(index)
            if len(after) >= MIN_STEPS and _is_abrupt(before, after, level.error(8, 8)):
                # The job has been slow from its start.
                return self._place("relief", suspects, self._down, row, level.median)
        if len(suspects) < 8:
            return None
        if self._last is None and row < MAX_WARM_UP_ROWS:
            self._restart(suspects[-SKIPPED_ROWS:])
            self._drop(self._level.median)
            return None
        if counts:
            return self._place("change", suspects, self._down, row, level.median)
        return self._small_step(suspects, fall, self._down, row)

    def _step(self, suspects: Sequence[float], run: VoteRun, row: int) -> LevelEvent | None:
        """Another level inside an incident: it must stand clear of the incident's own noise."""
        level, shift = self._level, abs(self._moved(suspects))
        if len(suspects) >= 2 * MIN_STEPS and shift >= 3 * level.scale and self._counts(shift, len(suspects)):
            return self._place("change", suspects, run, row, level.median)
        return self._small_step(suspects, shift, run, row)

    def _small_step(self, suspects: Sequence[float], shift: float, run: VoteRun, row: int) -> LevelEvent | None:
        """A step below 10 % counts where it lasts and hardly a row of the one level could be of the other."""
        level = self._level
        if len(suspects) >= SKIPPED_ROWS and shift >= max(SMALL, 6 * level.scale):
            return self._place("change", suspects, run, row, level.median)
        return None

    def _counts(self, shift: float, rows: int) -> bool:
        """Return whether `shift`, measured on so many rows, is 10 %; within its standard error where it lasts."""
        allowance = self._level.error(8, len(self._level)) if rows >= 8 else 0.0
        return shift >= max(SMALL, SHIFT - allowance)

    def _moved(self, suspects: Sequence[float]) -> float:
        """Return the distance from the level to where `suspects` lie now, 0.0 where noise explains it."""
        level, count = self._level, len(suspects)
        recent, whole = median(suspects[-8:]) - level.median, median(suspects) - level.median
        if abs(recent) >= CLEAR_ERRORS * level.error(min(count, 8), len(level)):
            return recent
        if abs(whole) >= CLEAR_ERRORS * level.error(count, len(level)) and recent * whole > 0.0:
            return min(recent, whole, key=abs)
        return 0.0

    # -- events

    def _start(self, suspects: Sequence[float], row: int) -> int:
        """Return the row at which the level of `suspects` began, among them or a few rows before."""
        rows = list(self._recent)[-min(len(suspects) + SKIPPED_ROWS, row + 1 - self._first) :]
        start = level_start(rows, self._level.median, self._level.core_scale, self._bursts.rate)
        return row + 1 - len(rows) + start

    def _place(self, kind: str, suspects: Sequence[float], run: VoteRun, row: int, old: float) -> LevelEvent | None:
        """Confirm the event of that kind where its level began, if enough rows have followed."""
        index = self._start(suspects, row)
        if row + 1 - index < (2 * MIN_STEPS if kind == "change" else MIN_STEPS):
            return None
        last = self._last
        if kind == "change" and last is not None and index < last.index + 8 and (run is self._up) == (last.ratio > 1):
            # The same fact, better known.
            self._restart(self._since(index))
            if not self.slow:
                self._drop(self._level.median)
            return None
        suspected = row if run.suspected is None else run.suspected
        return self._confirm(kind, index, row, self._since(index), old, suspected)

    def _confirm(
        self, kind: str, index: int, row: int, values: Sequence[float], old: float, suspected: int | None = None
    ) -> LevelEvent:
        """Return the event of that kind, which began at `index` from level `old` and is certain from `row` on."""
        index, new = max(index, self._first), median(values[-8:])
        small = kind == "change" and not self.slow and new - old > -SHIFT
        if kind == "onset":
            level = self._level.median
            # An incident recovers to the level just before, be it that of the last event or a little above.
            self._base = max(self._anchor, level) if level < self._anchor + SHIFT else self._anchor
            self._healthy = self._level
        self._restart(values)
        if kind == "relief" and self.slow:
            self._level = self._recovered(values)
        self.slow = kind == "onset" or (self.slow and kind != "relief")
        self.warm = True
        self._told = self._level.median
        if not self.slow and not small:
            self._drop(self._level.median)
        at = row if suspected is None else max(suspected, index)
        self._last = LevelEvent(kind, index, at, row, exp(new - old))
        self.events.append(self._last)
        return self._last

    def _restart(self, values: Sequence[float]) -> None:
        """Begin a new level with `values`; its noise stays until there are enough rows for another."""
        self._level = Level(WINDOW_ROWS, list(values), self._level)
        self._held = []
        self._up.clear()
        self._down.clear()

    def _recovered(self, values: Sequence[float]) -> Level:
        """Return the Level after an incident, of `values`: the one of before, where that is the same."""
        healthy = self._healthy
        error = healthy.error(len(values), len(healthy))
        if abs(self._level.median - healthy.median) >= max(IGNORED / 2, 4 * error):
            return self._level
        for value in values:
            healthy.push(value)
        return healthy


def _vote(z: float, scale: float, shift: float) -> float:
    """Return the log-likelihood ratio of a shift by `shift` or more against none, of a row at distance `z`."""
    z = 0.0 if z < 0.0 else z
    short = shift - z if z < shift else 0.0
    spread2 = 2 * scale * scale
    return 1.5 * log((spread2 + z * z) / (spread2 + short * short))


def _is_abrupt(before: Sequence[float], after: Sequence[float], error: float) -> bool:
    """Return whether rows fall from one level to another between `before` and `after`; a warm-up falls beside it, too.

    `error`: standard error of the difference of two medians of 8 rows.
    """
    if len(before) < 12:
        return False
    fall = median(before[-8:]) - median(after[:8])
    earlier = median(before[-24:-8]) - median(before[-8:])
    middle = len(after) // 2
    later = median(after[:middle]) - median(after[middle:])
    return max(earlier, later) < max(fall / 4, min(2 * error, fall / 3))
