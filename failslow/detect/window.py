"""The last values of a series, kept sorted, so that a median and a spread cost a look-up."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

# Interquartile range of Student's t with 2 degrees of freedom, in units of its scale parameter.
T2_INTERQUARTILE = 1.6330


class SortedWindow:
    """The last `capacity` values pushed, in order of time (`values`) and of size.

    Cost: a push is two binary searches and two moves within a list of at most `capacity` values, about 0.6 us.
    """

    __slots__ = ("_sorted", "capacity", "values")

    def __init__(self, capacity: int, values: Sequence[float] = ()) -> None:
        self.capacity: int = capacity
        self.values: deque[float] = deque(values[-capacity:] if values else ())
        self._sorted = sorted(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def push(self, value: float) -> float:
        """Add `value`, dropping the oldest one once `capacity` is reached; return the median."""
        values, ordered = self.values, self._sorted
        if len(values) >= self.capacity:
            del ordered[bisect_left(ordered, values.popleft())]
        values.append(value)
        insort(ordered, value)
        return ordered[(len(ordered) - 1) >> 1]

    def count_from(self, value: float) -> int:
        """How many are `value` or more."""
        return len(self._sorted) - bisect_left(self._sorted, value)

    def median(self) -> float:
        """The lower median."""
        return self._sorted[(len(self._sorted) - 1) >> 1]

    def scale(self) -> float:
        """Scale parameter of a Student t with 2 degrees of freedom that has this interquartile range."""
        ordered = self._sorted
        last = len(ordered) - 1
        return (ordered[last - (last >> 2)] - ordered[last >> 2]) / T2_INTERQUARTILE

    def core_scale(self) -> float:
        """As scale(), but at most twice that of the lower half: spikes all lie above, and may be a quarter of all."""
        ordered = self._sorted
        last = len(ordered) - 1
        lower = ordered[last >> 1] - ordered[last >> 2]
        return min(self.scale(), 4 * lower / T2_INTERQUARTILE)
