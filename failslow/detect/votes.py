"""Votes for and against a shift, their running sum, and where a shift began. All in log scale."""

from bisect import insort
from collections.abc import Sequence
from math import log

SHIFT = log(1.10)
# Sums of votes, as odds. Reliefs and suspects that agree with each other need the middle one.
PROVISIONAL = log(1e2)
LIKELY = log(1e5)
MIN_RATE, MAX_RATE = 0.03, 0.6
# Share of the rows of a shifted level that look shifted.
SEEN = 0.9
# Rows on either side of where a level is said to begin.
LEAST_ROWS = 4


def median(values: Sequence[float]) -> float:
    """The lower median of a short sequence."""
    return sorted(values)[(len(values) - 1) >> 1]


def vote(z: float, spread2: float, shift: float = SHIFT) -> float:
    """Log-likelihood ratio of a shift by `shift` or more against none, of a sample at distance `z`; uncapped."""
    z = 0.0 if z < 0.0 else z
    short = shift - z if z < shift else 0.0
    return 1.5 * log((spread2 + z * z) / (spread2 + short * short))


class VoteRun:
    """A CUSUM of votes.

    Attributes: `score`; `start`: first row since its last zero; `suspected`: row at which it became provisional, None
    while it is not; `grew`: the last vote was for a shift; `cap`: the most that one vote counts, for or against;
    `rate`: the share of healthy samples that look shifted.
    """

    __slots__ = ("cap", "grew", "rate", "score", "start", "suspected")

    def __init__(self, rate: float) -> None:
        self.score: float = 0.0
        self.grew: bool = False
        self.start: int = 0
        self.suspected: int | None = None
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Expect a share `rate` of healthy samples to look shifted."""
        rate = MIN_RATE if rate < MIN_RATE else MAX_RATE if rate > MAX_RATE else rate
        self.rate: float = rate
        self.cap: float = log(SEEN / rate)

    def forget(self, share: float) -> None:
        """Forget `share` of the healthy samples that looked shifted."""
        if self.rate > MIN_RATE:
            self.set_rate(self.rate * (1 - share))

    def add(self, vote: float, row: int) -> None:
        """Count the vote of `row`."""
        cap = self.cap
        vote = cap if vote > cap else -cap if vote < -cap else vote
        self.grew = vote > 0.0
        if self.score == 0.0:
            if vote <= 0.0:
                return
            self.start = row
            self.suspected = None
        # Without a limit a run that verification keeps refusing would take forever to clear.
        score, most = self.score + vote, LIKELY + 4 * cap
        self.score = 0.0 if score < 0.0 else most if score > most else score
        if self.suspected is None and score >= PROVISIONAL:
            self.suspected = row

    def clear(self) -> None:
        """Back to zero; the rate stays."""
        self.score = 0.0


def split(values: Sequence[float], old: float, new: float) -> int:
    """Index in `values` from which on they lie nearer to `new` than to `old`: the best single split."""
    middle, limit = (old + new) / 2, abs(new - old) / 2
    sign = 1.0 if new > old else -1.0
    total = lowest = 0.0
    start = 0
    for index, value in enumerate(values):
        vote = sign * (value - middle)
        total += max(-limit, min(limit, vote))
        if total < lowest:
            lowest, start = total, index + 1
    return min(start, len(values) - 1)


def best_split(values: Sequence[float], old: float, new: float, margin: float) -> int:
    """Index at which `values` part best into two levels, by the sum of distances to the two medians.

    The levels need not be `old` and `new`; but what lies outside of them by more than `margin`, as spikes do, counts as
    no further away. At least LEAST_ROWS values lie on either side. Cost: 1 us a value.
    """
    low, high = min(old, new) - margin, max(old, new) + margin
    within = [min(max(value, low), high) for value in values]
    before, after = _distances(within), _distances(within[::-1])[::-1]
    return min(range(LEAST_ROWS, len(values) - LEAST_ROWS + 1), key=lambda i: before[i - 1] + after[i])


def _distances(values: Sequence[float]) -> list[float]:
    """Sums of the distances to the median of the first value, the first two, ..., each from the one before."""
    ordered: list[float] = []
    found: list[float] = []
    total = 0.0
    for count, value in enumerate(values):
        if count:
            # All between the middle two are medians of an even number.
            lower, upper = ordered[(count - 1) >> 1], ordered[count >> 1]
            total += max(lower - value, value - upper, 0.0)
        insort(ordered, value)
        found.append(total)
    return found
