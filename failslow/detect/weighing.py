"""How strongly suspect rows speak for one lasting level, against noise and bursts that happen to meet. In log scale.

Both hypotheses model every row, so that what counts is how well the rows agree with each other, in units of the job's
own noise, and how rare bursts are in this job:

- *A level*: from some row on, all lie around one unknown level, with the healthy job's noise; now and then a burst.
- *Noise and bursts*: rows lie around the healthy level, or in bursts of one to three rows, each with a height of its
  own. A burst costs its rarity and its height's probability once, its further rows almost nothing; a level pays for
  its height once, however long it lasts. So two bursts side by side explain six rows of two heights, but six rows of
  one height only at twice the price.
"""

from collections.abc import Sequence
from math import exp, inf, log

from lanterne.failslow.evidence.comparison import MIN_STEPS
from lanterne.failslow.evidence.series import Level, NoiseDensity, density, median, noise_density, student

# Rows after which the older ones have lost two thirds of their weight.
MEMORY_ROWS = 400.0
# A lasting shift that is of no interest: drifts and bumps.
IGNORED = 0.03
# Six rows above this height may be a spell without a level.
HIGH = log(1.25)
# Share of the rows of such a spell that do not lie anywhere above what is healthy.
RAGGED = 0.2


def height_density(z: float) -> float:
    """Return the density of the height `z` of a burst, or of a level of which nothing is known: exponential."""
    return exp(-z) if z > 0.0 else 0.0


class Bursts:
    """How often rows of a healthy job begin a burst, and bursts go on; older rows count for less."""

    __slots__ = ("_begun", "_lasted", "_rows", "_within")

    def __init__(self) -> None:
        self._rows = self._begun = self._lasted = self._within = 0.0

    def pass_rows(self, rows: float) -> None:
        """Count `rows` rows, bursts among them or not."""
        keep = 1.0 - rows / MEMORY_ROWS
        self._rows = self._rows * keep + rows
        self._begun *= keep
        self._lasted *= keep

    def see(self, height: float, scale: float) -> None:
        """Count a row `height` above the level: a burst as far as noise of `scale` is unlikely there."""
        burst = self.rate * height_density(height)
        share = burst / (burst + (1.0 - self.rate) * density(height, scale))
        begun = share * (1.0 - self._within)
        self._begun += begun
        self._lasted += share - begun
        self._within = share

    @property
    def rate(self) -> float:
        """The share of rows that begin a burst: at first one in 64."""
        return (1.0 + self._begun) / (64.0 + self._rows)

    @property
    def share(self) -> float:
        """The share of rows that are of a burst."""
        return (self._begun + self._lasted) / max(self._rows, 1.0)

    @property
    def share_going_on(self) -> float:
        """The chance that a burst goes on to its next row: at first a half."""
        return (1.0 + self._lasted) / (2.0 + self._begun + self._lasted)


def log_odds(suspects: Sequence[float], level: Level, anchor: float, bursts: Bursts) -> tuple[float, int]:
    """Return the log-likelihood ratio of "one level since `suspects[first]`", and `first`, for the best one.

    Args:
        suspects: at most 64 rows, in order of time.
        level: the healthy Level.
        anchor: the level that slow changes are measured against: a drift away from it is not ignored.

    Cost: 6 us a suspect.
    """
    if len(suspects) < MIN_STEPS:
        return -inf, 0
    heights, scale = [y - level.median for y in suspects], level.core_scale
    noise = noise_density(scale, max(level.correlation, 0.0))
    against = _bursts(heights, scale, noise, bursts)
    ignored = IGNORED - max(level.median - anchor, 0.0)
    if ignored > 0.0:
        shifted = _bursts([z - ignored for z in heights], scale, noise, bursts)
        against = [max(pair) for pair in zip(against, shifted, strict=True)]
    found = [_best_start(heights, max(median(heights[-n:]), scale), scale, noise, bursts, against) for n in (5, 8)]
    if min(heights[-MIN_STEPS:]) > HIGH:
        found.append(_best_ragged(heights, noise, against))
    return max(found)


def level_start(rows: Sequence[float], old: float, scale: float, rate: float) -> int:
    """Return the index in `rows` from which on they most likely lie at a level of their own rather than at `old`.

    The level is what the last few rows say. Bursts, a share `rate` of the rows, come on top of either level and so say
    little of where one ends. At least MIN_STEPS rows follow. Cost: 2 us a row.
    """
    peak, curve = student(scale)
    peak *= 1 - rate

    def likelihood(z: float) -> float:
        return peak * (1.0 + curve * z * z) ** -1.5 + rate * height_density(z)

    found = [(-inf, 0)]
    for level in {median(rows[-count:]) for count in (MIN_STEPS, 8)}:
        total = 0.0
        for i in range(len(rows) - 1, -1, -1):
            total += log(likelihood(rows[i] - level) / likelihood(rows[i] - old))
            if len(rows) - i >= MIN_STEPS:
                found.append((total, i))
    return max(found)[1]


def _bursts(heights: Sequence[float], scale: float, noise: NoiseDensity, bursts: Bursts) -> list[float]:
    """Return the log likelihood of rows i and later under noise and bursts: a recursion over the age of a burst."""
    rate, goes_on = bursts.rate, bursts.share_going_on
    ends = 1 - goes_on
    free = second = third = 1.0
    total, found = 0.0, []
    for i in range(len(heights) - 1, -1, -1):
        z = heights[i]
        last = heights[i - 1] if i else 0.0
        before = heights[i - 2] if i > 1 else 0.0
        first = height_density(z) * (ends * free + goes_on * second)
        # Around the mean of the burst's one or two rows so far, whose own noise adds to this row's.
        second = density(z - last, 1.25 * scale) * (ends * free + goes_on * third)
        third = density(z - 0.5 * (last + before), 1.15 * scale) * free
        free = (1 - rate) * noise(z, last) * free + rate * first
        # Only ratios matter from here on; products of 64 densities would leave the range of a float.
        total += log(free)
        second, third, free = second / free, third / free, 1.0
        found.append(total)
    return found[::-1]


def _best_ragged(heights: Sequence[float], noise: NoiseDensity, against: Sequence[float]) -> tuple[float, int]:
    """Return the log odds of rows of any height, each its own, since row i, for the best i, and that i."""
    total, found = 0.0, [(-inf, 0)]
    for i in range(len(heights) - 1, -1, -1):
        z = heights[i]
        total += log((1 - RAGGED) * height_density(z) + RAGGED * noise(z, 0.0))
        if len(heights) - i > MIN_STEPS:
            found.append((total - against[i], i))
    return max(found)


def _best_start(
    heights: Sequence[float], level: float, scale: float, noise: NoiseDensity, bursts: Bursts, against: Sequence[float]
) -> tuple[float, int]:
    """Return the log odds of `level` since row i, for the best i, and that i."""
    rate = bursts.rate
    # What a flat choice of the level costs: the share of levels that fit the rows as well as this one.
    chance = log(2.5 * scale) - level
    total, found = 0.0, []
    for i in range(len(heights) - 1, -1, -1):
        z = heights[i] - level
        last = heights[i - 1] - level if i else 0.0
        # Bursts come on top of the level.
        total += log((1 - rate) * noise(z, last) + rate * height_density(z))
        rows = len(heights) - i
        if rows >= MIN_STEPS:
            found.append((total - against[i] + min(chance - 0.5 * log(rows), 0.0), i))
    return max(found)
