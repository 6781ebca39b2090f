"""Which ranks come late to calls that all ranks make, and how long the calls themselves take.

Ranks' logs are matched call by call: the k-th collective of a communicator on one rank is the k-th on every other. The
last rank's arrival begins the work; from there to the first end is what the call itself takes at least. Clocks of
different machines are aligned by the ends of calls, which nearly coincide.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.failslow.record.bounds import MANY, OPEN
from lanterne.failslow.record.new_calls import NewCalls

MAX_LATE = 16  # chosen: the latest of a call's ranks
# Of more calls than so many a second some are left out, by blocks of as many as some iterations have: most
# iterations of the sample are whole.
MAX_RATE_PER_S = 250  # a call costs 1 us
BLOCK_ITERATIONS, FIRST_CALLS = 4, 128  # of a block; calls, until it is known how many an iteration has
# Ends of calls that align another machine's clock.
LEAST_ENDS = 16  # chosen: the median of fewer may be off by what a call takes
MAX_ENDS = 255  # chosen: an odd number has a middle one


Seconds: TypeAlias = NDArray[np.float64]
# Columns of what is known of a rank's calls: when it came and left; how long it waited for a core since its last call,
# and in this one; whether that one was of the same communicator.
START, END, BEFORE, INSIDE, FOLLOWS = TIMES = range(5)


class Matched(NamedTuple):
    """Calls as all their ranks saw them, seconds of the first machine's clock.

    Attributes: `start_s`, when the last rank came to each; `transfer_s`, from then to the first end, and `starved_s`,
    for how long the rank that did so longest had waited for a core since its last call, times how many calls it stands
    for. Of ranks that came after the middle of the earliest half: `late_at_s`, the call's `start_s`;
    `late_rank`; by how much, times the same: `late_s`, of itself, and `core_s`, since it had waited for a core.
    """

    start_s: Seconds
    transfer_s: Seconds
    starved_s: Seconds
    late_at_s: Seconds
    late_rank: NDArray[np.int64]
    late_s: Seconds
    core_s: Seconds


@dataclass(slots=True)
class OpenCalls:
    """Calls of a communicator of so many `ranks` that not all of them have come to yet: those after number `done`.

    Attributes: `decided`, the last call that any has come to; `counts`, how many calls each rank has made, where it is
    not `base`; `times`, TIMES of those that are open; `weights`, how many calls each of these stands for, 0 of
    those that are not of the sample.
    """

    ranks: int
    done: int = 0
    base: int = 0
    decided: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    times: dict[int, Seconds] = field(default_factory=dict)
    weights: Seconds = field(default_factory=lambda: np.empty(0))

    @property
    def is_idle(self) -> bool:
        """Whether all ranks have come to as many calls."""
        return len(self.counts) == self.ranks and all(count == self.done for count in self.counts.values())

    def add(self, rank: int, times: Seconds) -> int:
        """Take `times` of calls of `rank`; how many of them, the last ones, it is the first to come to."""
        count = self.counts.get(rank, self.base)
        end = self.counts[rank] = count + len(times)
        times = times[max(self.done - count, 0) :]
        known = self.times.get(rank)
        self.times[rank] = times if known is None or not len(known) else np.concatenate((known, times))
        fresh = max(end - self.decided, 0)
        self.decided += fresh
        return fresh

    def ready(self, silent: int) -> Iterator[tuple[int, list[int]]]:
        """Up to which call so many ranks have come that only `silent` ones are missing: (call, the ranks that have)."""
        least = max(self.ranks - silent, 2)
        if len(self.counts) >= least:
            last = sorted(self.counts.values())[-least]
            ends = {last, *(count for count in self.counts.values() if self.done < count < last)}
            for end in sorted(ends) if last > self.done else ():
                yield end, sorted(rank for rank, count in self.counts.items() if count >= end)

    def drop(self, end: int) -> None:
        """Calls up to `end` are done with."""
        count, self.done = end - self.done, end
        self.weights = self.weights[count:]
        # A copy: what is left must not keep all that was read with it.
        self.times = {rank: times[count:].copy() for rank, times in self.times.items() if len(times) > count}


class Matcher:
    """Matches the calls of all ranks.

    Attributes: `last`, `waited_s`: per rank, how often it came last, and how long it waited for others, of the calls
    that were matched; `calls`, how many these are; `silent`, ranks whose calls are not waited for: those of all ranks
    are matched without them.

    Cost: each time some 100 us a communicator and 5 us a rank of it; 1 us a call; memory is bounded.
    """

    def __init__(self) -> None:
        # Of the latest that were matched: the last rank, and how long it came after the last but one.
        self._delays: deque[Seconds] = deque()
        self.calls: int = 0
        self.silent: frozenset[int] = frozenset()
        self.last: dict[int, int] = {}
        self.waited_s: dict[int, float] = {}
        self._clocks = Clocks()
        self._sample = Sample()
        # By communicator; of one without open calls only how many calls each of its ranks has made.
        self._open: dict[int, OpenCalls] = {}
        self._idle: dict[int, int] = {}
        self._fresh: list[Matched] = []
        self._everyone = 0
        self._broken: set[int] = set()
        # By rank, what it had waited for a core by the end of its last call, and the communicator of that.
        self._waited: dict[int, tuple[int, int]] = {}
        # Of the last call of each that was judged: its communicator, how many calls that had made with it, and by how
        # much the rank left it late since it waited for a core.
        self._left: dict[int, tuple[int, int, float]] = {}

    def take(self) -> list[Matched]:
        """The calls that were matched since this was asked last."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def delays_s(self) -> dict[int, list[float]]:
        """Of each rank that came last, by how much, sorted: of the latest calls."""
        last, late_s = np.concatenate([np.empty((2, 0)), *self._delays], axis=1)
        return {int(rank): np.sort(late_s[last == rank]).tolist() for rank in np.unique(last)}

    def set_spacing(self, calls: int) -> None:
        """An iteration has so many calls."""
        self._sample.block = max(1, calls) * BLOCK_ITERATIONS

    def find_silent(self, world_size: int) -> None:
        """Ranks of `world_size` of which nothing is known, or not any more, are `silent`: no call waits for them."""
        silent = frozenset(rank for rank in range(world_size) if rank not in self.last or rank in self._broken)
        if silent != self.silent:
            self.silent, self._everyone = silent, world_size
            self._match()

    def add_rank(self, rank: int, clock: Hashable) -> None:
        """Expect calls of `rank`, whose times are of `clock` (equal: the same clock)."""
        self._clocks.add(rank, clock)
        self.last.setdefault(rank, 0)
        self.waited_s.setdefault(rank, 0.0)

    def restart(self) -> None:
        """The job was started again: calls are counted anew, `add_rank` follows; what was matched stays."""
        self._clocks = Clocks()
        for known in (self._open, self._idle, self._waited, self._left, self._broken):
            known.clear()
        self.silent = frozenset()

    def lose(self, rank: int) -> None:
        """Calls of `rank` were lost: from now on nobody knows which of its calls is which."""
        self._broken.add(rank)

    def add(self, new: NewCalls) -> None:
        """Take calls of all ranks."""
        times = np.column_stack((new.times[new.order], new.core_waits_s(self._waited)))
        if new.forwards is not None:
            # Where the backward is not seen, its all-reduces begin when the last rank's forward has ended.
            forwards = np.flatnonzero(new.forwards[new.order])
            times[forwards, START] = times[forwards, END]
            times[forwards, BEFORE] += times[forwards, INSIDE]
            times[forwards, INSIDE] = 0.0
        fresh: list[tuple[OpenCalls, slice]] = []
        for rank, communicator, begin, end in new.runs:
            if rank not in self._broken:
                calls = self._calls_of(communicator, int(new.rows["ranks"][new.order[begin]]))
                if calls is not None and (count := calls.add(rank, times[begin:end])):
                    fresh.append((calls, slice(end - count, end)))
        self._decide(fresh, times[:, 0])
        self._match()

    def _calls_of(self, communicator: int, ranks: int) -> OpenCalls | None:
        found = self._open.get(communicator)
        if found is None and (communicator in self._idle or len(self._open) + len(self._idle) < MANY):
            done = self._idle.pop(communicator, 0)
            found = self._open[communicator] = OpenCalls(ranks, done, done, done)
        return found

    def _decide(self, fresh: Sequence[tuple[OpenCalls, slice]], starts_s: Seconds) -> None:
        """Whether calls that a rank was the first to come to are of the sample: in the order of their beginnings."""
        if not fresh:
            return
        first_s = np.concatenate([starts_s[part] for _, part in fresh])
        order = np.argsort(first_s, kind="stable")
        weights = np.empty(len(order))
        weights[order] = self._sample.weights(first_s[order])
        begin = 0
        for calls, part in fresh:
            end = begin + part.stop - part.start
            calls.weights = np.concatenate((calls.weights, weights[begin:end]))
            begin = end

    def _match(self) -> None:
        """Judge the calls that all have come to, and let the others wait."""
        for communicator, calls in [*self._open.items()]:
            silent = len(self.silent) if calls.ranks == self._everyone else 0
            for end, ranks in calls.ready(silent):
                self._judge(communicator, calls, ranks, end - calls.done)
                calls.drop(end)
            if calls.is_idle:
                self._idle[communicator] = calls.done
                del self._open[communicator]
        excess = sum(len(calls.weights) for calls in self._open.values()) - OPEN
        for calls in self._open.values() if excess > 0 else ():
            count = min(excess, len(calls.weights))
            calls.drop(calls.done + count)
            excess -= count

    def _judge(self, communicator: int, calls: OpenCalls, ranks: Sequence[int], count: int) -> None:
        """The first `count` of these calls, to which these ranks have come."""
        times, weights = np.stack([calls.times[rank][:count] for rank in ranks]), calls.weights[:count]
        at = np.flatnonzero(weights > 0.0)
        times, known = self._clocks.align(ranks, times[:, at])
        at = at[known]
        weights = weights[at]
        if not len(at):
            return
        # Who left the call before late, since it waited for a core in it, comes late to this one.
        ends_s = times[:, :, END]
        left_s = np.minimum(times[:, :, INSIDE], ends_s - ends_s.min(axis=0))
        begin, end = calls.done + int(at[0]), calls.done + int(at[-1]) + 1
        before = [self._left.get(rank, (communicator, begin, 0.0)) for rank in ranks]
        first = [late_s if (group, made) == (communicator, begin) else 0.0 for group, made, late_s in before]
        for rank, late_s in zip(ranks, left_s[:, -1].tolist(), strict=True):
            self._left[rank] = communicator, end, late_s
        follows = times[:, :, FOLLOWS] * (np.diff(at, prepend=at[0] - 1) == 1)
        core_s = times[:, :, BEFORE] + follows * np.column_stack((first, left_s[:, :-1]))
        starts_s = times[:, :, START]
        # Of each call, its ranks by when they came; and when that was.
        order = np.argsort(starts_s, axis=0, kind="stable")
        came_s = np.take_along_axis(starts_s, order, 0)
        early = max(len(ranks) // 2, 1)
        middle_s = _middle(came_s, early)
        # When they would have come, had none waited for a core: others may have waited as long as who is late.
        free_s = starts_s - core_s
        free_middle_s = _middle(np.sort(free_s, axis=0), early)
        after = max(early, len(ranks) - MAX_LATE)
        last, last_s = order[-1], came_s[-1]
        transfer_s = np.maximum(ends_s.min(axis=0) - last_s, 0.0) * weights
        rank_of = np.array(ranks)
        late_rank, late_s = rank_of[order[after:]], came_s[after:] - middle_s
        own_s = np.clip(np.take_along_axis(free_s, order[after:], 0) - free_middle_s, 0.0, late_s)
        lates_s = (np.broadcast_to(last_s, late_s.shape), own_s * weights, (late_s - own_s) * weights)
        late_at_s, own_s, core_s = (column.ravel() for column in lates_s)
        starved_s = times[:, :, BEFORE].max(axis=0) * weights
        self._fresh.append(Matched(last_s, transfer_s, starved_s, late_at_s, late_rank.ravel(), own_s, core_s))
        self.calls += len(weights)
        self._delays.append(np.array((rank_of[last], last_s - came_s[-2])))
        while sum(map(np.size, self._delays)) > 2 * MANY and len(self._delays) > 1:
            self._delays.popleft()
        lasts, waits_s = np.bincount(last, minlength=len(ranks)), (last_s - starts_s).sum(axis=1)
        for rank, times_last, waited_s in zip(ranks, lasts.tolist(), waits_s.tolist(), strict=True):
            self.last[rank] += times_last
            self.waited_s[rank] += waited_s


def _middle(came_s: Seconds, early: int) -> Seconds:
    """Of each call, when the middle of the `early` first ranks came; `came_s` is sorted by rank."""
    middle_s: Seconds = (came_s[early // 2] + came_s[(early - 1) // 2]) / 2
    return middle_s


class Sample:
    """Which calls are of the sample: of more than MAX_RATE_PER_S some blocks are left out, by chance.

    Attributes: `block`, how many calls in a row are chosen together.
    """

    def __init__(self) -> None:
        self.block: int = FIRST_CALLS
        self._random = random.Random(0)
        # Calls that are left of the block, how many calls each stands for, and when the block began.
        self._left, self._weight, self._since_s = 0, 1.0, -inf

    def weights(self, starts_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """How many calls each of these stands for, the next in order; 0 of those that are left out."""
        found = np.empty(len(starts_s))
        at = 0
        while at < len(found):
            if self._left == 0:
                # Another rank's clock, or a communicator that is read later, may be behind.
                took_s = max(float(starts_s[at]) - self._since_s, 0.0)
                stride = max(1.0, self.block / max(took_s, 1e-9) / MAX_RATE_PER_S)
                self._weight = stride if self._random.random() * stride < 1.0 else 0.0
                self._left, self._since_s = self.block, float(starts_s[at])
            count = min(len(found) - at, self._left)
            found[at : at + count] = self._weight
            at += count
            self._left -= count
        return found


class Clocks:
    """The ranks' clocks, and how far they are apart, as the ends of calls tell."""

    def __init__(self) -> None:
        self._clocks: dict[int, Hashable] = {}
        self._is_one = True
        self._ends: dict[tuple[int, int], deque[float]] = {}

    def add(self, rank: int, clock: Hashable) -> None:
        """The times of `rank` are of `clock`."""
        self._clocks[rank] = clock
        self._is_one = len({*self._clocks.values()}) == 1

    def align(self, ranks: Sequence[int], times: Seconds) -> tuple[Seconds, NDArray[np.bool_]]:
        """`times` of calls (ranks x calls x TIMES) by the first rank's clock, and of which calls that is known yet.

        Those of which it is not are left out.
        """
        count = times.shape[1]
        if self._is_one or not count:
            return times, np.ones(count, np.bool_)
        both = [START, END]
        offsets = [self._offsets_s(ranks, call) for call in times[:, :, both].swapaxes(0, 1).tolist()]
        known = np.array([offset is not None for offset in offsets])
        found = np.array([offset for offset in offsets if offset is not None]).reshape(-1, len(ranks))
        times = times[:, known]
        times[:, :, both] += found.T[:, :, None]
        return times, known

    def _offsets_s(self, ranks: Sequence[int], times: Sequence[tuple[float, float]]) -> list[float] | None:
        """What to add to each rank's (start, end) of a call to have the first rank's clock; None while unknown."""
        found: list[float] = []
        for rank, (start_s, end_s) in zip(ranks, times, strict=True):
            if self._clocks[rank] == self._clocks[ranks[0]]:
                found.append(0.0)
                continue
            gaps = self._ends.setdefault((rank, ranks[0]), deque(maxlen=MAX_ENDS))
            # An instant has no end that coincides with those of others.
            if end_s > start_s:
                gaps.append(times[0][1] - end_s)
            if len(gaps) < LEAST_ENDS:
                return None
            found.append(median(gaps))
        return found
