"""Weighing suspects: whether they are one lasting level rather than the bursts and the noise of a healthy job."""

from lanterne.failslow.detect.anchor import IGNORED
from lanterne.failslow.detect.bursts import Bursts
from lanterne.failslow.detect.evidence import MIN_ROWS, log_odds

# Log odds that are certain: of the fewest rows, which two bursts side by side may be, and of more.
SURE_AT_ONCE = 6.5
SURE = 5.5
# So many times what the level wanders by anyway is no step.
WANDERS = 2.0


class Weighing:
    """Knows the `bursts` of the healthy job, and when weighing is worth its cost again."""

    __slots__ = ("_next_row", "bursts")

    def __init__(self):
        self.bursts = Bursts()
        self._next_row = 0

    def is_due(self, rows, row):
        """Whether `rows` suspects are worth weighing at `row`: of many, one more tells little."""
        if rows < MIN_ROWS or row < self._next_row:
            return False
        self._next_row = row + max(1, rows // 8)
        return True

    def slower(self, suspects, level, anchor):
        """The index in `suspects` from which on they surely are one level above `level`, else None.

        `anchor`: the level at the last event, which slow changes are measured against.
        """
        odds, first = _odds(suspects, 1, level, anchor, self.bursts)
        sure = SURE if len(suspects) - first > MIN_ROWS else SURE_AT_ONCE
        return first if odds >= sure else None

    def is_faster(self, suspects, level, anchor):
        """Whether `suspects` surely are one level below `level`; bursts of the job are all above."""
        return _odds(suspects, -1, level, anchor, Bursts())[0] >= SURE_AT_ONCE


def _odds(suspects, sign, level, anchor, bursts):
    """Log odds of one level above (`sign` 1) or below (-1) `level`, and where in `suspects` it begins."""
    away = max(sign * (level.median - anchor), 0.0)
    return log_odds(
        [sign * (value - level.median) for value in suspects],
        level.core_scale,
        level.correlation,
        bursts,
        max(IGNORED, WANDERS * level.wander) - away,
    )
