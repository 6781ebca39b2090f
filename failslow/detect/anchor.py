"""The level at the last event, which slow changes are measured against: steps below 10 % add up. In log scale."""

from lanterne.failslow.detect.level import SIGNIFICANT
from lanterne.failslow.detect.votes import SHIFT

# A lasting shift that is of no interest: drifts and bumps.
IGNORED = 0.03
# Reviews (of 8 rows) within which the level at the last event becomes better known, and no more from then on.
KNOWN_REVIEWS = 32
# Rows that an anchor counts for in the error of a drift.
ANCHOR_ROWS = 64


class Anchor:
    """Attributes: `value`: the level at the last event; `told`: the last level that an event has told of."""

    __slots__ = ("_reviews", "told", "value")

    def __init__(self):
        self.drop(0.0)

    def drop(self, value):
        """Anchor at `value`."""
        self.value = self.told = value
        self._reviews = 0

    def rises(self, level):
        """Whether Level `level` has left the anchor upwards. Downwards the anchor follows.

        While noise explains the distance the anchor becomes better known instead.
        """
        drift = level.median - self.value
        error = level.error(len(level.window) / 2, ANCHOR_ROWS)
        if abs(drift) < 2 * error and self._reviews < KNOWN_REVIEWS:
            self._reviews += 1
            self.value += drift / (self._reviews + 2)
        if drift < -max(IGNORED, SIGNIFICANT * error):
            self.value = self.told = level.median
        # What a small step has told already is no slow drift.
        return drift > max(SHIFT, SIGNIFICANT * error, self.told - self.value + IGNORED)
