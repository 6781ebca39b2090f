"""What a job is measured against: the level at the last event, and in an incident that of before. In log scale.

Slow changes are measured against the anchor, the level at the last event: steps below 10 % add up.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lanterne.failslow.detect.bursts import NoiseDensity
from lanterne.failslow.detect.level import IGNORED, SIGNIFICANT, Level
from lanterne.failslow.detect.votes import SHIFT

# Reviews (of 8 rows) within which the level at the last event becomes better known, and no more from then on.
KNOWN_REVIEWS = 32
# Rows that an anchor counts for in the error of a drift.
ANCHOR_ROWS = 64


class Healthy(NamedTuple):
    """What was known of the job before an incident; the rates are those of its VoteRuns."""

    level: Level
    noise: NoiseDensity
    up_rate: float
    down_rate: float


class Reference:
    """What a job is measured against.

    Attributes: `anchor`: the level at the last event; `told`: the last level that an event has told of; `base`: the
    level that counts as recovered; `healthy`: what was known of the job before the incident.
    """

    __slots__ = ("_reviews", "anchor", "base", "healthy", "told")

    def __init__(self, healthy: Healthy) -> None:
        self.base: float = 0.0
        self.healthy: Healthy = healthy
        self.drop(0.0)

    def drop(self, value: float) -> None:
        """From now on `value` is the level at the last event."""
        self.anchor: float = value
        self.told: float = value
        self._reviews = 0

    def rises(self, level: Level) -> bool:
        """Whether Level `level` has left the anchor upwards. Downwards the anchor follows.

        While noise explains the distance the anchor becomes better known instead.
        """
        drift = level.median - self.anchor
        error = level.error(len(level.window) / 2, ANCHOR_ROWS)
        if abs(drift) < 2 * error and self._reviews < KNOWN_REVIEWS:
            self._reviews += 1
            self.anchor += drift / (self._reviews + 2)
        if drift < -max(IGNORED, SIGNIFICANT * error):
            self.anchor = level.median
            self.told = level.median
        # What a small step has told already is no slow drift.
        return drift > max(SHIFT, SIGNIFICANT * error, self.told - self.anchor + IGNORED)

    def begin(self, healthy: Healthy) -> None:
        """An incident begins; what counts as recovered is the level just before, be it that of the last event or a
        little above."""
        level = healthy.level.median
        self.base = max(self.anchor, level) if level < self.anchor + SHIFT else self.anchor
        self.healthy = healthy

    def recovered(self, level: Level, values: Sequence[float], window_rows: int, *, was_slow: bool) -> Level:
        """The Level after a relief to `level`, of `values`: the one of before, where that is the same.

        Args:
            was_slow: in an incident; else since the job's start, before which there is none.
        """
        healthy = self.healthy.level
        error = healthy.error(len(values), len(healthy.window))
        if not was_slow or abs(level.median - healthy.median) >= max(IGNORED / 2, 4 * error):
            return Level(window_rows, list(values), healthy)
        for value in values:
            healthy.push(value)
        return healthy
