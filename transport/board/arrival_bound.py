"""How soon an all-reduce can end, however its ranks arrive, if each port sends and receives at one rate.

docs/any-arrivals.md has the proof of the bound by a linear program. This is its greedy form, gap by gap: up to 3.5 %
above the program on 1 vector in 20, else equal.

For one element, let the contributions be in c groups when the last rank arrives: itself, and sums that the others have
merged. Then c - 1 transfers make the result at one rank, and p - 1 more bring it to the others, each a receive of its
own. So the rest takes at least (c - 1 + p - 1) / p of the time in which a port carries the buffer, and at least 1, in
which the last rank sends its own.
"""

from collections.abc import Sequence


def least_after(arrivals: Sequence[float]) -> float:
    """Return about the least time from the last arrival to the end, in multiples of s/rate.

    Args:
        arrivals: by rank, in the same multiples, in any order.
    """
    return after_merges(len(arrivals), merges_before(arrivals))


def least_after_s(arrivals_s: Sequence[float], pass_s: float) -> float:
    """Return the same in seconds, of arrivals in seconds, where a port carries the buffer in `pass_s`."""
    return pass_s * least_after([at_s / pass_s for at_s in arrivals_s])


def after_merges(world_size: int, merges: float) -> float:
    """Return the least time of `world_size` ranks where an element has had so many `merges` before the last arrival."""
    return max(1.0, (2 * (world_size - 1) - merges) / world_size) if world_size > 1 else 0.0


def merges_before(arrivals: Sequence[float]) -> float:
    """Return about how many merges of partial sums an element can have had before the last arrival, on average.

    Between two arrivals, d apart, those of the first k ranks merge at most k d, and at most k - 1 in all; ranks that
    arrived later add 2 d each, since each merge with one takes a port of it. What the first ranks can merge is best
    merged at once. The linear program without this greedy order has up to 0.03 of the time less on 1 vector in 20.
    """
    at = sorted(arrivals)
    merged = [0.0] * len(at)
    for present in range(2, len(at)):
        gap = at[present] - at[present - 1]
        now = [0.0] * (present + 1)
        for first in range(2, present + 1):
            most = min(first * gap, first - 1 - merged[first - 1])
            now[first] = min([most, *(now[few] + 2 * (first - few) * gap for few in range(1, first))])
        for first in range(2, len(at)):
            merged[first - 1] += now[min(first, present)]
    return merged[-2] if len(at) > 2 else 0.0
