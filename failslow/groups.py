"""Comparing communication groups and their members: transfer time, waiting, and who comes last.

In a collective the slow rank waits least, so it has the SHORTEST time in it. The time that a group needs once
everybody is there is the minimum over its members; what the others have on top is waiting for the last.

Paper: Wu et al. (GREYHOUND), section 4.3, cross-group comparison (10 % over the median); differs: minimum over ranks,
not mean, or victims are blamed.
"""

from dataclasses import dataclass
from statistics import median

DEGRADED = 1.10


@dataclass(frozen=True)
class GroupVerdict:
    """A group whose transfers take `ratio` times the median of the groups that it compares with."""

    group: object
    ratio: float
    transfer_s: float


def transfer_s(times_s):
    """Seconds of the transfer alone: of rank -> seconds in the collective the shortest, the last arriver's."""
    return min(times_s.values())


def degraded_groups(calls, degraded=DEGRADED):
    """The groups that transfer slower than the others, slowest first.

    Args:
        calls: group -> list of calls, each {rank: seconds in it}; all groups move the same amount (one comparable
        cluster). degraded: multiple of the median over the groups.

    Fewer than two groups, or groups without calls, cannot be compared and give nothing.
    """
    typical = {group: median(map(transfer_s, found)) for group, found in calls.items() if found}
    verdicts = []
    for group, seconds in typical.items():
        others = [other for name, other in typical.items() if name != group]
        if others and seconds >= degraded * median(others):
            verdicts.append(GroupVerdict(group, seconds / median(others), seconds))
    return sorted(verdicts, key=lambda verdict: -verdict.ratio)


@dataclass(frozen=True)
class Arrivals:
    """A rank's record over many collectives: how often it came last, and its waiting."""

    rank: int
    calls: int
    last: int
    wait_min_s: float
    wait_median_s: float
    wait_max_s: float
    wait_share: float


def arrivals(calls, total_s):
    """One Arrivals per rank, the most often last first.

    Args:
        calls: list of {rank: seconds in the collective}; total_s: seconds that the calls span.
    """
    waits, last = {}, {}
    for call in calls:
        alone = transfer_s(call)
        for rank, seconds in call.items():
            waits.setdefault(rank, []).append(seconds - alone)
        slowest = min(call, key=call.get)
        last[slowest] = last.get(slowest, 0) + 1
    found = [
        Arrivals(rank, len(w), last.get(rank, 0), min(w), median(w), max(w), sum(w) / total_s if total_s > 0 else 0.0)
        for rank, w in waits.items()
    ]
    return sorted(found, key=lambda a: (-a.last, a.wait_share, a.rank))


def culprit(table, total_calls, least_last=0.5):
    """The rank of `table` that came last in most calls and waited least of all; None without such evidence."""
    if len(table) < 2 or total_calls < 5:
        return None
    first = table[0]
    waits_least = all(first.wait_share < other.wait_share for other in table[1:])
    return first.rank if first.last >= least_last * total_calls and waits_least else None
