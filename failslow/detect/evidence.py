"""How strongly some suspect iterations speak for one lasting level, against bursts that happen to meet.

Both hypotheses are models of every row, so that what counts is how well the rows agree with each other, in units of
the job's own noise, and how rare bursts are in this job:

- *A level*: from some row on, all lie around one unknown level, with the healthy job's noise; now and then a burst.
- *Noise and bursts*: rows lie around the healthy level, or in bursts of one to three rows, each with a height of its
  own. A burst costs its rarity and its height's probability once, its further rows almost nothing; a level pays for
  its height once, however long it lasts. So two bursts side by side explain six rows of two heights, but six rows of
  one height only at twice the price.

All in log scale, as residuals to the healthy level. Noise is a Student t with 2 degrees of freedom; with
autocorrelation a row follows, as often as not, its predecessor.
"""

from collections.abc import Sequence
from math import inf, log

from lanterne.failslow.detect.bursts import (
    MEAN_HEIGHT,
    Bursts,
    NoiseDensity,
    noise_density,
    student,
    usual_height_density,
)
from lanterne.failslow.detect.level import IGNORED, Level
from lanterne.failslow.detect.votes import LEAST_ROWS, median

# Rows of a level that can be told from a burst.
MIN_ROWS = 5
# Share of the rows of an incident that do not lie at its level, but anywhere above what is healthy.
RAGGED = 0.2
# Six rows above this height may be a spell without a level; how much rarer such spells are, as log odds.
HIGH = log(1.25)
RAGGED_PRICE = 4.5
# Log odds that are certain: of the fewest rows, which two bursts side by side may be, and of more.
SURE_AT_ONCE = 8.0
SURE = 5.5


class Weighing:
    """Knows the `bursts` of the healthy job, and when weighing is worth its cost again."""

    __slots__ = ("_next_row", "bursts")

    def __init__(self) -> None:
        self.bursts: Bursts = Bursts()
        self._next_row = 0

    def is_due(self, rows: int, row: int) -> bool:
        """Whether `rows` suspects are worth weighing at `row`: of many, one more tells little."""
        if rows < MIN_ROWS or row < self._next_row:
            return False
        self._next_row = row + max(1, rows // 8)
        return True

    def slower(self, suspects: Sequence[float], level: Level, anchor: float) -> int | None:
        """The index in `suspects` from which on they surely are one level above `level`, else None.

        `anchor`: the level at the last event, which slow changes are measured against.
        """
        odds, first = _odds(suspects, 1, level, anchor, self.bursts)
        sure = SURE if len(suspects) - first > MIN_ROWS else SURE_AT_ONCE
        return first if odds >= sure else None

    def is_faster(self, suspects: Sequence[float], level: Level, anchor: float) -> bool:
        """Whether `suspects` surely are one level below `level`; bursts of the job are all above."""
        return _odds(suspects, -1, level, anchor, Bursts())[0] >= SURE_AT_ONCE


def _odds(suspects: Sequence[float], sign: int, level: Level, anchor: float, bursts: Bursts) -> tuple[float, int]:
    """Log odds of one level above (`sign` 1) or below (-1) `level`, and where in `suspects` it begins."""
    away = max(sign * (level.median - anchor), 0.0)
    return log_odds(
        [sign * (value - level.median) for value in suspects],
        level.core_scale,
        level.correlation,
        bursts,
        IGNORED - away,
    )


def log_odds(
    suspects: Sequence[float], scale: float, correlation: float, bursts: Bursts, ignored: float = 0.0
) -> tuple[float, int]:
    """Log-likelihood ratio of "one level since row `first`", and that row, the best of all; -inf for too few rows.

    Args:
        suspects: residuals to the healthy level, at most 64, in order of time.
        scale, correlation: of the noise; `scale` is that of a Student t with 2 degrees of freedom.
        bursts: the Bursts of the job.
        ignored: a lasting shift that is of no interest; noise and bursts may lie around it, too.

    Cost: 6 us a suspect.
    """
    if len(suspects) < MIN_ROWS:
        return -inf, 0
    noise = noise_density(scale, correlation)
    against = _bursts(suspects, scale, noise, bursts)
    if ignored > 0.0:
        shifted = _bursts([z - ignored for z in suspects], scale, noise, bursts)
        against = [max(pair) for pair in zip(against, shifted, strict=True)]
    levels = {max(median(suspects[-rows:]), scale) for rows in (MIN_ROWS, 8)}
    found = [_best_start(suspects, level, scale, noise, bursts, against) for level in levels]
    if min(suspects[-MIN_ROWS:]) > HIGH:
        found.append(_best_ragged(suspects, noise, against))
    return max(found)


def back_vote(
    y: float, last: float, was: tuple[float, NoiseDensity], now: tuple[float, NoiseDensity], rate: float
) -> float:
    """Log-likelihood ratio of the level before an incident against the incident, of row `y` after row `last`.

    Args:
        was, now: (level, NoiseDensity) before the incident and in it.
        rate: share of rows that are bursts, which are no evidence; an incident has more rows of any height.
    """
    any_height = usual_height_density(y - was[0])
    healthy, slow = (noise(y - level, last - level) for level, noise in (was, now))
    ragged = rate + RAGGED * (1 - rate)
    return log(((1 - rate) * healthy + rate * any_height) / ((1 - ragged) * slow + ragged * any_height))


def level_start(rows: Sequence[float], old: float, scale: float, rate: float) -> int:
    """Index in `rows` from which on they most likely lie at a level of their own rather than at `old`.

    The level is what the last few rows say. Bursts, a share `rate` of the rows, come on top of either level and so say
    little of where one ends. At least LEAST_ROWS rows follow. Cost: 2 us a row.
    """
    peak, curve = student(scale)
    peak *= 1 - rate

    def likelihood(z: float) -> float:
        return peak * (1.0 + curve * z * z) ** -1.5 + rate * usual_height_density(z)

    found = []
    for level in {median(rows[-count:]) for count in (MIN_ROWS, 8)}:
        total = 0.0
        for i in range(len(rows) - 1, -1, -1):
            total += log(likelihood(rows[i] - level) / likelihood(rows[i] - old))
            if len(rows) - i >= LEAST_ROWS:
                found.append((total, i))
    return max(found)[1]


def is_abrupt(before: Sequence[float], after: Sequence[float], error: float) -> bool:
    """Whether rows fall from one level to another between `before` and `after`; a warm-up falls there and beside it.

    `error`: standard error of the difference of two medians of 8 rows.
    """
    if len(before) < 12:
        return False
    fall = median(before[-8:]) - median(after[:8])
    earlier = median(before[-24:-8]) - median(before[-8:])
    middle = len(after) // 2
    later = median(after[:middle]) - median(after[middle:])
    return max(earlier, later) < max(fall / 4, min(2 * error, fall / 3))


def _bursts(suspects: Sequence[float], scale: float, noise: NoiseDensity, bursts: Bursts) -> list[float]:
    """Log likelihood of rows i and later under noise and bursts, for every i: a recursion over the age of a burst."""
    rate, goes_on, height_density = bursts.rate, bursts.share_going_on, bursts.height_density
    ends = 1 - goes_on
    # Around the mean of the burst's one or two rows so far, whose own noise adds to this row's.
    second_peak, second_curve = student(1.25 * scale)
    third_peak, third_curve = student(1.15 * scale)
    free = second = third = 1.0
    total, found = 0.0, []
    for i in range(len(suspects) - 1, -1, -1):
        z = suspects[i]
        last = suspects[i - 1] if i else 0.0
        before = suspects[i - 2] if i > 1 else 0.0
        off, off_both = z - last, z - 0.5 * (last + before)
        first = height_density(z) * (ends * free + goes_on * second)
        second = second_peak * (1.0 + second_curve * off * off) ** -1.5 * (ends * free + goes_on * third)
        third = third_peak * (1.0 + third_curve * off_both * off_both) ** -1.5 * free
        free = (1 - rate) * noise(z, last) * free + rate * first
        # Only ratios matter from here on; products of 64 densities would leave the range of a float.
        total += log(free)
        second, third, free = second / free, third / free, 1.0
        found.append(total)
    found.reverse()
    return found


def _best_ragged(suspects: Sequence[float], noise: NoiseDensity, against: Sequence[float]) -> tuple[float, int]:
    """Log odds of rows of any height, each its own, since row i, for the best i, and that i."""
    total, found = 0.0, [(-inf, 0)]
    for i in range(len(suspects) - 1, -1, -1):
        z = suspects[i]
        total += log((1 - RAGGED) * usual_height_density(z) + RAGGED * noise(z, 0.0))
        if len(suspects) - i > MIN_ROWS:
            found.append((total - against[i] - RAGGED_PRICE, i))
    return max(found)


def _best_start(
    suspects: Sequence[float], level: float, scale: float, noise: NoiseDensity, bursts: Bursts, against: Sequence[float]
) -> tuple[float, int]:
    """Log odds of `level` since row i, for the best i, and that i."""
    rate, height_density = bursts.rate, bursts.height_density
    # What a flat choice of the level costs: the share of levels that fit the rows as well as this one.
    chance = log(2.5 * scale / MEAN_HEIGHT) - level / MEAN_HEIGHT
    total, found = 0.0, []
    for i in range(len(suspects) - 1, -1, -1):
        z = suspects[i]
        last = suspects[i - 1] - level if i else 0.0
        # Bursts come on top of the level.
        total += log((1 - rate) * noise(z - level, last) + rate * height_density(z - level))
        rows = len(suspects) - i
        if rows >= MIN_ROWS:
            found.append((total - against[i] + min(chance - 0.5 * log(rows), 0.0), i))
    return max(found)
