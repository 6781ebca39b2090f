"""A sliding median: the simple detector that others are measured against."""

from collections import deque
from math import exp, inf, log
from statistics import median_low

from lanterne.errors import InputError
from lanterne.failslow.detect.events import LevelEvent
from lanterne.failslow.detect.tracker import MAX_WARM_UP_ROWS

CHANGE = log(1.10)


class SlidingMedian:
    """Reports a change when the median of the last `rows` iterations leaves that at the last event by more than 10 %.

    The first 16 iterations are skipped, and before row 300 a job that becomes faster is warming up, as for the
    Tracker. Paper: GREYHOUND, section 7.2, "SlideWindow"; differs: the reference is the median at the last event.
    Attributes: `events`, as in track.Tracker.
    """

    def __init__(self, rows: int = 9) -> None:
        self.events: list[LevelEvent] = []
        self.row: int = 0
        self._window: deque[float] = deque(maxlen=rows)
        self._reference: float | None = None
        self._healthy = 0.0

    def update(self, time_s: float) -> LevelEvent | None:
        """Take the next iteration's time in seconds; return the LevelEvent that it confirms, or None."""
        if not 0.0 < time_s < inf:
            raise InputError(f"iteration {self.row}: got {time_s!r}, expected a positive time in seconds")
        row, window = self.row, self._window
        self.row += 1
        window.append(log(time_s))
        if row < 16:
            return None
        level = median_low(window)
        if self._reference is None:
            self._reference = self._healthy = level
        shift = level - self._reference
        if abs(shift) <= CHANGE:
            return None
        slow = self._reference - self._healthy > CHANGE
        if shift < 0 and row < MAX_WARM_UP_ROWS and not self.events:
            self._reference = self._healthy = level
            return None
        kind = "change"
        if shift > 0 and not slow:
            kind = "onset"
        elif shift < 0 and slow and level - self._healthy < CHANGE:
            kind = "relief"
        if kind == "relief" or (kind == "change" and not slow):
            self._healthy = level
        self._reference = level
        event = LevelEvent(kind, row - len(window) // 2, row, row, exp(shift))
        self.events.append(event)
        return event
