"""Who came last to the calls of a communicator, how often, and by how much."""

from collections import deque
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", np.int64, np.float64)
# Delays that are kept; counts go on.
MAX_DELAYS = 1 << 16


class Arrivals(NamedTuple):
    """Calls whose arrivals the board has seen.

    Attributes:
        calls: how many, from the first one on.
        begun_early: how many of them the others began without the last rank.
        last: (world_size,), how often each rank came last.
        ranks, delays_s: of the latest calls, oldest first: who came last, and how long after the last but one (s).
    """

    calls: int
    begun_early: int
    last: NDArray[np.int64]
    ranks: NDArray[np.int64]
    delays_s: NDArray[np.float64]

    def late_rank(self, share: float = 0.5, delay_s: float = 0.0) -> int | None:
        """The rank that came last, by over `delay_s`, in more than `share` of the calls kept; None: there is none.

        For `late_rank=` of calls that name it.
        """
        if not len(self.ranks):
            return None
        counts = np.bincount(self.ranks[self.delays_s > delay_s], minlength=len(self.last))
        rank = int(counts.argmax())
        return rank if counts[rank] > share * len(self.ranks) else None

    def to_json(self) -> dict[str, Any]:
        """A document that `from_json` reads."""
        return {
            "schema_version": 1,
            "calls": self.calls,
            "begun_early": self.begun_early,
            "last": self.last.tolist(),
            "ranks": self.ranks.tolist(),
            "delays_s": self.delays_s.tolist(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Arrivals":
        """The Arrivals that `to_json` wrote: a recorded profile."""
        last, ranks = (np.array(document[name], np.int64) for name in ("last", "ranks"))
        calls, begun_early = int(document["calls"]), int(document["begun_early"])
        return cls(calls, begun_early, last, ranks, np.array(document["delays_s"], float))


class ArrivalLog:
    """Collects; bounded. `begun_early`: as of Arrivals; any thread may read it."""

    def __init__(self, world_size: int) -> None:
        self.begun_early: int = 0
        self._early: deque[bool] = deque(maxlen=MAX_DELAYS)
        self._last = np.zeros(world_size, np.int64)
        self._ranks: deque[int] = deque(maxlen=MAX_DELAYS)
        self._delays_s: deque[float] = deque(maxlen=MAX_DELAYS)

    def note(self, rank: int, delay_s: float, begun_early: bool) -> None:
        """`rank` came last, `delay_s` after the last but one; whether these began without it."""
        self.begun_early += begun_early
        self._early.append(begun_early)
        self._last[rank] += 1
        self._ranks.append(rank)
        self._delays_s.append(delay_s)

    def snapshot(self, since: int = 0) -> Arrivals:
        """The Arrivals up to now; with `since`, of the calls after so many, as far as they are kept.

        Cost: in proportion to the calls that it is of.
        """
        calls = int(self._last.sum())
        count = min(calls - since, len(self._ranks)) if since else len(self._ranks)
        ranks, delays_s = _newest(self._ranks, count, np.int64), _newest(self._delays_s, count, np.float64)
        if not since:
            return Arrivals(calls, self.begun_early, self._last.copy(), ranks, delays_s)
        last = np.bincount(ranks, minlength=len(self._last))
        return Arrivals(calls, int(_newest(self._early, count, np.int64).sum()), last, ranks, delays_s)


def _newest(kept: "deque[Any]", count: int, dtype: type[Number]) -> "NDArray[Number]":
    """The last `count` of `kept`, oldest first."""
    return np.array(list(islice(reversed(kept), max(0, count)))[::-1], dtype)
