"""What the noise of a job looks like, and its bursts: how often they begin, go on, how high they are. In log scale.

An ordinary row is noise: a Student t with 2 degrees of freedom, autocorrelation included. A burst is a row or a few
that stand out upwards and are not lasting: a checkpoint, an evaluation, garbage collection, a longer sequence. Chance
meetings of bursts are what a slowdown has to be told from; a job whose bursts all have one height will see several of
that height side by side, one whose bursts last a single row will not.
"""

from bisect import bisect
from collections.abc import Callable
from math import exp, sqrt
from typing import TypeAlias

# The density of a row, as a function of it and the row before, both as distances to their level.
NoiseDensity: TypeAlias = Callable[[float, float], float]
# Density of the standard one at 0.
_PEAK = 0.35355
# Heights of bursts, and of levels, before any were seen: exponential with this mean; a third of all exceed +93 %.
MEAN_HEIGHT = 0.6
# What is assumed before a row was seen, and the rows or bursts that it is worth.
USUAL_RATE, RATE_ROWS = 0.015, 33.0
USUAL_SHARE, SHARE_BURSTS = 0.5, 6.0
HEIGHT_BURSTS = 6.0
# Rows and bursts after which the older ones have lost two thirds of their weight.
MEMORY_ROWS, MEMORY_BURSTS = 400.0, 32.0
# Bins of heights: each is a quarter as wide as it is high.
_LOWEST, _RATIO, _BINS = 0.03, 1.25, 26
_EDGES = [_LOWEST * _RATIO**bin_ for bin_ in range(1, _BINS)]
_WIDTHS = [_LOWEST * (_RATIO - 1) * _RATIO**bin_ for bin_ in range(_BINS)]
# Weights grow instead of all older ones becoming less; from here on they begin anew.
_MOST = 1e9


def student(scale: float) -> tuple[float, float]:
    """The peak and the curvature of a Student t with 2 degrees of freedom: at z its density is p (1 + c z z)^-1.5."""
    return _PEAK / scale, 0.5 / (scale * scale)


def density(z: float, scale: float) -> float:
    """Density at `z` of a Student t with 2 degrees of freedom."""
    peak, curve = student(scale)
    return peak * (1.0 + curve * z * z) ** -1.5


def noise_density(scale: float, correlation: float) -> NoiseDensity:
    """The NoiseDensity of noise of that scale and lag-1 autocorrelation.

    With autocorrelation a row follows, as often as not, its predecessor; `scale` is that of all rows together.
    """
    peak, curve = student(scale)
    if correlation == 0.0:
        return lambda z, last: peak * (1.0 + curve * z * z) ** -1.5
    narrow_peak, narrow_curve = student(scale * sqrt(1 - correlation * correlation))
    peak, narrow_peak = 0.5 * peak, 0.5 * narrow_peak

    def of(z: float, last: float) -> float:
        follows = z - correlation * last
        return peak * (1.0 + curve * z * z) ** -1.5 + narrow_peak * (1.0 + narrow_curve * follows * follows) ** -1.5

    return of


def usual_height_density(z: float) -> float:
    """Density of the height of a burst, or of a level, of which nothing is known but that it is `z` > 0."""
    return exp(-z / MEAN_HEIGHT) / MEAN_HEIGHT if z > 0.0 else 0.0


class Bursts:
    """Counts of bursts, the older the less. Memory is constant; `see` and `height_density` cost 1 us."""

    __slots__ = ("_begun", "_heights", "_higher", "_lasted", "_rows", "_weight", "_within")

    def __init__(self) -> None:
        self._rows = self._begun = self._lasted = self._higher = 0.0
        self._heights = [0.0] * _BINS
        self._within = 0.0
        self._weight = 1.0

    def pass_rows(self, rows: float) -> None:
        """`rows` rows went by, bursts among them or not."""
        keep = 1.0 - rows / MEMORY_ROWS
        self._rows = self._rows * keep + rows
        self._begun *= keep
        self._lasted *= keep

    def end(self) -> None:
        """An ordinary row: a burst, if there was one, is over."""
        self._within = 0.0

    def see(self, height: float, scale: float) -> None:
        """A row `height` above the level, not an ordinary one: a burst as far as noise of `scale` is unlikely there."""
        if height <= 0.0:
            self.end()
            return
        rate, bin_ = self.rate, bisect(_EDGES, height)
        burst = rate * self._density(height, bin_)
        share = burst / (burst + (1.0 - rate) * density(height, scale))
        begun = share * (1.0 - self._within)
        self._begun += begun
        self._lasted += share - begun
        self._within = share
        if share >= 0.01:
            self._remember(bin_, share)

    def _remember(self, bin_: int, share: float) -> None:
        self._weight /= 1.0 - share / MEMORY_BURSTS
        weight, heights = share * self._weight, self._heights
        self._higher += weight
        # Half of it to the neighbours: the next one of that height may fall there.
        heights[bin_] += 0.5 * weight
        heights[max(bin_ - 1, 0)] += 0.25 * weight
        heights[min(bin_ + 1, _BINS - 1)] += 0.25 * weight
        if self._weight > _MOST:
            self._heights = [value / self._weight for value in heights]
            self._higher /= self._weight
            self._weight = 1.0

    @property
    def rate(self) -> float:
        """The share of rows that begin a burst."""
        return (USUAL_RATE * RATE_ROWS + self._begun) / (RATE_ROWS + self._rows)

    @property
    def share_going_on(self) -> float:
        """The chance that a burst goes on to its next row."""
        return (USUAL_SHARE * SHARE_BURSTS + self._lasted) / (SHARE_BURSTS + self._begun + self._lasted)

    def height_density(self, z: float) -> float:
        """Density of the height `z` of a burst."""
        return self._density(z, bisect(_EDGES, z)) if z > 0.0 else 0.0

    def _density(self, z: float, bin_: int) -> float:
        usual = HEIGHT_BURSTS * self._weight
        return (usual * usual_height_density(z) + self._heights[bin_] / _WIDTHS[bin_]) / (usual + self._higher)
