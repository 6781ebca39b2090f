"""How sure a median is: the confidence interval of the order statistics, which assumes nothing of the distribution."""

from collections.abc import Sequence
from math import comb
from typing import TypedDict

COVERAGE = 0.95


class MedianInterval(TypedDict):
    """The median of a distribution lies from `low` to `high` with a probability of at least `coverage`."""

    low: float
    high: float
    coverage: float


def median_interval(samples: Sequence[float], coverage: float = COVERAGE) -> MedianInterval:
    """The narrowest pair of `samples` (at least one) as far from both ends that covers the median so surely.

    Fewer than six samples cannot be so sure of it: theirs is from the least to the largest, with what that covers.
    """
    ordered, n = sorted(samples), len(samples)
    # The chance that at most `outside` samples are below the median.
    outside, below = 0, 0.5**n
    while True:
        more = below + comb(n, outside + 1) * 0.5**n
        if 2 * (outside + 1) >= n or 1.0 - 2.0 * more < coverage:
            break
        outside, below = outside + 1, more
    return {"low": ordered[outside], "high": ordered[n - 1 - outside], "coverage": max(0.0, 1.0 - 2.0 * below)}
