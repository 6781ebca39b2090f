"""Bayesian online change-point detection with verification, as in GREYHOUND, repaired; to compare with.

With a constant hazard the posterior of "the run has length 0" is the hazard itself, always, so the paper's rule P(r =
0) > 0.9 cannot fire; here a change is where the likeliest run falls short of its former length. Runs beyond the longest
kept length share its bin: dropping them instead would make a false change every time the bin is reached. The paper
verifies by means before and after; in the noise of real series spikes decide these, so here medians do.

Paper: Wu et al. (GREYHOUND), section 4.2; Adams and MacKay 2007, arXiv 0710.3742.
"""

from math import lgamma, log, nan, pi
from statistics import median

import numpy as np

from lanterne.errors import InputError
from lanterne.failslow.detect.events import LevelEvent

HAZARD = 1 / 250
LONGEST_RUN = 200
# Rows on either side of a change whose medians verify it; chosen on jobs of other seeds than those of the tables.
VERIFY_ROWS = 12
FIRST_ROW = 24


class BocdTracker:
    """Normal model of unknown mean and variance per run; changes verified by medians before and after.

    Attributes: `events`, as in Tracker. Cost: 40 us an update with NumPy, for LONGEST_RUN = 200.
    """

    def __init__(self, verify: float = 0.10) -> None:
        """Args: `verify`: the least difference of medians, a share of the larger; 0: no verification, no delay."""
        self.events: list[LevelEvent] = []
        self.row: int = 0
        self._verify = verify
        self._history: list[float] = []
        self._pending: list[int] = []
        self._run = 0
        self._half = np.array([lgamma((k + 1) / 2 + 0.5) - lgamma((k + 1) / 2) for k in range(LONGEST_RUN + 2)])
        self._healthy = nan

    def _begin(self, x: float) -> None:
        self._prior = (x, 1.0, 0.5, 0.5 * (0.02 * x) ** 2)
        self._log_run = np.zeros(1)
        # Mean, kappa, alpha and beta of each run length.
        self._posterior = tuple(np.array([value]) for value in self._prior)

    def update(self, time_s: float) -> LevelEvent | None:
        """Take the next iteration's time in seconds; return the LevelEvent that it confirms, or None."""
        if not 0.0 < time_s < float("inf"):
            raise InputError(f"iteration {self.row}: got {time_s!r}, expected a positive time in seconds")
        row = self.row
        self.row += 1
        self._history.append(time_s)
        del self._history[: -2 * LONGEST_RUN]
        if row < 16:
            return None
        if row == 16:
            self._healthy = sorted(self._history)[8]
            self._begin(self._healthy)
        run = self._likeliest_run(time_s)
        start, is_shorter = row + 1 - max(run, 1), run < self._run - 1
        self._run = run
        if row >= FIRST_ROW and is_shorter and start not in self._pending and start > self._last():
            self._pending.append(start)
        wait = VERIFY_ROWS if self._verify else 1
        if not self._pending or row + 1 - self._pending[0] < wait:
            return None
        return self._check(self._pending.pop(0), row, wait)

    def _last(self) -> int:
        return self.events[-1].index if self.events else -1

    def _likeliest_run(self, x: float) -> int:
        """Advance the posterior over run lengths by `x`; return the likeliest length, `x` included."""
        mean, kappa, alpha, beta = self._posterior
        scale2 = beta * (kappa + 1) / (alpha * kappa)
        half = self._half[np.minimum((2 * alpha - 1).astype(int), LONGEST_RUN + 1)]
        density = (
            half
            - 0.5 * np.log(2 * pi * alpha * scale2)
            - (alpha + 0.5) * np.log1p((x - mean) ** 2 / (2 * alpha * scale2))
        )
        joint = self._log_run + density
        run = np.concatenate(([np.logaddexp.reduce(joint) + log(HAZARD)], joint + log(1 - HAZARD)))
        grown = (
            (kappa * mean + x) / (kappa + 1),
            kappa + 1,
            alpha + 0.5,
            beta + kappa * (x - mean) ** 2 / (2 * (kappa + 1)),
        )
        self._posterior = tuple(np.concatenate(([first], rest)) for first, rest in zip(self._prior, grown, strict=True))
        if len(run) > LONGEST_RUN:
            run[-2] = np.logaddexp(run[-2], run[-1])
            run = run[:-1]
            self._posterior = tuple(values[:-1] for values in self._posterior)
        self._log_run = run - np.logaddexp.reduce(run)
        return int(np.argmax(self._log_run))

    def _check(self, start: int, row: int, wait: int) -> LevelEvent | None:
        """Verification: the median of `wait` rows from `start` on against that of as many before."""
        if self._last() >= 0 and start - self._last() < wait:
            return None
        at = len(self._history) - 1 - row + start
        before, new = median(self._history[max(0, at - wait) : at]), median(self._history[at : at + wait])
        if abs(new - before) < self._verify * max(before, new):
            return None
        slow, healthy = before > self._healthy * (1 + self._verify), new < self._healthy * (1 + self._verify)
        kind = "onset" if new > before and not slow else "relief" if new < before and slow and healthy else "change"
        event = LevelEvent(kind, start, row, row, new / before)
        self.events.append(event)
        return event
