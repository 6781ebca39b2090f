"""Which ranks come late to calls that all ranks make, and how long the calls themselves take.

Ranks' logs are matched call by call: the k-th collective of a communicator on one rank is the k-th on every other. The
last rank's arrival begins the work; from there to the first end is what the call itself takes at least. Clocks of
different machines are aligned by the ends of calls, which nearly coincide.
"""

import random
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from lanterne.failslow.record.call_ring import RecordedCall

# Calls that wait for their other ranks; beyond, the oldest is given up: a rank that reports nothing ends nothing.
MAX_OPEN = 4096
MAX_MATCHED = 1 << 14
# Communicators of a rank whose calls are matched: a program may make new ones for ever.
MAX_COMMUNICATORS = 1 << 16
# Ranks of a call whose lateness is kept, the latest.
MAX_LATE = 16
# A sample of the calls is enough: of more than so many a second, some are left out, by blocks of as many as some
# iterations have, so that most iterations of the sample are whole.
MAX_RATE_PER_S = 250
RATE_CALLS = 128
BLOCK_ITERATIONS = 4
# Ends of calls that align another machine's clock.
LEAST_ENDS, MAX_ENDS = 16, 255

# (communicator, number of the call on it)
CallKey: TypeAlias = tuple[int, int]


class Matched(NamedTuple):
    """A call as all its ranks saw it, seconds of the first machine's clock.

    Attributes: `start_s`, when the last rank came; `last`, that rank; `late_s`, how long after the last but one;
    `transfer_s`, from then to the first end; `weight`, how many calls it stands for; `late`, (rank, seconds) of those
    that came after the middle of the earliest half.
    """

    start_s: float
    last: int
    late_s: float
    transfer_s: float
    weight: float
    late: tuple[tuple[int, float], ...] = ()


class Matcher:
    """Matches the calls of all ranks.

    Attributes: `matched`, the latest; `last`, `waited_s`: per rank, how often it came last, and how long it waited for
    others, of the calls that were matched; `calls`, how many these are; `silent`, ranks whose calls are not waited for:
    those of all ranks are matched without them.

    Cost: 0.4 us a call of each rank, 3 us one that is matched; memory is bounded.
    """

    def __init__(self) -> None:
        self.matched: deque[Matched] = deque(maxlen=MAX_MATCHED)
        self.calls: int = 0
        self.silent: frozenset[int] = frozenset()
        self.last: dict[int, int] = {}
        self.waited_s: dict[int, float] = {}
        self._clocks: dict[int, Any] = {}
        self._one_clock = True
        self._ends: dict[tuple[int, int], deque[float]] = {}
        # rank -> communicator -> calls so far; communicator -> the last call that was decided on.
        self._numbers: dict[int, dict[int, int]] = {}
        self._decided: dict[int, int] = {}
        self._sampled: dict[CallKey, tuple[float, dict[int, RecordedCall]]] = {}
        self._random = random.Random(0)
        self._stride = 1.0
        self._block = 1
        self._left = 0
        self._chosen = True
        self._paced = 0
        self._since_s: float | None = None
        self._everyone = 0
        self._broken: set[int] = set()
        self._fresh: deque[Matched] = deque(maxlen=MAX_MATCHED)

    def take(self) -> list[Matched]:
        """The calls that were matched since this was asked last."""
        fresh = list(self._fresh)
        self._fresh.clear()
        return fresh

    def set_spacing(self, calls: int) -> None:
        """An iteration has so many calls."""
        self._block = max(1, calls) * BLOCK_ITERATIONS

    def find_silent(self, world_size: int) -> None:
        """Ranks of `world_size` of which nothing is known, or not any more, are `silent`: no call waits for them."""
        silent = frozenset(rank for rank in range(world_size) if rank not in self._numbers or rank in self._broken)
        if silent != self.silent:
            self.silent, self._everyone = silent, world_size
            for key, (weight, seen) in list(self._sampled.items()):
                self._complete_if_all(key, weight, seen)

    def add_rank(self, rank: int, clock: Any) -> None:
        """Expect calls of `rank`, whose times are of `clock` (equal: the same clock)."""
        self._clocks[rank] = clock
        self._one_clock = all(other == clock for other in self._clocks.values())
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
        sampled, decided, silent = self._sampled, self._decided, len(self.silent)
        for call in calls:
            ranks, communicator = call[1], call[2]
            if ranks < 2:
                continue
            number = numbers.get(communicator, 0) + 1
            if number == 1 and len(numbers) >= MAX_COMMUNICATORS:
                continue
            numbers[communicator] = number
            key = communicator, number
            if number > decided.get(communicator, 0):
                # The first rank to come decides whether this call is of the sample.
                decided[communicator] = number
                self._decide(key, call[4])
            if (chosen := sampled.get(key)) is not None:
                weight, seen = chosen
                seen[rank] = call
                if len(seen) == ranks:
                    del sampled[key]
                    self._complete(seen, weight)
                elif silent and len(seen) >= ranks - silent:
                    self._complete_if_all(key, weight, seen)

    def _complete_if_all(self, key: CallKey, weight: float, seen: dict[int, RecordedCall]) -> None:
        """Match call `key` if all its ranks that are not silent have come to it."""
        ranks = next(iter(seen.values())).ranks if seen else 0
        missing = len(self.silent) if ranks == self._everyone else 0
        if len(seen) > 1 and len(seen) >= ranks - missing:
            del self._sampled[key]
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
        if self._left == 0:
            self._left = self._block
            self._chosen = self._random.random() * self._stride < 1.0
        self._left -= 1
        if self._chosen:
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
        if self._one_clock:
            came = [(call.start_s, rank) for rank, call in seen.items()]
            first_end_s = min([call.end_s for call in seen.values()])
        else:
            aligned = self._aligned(seen)
            if aligned is None:
                return
            came, first_end_s = aligned
        came.sort()
        last_s, last = came[-1]
        self.calls += 1
        self.last[last] += 1
        waited_s = self.waited_s
        for start_s, rank in came:
            waited_s[rank] += last_s - start_s
        early = max(len(came) // 2, 1)
        middle_s = (came[early // 2][0] + came[(early - 1) // 2][0]) / 2
        late = tuple([(rank, start_s - middle_s) for start_s, rank in came[early:][-MAX_LATE:]])
        matched = Matched(last_s, last, last_s - came[-2][0], max(0.0, first_end_s - last_s), weight, late)
        self.matched.append(matched)
        self._fresh.append(matched)

    def _aligned(self, seen: dict[int, RecordedCall]) -> tuple[list[tuple[float, int]], float] | None:
        """(when each rank came, the rank), and the first end, by the first rank's clock; None while that is unknown."""
        reference = min(seen)
        came: list[tuple[float, int]] = []
        ends: list[float] = []
        for rank, call in seen.items():
            # An instant has no end that coincides with those of others.
            if self._clocks[rank] != self._clocks[reference] and call.end_s > call.start_s:
                gaps = self._ends.setdefault((rank, reference), deque(maxlen=MAX_ENDS))
                gaps.append(seen[reference].end_s - call.end_s)
            offset_s = self.offset_s(rank, reference)
            if offset_s is None:
                return None
            came.append((call.start_s + offset_s, rank))
            ends.append(call.end_s + offset_s)
        return came, min(ends)
