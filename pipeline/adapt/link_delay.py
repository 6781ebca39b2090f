"""How long a link takes, from when messages left and when they came: its latency apart from the time it is occupied.

A message that finds its link free takes latency + occupancy; one that is handed over while others are on their way
queues, and comes one occupancy after the one before it. So the two are told apart wherever messages queue; where none
does, all is counted as latency, which then makes no difference to the next message.

Neither end knows the moment. A sender is sure of when it began to hand over and when it could go on; a receiver looks
now and then: not yet here at one look, here at the next. On a crowded machine either may be held up for milliseconds
between its two. So each message gives two bounds, and what holds up ranks only ever widens them: a link is slow if all
its messages were, and most provably.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times: TypeAlias = NDArray[np.float64]
# Two ranks: where messages go from and to, or, the lower one first, a link.
Pair: TypeAlias = tuple[int, int]


# An arrival that is known so well counts as seen.
EXACT_S = 500e-6  # seeing a message come takes a poll, a nap between two of them, or waking up
QUEUED = 4  # chosen: arrivals that must have been seen to tell occupancy from latency
EXPLAINED = 0.5  # chosen: share of the misfit that an occupancy may leave
PROVABLY = 0.6  # chosen: the share of the messages that did not provably exceed the delay; all others did


class LinkDelay(NamedTuple):
    """What one iteration showed of one direction of a link; seconds.

    Attributes:
        low_s, high_s: latency + occupancy of a message that does not queue is between these, -inf and inf where nothing
            is known. The lower one is of the quickest message, the upper one such that a quarter were quicker.
        occupancy_s: time between messages that queue; 0 where none did.
        num_seen: messages whose arrival was seen, if they tell `low_s`; 0 where it is a bound.
        most_s: what the quickest message took at most: no more can be said of a link that is not seen, and on a crowded
            machine that is nearer to it than what all messages provably took.
    """

    low_s: float
    high_s: float
    occupancy_s: float = 0.0
    num_seen: int = 0
    most_s: float = np.inf

    @property
    def is_seen(self) -> bool:
        """Whether the delay is known and not only bounded."""
        return self.num_seen > 0

    @property
    def latency_s(self) -> float:
        """The least latency that is possible; at least 0."""
        return max(self.low_s - self.occupancy_s, 0.0)


UNKNOWN = LinkDelay(-np.inf, np.inf)


def link_delay(
    given_s: ArrayLike, gone_s: ArrayLike, after_s: ArrayLike, before_s: ArrayLike, assumed_s: float = 0.0
) -> LinkDelay:
    """The LinkDelay of messages that take one link, one after the other.

    Args:
        given_s, gone_s: (n,) each left between these, in the order in which they take the link.
        after_s, before_s: (n,) each came after the one (-inf: unknown) and at the other at the latest.
        assumed_s: the occupancy, where too few were seen to tell.

    Cost: O(n^2), for the occupancy; 0.2 ms for 32 messages.
    """
    given_s, gone_s = np.asarray(given_s, float), np.asarray(gone_s, float)
    after_s, before_s = np.asarray(after_s, float), np.asarray(before_s, float)
    if not len(given_s):
        return UNKNOWN
    seen = before_s - after_s <= EXACT_S
    occupancy_s = _occupancy(gone_s, after_s, before_s, seen) if seen.sum() >= QUEUED else assumed_s
    # What a message took from when the link was free for it, at most and at least.
    at_most_s = before_s - _through(given_s, occupancy_s) + occupancy_s
    at_least_s = after_s - _through(gone_s, occupancy_s) + occupancy_s
    high_s, least_s = float(np.quantile(at_most_s, 0.25)), float(at_most_s.min())
    if not occupancy_s:
        # What may have queued unnoticed proves nothing: only what found the one before it gone.
        at_least_s = at_least_s[np.append(True, given_s[1:] >= before_s[:-1])]
    low_s = float(np.quantile(at_least_s, PROVABLY, method="lower"))
    if low_s < least_s - EXACT_S:
        return LinkDelay(low_s, high_s, occupancy_s, most_s=least_s)
    return LinkDelay(least_s, high_s, occupancy_s, max(int(seen.sum()), 1), least_s)


def _through(left_s: Times, occupancy_s: float) -> Times:
    """When each message is through a link that serves one after the other, `occupancy_s` each."""
    turn = np.arange(len(left_s), dtype=np.float64) * occupancy_s
    return np.maximum.accumulate(left_s - turn) + turn + occupancy_s


def _occupancy(left_s: Times, after_s: Times, before_s: Times, seen: NDArray[np.bool_]) -> float:
    """The occupancy that explains the arrivals seen best; 0 unless it explains much more than none does."""
    gaps_s = np.diff(before_s[seen]) / np.diff(np.flatnonzero(seen))
    # No two messages of a link come closer than that.
    most_s = _closest_s(after_s, before_s) + EXACT_S
    gaps_s = gaps_s[(gaps_s > EXACT_S) & (gaps_s <= most_s)]
    best_s, misfit = 0.0, _misfit(left_s, before_s, seen, 0.0) * EXPLAINED
    for gap_s in gaps_s.tolist():
        found = _misfit(left_s, before_s, seen, gap_s)
        if found < misfit:
            best_s, misfit = gap_s, found
    return best_s


def _closest_s(after_s: Times, before_s: Times) -> float:
    """The least time between two messages, per message between them, that the looks allow."""
    apart_s = before_s[None, :] - after_s[:, None]
    first, second = np.triu_indices(len(after_s), 1)
    return float((apart_s[first, second] / (second - first)).min())


def _misfit(left_s: Times, came_s: Times, seen: NDArray[np.bool_], occupancy_s: float) -> float:
    """Mean distance of the arrivals from those of a link of this occupancy, beyond what one look is off."""
    latency_s = (came_s - _through(left_s, occupancy_s))[seen]
    return float(np.abs(latency_s - np.median(latency_s)).mean()) + EXACT_S
