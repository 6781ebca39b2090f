"""How long a link takes, from when messages left and when they came: its latency apart from the time it is occupied.

A message that finds its link free takes latency + occupancy; one that is handed over while others are on their way
queues, and comes one occupancy after the one before it. So the two are told apart wherever messages queue; where none
does, all is counted as latency, which then makes no difference to the next message.

A receiver that computes does not see a message come. It looks now and then, and so knows an interval: not yet here at
one look, here at the next. Where it waited, it saw the very moment.
"""

from typing import NamedTuple

import numpy as np

# Seeing a message come takes a poll, or waking up: an arrival known so well counts as seen.
EXACT_S = 300e-6
# Arrivals that must have been seen to tell occupancy from latency, and the share of the misfit it has to explain.
QUEUED, EXPLAINED = 4, 0.5
CANDIDATES = 64


class LinkDelay(NamedTuple):
    """What one iteration showed of one direction of a link; seconds.

    Attributes:
        low_s, high_s: latency + occupancy of a message that does not queue is between these; equal where it was seen,
            -inf and inf where nothing is known.
        occupancy_s: time between messages that queue; 0 where none did.
        num_seen: messages whose arrival was seen.
    """

    low_s: float
    high_s: float
    occupancy_s: float = 0.0
    num_seen: int = 0

    @property
    def is_seen(self):
        """Whether the delay is known and not only bounded."""
        return self.low_s == self.high_s

    @property
    def latency_s(self):
        """The least latency that is possible; at least 0."""
        return max(self.low_s - self.occupancy_s, 0.0)


UNKNOWN = LinkDelay(-np.inf, np.inf)


def link_delay(left_s, after_s, before_s, assumed_s=0.0):
    """The LinkDelay of messages that take one link, one after the other.

    Args:
        left_s: (n,) when each was handed to the link, in the order in which they take it.
        after_s, before_s: (n,) each came after the one (-inf: unknown) and at the other at the latest.
        assumed_s: the occupancy, where too few were seen to tell.

    Cost: O(n) times at most 64 candidates for the occupancy; 0.2 ms for 32 messages.
    """
    left_s, after_s, before_s = (np.asarray(values, float) for values in (left_s, after_s, before_s))
    if not len(left_s):
        return UNKNOWN
    seen = before_s - after_s <= EXACT_S
    occupancy_s = _occupancy(left_s, before_s, seen) if seen.sum() >= QUEUED else assumed_s
    # What a message takes from when the link was free for it.
    start_s = _through(left_s, occupancy_s) - occupancy_s
    at_most_s = float(np.quantile(before_s - start_s, 0.25))
    if seen.any():
        # Being late in looking, or in handing over, only adds: the quarter that took least tells the link's own.
        value_s = min(float(np.quantile((before_s - start_s)[seen], 0.25)), at_most_s)
        return LinkDelay(value_s, value_s, occupancy_s, int(seen.sum()))
    # The message that was not yet there the longest says the least that the delay can be; a quantile forgives jitter.
    at_least_s = float(np.quantile(after_s - start_s, 0.75, method="lower"))
    return LinkDelay(min(at_least_s, at_most_s), at_most_s, occupancy_s)


def _through(left_s, occupancy_s):
    """When each message is through a link that serves one after the other, `occupancy_s` each."""
    turn = np.arange(len(left_s)) * occupancy_s
    return np.maximum.accumulate(left_s - turn) + turn + occupancy_s


def _occupancy(left_s, came_s, seen):
    """The occupancy that explains the arrivals seen best; 0 unless it explains much more than none does."""
    gaps_s = np.diff(came_s[seen]) / np.diff(np.flatnonzero(seen))
    gaps_s = np.sort(gaps_s[gaps_s > EXACT_S])
    if len(gaps_s) > CANDIDATES:
        gaps_s = np.quantile(gaps_s, np.linspace(0, 1, CANDIDATES))
    best_s, misfit = 0.0, _misfit(left_s, came_s, seen, 0.0) * EXPLAINED
    for gap_s in gaps_s.tolist():
        found = _misfit(left_s, came_s, seen, gap_s)
        if found < misfit:
            best_s, misfit = gap_s, found
    return best_s


def _misfit(left_s, came_s, seen, occupancy_s):
    """Mean distance of the arrivals from those of a link of this occupancy, beyond what one look is off."""
    latency_s = (came_s - _through(left_s, occupancy_s))[seen]
    return float(np.abs(latency_s - np.median(latency_s)).mean()) + EXACT_S
