"""The streaming detector: one `update(time_s)` per iteration says when a job became slow, and when it recovered.

How it decides, all in log scale, where a slowdown is a shift whatever the length of an iteration:

1. *Level and spread* are the median and the interquartile range of the last 64 iterations. Suspects stay outside until
   they are cleared, so that a slowdown does not become its own reference.
2. *Votes.* Each sample votes with the log-likelihood ratio of "shifted by 10 % or more" against "not shifted", under a
   Student t with 2 degrees of freedom. A vote is capped at log(0.9 / r), r being how often this job has spikes
   anyway: so no single spike counts for much, and a job full of spikes needs more samples than a quiet one.
3. *Votes add up* to a CUSUM in each direction. Its last zero is the onset. Odds of 100 to 1 are provisional.
4. *Weighing.* A slowdown of a healthy job is certain when at least five suspects speak for one lasting level rather
   than for bursts that happen to meet (evidence.py: both hypotheses model every row, autocorrelation included). A level
   that wanders is certain by votes alone, but from more rows, and where the median has moved by more than the noise
   explains. So are reliefs and other changes: odds of a million to 1, or of 100,000 to 1 where the samples agree with
   each other. What is certain must also count: a shift of 10 % (ACCEPT).
5. *Slow path.* The level is also compared with the level at the last event: steps of less than 10 % add up.

Inside an incident the same votes, taken against the level before it, look for the relief.

Paper: Wu et al. (GREYHOUND), section 4.2; differs: no run-length posterior (bocd.py has it), medians instead of means,
provisional and confirmed events, the slow path, re-anchoring.
"""

from collections import deque
from math import exp, inf, log, pi, sin, sqrt
from typing import NamedTuple

from ..errors import InputError
from .bursts import Bursts, usual_height_density
from .events import Event, incidents
from .evidence import density, log_odds, noise_density
from .votes import CERTAIN, LIKELY, MIN_RATE, PROVISIONAL, SHIFT, Run, best_split, median, split, vote
from .window import SortedWindow

# A shift that lasts 8 rows counts from one standard error below 10 %, but never below 8 %. Half of one is a step
# worth recording.
ACCEPT = log(1.08)
SMALL = log(1.05)
MIN_SAMPLES = 5
# Three of the votes may come from a jitter, once in some hundred iterations: the rest must still make 250 to 1.
JITTER = log(250)
# Standard errors by which a median must have moved.
SIGNIFICANT = 5.5
SKIPPED_ROWS = 16
TAKEN_AGAIN = 8
# Odds of votes from which suspects are weighed, and log odds of the weighing that are certain.
CANDIDATE = 3.9
SURE = 7.0
# A lasting shift that is of no interest: drifts and bumps, and so many times what the level wanders by anyway.
IGNORED, WANDERS = 0.03, 2.0
# Suspects and odds from which on a level that wanders is no chance meeting of bursts.
WANDERING_ROWS = 8
WANDERING = 18.0
MAX_WARM_UP_ROWS = 300
WINDOW_ROWS = 64
# Share of the rows of an incident that do not lie at its level, but anywhere above what is healthy.
RAGGED = 0.2
# Rows before the suspects among which a level may have begun already.
LOOK_BACK = 16
# The spread never counts as less: timers and logs round.
MIN_SCALE = 0.003


class _Healthy(NamedTuple):
    """What was known of the job before an incident."""

    window: SortedWindow
    scale: float
    spread2: float
    up_rate: float
    down_rate: float


class Tracker:
    """Finds onsets, reliefs and other changes in a stream of iteration times.

    Attributes: `events`: confirmed events so far; `row`: rows seen; `slow`: inside an incident; `warm`: warm-up is
    over.

    Cost: 2 us an update in plain Python; memory is constant but for the confirmed events.
    """

    def __init__(self):
        self.events = []
        self.row = 0
        self.slow = False
        self.warm = False
        self._window = SortedWindow(SKIPPED_ROWS)
        self._level = self._anchor = self._base = 0.0
        self._scale = MIN_SCALE
        self._spread2 = 2 * MIN_SCALE**2
        self._agreement = 0.25
        self._last_z = 0.0
        self._wander2 = self._told = 0.0
        self._up, self._down, self._back = Run(MIN_RATE), Run(MIN_RATE), Run(MIN_RATE)
        self._bursts = Bursts()
        self._pending = []
        self._recent = deque(maxlen=WINDOW_ROWS)
        self._pushes = self._reviews = 0
        self._forget = 1 / 64
        self._healthy = None
        self._return_shift = SHIFT

    @property
    def incidents(self):
        """The incidents so far, the last one open where its `relief` is None."""
        return incidents(self.events)

    @property
    def level_s(self):
        """The current level, seconds; None before any row."""
        return exp(self._level) if self.row else None

    def update(self, time_s):
        """Take the next iteration's time in seconds; return an Event that became provisional or confirmed, else None.

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

    def _take(self, y, row):
        z = y - self._level
        up, down, back = self._up, self._down, self._back
        if -SHIFT / 2 < z < SHIFT / 2 and not self._pending and not (self.slow and y - self._base < SHIFT / 2):
            return self._absorb(y, z, row)
        if not self.slow or len(self._window) >= SKIPPED_ROWS:
            up.add(vote(z, self._spread2), row)
            down.add(vote(-z, self._spread2), row)
        if self.slow:
            back.add(self._vote_back(y), row)
        if up.score == down.score == back.score == 0.0:
            return self._clear(y, row)
        return self._suspect(y, row)

    def _vote_back(self, y):
        """Log-likelihood ratio of the level before the incident against the incident, which has rows of any height."""
        last, correlation = self._recent[-2], self._correlation()
        healthy = usual_height_density(y - self._base)
        densities = []
        for level, scale in ((self._base, self._healthy.scale), (self._level, self._scale)):
            noise = scale, scale * sqrt(1 - correlation * correlation), correlation
            densities.append(noise_density(y - level, last - level, noise))
        (was, now), rate = densities, self._up.rate
        ragged = rate + RAGGED * (1 - rate)
        return log(((1 - rate) * was + rate * healthy) / ((1 - ragged) * now + ragged * healthy))

    def _skip(self, y):
        self._window.push(y)
        self._level = self._anchor = self._window.median()
        if self.row == SKIPPED_ROWS:
            self._set_scale()

    def _set_scale(self):
        self._scale = max(self._window.scale(), MIN_SCALE)
        self._spread2 = 2 * self._scale**2

    def _correlation(self):
        """Lag-1 autocorrelation of ordinary samples, from how often two in a row lie on the same side."""
        return min(max(sin(pi / 2 * self._agreement), 0.0), 0.8)

    def _error(self, count, other):
        """Standard error of the difference of the medians of `count` and `other` samples, autocorrelation included."""
        correlation = self._correlation()
        known = 1 + 16 / len(self._window)
        return 1.41 * self._scale * sqrt((1 / count + 1 / other) * known * (1 + correlation) / (1 - correlation))

    def _absorb(self, y, z, row):
        """Let an ordinary sample into the window."""
        self._agreement += ((1.0 if z * self._last_z > 0.0 else -1.0) - self._agreement) / 128
        self._last_z = z
        window = self._window
        window.push(y)
        self._level = window.median()
        self._pushes += 1
        return self._review(row) if self._pushes % 8 == 0 else None

    def _clear(self, y, row):
        """No run is alive any more: let the suspects and `y` into the window and learn how often such things happen."""
        pending = self._pending
        pending.append(y)
        self._pending = []
        event = None
        spike = max(SHIFT / 2, 2 * self._scale)
        for value in pending:
            z = value - self._level
            for run, far in ((self._up, z > spike), (self._down, z < -spike)):
                if far:
                    run.set_rate(run.rate + self._forget)
            if not self.slow:
                self._bursts.see(z, density(z, self._scale))
            if self.slow and value - self._base < SHIFT / 2:
                self._back.set_rate(min(self._back.rate + 1 / 64, 0.2))
            event = self._absorb(value, z, row) or event
        return event

    def _review(self, row):
        """Every 8 samples: refresh the spread, forget old spikes, end the warm-up, walk the slow path."""
        window = self._window
        if not self.slow:
            self._bursts.pass_rows(8)
        if len(window) >= SKIPPED_ROWS:
            self._set_scale()
        self._forget = 1 / min(64 + self._pushes, 256)
        recent = median(list(window.values)[-8:])
        self._wander2 += ((recent - self._level) ** 2 - self._error(8, len(window)) ** 2 - self._wander2) / 8
        for run in (self._up, self._down):
            run.set_rate(run.rate * (1 - 8 * self._forget))
        if not self.warm:
            self._review_warm_up(row)
        drift = self._level - self._anchor
        full = len(window) >= WINDOW_ROWS // 2
        if self.slow:
            return self._slow_path("relief", row) if full and self._level - self._base < SHIFT / 2 else None
        error = self._error(len(window) / 2, WINDOW_ROWS)
        limit = SIGNIFICANT * error
        if abs(drift) < 2 * error and self._reviews < WINDOW_ROWS // 2:
            # No drift but a better knowledge of the level.
            self._reviews += 1
            self._anchor += drift / (self._reviews + 2)
        if drift < -max(0.03, limit):
            self._anchor = self._level
        elif full and drift > max(SHIFT, limit, self._told + IGNORED):
            return self._slow_path("onset", row)
        return None

    def _slow_path(self, kind, row):
        """Confirm what the window as a whole shows: it has left the anchor, or an incident's has come back to it."""
        values = list(self._window.values)
        old = self._anchor if kind == "onset" else self._base + self._return_shift
        start = best_split(values)
        return self._confirm(kind, row + 1 - len(values) + start, row, row, values[start:], old)

    def _review_warm_up(self, row):
        """Warm-up is over once two successive half windows agree; until then the reference follows downwards."""
        self._anchor = self._level
        if len(self._window) < SKIPPED_ROWS:
            return
        values = list(self._window.values)
        older, newer = median(values[:8]), median(values[8:16])
        if row >= MAX_WARM_UP_ROWS or abs(newer - older) < max(0.01, 2 * self._error(8, 8)):
            self.warm = True
            self._window.capacity = WINDOW_ROWS

    def _suspect(self, y, row):
        """Hold `y` back; return the event that it makes provisional or certain."""
        pending = self._pending
        pending.append(y)
        event = self._weigh(row) or self._count_votes(row)
        if event is not None:
            return event
        if self._is_stale(row):
            return self._let_go(row)
        rise = "change" if self.slow else "onset"
        for run, sign, kind in ((self._back, -1, "relief"), (self._up, 1, rise), (self._down, -1, "change")):
            if run.score and run.suspected == row:
                ratio = exp(median(pending[run.start - row - 1 :]) - self._level)
                if sign * (ratio - 1) > 0:
                    return Event(kind, run.start, row, None, ratio)
        return None

    def _weigh(self, row):
        """An onset, where suspects of a healthy job speak for one level rather than for bursts."""
        if self.slow or self._up.score < CANDIDATE or row - self._up.start < MIN_SAMPLES - 1:
            return None
        suspects = self._pending[max(self._up.start - row - 1, -WINDOW_ROWS) :]
        odds, first = self._odds(suspects, 1, self._bursts)
        return self._rise(suspects[first:], row) if odds >= SURE else None

    def _odds(self, suspects, sign, bursts):
        """Log odds of one level above (`sign` 1) or below (-1) the present one, and where in `suspects` it begins."""
        return log_odds(
            [sign * (value - self._level) for value in suspects],
            max(min(self._scale, self._window.core_scale()), MIN_SCALE) * sqrt(1 + 8 / len(self._window)),
            self._correlation(),
            bursts,
            max(IGNORED, WANDERS * sqrt(max(self._wander2, 0.0))) - max(sign * (self._level - self._anchor), 0.0),
        )

    def _count_votes(self, row):
        """The event that the votes of a run decide, where verification agrees."""
        for run, decide in ((self._back, self._relief), (self._up, self._rise), (self._down, self._fall)):
            if run.score < LIKELY or row - run.start < MIN_SAMPLES - 1:
                continue
            suspects = self._pending[run.start - row - 1 :]
            if run is self._up and not self.slow:
                decided = self._wanders(suspects)
            else:
                enough = run is self._back or run.score >= max(CERTAIN, JITTER + 3 * run.cap)
                decided = enough or self._agree(suspects)
            event = decide(suspects, row) if decided else None
            if event is not None:
                return event
        return None

    def _wanders(self, suspects):
        """Whether `suspects` of a healthy job, of whatever heights, are too many and too dense for bursts."""
        odds = max(WANDERING, JITTER + 3 * self._up.cap)
        return len(suspects) >= WANDERING_ROWS and self._up.score >= odds and self._moved(suspects, self._level) != 0.0

    def _is_stale(self, row):
        """Whether suspects have been held back for too long; in a noisy job a run is often alive and means nothing."""
        doubtful = max(self._up.score, self._down.score) < PROVISIONAL
        long = len(self._pending) >= (SKIPPED_ROWS if doubtful else WINDOW_ROWS)
        return long and (self._back.score == 0.0 or self._back.start <= row - WINDOW_ROWS // 2)

    def _let_go(self, row):
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

    def _agree(self, suspects):
        """Whether `suspects` lie together as closely as one level's samples do; spikes that happen to meet do not."""
        ordered = sorted(suspects[-8:])
        return ordered[-2] - ordered[1] <= max(4 * self._scale, SHIFT / 2)

    def _moved(self, suspects, reference):
        """The distance from `reference` to where `suspects` lie now, 0.0 where noise explains it."""
        recent = median(suspects[-8:]) - reference
        if abs(recent) >= SIGNIFICANT * self._error(min(len(suspects), 8), len(self._window)):
            return recent
        whole = median(suspects) - reference
        if abs(whole) >= SIGNIFICANT * self._error(len(suspects), len(self._window)) and recent * whole > 0.0:
            return min(recent, whole, key=abs)
        return 0.0

    def _counts(self, shift, suspects):
        """Whether `shift`, measured on `suspects`, is 10 %; within its standard error where it lasts."""
        allowance = self._error(8, len(self._window)) if len(suspects) >= 8 else 0.0
        return shift >= max(ACCEPT, SHIFT - allowance)

    def _rise(self, suspects, row):
        if self.slow:
            shift = self._moved(suspects, self._level)
        else:
            shift = min(median(suspects[-8:]), median(suspects)) - self._level
        if len(suspects) < MIN_SAMPLES or shift < SMALL:
            return None
        if self.slow:
            return self._other_level(suspects, shift, row, self._up)
        if self._counts(self._level + shift - self._anchor, suspects):
            return self._settle("onset", suspects, self._up, row)
        return self._small_step(suspects, shift, row, self._up)

    def _fall(self, suspects, row):
        shift = self._moved(suspects, self._level)
        if len(suspects) < MIN_SAMPLES or shift > -SMALL:
            return None
        if self.slow:
            if self._level + shift - self._base < SHIFT:
                return self._settle("relief", suspects, self._down, row)
            return self._other_level(suspects, -shift, row, self._down)
        # Who waits for a faster job to be certain loses nothing.
        if len(suspects) < SKIPPED_ROWS or self._odds(suspects, -1, Bursts())[0] < SURE:
            return None
        if row < MAX_WARM_UP_ROWS and not self.events:
            # A warm-up ends downwards; that is no event.
            self._restart(suspects[-SKIPPED_ROWS:])
            self._anchor = self._level
            return None
        if self._counts(-shift, suspects):
            return self._settle("change", suspects, self._down, row)
        return self._small_step(suspects, -shift, row, self._down)

    def _relief(self, suspects, row):
        over = median(suspects[-8:]) - self._base
        near = max(SMALL, 2 * self._error(min(len(suspects), 8), len(self._healthy.window)))
        if len(suspects) < MIN_SAMPLES or over > min(near, (self._level - self._base) / 2):
            return None
        return self._settle("relief", suspects, self._back, row)

    def _other_level(self, suspects, shift, row, run):
        """Another level inside an incident: it must stand clear of the incident's own noise."""
        if len(suspects) >= 2 * MIN_SAMPLES and shift >= 3 * self._scale and self._counts(shift, suspects):
            return self._settle("change", suspects, run, row)
        return self._small_step(suspects, shift, row, run)

    def _small_step(self, suspects, shift, row, run):
        """A step below 10 % counts where it lasts and hardly a sample of the one level could be of the other."""
        if (
            len(suspects) < SKIPPED_ROWS
            or shift < 6 * self._scale
            or abs(self._moved(suspects[:8], self._level)) < SMALL
        ):
            return None
        return self._settle("change", suspects, run, row)

    def _settle(self, kind, suspects, run, row):
        """Confirm an event of `run`; its index is where `suspects` and the samples before them part best."""
        # A relief follows rows of any height: it begins where the last of them was, and that is where the run began.
        rows = suspects if kind == "relief" else list(self._recent)[-len(suspects) - LOOK_BACK :]
        if len(rows) < (MIN_SAMPLES if kind == "relief" else 2 * MIN_SAMPLES):
            return None
        first = self.row - len(rows)
        new = median(suspects[-8:])
        if kind == "relief":
            start = first + split(rows, self._level, new)
        else:
            low, high = min(new, self._level) - 3 * self._scale, max(new, self._level) + 3 * self._scale
            start = first + best_split([min(max(value, low), high) for value in rows])
        if row - start < (2 * MIN_SAMPLES if kind == "change" else MIN_SAMPLES) - 1:
            return None
        suspected = run.suspected if run.suspected is not None else row
        old = self._anchor if kind == "onset" else self._level
        return self._confirm(kind, start, max(suspected, start), row, rows[start - first :], old)

    def _confirm(self, kind, index, provisional_at, row, values, old):
        new = median(values[-8:])
        small = kind == "change" and not self.slow and new - old > -ACCEPT
        if kind == "onset":
            # What counts as recovered is the level just before, be it that of the last event or a little above.
            self._base = max(self._anchor, self._level) if self._level < self._anchor + SHIFT else self._anchor
            self._healthy = _Healthy(self._window, self._scale, self._spread2, self._up.rate, self._down.rate)
        self._restart(values)
        if kind == "relief":
            self._recover(values)
        self.slow = kind == "onset" or (self.slow and kind != "relief")
        if self.slow:
            # In a noisy job the relief is easier to see half way to the incident's level than at SHIFT.
            self._return_shift = max(SHIFT, min((self._level - self._base) / 2, 4 * self._healthy.scale))
        self.warm = True
        if not self.slow and not small:
            self._anchor = self._level
            self._reviews = 0
        # What a small step has told already is no slow drift.
        self._told = self._level - self._anchor if small else 0.0
        while len(self._recent) > self.row - index:
            self._recent.popleft()
        event = Event(kind, index, provisional_at, row, exp(new - old))
        self.events.append(event)
        return event

    def _restart(self, values):
        """Begin a new level with `values`; the spread stays until there are enough samples for another."""
        self._window = SortedWindow(WINDOW_ROWS, list(values))
        self._level = self._window.median()
        self._pending = []
        for run in (self._up, self._down, self._back):
            run.clear()
        self._back.set_rate(MIN_RATE)

    def _recover(self, values):
        """After a relief: what was known of the healthy job counts again, its level too where that is the same."""
        window, self._scale, self._spread2, up_rate, down_rate = self._healthy
        self._up.set_rate(up_rate)
        self._down.set_rate(down_rate)
        if abs(self._level - window.median()) < max(0.015, 2 * self._error(len(values), len(window))):
            for value in values:
                window.push(value)
            self._window, self._level = window, window.median()
