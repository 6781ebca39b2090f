"""The level and the noise of a series, one value at a time, from its latest ordinary values. In log scale.

Noise is a Student t with 2 degrees of freedom, autocorrelation included. Pure Python: a push costs about 1 us.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from math import log, pi, sin, sqrt
from typing import TypeAlias

# The density of a value, as a function of it and the value before, both as distances to their level.
NoiseDensity: TypeAlias = Callable[[float, float], float]
# A change by 10 % counts.
SHIFT = log(1.10)
# Of the Student t with 2 degrees of freedom: its density at 0, and its interquartile range.
_PEAK, _INTERQUARTILE = 0.35355, 1.6330
# The scale of the noise never counts as less: timers and logs round.
MIN_SCALE = 0.003
# Values after which the scale is told anew; the first time after twice as many.
REVIEW_ROWS = 8
# Reviews over which the scale without spikes is averaged: 64 values, with spikes among them, are off by a factor of 2.
CORE_REVIEWS = 16


def median(values: Sequence[float]) -> float:
    """Return the lower median of a short sequence."""
    return sorted(values)[(len(values) - 1) >> 1]


def student(scale: float) -> tuple[float, float]:
    """Return the peak p and the curvature c of a Student t with 2 degrees of freedom: p (1 + c z z)^-1.5 at z."""
    return _PEAK / scale, 0.5 / (scale * scale)


def density(z: float, scale: float) -> float:
    """Return the density at `z` of a Student t with 2 degrees of freedom."""
    peak, curve = student(scale)
    return peak * (1.0 + curve * z * z) ** -1.5


def noise_density(scale: float, correlation: float) -> NoiseDensity:
    """Return the NoiseDensity of noise of that scale, in which half of the values follow the one before."""
    peak, curve = student(scale)
    narrow_peak, narrow_curve = student(scale * sqrt(1 - correlation * correlation))

    def of(z: float, last: float) -> float:
        follows = z - correlation * last
        alone = peak * (1.0 + curve * z * z) ** -1.5
        return 0.5 * (alone + narrow_peak * (1.0 + narrow_curve * follows * follows) ** -1.5)

    return of


class Level:
    """What the last `capacity` ordinary values say of the present level.

    Attributes: `values`, in order of time; `median`; `scale`, of a Student t with 2 degrees of freedom; `shift`: the
    least change that a few values can tell from this noise, two scales, at least SHIFT; `capacity`, which may be set.
    """

    __slots__ = (
        "_agreement", "_core", "_last_z", "_reviews", "_sorted", "capacity", "median", "scale", "shift", "values"
    )  # fmt: skip

    def __init__(self, capacity: int, values: Sequence[float] = (), like: "Level | None" = None) -> None:
        """Make the level of `values`; its noise is that of Level `like` until there are enough of them to tell."""
        self.capacity: int = capacity
        self.values: deque[float] = deque(values[-capacity:] if values else ())
        self._sorted = sorted(self.values)
        self.median: float = median(self._sorted) if values else 0.0
        self.scale: float = like.scale if like else MIN_SCALE
        self.shift: float = max(SHIFT, 2 * self.scale)
        self._core: float = like._core if like else MIN_SCALE
        self._reviews = 0
        self._agreement: float = like._agreement if like else 0.25
        self._last_z: float = like._last_z if like else 0.0

    def __len__(self) -> int:
        return len(self.values)

    def push(self, y: float) -> None:
        """Take an ordinary value."""
        z = y - self.median
        self._agreement += ((1.0 if z * self._last_z > 0.0 else -1.0) - self._agreement) / 128
        self._last_z = z
        ordered = self._sorted
        if len(ordered) >= self.capacity:
            del ordered[bisect_left(ordered, self.values.popleft())]
        self.values.append(y)
        insort(ordered, y)
        self.median = ordered[(len(ordered) - 1) >> 1]

    def review(self) -> None:
        """Tell the scale anew; to be called every REVIEW_ROWS values."""
        if len(self) < 2 * REVIEW_ROWS:
            return
        ordered, last = self._sorted, len(self) - 1
        low, high = ordered[last >> 2], ordered[last - (last >> 2)]
        self.scale = max((high - low) / _INTERQUARTILE, MIN_SCALE)
        self.shift = max(SHIFT, 2 * self.scale)
        # Spikes all lie above, and may be a quarter of all: the lower half has none.
        core = max(min(self.scale, 4 * (ordered[last >> 1] - low) / _INTERQUARTILE), MIN_SCALE)
        self._reviews = min(self._reviews + 1, CORE_REVIEWS)
        self._core *= (core / self._core) ** (1 / self._reviews)

    @property
    def core_scale(self) -> float:
        """The scale without what spikes add to it, and with what is not known of a level of few values."""
        return self._core * sqrt(1 + 8 / len(self))

    @property
    def correlation(self) -> float:
        """Lag-1 autocorrelation, from how often two values in a row lie on the same side."""
        return min(max(sin(pi / 2 * self._agreement), -0.8), 0.8)

    def error(self, count: float, other: float) -> float:
        """Return the standard error of the difference of the medians of `count` and `other` values."""
        known = 1 + 16 / len(self)
        lingers = (1 + self.correlation) / (1 - self.correlation)
        return 1.41 * self.scale * sqrt((1 / count + 1 / other) * known * lingers)

    def odds_beyond(self, values: Sequence[float], sign: int) -> float:
        """Return log odds against so many ordinary values meeting by chance that are as high (`sign` 1) as `values`.

        Or as low (-1). As Chernoff bounds it, of all of them or of three in four: counted, not modelled, so that it
        holds for noise of any shape, such as that of two sequence lengths.
        """
        ordered, count, odds = sorted(values)[::sign], len(values), 0.0
        for low in {0, count >> 2}:
            at = bisect_left(self._sorted, ordered[low])
            seen = 1 + (len(self) - at if sign > 0 else at)
            # A standard error more than was seen: that, too, is by chance.
            share = min((seen + sqrt(seen)) / (len(self) + 2), 1.0)
            high = count - low
            if share * count < high:
                rest = low * log(low / (count * (1 - share))) if low else 0.0
                odds = max(odds, high * log(high / (count * share)) + rest)
        return odds
