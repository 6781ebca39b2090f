"""Breakpoints of a whole series, verified by the means of the parts between: GREYHOUND's published detector.

The artifact (github.com/wutianyuan1/Greyhound, detector/control_plane/slow_detection.py) is no online method: it takes
outliers away, finds the breakpoints of all iterations so far by the package Rbeast, and keeps those 10 rows or more
apart whose parts differ in their means by more than 10 %. Here breakpoints are those of the least squared error, each
at the price of Schwarz's criterion, so that it needs no package. How short a part may be, and the price, were chosen on
other jobs than those of greyhound-table-3 and -4; of these it is right on 369 of 392 and 93 of 107, Rbeast 0.1.25 with
the artifact's settings on 373 and 93.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.failslow.detect.events import LevelEvent

# As in the artifact: standard deviations of an outlier, rows between breakpoints, difference of means.
OUTLIER, APART, VERIFY = 3.0, 10, 0.10
# Of the search: rows of the shortest part, and the price of a breakpoint over the noise's variance and log(rows).
SHORTEST, PRICE = 8, 10.0
# Rows of the running median from which a value may be off by OUTLIER deviations; what is beyond is cut.
MEDIAN_ROWS = 11


class BreakpointDetector:
    """Detector of a job that is over, with the interface of those that are told one iteration after the other."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._events: tuple[int, list[LevelEvent]] = (0, [])

    def update(self, time_s: float) -> LevelEvent | None:
        """Take the next iteration's time in seconds; return None: events are found at the end."""
        if not 0.0 < time_s < inf:
            raise InputError(f"iteration {len(self._seconds)}: got {time_s!r}, expected a positive time in seconds")
        self._seconds.append(time_s)
        return None

    @property
    def events(self) -> Sequence[LevelEvent]:
        """Those of all iterations so far, told at the last one."""
        if self._events[0] != len(self._seconds):
            self._events = len(self._seconds), self._find()
        return self._events[1]

    def _find(self) -> list[LevelEvent]:
        seconds = np.array(self._seconds)
        if len(seconds) < 2 * SHORTEST:
            return []
        deviation = seconds.std()
        rows = np.flatnonzero(np.abs(seconds - seconds.mean()) <= OUTLIER * deviation)
        cut, noise = _cut(seconds[rows])
        last = len(seconds) - 1
        slow, events = False, []
        for row, ratio in _verified(cut, _breakpoints(cut, PRICE * noise**2 * float(np.log(len(cut))))):
            kind = "onset" if ratio > 1 and not slow else "relief" if ratio < 1 and slow else "change"
            slow = ratio > 1
            events.append(LevelEvent(kind, int(rows[row]), last, last, ratio))
        return events


def _cut(seconds: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the series with what is far off its running median cut, and the standard deviation of its noise."""
    around = np.lib.stride_tricks.sliding_window_view(np.pad(seconds, MEDIAN_ROWS // 2, mode="edge"), MEDIAN_ROWS)
    median = np.median(around, axis=1)
    # 1.4826 times the median distance is the deviation of a Gaussian; a series without noise has some all the same.
    noise = max(1.4826 * float(np.median(np.abs(seconds - median))), 1e-6 * float(seconds.mean()))
    return np.clip(seconds, median - OUTLIER * noise, median + OUTLIER * noise), noise


def _breakpoints(seconds: NDArray[np.float64], price: float) -> list[int]:
    """Return the first rows of all parts but the first, whose squared error and price are least together."""
    rows = len(seconds)
    sums, squares = (np.append(0.0, np.cumsum(values)) for values in (seconds, seconds**2))
    least, before = np.full(rows + 1, inf), np.zeros(rows + 1, int)
    least[0] = -price
    for end in range(SHORTEST, rows + 1):
        starts = np.arange(end - SHORTEST + 1)
        errors = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        costs = least[starts] + errors
        before[end] = int(np.argmin(costs))
        least[end] = costs[before[end]] + price
    found, end = [], rows
    while before[end]:
        end = int(before[end])
        found.append(end)
    return found[::-1]


def _verified(seconds: NDArray[np.float64], breakpoints: Sequence[int]) -> list[tuple[int, float]]:
    """Return (row, mean behind it over that before) of those that are far apart and change the mean enough."""
    edges = [0, *breakpoints]
    kept = [0, *(row for before, row in zip(edges, breakpoints, strict=False) if row - before >= APART), len(seconds)]
    found = []
    for first, row, end in zip(kept, kept[1:], kept[2:], strict=False):
        before, behind = float(seconds[first:row].mean()), float(seconds[row:end].mean())
        if abs(behind - before) > VERIFY * max(before, behind):
            found.append((row, behind / before))
    return found
