"""Who came last to the calls of a communicator, how often, and by how much."""

from collections import deque
from itertools import islice, takewhile
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", np.int64, np.float64)
# Delays that are kept; counts go on.
MAX_DELAYS = 1 << 16
# Calls of which the arrivals of all ranks are kept.
MAX_VECTORS = 1 << 10


class Arrivals(NamedTuple):
    """Calls whose arrivals the board has seen.

    Attributes:
        calls: how many, from the first one on.
        begun_early: how many of them the others began without the last rank.
        last: (world_size,), how often each rank came last.
        ranks, delays_s: of the latest calls, oldest first: who came last, and how long after the last but one (s).
        arrivals_s: (calls, world_size), of the latest calls that asked the board, oldest first: when each rank arrived,
            s after the first. Without rows where there are more than 16 ranks.
    """

    calls: int
    begun_early: int
    last: NDArray[np.int64]
    ranks: NDArray[np.int64]
    delays_s: NDArray[np.float64]
    arrivals_s: NDArray[np.float64]

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
            "arrivals_s": self.arrivals_s.tolist(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Arrivals":
        """The Arrivals that `to_json` wrote: a recorded profile."""
        last, ranks = (np.array(document[name], np.int64) for name in ("last", "ranks"))
        calls, begun_early = int(document["calls"]), int(document["begun_early"])
        arrivals_s = np.array(document.get("arrivals_s", []), float).reshape(-1, len(last))
        return cls(calls, begun_early, last, ranks, np.array(document["delays_s"], float), arrivals_s)


class ArrivalLog:
    """Collects; bounded. `begun_early`: as of Arrivals; any thread may read it."""

    def __init__(self, world_size: int) -> None:
        self.begun_early: int = 0
        self._early: deque[bool] = deque(maxlen=MAX_DELAYS)
        self._last = np.zeros(world_size, np.int64)
        self._ranks: deque[int] = deque(maxlen=MAX_DELAYS)
        self._delays_s: deque[float] = deque(maxlen=MAX_DELAYS)
        # (calls up to then, s by rank).
        self._arrivals_s: deque[tuple[int, list[float]]] = deque(maxlen=MAX_VECTORS)

    def note(self, rank: int, delay_s: float, begun_early: bool, arrivals_s: list[float] | None = None) -> None:
        """Note a call to which `rank` came last, `delay_s` after the last but one.

        Args:
            begun_early: whether the others began without it.
            arrivals_s: by rank, s after the first; None: not known.
        """
        self.begun_early += begun_early
        self._early.append(begun_early)
        self._last[rank] += 1
        self._ranks.append(rank)
        self._delays_s.append(delay_s)
        if arrivals_s:
            self._arrivals_s.append((int(self._last.sum()), arrivals_s))

    def snapshot(self, since: int = 0) -> Arrivals:
        """The Arrivals up to now; with `since`, of the calls after so many, as far as they are kept.

        Cost: in proportion to the calls that it is of.
        """
        calls = int(self._last.sum())
        count = min(calls - since, len(self._ranks)) if since else len(self._ranks)
        ranks, delays_s = _newest(self._ranks, count, np.int64), _newest(self._delays_s, count, np.float64)
        rows = [each for _, each in takewhile(lambda pair: pair[0] > since, reversed(self._arrivals_s))]
        arrivals_s = np.array(rows[::-1], float).reshape(-1, len(self._last))
        if not since:
            return Arrivals(calls, self.begun_early, self._last.copy(), ranks, delays_s, arrivals_s)
        last = np.bincount(ranks, minlength=len(self._last))
        return Arrivals(calls, int(_newest(self._early, count, np.int64).sum()), last, ranks, delays_s, arrivals_s)


def _newest(kept: "deque[Any]", count: int, dtype: type[Number]) -> "NDArray[Number]":
    """The last `count` of `kept`, oldest first."""
    return np.array(list(islice(reversed(kept), max(0, count)))[::-1], dtype)
