"""Waiting on the CPU for a given time: sleep first, then poll the clock, yielding the core in between."""

import os
import statistics
import time
from dataclasses import dataclass

from lanterne.errors import InputError

# A sleep returns late by the timer's slack and the scheduler's latency: tens of microseconds, with a tail to a
# millisecond.
SPIN_S = 1e-3
_POLLS_PER_YIELD = 8


def delay(duration_s: float) -> None:
    """Return `duration_s` seconds after the call, microseconds late on an idle core; at once if it is not positive."""
    wait_until(time.monotonic() + duration_s)


def wait_until(deadline_s: float, spin_s: float = SPIN_S) -> None:
    """Return once time.monotonic() has reached `deadline_s`, never before; at once if it has passed.

    Args:
        spin_s: seconds before the deadline from which it polls the clock and does not sleep.

    Raises:
        InputError: the deadline is no finite number.
    """
    if not -float("inf") < deadline_s < float("inf"):
        raise InputError(f"wait_until: got a deadline of {deadline_s}, expected a finite number of seconds")
    sleep_s = deadline_s - time.monotonic() - spin_s
    if sleep_s > 0:
        time.sleep(sleep_s)
    polls = 0
    while time.monotonic() < deadline_s:
        polls += 1
        if polls % _POLLS_PER_YIELD == 0:
            os.sched_yield()


@dataclass(frozen=True)
class DelayAccuracy:
    """How late `delay` returned: `duration_s` asked for, and `error_s`, one value per sample, never negative."""

    duration_s: float
    error_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The middle error."""
        return statistics.median(self.error_s)

    @property
    def max_s(self) -> float:
        """The largest error."""
        return max(self.error_s)


def measure_delay(duration_s: float, num_samples: int = 20) -> DelayAccuracy:
    """Call `delay(duration_s)` `num_samples` times and return its DelayAccuracy.

    Raises:
        InputError: fewer than one sample.
    """
    if num_samples < 1:
        raise InputError(f"measure_delay: got {num_samples} samples, expected at least 1")
    errors = []
    for _ in range(num_samples):
        start = time.monotonic()
        delay(duration_s)
        errors.append(time.monotonic() - start - duration_s)
    return DelayAccuracy(duration_s, tuple(errors))
