"""Comparison of like with like over steps: which place is slower than its peers, and how small a slowdown would show.

A place is a worker, a link or a group; its peers do the same work. Its series is the logarithm of its seconds over
those of its peers, a value a step. It is slow where the median of a span of steps is at least a given slowdown, stands
clear of the noise, and most steps of the span agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    # Of steps, their places in a series.
    Steps: TypeAlias = NDArray[np.intp]

PERSISTENT = 0.8  # share of the steps of a span that are slow
MIN_STEPS = 5  # the least span; a quarter of the steps where that is more
CLEAR_ERRORS = 6.0  # standard errors by which a place must differ from its peers


class Slow(NamedTuple):
    """A place that is slow in `steps`, by `effect` (log of times its peers)."""

    place: int
    steps: Steps
    effect: float


def log_s(seconds: Array) -> Array:
    """Return logarithms; what took no time at all counts as a nanosecond."""
    import numpy as np

    return np.log(np.maximum(seconds, 1e-9))


def against_peers(seconds: Array) -> Array:
    """Return the log of (S, D) `seconds` over the median of the other places in the same step."""
    import numpy as np

    logs = log_s(seconds)
    others = [np.median(np.delete(logs, d, axis=1), axis=1) for d in range(logs.shape[1])]
    return logs - np.stack(others, axis=1)


def noise_of(series: Array) -> float:
    """Return the standard deviation of (S, D) `series`, from step to step: a place may be slow in half of them."""
    import numpy as np

    return 1.05 * float(np.median(np.abs(np.diff(series, axis=0)))) if len(series) > 1 else 0.0


def error_of(noise: float, steps: int) -> float:
    """Return the standard error of a median of `steps` values."""
    return 1.25 * noise / max(steps, 1) ** 0.5


def slow_places(series: Array, least: float, told: NDArray[np.bool_] | None = None) -> list[Slow]:
    """Return the slow places of (S, D) `series`.

    Args:
        least: the least effect (log) that counts. A step counts as slow from half of it: noise takes some away.
        told: (S, D), the steps in which a place tells enough to be judged; all by default.
    """
    import numpy as np

    noise = noise_of(series)
    found = []
    for place in range(series.shape[1]):
        steps = np.arange(len(series)) if told is None else np.flatnonzero(told[:, place])
        span = worst_span(series[steps, place] >= least / 2)
        if span is None:
            continue
        steps = steps[slice(*span)]
        effect = float(np.median(series[steps, place]))
        if effect >= max(least, CLEAR_ERRORS * error_of(noise, len(steps))):
            found.append(Slow(place, steps, effect))
    return found


def least_seen(series: Array, least: float) -> float:
    """Return the times its peers from which on any place of healthy (S, D) `series` would be slow in all steps."""
    import numpy as np

    # In PERSISTENT of its steps a place must exceed half of `least`, whatever noise takes away.
    taken = -float(np.quantile(series - np.median(series, axis=0), 1 - PERSISTENT, axis=0).min())
    error = error_of(noise_of(series), len(series))
    # The median of its series errs, too, by two of its errors at most.
    return float(np.exp(max(least + 2 * error, (CLEAR_ERRORS + 2) * error, least / 2 + taken)))


def worst_span(slow: NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return (first, stop) of the longest span of steps of which PERSISTENT are slow; None where it is too short.

    It begins and ends with a slow one.
    """
    import numpy as np

    count = np.concatenate(([0], np.cumsum(slow)))
    for length in range(len(slow), max(MIN_STEPS, len(slow) // 4) - 1, -1):
        share = (count[length:] - count[:-length]) / length
        if share.max() >= PERSISTENT:
            first = int(np.argmax(share))
            own = first + np.flatnonzero(slow[first : first + length])
            return int(own[0]), int(own[-1]) + 1
    return None
