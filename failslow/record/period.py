"""Iteration times from a log of communication calls, without knowing the program: find a call that marks the iteration.

A call is a symbol: its operation, size and communicator. The marker is the symbol, or the sequence of up to four
symbols, that recurs evenly at the longest spacing, counted in calls: iterations differ in time, above all when a job
fails slow, but hardly in their calls. What recurs evenly at a shorter spacing is an inner loop: a layer, a
microbatch. But where a longer spacing adds calls and no time, such as a loss that is summed every tenth iteration, the
shorter one is the iteration: the end of a true one takes time, for the optimizer, gradients, the next batch.

Paper: Wu et al. (GREYHOUND), section 4.2, "iteration time analysis"; differs: no autocorrelation, which needs 20
iterations, locks onto inner loops, and breaks on foreign calls, on reordered ties and on jobs with one type of call.
"""

import functools
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import inf, log
from operator import le
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.failslow.evidence.comparison import PERSISTENT, error_of
from lanterne.failslow.record.bounds import MANY

LONGEST_GRAM = 4  # chosen: four symbols in a row make a number of 64 bits
MIN_OCCURRENCES = 4  # chosen; a sequence across the end of an iteration is seen once less in four iterations
COMMON = 8  # chosen: what is rare is foreign, or a marker by itself
TOLERANCE = 0.05  # chosen: share by which spacings may differ
EVEN_SHARE = 0.75  # chosen: share of what must agree
MAX_CHECKS = 24  # chosen: candidates that are looked at, the longest spacing first
LEAST_ADDED = 0.01  # chosen: share of a shorter period that the end of a longer one takes
ADDED_ERRORS = 3.0  # chosen: standard errors of what that end seems to take
LOST_PERIODS = 8  # chosen: periods without the marker after which the program has changed
# A marker is final once it has held this often and this long; until then a longer spacing may replace it.
SETTLED_PERIODS = 32  # chosen: times that a marker that is final has held
SETTLED_S = 300.0  # chosen: for how long a marker that is final has held


# One to four symbols in a row.
Gram: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True)
class Marker:
    """The call sequence `gram` ends an iteration.

    Attributes: `spacing`: calls between two; `even`: share of spacings that agree; `gap_s`: where the log has one
    symbol only, the marker is a call after a longer pause than this; else None.
    """

    gram: Gram
    spacing: int
    even: float
    gap_s: float | None = None


def find_marker(symbols: Sequence[Hashable], times_s: Sequence[float]) -> Marker | None:
    """The Marker of a call log, or None where nothing recurs evenly yet.

    Args:
        symbols: one hashable per call, such as (op, nbytes, communicator).
        times_s: when each call was made, seconds.

    Cost: 0.1 to 0.4 s for 65,536 calls, by how many symbols they are; 0.4 us a call of some thousand.
    """
    if len(symbols) < MIN_OCCURRENCES:
        return None
    marker = _longest(_candidates(symbols), symbols, times_s)
    if marker is None or marker.spacing > 1:
        return marker
    gap_s = _pause(times_s)
    if gap_s is None:
        return marker
    after_pause = [i + 1 for i, (a, b) in enumerate(pairwise(times_s)) if b - a > gap_s]
    found = _even(after_pause, len(symbols), MIN_OCCURRENCES - 1)
    return marker if found is None else Marker((symbols[0],), found[0], found[1], gap_s)


def iteration_times(symbols: Sequence[Hashable], times_s: Sequence[float]) -> list[float]:
    """Seconds of each whole iteration of a call log, between the occurrences of its marker; empty where it has none.

    Args: as find_marker.
    """
    marker = find_marker(symbols, times_s)
    if marker is None:
        return []
    found = PeriodTracker(marker).record_all(symbols, times_s)
    return [iteration_s for _, iteration_s in found if iteration_s is not None]


def _candidates(symbols: Sequence[Hashable]) -> dict[Gram, NDArray[np.intp]]:
    """The positions of all symbols, and of sequences of common symbols that occur often enough."""
    numbers: dict[Hashable, int] = {}
    # Each symbol as a number, then each sequence: -1 where not all of it is common.
    codes = np.array([numbers.setdefault(symbol, len(numbers)) for symbol in symbols])
    found: dict[Gram, NDArray[np.intp]] = {(symbols[where[0]],): where for where in _positions(codes, 1)}
    # Common ones are few: four of them make a number of 64 bits.
    common = np.bincount(codes) >= COMMON
    last = codes = np.where(common, np.cumsum(common) - 1, -1)[codes]
    for length in range(2, LONGEST_GRAM + 1):
        last = last[1:]
        codes = codes[: len(last)]
        codes = np.where((codes >= 0) & (last >= 0), codes * common.sum() + last, -1)
        for where in _positions(codes, MIN_OCCURRENCES - 1):
            found[tuple(symbols[where[0] : where[0] + length])] = where + length - 1
    return found


def _positions(codes: NDArray[np.intp], least: int) -> list[NDArray[np.intp]]:
    """Of each code but -1 that occurs `least` times or more, where it does: arrays, by the first of each."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order], append=-2)) + 1
    starts = np.concatenate(([0], ends[:-1]))
    chosen = np.flatnonzero((ends - starts >= least) & (codes[order[starts]] >= 0))
    chosen = chosen[np.argsort(order[starts[chosen]])]
    return [order[start:end] for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)]


def _even(positions: Sequence[int] | NDArray[np.intp], calls: int, least: int) -> tuple[int, float] | None:
    """(spacing, share of spacings that agree with it) where `positions` recur evenly over the whole log; else None."""
    if len(positions) < least:
        return None
    spacings = np.sort(np.diff(positions))
    spacing = int(spacings[len(spacings) // 2])
    limit = max(1.0, TOLERANCE * spacing)
    agree = spacings.searchsorted(spacing + limit, "right") - spacings.searchsorted(spacing - limit)
    even = float(agree / len(spacings))
    covered = positions[0] <= 1.5 * spacing and calls - positions[-1] <= 1.5 * spacing + 1
    return (spacing, even) if covered and even >= EVEN_SHARE else None


def _longest(
    positions: Mapping[Gram, NDArray[np.intp]], symbols: Sequence[Hashable], times_s: Sequence[float]
) -> Marker | None:
    """The marker of the longest even spacing between whose occurrences the calls are the same, and that adds time."""
    found = []
    for gram, where in positions.items():
        least = MIN_OCCURRENCES if len(gram) == 1 else MIN_OCCURRENCES - 1
        even = _even(where, len(symbols), least)
        if even is not None and (len(gram) == 1 or even[1] == 1.0 or len(where) > COMMON):
            found.append(Marker(gram, *even))
    found.sort(key=lambda m: (-round(log(m.spacing) / TOLERANCE), -m.even, len(m.gram), m.spacing))

    @functools.cache
    def is_steady(marker: Marker) -> bool:
        return _is_steady(positions[marker.gram], symbols)

    marker = _first_steady(found, is_steady)
    while marker is not None:
        found = [other for other in found if 2 * other.spacing <= marker.spacing]
        shorter = _first_steady(found, is_steady)
        if shorter is None or _adds_time(
            positions[marker.gram].tolist(), positions[shorter.gram].tolist(), shorter.spacing, times_s
        ):
            return marker
        marker = shorter
    return None


def _first_steady(found: Sequence[Marker], is_steady: Callable[[Marker], bool]) -> Marker | None:
    """The first of the Markers `found` that is steady; None where none of the first MAX_CHECKS is."""
    found = found[:MAX_CHECKS]
    for marker in found:
        # A long sequence is seen at each multiple of its spacing too; only then do the others matter.
        if is_steady(marker) and (
            len(marker.gram) == 1 or not any(_is_multiple(marker, other) and is_steady(other) for other in found)
        ):
            return marker
    return None


def _adds_time(positions: Sequence[int], shorter: Sequence[int], spacing: int, times_s: Sequence[float]) -> bool:
    """Whether a period between `positions` has, beside those of a `shorter` marker in it, something that takes time.

    Looked at are its places where the shorter period is nearly always of other than `spacing` calls.
    """
    places: dict[int, list[tuple[bool, float]]] = {}
    ordinary: list[float] = []
    part = place = 0
    for begin, end in pairwise(shorter):
        while part < len(positions) and positions[part] <= begin:
            part, place = part + 1, 0
        if part == 0:
            continue
        took_s = times_s[end] - times_s[begin]
        places.setdefault(place, []).append((end - begin != spacing, took_s))
        ordinary.append(took_s)
        place += 1
    usual_s = median(ordinary) if ordinary else 0.0
    if usual_s <= 0.0:
        return True
    # Of a Gaussian half of all lie within 0.67 deviations.
    noise = median(abs(took_s / usual_s - 1.0) for took_s in ordinary) / 0.67
    odd = [seen for seen in places.values() if sum(is_odd for is_odd, _ in seen) >= EVEN_SHARE * len(seen)]
    return not odd or any(
        median(took_s for _, took_s in seen) / usual_s - 1.0
        > max(LEAST_ADDED, ADDED_ERRORS * error_of(noise, len(seen)))
        for seen in odd
    )


def _is_steady(positions: NDArray[np.intp], symbols: Sequence[Hashable]) -> bool:
    """Whether nearly all calls are of symbols that occur equally often between any two of `positions`.

    A sequence with a foreign call in it may recur evenly by chance; what lies between then differs.
    """
    segments = [Counter(symbols[a:b]) for a, b in pairwise(positions)]
    steady = total = 0
    everything: set[Hashable] = set()
    for symbol in everything.union(*segments):
        counts = sorted(segment[symbol] for segment in segments)
        usual = counts[len(counts) // 2]
        agree = sum(abs(count - usual) <= max(1, 0.005 * usual) for count in counts)
        total += sum(counts)
        steady += sum(counts) if agree >= EVEN_SHARE * len(counts) else 0
    return steady >= PERSISTENT * total


def _is_multiple(marker: Marker, other: Marker) -> bool:
    """Whether its spacing is 2 to 4 times that of `other`: a sequence that shuffled ties make now and then."""
    near = 0.01 * marker.spacing
    return any(abs(marker.spacing - k * other.spacing) <= near for k in (2, 3, 4))


def _pause(times_s: Sequence[float]) -> float | None:
    """Return a gap, seconds, between the log's short gaps and its long ones.

    None where they are not of two kinds, or where the long ones take less than half of the time: a checkpoint or an
    evaluation that recurs is no end of an iteration.
    """
    gaps = sorted(b - a for a, b in pairwise(times_s) if b > a)
    steps = [(b / a, (a * b) ** 0.5) for a, b in pairwise(gaps[len(gaps) // 2 :])]
    ratio, middle = max(steps, default=(1.0, 0.0))
    return middle if ratio > 2.0 and 2 * sum(gap for gap in gaps if gap > middle) > sum(gaps) else None


class PeriodTracker:
    """Takes calls one by one and gives iteration times; finds its marker by itself.

    Attributes: `marker`: the Marker in use, None while learning; `generation`: how many markers there have been:
    iteration times of different generations are not comparable; `dropped`: calls whose clock went backwards.

    Cost: 0.5 us a call once the marker is final; while learning, 3 us on average and 0.1 s for the longest look at
    the log. Memory: MANY calls while learning, none afterwards.
    """

    def __init__(self, marker: Marker | None = None) -> None:
        """Start to learn, or with a `marker` that is known and stays."""
        self.marker: Marker | None = marker
        self.generation: int = 0 if marker is None else 1
        self._fixed = marker is not None
        self.dropped: int = 0
        self._symbols: list[Hashable] = []
        self._times_s: list[float] = []
        self._next_look = MIN_OCCURRENCES
        self._recent: Gram = ()
        self._since = 0
        self._last_s: float | None = None
        self._before_s: float | None = None
        self._found_s, self._found_at = 0.0, 0
        self._periods = self._misses = 0
        self._early = False

    def record(self, symbol: Hashable, time_s: float) -> float | None:
        """Take a call made at `time_s` (seconds of one clock); return the iteration's time if it ends one, else None.

        Raises:
            InputError: the time is no finite number.
        """
        if not abs(time_s) < float("inf"):
            raise InputError(f"call log: got time {time_s!r}, expected seconds")
        if self._before_s is not None and time_s < self._before_s:
            # The clock jumped: what spans the jump is unknown.
            self.dropped += 1
            self._before_s = time_s
            self._last_s = None
            self._since = 0
            return None
        if not self._settled(time_s):
            self._learn(symbol, time_s)
        self._since += 1
        marker = self.marker
        ended = marker if marker is not None and self._match(marker, symbol, time_s) else None
        self._before_s = time_s
        return self._end(ended, time_s) if ended is not None else None

    def record_all(self, symbols: Sequence[Hashable], times_s: Sequence[float]) -> Iterator[tuple[int, float | None]]:
        """Take calls one after another, as `record` does; yield (place, iteration's time) of each that ends one, and
        (place, None) of others with which a new marker was found.

        Raises:
            InputError: a time is no finite number.
        """
        at = 0
        is_ordered = all(map(le, times_s, islice(times_s, 1, None)))
        while at < len(symbols):
            end = self._plain_until(at, times_s) if is_ordered else at
            if end > at:
                at = yield from self._record_plain(symbols, times_s, at, end)
            else:
                generation = self.generation
                iteration_s = self.record(symbols[at], times_s[at])
                if iteration_s is not None or self.generation != generation:
                    yield at, iteration_s
                at += 1

    def _plain_until(self, at: int, times_s: Sequence[float]) -> int:
        """Up to where, from `at` on, calls can only match the marker: no look is due, none is lost or settles."""
        marker, end = self.marker, len(times_s)
        if marker is None or marker.gap_s is not None:
            return at
        if self._before_s is None or not self._before_s <= times_s[at] or times_s[-1] == inf:
            return at
        if not self._fixed:
            end = min(end, at + LOST_PERIODS * marker.spacing + COMMON - self._since)
        if self._symbols and not self._fixed:
            end = min(end, at + self._next_look - 1 - len(self._symbols))
            if end > at and times_s[end - 1] - self._found_s >= SETTLED_S:
                return at
        return end

    def _record_plain(
        self, symbols: Sequence[Hashable], times_s: Sequence[float], begin: int, end: int
    ) -> Generator[tuple[int, float | None], None, int]:
        """Take calls [begin, end) that can only match the marker; return up to where they were taken."""
        marker, before = self.marker, begin - 1
        assert marker is not None
        gram, size = [*marker.gram], len(marker.gram)
        recent = [*self._recent[-size + 1 :]] if size > 1 else []
        calls = [*recent, *symbols[begin:end]]
        shift = begin - len(recent)
        last = gram[-1]
        for place in [
            place
            for place in range(max(len(recent), size - 1), len(calls))
            if calls[place] == last and calls[place - size + 1 : place + 1] == gram
        ]:
            at = shift + place
            self._since += at - before
            before = at
            iteration_s = self._end(marker, times_s[at])
            if self.marker is None:
                # It was not the marker after all.
                end = at + 1
                break
            if iteration_s is not None:
                yield at, iteration_s
        else:
            self._since += end - 1 - before
            if self._symbols:
                self._symbols += symbols[begin:end]
                self._times_s += times_s[begin:end]
        if size > 1:
            self._recent = tuple(calls[: end - shift][-size:])
        self._before_s = times_s[end - 1]
        return end

    def _settled(self, time_s: float) -> bool:
        if self._fixed:
            return True
        held = self.marker is not None and self._periods >= SETTLED_PERIODS
        if held and time_s - self._found_s >= SETTLED_S and self._symbols:
            self._forget()
        return held and not self._symbols

    def _learn(self, symbol: Hashable, time_s: float) -> None:
        """Keep the call; look for a marker whenever the log has grown by a quarter, or doubled, once one has held."""
        self._symbols.append(symbol)
        self._times_s.append(time_s)
        if len(self._symbols) < self._next_look:
            return
        found = self.marker if self._repeats() else find_marker(self._symbols, self._times_s)
        old = self.marker.spacing if self.marker is not None else 0
        if found is not None and abs(found.spacing - old) > TOLERANCE * old:
            self.marker = found
            self.generation += 1
            self._last_s = None
            self._found_s, self._found_at = time_s, len(self._symbols)
            self._since = self._periods = self._misses = 0
        if len(self._symbols) >= MANY:
            del self._symbols[: MANY // 2], self._times_s[: MANY // 2]
            self._found_at = max(0, self._found_at - MANY // 2)
        held = self.marker is not None and self._periods >= SETTLED_PERIODS
        self._next_look = len(self._symbols) * (8 if held else 5) // 4 + 1

    def _repeats(self) -> bool:
        """Whether the calls since the marker was found repeat exactly: then none recurs evenly at a longer spacing."""
        marker = self.marker
        if marker is None or marker.spacing < 2 or marker.gap_s is not None or self._periods < SETTLED_PERIODS:
            return False
        calls = self._symbols[self._found_at :]
        return calls[marker.spacing :] == calls[: -marker.spacing]

    def _match(self, marker: Marker, symbol: Hashable, time_s: float) -> bool:
        late = self._since > LOST_PERIODS * marker.spacing + COMMON
        if late and self._since > 2 * len(self._symbols) / 3 and not self._fixed:
            self._restart()
            return False
        if marker.gap_s is not None:
            return self._before_s is not None and time_s - self._before_s > marker.gap_s
        if len(marker.gram) == 1:
            return symbol == marker.gram[0]
        self._recent = (*self._recent[1 - len(marker.gram) :], symbol)
        return self._recent == marker.gram

    def _end(self, marker: Marker, time_s: float) -> float | None:
        """An occurrence of the marker: the end of an iteration if it comes where it is due."""
        due, last_s = marker.spacing, self._last_s
        slack = max(2.0, 0.1 * due)
        if last_s is not None and self._since < due - slack:
            # A foreign call that looks like the marker; if they persist, the program has changed.
            self._misses += 1
            self._early = True
            if self._misses > SETTLED_PERIODS and not self._fixed:
                self._restart()
            return None
        iteration_s = time_s - last_s if last_s is not None and self._since <= due + slack else None
        on_time = iteration_s is not None
        self._periods += on_time
        self._misses = 0 if on_time and not self._early else self._misses + (not on_time)
        self._last_s = time_s
        self._since = 0
        self._early = False
        return iteration_s

    def _restart(self) -> None:
        self.marker = None
        self._forget()
        self._next_look = MIN_OCCURRENCES
        self._misses = 0

    def _forget(self) -> None:
        self._symbols = []
        self._times_s = []
