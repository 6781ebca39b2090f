"""The level that a job has now: median, spread and autocorrelation of the last iterations. In log scale."""

from collections.abc import Sequence
from itertools import pairwise
from math import log, pi, sin, sqrt

from lanterne.failslow.detect.bursts import NoiseDensity, noise_density
from lanterne.failslow.detect.votes import SHIFT, median
from lanterne.failslow.detect.window import T2_INTERQUARTILE, SortedWindow

# The spread never counts as less: timers and logs round.
MIN_SCALE = 0.003
# Fewer rows give no spread.
SPREAD_ROWS = 16
# Scales of the noise below which a shift cannot be told by a few rows.
DISTINCT = 2.0
# Standard errors by which a median must have moved.
SIGNIFICANT = 5.5
# Standard errors within which suspects are noise whatever their odds, and log odds against their meeting by chance.
CLEAR = 2.5
RARE = 9.0
REVIEW_ROWS = 8
# Reviews over which the scale without spikes is averaged: 64 rows, with spikes among them, are off by a factor of 2.
CORE_REVIEWS = 16
# A lasting shift that is of no interest: drifts and bumps.
IGNORED = 0.03


class Level:
    """What the last `capacity` ordinary rows say of the present level.

    Attributes: `window`; `median`; `scale`: of a Student t with 2 degrees of freedom; `spread2`: twice its square;
    `shift`: the least that a few rows can tell from this noise, at least SHIFT.
    """

    __slots__ = (
        "_agreement", "_core", "_last_z", "_reviews", "median", "scale", "shift", "spread2", "window"
    )  # fmt: skip

    def __init__(self, capacity: int, values: Sequence[float] = (), like: "Level | None" = None) -> None:
        """A level of `values`; its noise is that of Level `like` until there are enough of them to tell."""
        self.window: SortedWindow = SortedWindow(capacity, values)
        self.median: float = self.window.median() if values else 0.0
        self._set_scale(like.scale if like else MIN_SCALE)
        self._core: float = like._core if like else MIN_SCALE
        self._reviews = 0
        self._agreement: float = like._agreement if like else 0.25
        self._last_z: float = like._last_z if like else 0.0

    def push(self, y: float) -> None:
        """Take an ordinary row."""
        z = y - self.median
        self._agreement += ((1.0 if z * self._last_z > 0.0 else -1.0) - self._agreement) / 128
        self._last_z = z
        self.median = self.window.push(y)

    def review(self) -> None:
        """Refresh the spread; to be called every REVIEW_ROWS rows."""
        if len(self.window) >= SPREAD_ROWS:
            self._set_scale(max(self.window.scale(), MIN_SCALE))
            self._reviews = min(self._reviews + 1, CORE_REVIEWS)
            core = max(min(self.scale, self.window.core_scale()), MIN_SCALE)
            self._core *= (core / self._core) ** (1 / self._reviews)

    def _set_scale(self, scale: float) -> None:
        self.scale: float = scale
        self.spread2: float = 2 * scale**2
        self.shift: float = max(SHIFT, DISTINCT * scale)

    @property
    def correlation(self) -> float:
        """Lag-1 autocorrelation of ordinary rows where they linger, 0.0 where they alternate."""
        return max(self._signed_correlation(), 0.0)

    def _signed_correlation(self) -> float:
        """From how often two in a row lie on the same side."""
        return min(max(sin(pi / 2 * self._agreement), -0.8), 0.8)

    @property
    def noise(self) -> NoiseDensity:
        """The noise_density of ordinary rows."""
        return noise_density(self.scale, self.correlation)

    @property
    def core_scale(self) -> float:
        """The scale without what spikes add to it, and with what is not known of a level of few rows."""
        return self._core * sqrt(1 + 8 / len(self.window))

    def error(self, count: float, other: float) -> float:
        """Standard error of the difference of the medians of `count` and `other` rows, autocorrelation included."""
        correlation = self._signed_correlation()
        known = 1 + 16 / len(self.window)
        return 1.41 * self.scale * sqrt((1 / count + 1 / other) * known * (1 + correlation) / (1 - correlation))

    def scale_of_steps(self, rows: Sequence[float]) -> float:
        """The scale of `rows`' noise, told by how they differ from each other in turn: steps and ramps add little."""
        steps = sorted(later - earlier for earlier, later in pairwise(rows))
        last = len(steps) - 1
        spread = (steps[last - (last >> 2)] - steps[last >> 2]) / T2_INTERQUARTILE
        return max(spread / sqrt(2 * (1 - self._signed_correlation())), MIN_SCALE)

    def moved(self, suspects: Sequence[float]) -> float:
        """The distance from this level to where `suspects` lie now, 0.0 where noise explains it."""
        recent, whole = median(suspects[-8:]) - self.median, median(suspects) - self.median
        if abs(recent) >= SIGNIFICANT * self.error(min(len(suspects), 8), len(self.window)):
            return recent
        if abs(whole) >= SIGNIFICANT * self.error(len(suspects), len(self.window)) and recent * whole > 0.0:
            return min(recent, whole, key=abs)
        return 0.0

    def least(self, rows: int) -> float:
        """The least shift of the median of `rows` suspects that their noise does not explain."""
        return CLEAR * self.error(min(rows, 16), len(self.window))

    def explains(self, suspects: Sequence[float], shift: float) -> bool:
        """Return whether `suspects`, `shift` above this level, may be rows of it, though most of them are high.

        Judged by the error of medians, and by how often rows are as high as all or three in four of the suspects: so
        many of them meet by chance with at most exp(-RARE), as Chernoff bounds it. The latter is counted, not modelled:
        it holds for noise of any shape, such as that of two sequence lengths.
        """
        if shift < self.least(len(suspects)):
            return True
        ordered, count = sorted(suspects), len(suspects)
        bounds = []
        for low in {0, count >> 2}:
            share = (self.window.count_from(ordered[low]) + 0.5) / (len(self.window) + 1)
            high = count - low
            if share * count < high:
                rest = low * log(low / (count * (1 - share))) if low else 0.0
                bounds.append(high * log(high / (count * share)) + rest)
        return max(bounds, default=0.0) < RARE
