"""Which rank comes last to calls that all ranks make, and whether that, or the calls themselves, make iterations long.

Ranks' logs are matched call by call: the k-th collective of a communicator on one rank is the k-th on every other. The
last rank's arrival begins the work; from there to the first end is what the call itself takes at least. Clocks of
different machines are aligned by the ends of calls, which nearly coincide.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from lanterne.failslow.record.call_ring import RecordedCall

# Calls that wait for their other ranks; beyond, the oldest is given up: a rank that reports nothing ends nothing.
MAX_OPEN = 4096
MAX_MATCHED = 1 << 16
# A sample of the calls is enough: of more than so many a second, some are left out, each with the same probability.
MAX_RATE_PER_S = 50
RATE_CALLS = 128
# Ends of calls that align another machine's clock.
LEAST_ENDS, MAX_ENDS = 16, 255

# (communicator, number of the call on it)
CallKey: TypeAlias = tuple[int, int]


class Matched(NamedTuple):
    """A call as all its ranks saw it, seconds of the first machine's clock.

    Attributes: `start_s`, when the last rank came; `last`, that rank; `late_s`, how long after the last but one;
    `transfer_s`, from then to the first end; `weight`, how many calls it stands for.
    """

    start_s: float
    last: int
    late_s: float
    transfer_s: float
    weight: float


class Matcher:
    """Matches the calls of all ranks.

    Attributes: `matched`, the latest; `last`, `waited_s`: per rank, how often it came last, and how long it waited for
    others, of the calls that were matched; `calls`, how many these are.

    Cost: 0.4 us a call of each rank, 3 us one that is matched; memory is bounded.
    """

    def __init__(self) -> None:
        self.matched: deque[Matched] = deque(maxlen=MAX_MATCHED)
        self.calls: int = 0
        self.last: dict[int, int] = {}
        self.waited_s: dict[int, float] = {}
        self._clocks: dict[int, Any] = {}
        self._ends: dict[tuple[int, int], deque[float]] = {}
        # rank -> communicator -> calls so far; communicator -> the last call that was decided on.
        self._numbers: dict[int, dict[int, int]] = {}
        self._decided: dict[int, int] = {}
        self._sampled: dict[CallKey, tuple[float, dict[int, RecordedCall]]] = {}
        self._random = random.Random(0)
        self._stride = 1.0
        self._paced = 0
        self._since_s: float | None = None
        self._broken: set[int] = set()

    def add_rank(self, rank: int, clock: Any) -> None:
        """Expect calls of `rank`, whose times are of `clock` (equal: the same clock)."""
        self._clocks[rank] = clock
        self.last.setdefault(rank, 0)
        self.waited_s.setdefault(rank, 0.0)

    def lose(self, rank: int) -> None:
        """Calls of `rank` were lost: from now on nobody knows which of its calls is which."""
        self._broken.add(rank)

    def add(self, rank: int, calls: Iterable[RecordedCall]) -> None:
        """Take the calls of `rank`, in its order."""
        if rank in self._broken:
            return
        numbers = self._numbers.setdefault(rank, {})
        sampled, decided = self._sampled, self._decided
        for call in calls:
            _, ranks, communicator, _, start_s, _ = call
            if ranks < 2:
                continue
            number = numbers[communicator] = numbers.get(communicator, 0) + 1
            key = communicator, number
            if number > decided.get(communicator, 0):
                # The first rank to come decides whether this call is of the sample.
                decided[communicator] = number
                self._decide(key, start_s)
            if key in sampled:
                weight, seen = sampled[key]
                seen[rank] = call
                if len(seen) == ranks:
                    del sampled[key]
                    self._complete(seen, weight)

    def _decide(self, key: CallKey, now_s: float) -> None:
        """Whether call `key` is of the sample; every RATE_CALLS calls, see how fast they come."""
        if self._since_s is None:
            self._since_s = now_s
        self._paced += 1
        if self._paced == RATE_CALLS:
            took_s = max(now_s - self._since_s, 1e-9)
            self._stride = max(1.0, RATE_CALLS / took_s / MAX_RATE_PER_S)
            self._paced, self._since_s = 0, now_s
        if self._stride == 1.0 or self._random.random() * self._stride < 1.0:
            self._sampled[key] = self._stride, {}
            if len(self._sampled) > MAX_OPEN:
                del self._sampled[next(iter(self._sampled))]

    def offset_s(self, rank: int, reference: int) -> float | None:
        """What to add to times of `rank` to have those of `reference`; None while it is not known."""
        if self._clocks[rank] == self._clocks[reference]:
            return 0.0
        ends = self._ends.get((rank, reference), ())
        return median(ends) if len(ends) >= LEAST_ENDS else None

    def _complete(self, seen: dict[int, RecordedCall], weight: float) -> None:
        reference = min(seen)
        starts: dict[int, float] = {}
        ends: list[float] = []
        for rank, call in seen.items():
            # An instant has no end that coincides with those of others.
            if self._clocks[rank] != self._clocks[reference] and call.end_s > call.start_s:
                gaps = self._ends.setdefault((rank, reference), deque(maxlen=MAX_ENDS))
                gaps.append(seen[reference].end_s - call.end_s)
            offset_s = self.offset_s(rank, reference)
            if offset_s is None:
                return
            starts[rank] = call.start_s + offset_s
            ends.append(call.end_s + offset_s)
        ordered = sorted(starts, key=starts.__getitem__)
        last_s = starts[ordered[-1]]
        late_s = last_s - starts[ordered[-2]]
        self.calls += 1
        self.last[ordered[-1]] += 1
        for rank, start_s in starts.items():
            self.waited_s[rank] += last_s - start_s
        self.matched.append(Matched(last_s, ordered[-1], late_s, max(0.0, min(ends) - last_s), weight))


class Cause(NamedTuple):
    """Why iterations are long: `kind` "rank", "calls" or "unknown"; the `rank`; the `evidence` in words."""

    kind: str
    rank: int | None
    evidence: str


def attribute(
    before: Sequence[Matched], during: Sequence[Matched], iterations_before: int, iterations_during: int, extra_s: float
) -> Cause:
    """The Cause of a slow spell, from the Matched calls before it and in it.

    Args:
        iterations_before, iterations_during: how many iterations these calls are of.
        extra_s: what an iteration takes longer.

    A rank is named where its coming late has grown by half of the extra time or more, and no other's has; the calls,
    where they themselves have. Without that evidence nobody is.
    """
    if not before or not during or not iterations_before or not iterations_during or extra_s <= 0.0:
        return Cause("unknown", None, "too few calls of all ranks were seen")
    grown = {rank: -per_s for rank, per_s in _late_s(before, iterations_before).items()}
    for rank, per_s in _late_s(during, iterations_during).items():
        grown[rank] = grown.get(rank, 0.0) + per_s
    rank = max(grown, key=grown.__getitem__)
    calls_s = _transfer_s(during) / iterations_during - _transfer_s(before) / iterations_before
    if grown[rank] >= max(extra_s / 2, calls_s):
        came = sum(call.last == rank for call in during)
        # What a sample of few calls stands for may be more than there was.
        late_ms = min(grown[rank], extra_s) * 1e3
        return Cause(
            "rank",
            rank,
            f"rank {rank} comes later than all others by {late_ms:.3g} ms an iteration more than before, and last to "
            f"{came} of {len(during)} calls: it computes slowly, or waits for what only it needs",
        )
    if calls_s >= extra_s / 2:
        text = f"nobody comes late, the calls themselves take {min(calls_s, extra_s) * 1e3:.3g} ms an iteration more"
        return Cause("calls", None, f"{text}: a link or the network; `lanterne validate` names it")
    return Cause("unknown", None, "no rank comes late and no call takes longer: all are slow alike, or between calls")


def _late_s(calls: Iterable[Matched], iterations: int) -> dict[int, float]:
    late_s: dict[int, float] = {}
    for call in calls:
        late_s[call.last] = late_s.get(call.last, 0.0) + call.late_s * call.weight
    return {rank: total_s / iterations for rank, total_s in late_s.items()}


def _transfer_s(calls: Iterable[Matched]) -> float:
    return sum(call.transfer_s * call.weight for call in calls)
