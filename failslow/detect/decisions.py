"""What suspects amount to: pure decisions on the state of a job, of which the Tracker makes events. In log scale."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log, sqrt
from statistics import fmean, pstdev
from typing import NamedTuple

from lanterne.failslow.detect.events import STILL_SLOW, LevelEvent
from lanterne.failslow.detect.evidence import Weighing, is_abrupt, level_start
from lanterne.failslow.detect.held_rows import WINDOW_ROWS, HeldRows
from lanterne.failslow.detect.level import CLEAR, SIGNIFICANT, Level
from lanterne.failslow.detect.reference import Reference
from lanterne.failslow.detect.votes import LIKELY, SHIFT, VoteRun, best_split, median, split

# A shift that lasts 8 rows counts from one standard error below 10 %, but never below 8 %. Half of one is a step
# worth recording.
ACCEPT = log(1.08)
SMALL = log(1.05)
MIN_SAMPLES = 5
# Where who was late as a rule is so no more, too, that is worth a row.
MIN_RECOVERED = 4
# Three of the votes may come from a jitter, once in some hundred iterations: the rest must still make 250 to 1.
JITTER = log(250)
SKIPPED_ROWS = 16
# Odds of votes from which suspects are weighed.
CANDIDATE = 3.9
# Suspects and odds from which on a level that wanders is no chance meeting of bursts.
WANDERING_ROWS = 8
WANDERING = 18.0
MAX_WARM_UP_ROWS = 300
# A fall by a quarter is certain after fewer rows: these, or where it tells that the job was slow from its start, as
# soon as a rise would be.
CLEAR_FALL = log(1.25)
MIN_FALL_ROWS = 8
# Rows that a job is slow from its start at least; more where it is by less than the ratio of a warm-up.
SLOW_START_ROWS, LOW_START_ROWS, WARM_UP = 22, 32, log(1.4)
# Standard errors by which levels inside an incident differ, all its rows being looked at.
APART = 4.5
# Standard errors by which a recovered level of fewer rows must lie below a slow one.
RECOVERED, LONG_ROWS = 2.0, 12


@dataclass(slots=True)
class JobState:
    """What is known of a job: `level` now, `reference`, rows `held` back, how bursts are weighed, whether it is `slow`.

    `last`: the last confirmed event; `warm`: whether the warm-up is over.
    """

    level: Level
    reference: Reference
    held: HeldRows
    weighing: Weighing
    slow: bool = False
    last: LevelEvent | None = None
    warm: bool = False

    def since(self, row: int) -> int:
        """Rows from the last event up to `row`: those before it are of another level."""
        return WINDOW_ROWS if self.last is None else row + 1 - self.last.index

    def placed(self, suspects: Sequence[float], row: int) -> tuple[list[float], int]:
        """HeldRows.place() of `suspects`."""
        return self.held.place(suspects, self.since(row), self.level, self.weighing.bursts.rate)


class EventFinding(NamedTuple):
    """Suspects of `run` that make an event of that `kind`, or end a warm-up ("warm")."""

    kind: str
    suspects: Sequence[float]
    run: VoteRun


class SeenLevel(NamedTuple):
    """Rows of a level of their own, logs of seconds, from row `first` on."""

    first: int
    values: list[float]


def findings(state: JobState, row: int) -> Iterator[EventFinding]:
    """What the suspects up to `row` may be certain to be, the likeliest first."""
    yield from _weighed(state, row)
    if state.held.strongest >= LIKELY:
        yield from _voted(state, row)


def other_level(state: JobState, row: int) -> tuple[list[float], int, float] | None:
    """What the last rows show together, whatever was said of each: they have left the level of an incident.

    Returns: the rows since the last event, where in them another level began, and the level before; or None.
    """
    level, since = state.level, state.since(row)
    if since < 2 * MIN_FALL_ROWS:
        return None
    values = list(state.held.recent)[-since:]
    new = median(values[-12:])
    if abs(new - level.median) < 0.9 * SHIFT or new - state.reference.base < SHIFT:
        return None
    start = level_start(values, level.median, level.core_scale, state.weighing.bursts.rate)
    if min(start, len(values) - start) < MIN_FALL_ROWS:
        return None
    if _are_mixed(values[:start], values[start:]):
        return None
    old, new = median(values[:start]), median(values[start:])
    error = level.error(start, len(values) - start) * min(1.0, level.scale_of_steps(values) / level.scale)
    return (values, start, old) if abs(new - old) >= max(ACCEPT, APART * error) else None


def seen_level(state: JobState, finding: EventFinding, row: int) -> SeenLevel | None:
    """The level that `finding`, no end of a warm-up, tells of at `row`; None while too few rows have followed."""
    kind, suspects, run = finding
    if kind == "relief" and state.slow:
        # It follows rows of any height, and begins where the last of them was: with the run.
        rows = list(state.held.recent)[-min(row + 1 - run.start, state.since(row) - 1) :]
        least = MIN_SAMPLES
        start = split(rows, state.level.median, median(suspects[-8:]))
    else:
        rows, start = state.placed(suspects, row)
        least = {"onset": MIN_SAMPLES, "relief": MIN_SAMPLES, "change": 2 * MIN_SAMPLES}[kind]
    if len(rows) - start < least:
        return None
    index = row + 1 - len(rows) + start
    if state.last is not None and index <= state.last.index and kind != "change":
        index, start = state.last.index + 1, start + state.last.index + 1 - index
    return SeenLevel(index, rows[start:])


def seen_return(state: JobState, row: int) -> SeenLevel | None:
    """Return the level of before an incident where the last rows have its mean; None where they have not.

    Of noise so wide that single rows say little, such as that of two sequence lengths.
    """
    healthy = state.reference.healthy.level
    if healthy.shift <= SHIFT or state.since(row) <= 2 * SKIPPED_ROWS:
        return None
    before, now = (fmean(level.window.values) for level in (healthy, state.level))
    rows = list(state.held.recent)[-2 * SKIPPED_ROWS :]
    # Of two lengths in turn means of two rows vary little, and so do those of more.
    pairs = [(one + other) / 2 for one, other in pairwise(healthy.window.values)]
    error = pstdev(pairs) / sqrt(SKIPPED_ROWS / 2 * (1 - healthy.correlation))
    recent = fmean(rows[-SKIPPED_ROWS:])
    if now - recent < SIGNIFICANT * error or abs(recent - before) > min(CLEAR * error, (now - before) / 3):
        return None
    high = list(accumulate(value - (before + now) / 2 for value in rows))
    start = min(1 + high.index(max(high)), len(rows) - MIN_SAMPLES)
    return SeenLevel(row + 1 - len(rows) + start, rows[start:])


def seen_in_window(state: JobState, old: float, row: int) -> SeenLevel:
    """The level that the window shows up to `row`, from where it has left the level `old`."""
    values = list(state.level.window.values)
    start = best_split(values, old, state.level.median, SHIFT)
    index = row + 1 - len(values) + start
    if state.last is not None:
        # The window may hold rows of before the last incident.
        index = max(index, state.last.index + 1)
    return SeenLevel(index, values[start:])


def seen_onset(state: JobState, index: int, row: int) -> SeenLevel | None:
    """The level of an onset that something else than times puts at `index`; None where times up to `row` deny it."""
    if state.last is not None:
        index = max(index, state.last.index + 1)
    values = list(state.held.recent)[index - row - 1 :]
    if state.slow or len(values) < MIN_SAMPLES:
        return None
    rise = min(median(values), median(values[-8:])) - level_before(state, index, row)
    return SeenLevel(index, values) if rise >= log(STILL_SLOW) else None


def level_before(state: JobState, index: int, row: int) -> float:
    """What rows before row `index` were at, `row` being the last: a job may have become calmer just then."""
    before = list(state.held.recent)[: index - row - 1][-SKIPPED_ROWS:]
    level = state.level.median
    return min(level, median(before)) if len(before) >= SKIPPED_ROWS // 2 else level


def seen_relief(state: JobState, index: int, row: int) -> SeenLevel | None:
    """The level after an incident likewise: it is nearer to that of before the incident than to the incident's."""
    if not state.slow or state.last is None or index <= state.last.index:
        return None
    values, base, told = list(state.held.recent)[index - row - 1 :], state.reference.base, state.reference.told
    if len(values) < MIN_SAMPLES or max(median(values), median(values[-8:])) - base > (told - base) / 2:
        return None
    return SeenLevel(index, values)


def seen_recovery(state: JobState, index: int, row: int) -> SeenLevel | None:
    """The level that a job slow from its start has since `index`; None where its times up to `row` deny it."""
    values = list(state.held.recent)[index - row - 1 :]
    if state.slow or state.last is not None or index < SLOW_START_ROWS or len(values) < MIN_RECOVERED:
        return None
    fall = state.level.median - max(median(values), median(values[-8:]))
    return SeenLevel(index, values) if fall >= SMALL else None


def _are_mixed(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether a quarter of the rows before are as far as three in four of those after: one level of two heights."""
    sign = 1 if median(after) > median(before) else -1
    near = sorted(sign * value for value in after)[len(after) >> 2]
    return 4 * sum(sign * value >= near for value in before) > len(before)


def _weighed(state: JobState, row: int) -> Iterator[EventFinding]:
    """An onset, where suspects of a healthy job speak for one level rather than for bursts."""
    up, level = state.held.up, state.level
    if state.slow or not up.grew or up.score < CANDIDATE or not state.weighing.is_due(row + 1 - up.start, row):
        return
    suspects = state.held.rows[max(up.start - row - 1, -WINDOW_ROWS) :]
    # Weighing costs 30 times as much as to see that _rise() will refuse, wherever a level may begin: among all
    # suspects or the last few.
    most = max(median(suspects[-rows:]) for rows in range(MIN_SAMPLES, 9)) - level.median
    few = suspects[-MIN_SAMPLES:]
    if most < SMALL or (level.explains(few, most) and level.explains(suspects, most)):
        return
    first = state.weighing.slower(suspects, level, state.reference.anchor)
    if first is not None:
        yield from _rise(state, suspects[first:], row)


def _voted(state: JobState, row: int) -> Iterator[EventFinding]:
    """Yield what the votes of a run decide."""
    held = state.held
    for run, decide in ((held.back, _relief), (held.up, _rise), (held.down, _fall)):
        if run.score < LIKELY or not run.grew or row - run.start < MIN_SAMPLES - 1:
            continue
        suspects = held.of(run, row)
        if run is not held.up or state.slow or _wanders(state, suspects):
            yield from decide(state, suspects, row)


def _wanders(state: JobState, suspects: Sequence[float]) -> bool:
    """Whether `suspects` of a healthy job, of whatever heights, are too many and too dense for bursts."""
    up = state.held.up
    odds = max(WANDERING, JITTER + 3 * up.cap)
    return len(suspects) >= WANDERING_ROWS and up.score >= odds and state.level.moved(suspects) != 0.0


def _counts(state: JobState, shift: float, suspects: Sequence[float]) -> bool:
    """Whether `shift`, measured on `suspects`, is 10 %; within its standard error where it lasts."""
    allowance = state.level.error(8, len(state.level.window)) if len(suspects) >= 8 else 0.0
    return shift >= max(ACCEPT, SHIFT - allowance)


def _rise(state: JobState, suspects: Sequence[float], row: int) -> Iterator[EventFinding]:
    level, up = state.level, state.held.up
    shift = level.moved(suspects) if state.slow else min(median(suspects[-8:]), median(suspects)) - level.median
    if len(suspects) < MIN_SAMPLES or shift < SMALL:
        return
    if state.slow:
        yield from _step_inside(state, suspects, shift, up)
    elif not level.explains(suspects, shift):
        if _counts(state, level.median + shift - state.reference.anchor, suspects):
            yield EventFinding("onset", suspects, up)
        else:
            yield from _small_step(state, suspects, shift, up)


def _fall(state: JobState, suspects: Sequence[float], row: int) -> Iterator[EventFinding]:
    level, down = state.level, state.held.down
    shift = level.moved(suspects)
    if len(suspects) < MIN_SAMPLES or shift > -SMALL:
        return
    if not state.slow:
        yield from _faster(state, suspects, -shift, row)
    elif level.median + shift - state.reference.base < SHIFT:
        yield EventFinding("relief", suspects, down)
    else:
        yield from _step_inside(state, suspects, -shift, down)


def _faster(state: JobState, suspects: Sequence[float], fall: float, row: int) -> Iterator[EventFinding]:
    """A job that is not slow becomes faster: waiting until that is certain loses nothing."""
    level, down = state.level, state.held.down
    clear = fall > CLEAR_FALL
    if len(suspects) < (MIN_SAMPLES if clear else SKIPPED_ROWS) or not state.weighing.is_due(len(suspects), row):
        return
    if not state.weighing.is_faster(suspects, level, state.reference.anchor):
        return
    counts = _counts(state, fall, suspects)
    if state.last is None and counts:
        rows, start = state.placed(suspects, row)
        if len(rows) - start < MIN_SAMPLES:
            return
        before = list(state.held.recent)[: start - len(rows)]
        long = row + 1 - len(rows) + start >= (SLOW_START_ROWS if fall > WARM_UP else LOW_START_ROWS)
        if long and is_abrupt(before, rows[start:], level.error(8, 8)):
            # The job has been slow from its start.
            yield EventFinding("relief", suspects, down)
            return
    if clear and len(suspects) < MIN_FALL_ROWS:
        return
    if state.last is None and row < MAX_WARM_UP_ROWS:
        yield EventFinding("warm", suspects, down)
    elif counts:
        yield EventFinding("change", suspects, down)
    else:
        yield from _small_step(state, suspects, fall, down)


def _relief(state: JobState, suspects: Sequence[float], row: int) -> Iterator[EventFinding]:
    base, healthy = state.reference.base, state.reference.healthy.level
    over = median(suspects[-8:]) - base
    near = max(SMALL, 2 * state.level.error(min(len(suspects), 8), len(healthy.window)))
    if len(suspects) < MIN_SAMPLES or over > min(near, (state.level.median - base) / 2):
        return
    # Of few rows it may as well be another level of the incident.
    if len(suspects) >= LONG_ROWS or over + RECOVERED * healthy.error(len(suspects), WINDOW_ROWS) <= SHIFT:
        yield EventFinding("relief", suspects, state.held.back)


def _step_inside(state: JobState, suspects: Sequence[float], shift: float, run: VoteRun) -> Iterator[EventFinding]:
    """Another level inside an incident: it must stand clear of the incident's own noise."""
    if len(suspects) >= 2 * MIN_SAMPLES and shift >= 3 * state.level.scale and _counts(state, shift, suspects):
        yield EventFinding("change", suspects, run)
    else:
        yield from _small_step(state, suspects, shift, run)


def _small_step(state: JobState, suspects: Sequence[float], shift: float, run: VoteRun) -> Iterator[EventFinding]:
    """A step below 10 % counts where it lasts and hardly a sample of the one level could be of the other."""
    level = state.level
    if len(suspects) >= SKIPPED_ROWS and shift >= 6 * level.scale and abs(level.moved(suspects[:8])) >= SMALL:
        yield EventFinding("change", suspects, run)
