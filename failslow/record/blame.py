"""Who makes iterations long: the ranks that come late to calls, or the calls themselves, and when that changes.

An iteration of one rank is late by as much as it comes to its calls after the middle of the ranks that came first (the
earliest half of them), summed over its calls. What counts is the median over iterations, against that of iterations
before: a few large waits, of a checkpoint or a busy machine, blame nobody. As many ranks are named as are late by a
fair part of what iterations take longer, in most of them; the slow ones may change while the job is slow.

Where iteration times vary much (ranks that share cores, a busy network) they tell late that a job is slow. A rank or
two that come later than any other, in nearly every iteration and not before, tell it sooner, if times since bear it
out.

One computation serves the live word and the final one: what is said while the job runs is what the report keeps.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import inf
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.failslow.evidence.persistence import LIKELY, MAX_RATE, PROVISIONAL, VoteRun
from lanterne.failslow.record.bounds import KEPT, OPEN
from lanterne.failslow.record.lateness import MAX_LATE, Matched

# Iterations that are kept, and those before a slow spell that tell what is usual.
KEPT_ROWS = 1024  # chosen: memory
USUAL = 64
# A rank is late if by this share of what the latest one is; the latest by half of what iterations take longer.
FAIR_SHARE = 0.3  # chosen: share of what the latest rank is late by
MAIN_SHARE = 0.5  # half of what iterations take longer
MOST = 0.6  # chosen: share of iterations in which it must be
CLEAR_ERRORS = 3.0  # chosen: standard errors that a rank's lateness must have grown by
WHOLE = 0.5  # chosen: share of the usual calls that an iteration has of which all are known
LATEST = 6  # chosen: iterations that tell who is slow now
IN_A_ROW = 3  # chosen: times that another cause must be seen in a row before it is told
# A rank stands apart in an iteration in which it comes later than any other by so much; two, by twice as much:
# those that share a core are late together where something else wants it.
APART = 0.05  # chosen: share of an iteration; half of what counts as slow
# On a busy machine all come late by much the same: the latest must by so many times of what any other does.
# chosen: of 16 recorded healthy jobs beside up to 10 busy processes two were blamed without it, none from 2 on
BEYOND_REST = 2.0
# Only what ranks wait for cores between calls tells that others have them: in calls they spin while they wait.
STARVED_SHARE = 0.1  # chosen: share of what iterations take longer
LEAST_STARVED_S = 2e-3  # less than a slice of a core's time is how long it takes to wake up
# Of calls that last longer on a busy host some are as quick as ever, and ranks wait longer for cores between them.
# chosen: share of what iterations take longer; of 133 recorded jobs without a slow link none is told of one
SAME_WAIT = 0.05
# chosen: share of an iteration; with a slow link it was up to 0.16, beside 8 to 12 others on a core 0.5
MOST_WAITING = 0.25
# chosen: share of what iterations take longer, of the lower tenth of calls' times; at 0.2 jobs are told alike
QUICK_SHARE = 0.3
# Iterations, all but one of them, in which those that were late are so no more.
GONE = 8  # chosen: seven of eight below the middle are no chance
LEAST_USUAL = 16  # chosen: iterations that tell how often a rank stands apart as a rule, at least


class Cause(NamedTuple):
    """Why iterations are long: `kind` "rank", "calls", "host" (ranks wait for cores that other work has) or "unknown";
    the `ranks`, the latest first, none of a host that is busy; `evidence` in words.

    `rank`: the first of them, None without any; `since`: the first iteration that it is said of.
    """

    kind: str
    rank: int | None
    evidence: str
    ranks: tuple[int, ...] = ()
    since: int | None = None


UNKNOWN = Cause("unknown", None, "too few calls of all ranks were seen")


@dataclass(slots=True)
class IterationArrivals:
    """What was seen of the calls of iteration `index`, which ended at `end_s`: sums over its calls, in seconds.

    Attributes: by rank, where it was late: `late_s`, of itself, and `core_s`, since it had waited for a core;
    `transfer_s`, what calls took once all had come; `calls`; `starved_s`, for how long ranks had waited for cores
    between calls.
    """

    index: int
    end_s: float
    late_s: dict[int, float] = field(default_factory=dict)
    transfer_s: float = 0.0
    calls: int = 0
    core_s: dict[int, float] = field(default_factory=dict)
    starved_s: float = 0.0


class ArrivalSums(NamedTuple):
    """What calls say of iterations from number `begin` on.

    Attributes: `calls`, `transfer_s`, `starved_s`: of each of them; `place`, `rank`, `late_s`, `core_s`: of ranks that
    were late in one of them, the `place`-th.
    """

    begin: int
    calls: NDArray[Any]
    transfer_s: NDArray[Any]
    starved_s: NDArray[Any]
    place: NDArray[Any]
    rank: NDArray[Any]
    late_s: NDArray[Any]
    core_s: NDArray[Any]


class LateArrivals:
    """The latest iterations, and what was seen of their calls; calls may be told of after their iteration.

    Nothing is made of each iteration before `rows` are asked for: of a healthy job mostly nobody does.
    """

    def __init__(self) -> None:
        self._rows: deque[IterationArrivals] = deque(maxlen=KEPT_ROWS)
        # When the latest ended; how many have, by which they are numbered, of how many there are rows; how many had
        # when calls were taken last; the last index.
        self._ends: deque[float] = deque(maxlen=KEPT_ROWS)
        self._ended = self._made = self._added = self._index = 0
        self._sums: deque[ArrivalSums] = deque()
        self._early: Matched | None = None

    def clear(self) -> None:
        """Iterations begin elsewhere from now on."""
        self._rows.clear()
        self._ends.clear()
        self._sums.clear()
        self._ended = self._made = self._added = 0

    def end(self, index: int, end_s: float) -> None:
        """Iteration `index` has ended, the next after the last."""
        self._ends.append(end_s)
        self._index = index
        self._ended += 1

    @property
    def rows(self) -> Sequence[IterationArrivals]:
        """The latest iterations."""
        if self._early is not None and self._ended > self._added:
            self.add()
        self._tell_rows()
        return self._rows

    def _tell_rows(self) -> None:
        rows, ended = self._rows, self._ended
        for number in range(max(self._made, ended - len(self._ends)), ended):
            rows.append(IterationArrivals(self._index + 1 + number - ended, self._ends[number - ended]))
        self._made = ended
        while self._sums:
            self._add(self._sums.popleft(), ended - len(rows))

    def _add(self, sums: ArrivalSums, first: int) -> None:
        """Tell the rows, whose first is number `first`."""
        rows, shift = self._rows, sums.begin - first
        calls, transfer_s, starved_s = (column.tolist() for column in sums[1:4])
        for at in np.flatnonzero(sums.calls).tolist():
            if at + shift >= 0:
                row = rows[at + shift]
                row.calls += calls[at]
                row.transfer_s += transfer_s[at]
                row.starved_s += starved_s[at]
        for at, rank, *both_s in zip(*(column.tolist() for column in sums[4:]), strict=True):
            if at + shift >= 0:
                row = rows[at + shift]
                for known, late_s in zip((row.late_s, row.core_s), both_s, strict=True):
                    known[rank] = known.get(rank, 0.0) + late_s

    def add(self, found: Iterable[Matched] = ()) -> None:
        """Take calls that all ranks came to."""
        self._added = self._ended
        parts = [*found] if self._early is None else [self._early, *found]
        if not parts:
            return
        start_s, transfer_s, starved_s, late_at_s, late_rank, late_s, core_s = map(
            np.concatenate, zip(*parts, strict=True)
        )
        # The first iteration that is kept may have begun before.
        first = max(bisect_left(self._ends, start_s.min()), 1)
        before_s = self._ends[first - 1] if len(self._ends) >= first else -inf
        ends_s = np.array([*islice(self._ends, first, None)])
        count = len(ends_s)
        # The call that ends an iteration is of the next, whether the lead came last to it, at that time, or others did.
        at, late_at = ends_s.searchsorted(start_s, "right"), ends_s.searchsorted(late_at_s, "right")
        self._early = None
        if (at == count).any():
            early, late_early = at == count, late_at == count
            calls = (column[early][-OPEN:] for column in (start_s, transfer_s, starved_s))
            lates = (column[late_early][-MAX_LATE * OPEN :] for column in (late_at_s, late_rank, late_s, core_s))
            self._early = Matched(*calls, *lates)
        if count:
            inside, late_inside = (at < count) & (start_s >= before_s), (late_at < count) & (late_at_s >= before_s)
            at, ranks = at[inside], int(late_rank.max(initial=0)) + 1
            codes = late_at[late_inside] * ranks + late_rank[late_inside]
            late = np.flatnonzero(np.bincount(codes))
            numbers = np.bincount(at, minlength=count)
            taken_s, waited_s = (np.bincount(at, column[inside], count) for column in (transfer_s, starved_s))
            own_s, waits_s = (np.bincount(codes, column[late_inside])[late] for column in (late_s, core_s))
            sums = numbers, taken_s, waited_s, late // ranks, late % ranks, own_s, waits_s
            self._sums.append(ArrivalSums(self._ended - count, *sums))
        oldest = self._ended - len(self._ends)
        while self._sums and self._sums[0].begin + len(self._sums[0].calls) <= oldest:
            self._sums.popleft()
        if len(self._sums) > KEPT:
            self._tell_rows()

    def between(self, first: int, end: int | None) -> list[IterationArrivals]:
        """Iterations [first, end) of those that are kept and had most of their calls in the sample."""
        rows = self.rows
        least = WHOLE * median([row.calls for row in islice(reversed(rows), USUAL) if row.calls] or [0])
        chosen = (row for row in rows if row.index >= first and (end is None or row.index < end))
        return [row for row in chosen if row.calls and row.calls >= least]


class Latecomer(NamedTuple):
    """One or two ranks that come later than any other since iteration `since`, and did not before."""

    ranks: frozenset[int]
    since: int


def attribute(
    before: Sequence[IterationArrivals],
    during: Sequence[IterationArrivals],
    extra_s: float,
    silent: Sequence[int] = (),
    late: Latecomer | None = None,
    world_size: int | None = None,
    least_s: float = 0.0,
) -> Cause:
    """The Cause of a slow spell, from iterations before it and in it.

    Args:
        extra_s: what an iteration takes longer.
        silent: ranks of which nothing is known.
        late: who stands apart: beside them others are named that are late by half as much, not by a fair part.
        world_size: ranks that report; None where it is not known.
        least_s: of less nobody is late.

    Ranks are named where their coming late has grown by a fair part of it, and that of nobody else by nearly as much;
    the calls, where they themselves have, and with them those that are silent: others may wait for these. Without
    evidence nobody is, nor are most ranks: what they are late by is taken against the earliest half. Nor are those that
    are late by waiting for a core, nor calls where ranks wait for cores between them: they do so in them, too;
    but where they wait no longer than before, and the quick calls take longer as the others do, no busy host does that.
    """
    if len(before) < 2 or not during or extra_s <= 0.0:
        return UNKNOWN
    since = during[0].index
    grown = _grown_by_rank([row.late_s for row in before], [row.late_s for row in during])
    top = max((late_s for late_s, clear in grown.values() if clear), default=0.0)
    calls_s, slower = _grown_s([row.transfer_s for row in before], [row.transfer_s for row in during])
    if top >= max(MAIN_SHARE * extra_s, calls_s if slower else 0.0, least_s):
        share = FAIR_SHARE if late is None else MAIN_SHARE
        ranks = [rank for rank, (late_s, clear) in grown.items() if clear and late_s >= share * top]
        ranks.sort(key=lambda rank: -grown[rank][0])
        rest_s = max((late_s for rank, (late_s, _) in grown.items() if rank not in ranks), default=0.0)
        if top < BEYOND_REST * rest_s:
            return Cause("unknown", None, "all come late by much the same: a busy machine, or what they share")
        if world_size is not None and len(ranks) > world_size // 2:
            return Cause("unknown", None, "most ranks come late: a busy machine, or what they share")
        told = ", ".join(f"rank {rank} by {min(grown[rank][0], extra_s) * 1e3:.3g} ms" for rank in ranks)
        who = "comes" if len(ranks) == 1 else "come"
        text = f"{told} an iteration more than before {who} later than the others, in most of {len(during)} iterations"
        text = f"{text}: slow computing, or waiting for what only they need"
        return Cause("rank", ranks[0], text, tuple(ranks), since)
    waits = _grown_by_rank([row.core_s for row in before], [row.core_s for row in during])
    starved = [rank for rank, (wait_s, clear) in waits.items() if clear and wait_s >= FAIR_SHARE * extra_s]
    # Whether or not they did so before: calls of ranks that share cores last long in many ways.
    waited_s = median(row.starved_s for row in during)
    are_starved = bool(starved) or waited_s >= max(STARVED_SHARE * extra_s, LEAST_STARVED_S)
    slower = slower and calls_s >= MAIN_SHARE * extra_s
    own_s = max((waits[rank][0] for rank in starved), default=0.0)
    alone = slower and own_s < MAIN_SHARE * extra_s and _are_calls_alone(before, during, extra_s)
    if are_starved and not alone:
        starved.sort(key=lambda rank: -waits[rank][0])
        who = ", ".join(f"rank {rank} {min(waits[rank][0], extra_s) * 1e3:.3g} ms" for rank in starved)
        each = f"now one, now another, {waited_s * 1e3:.3g} ms an iteration"
        who = f"{who} an iteration more than before" if who else each
        text = f"ranks wait for cores that other work has, {who}: a busy host"
        return Cause("host", None, text, (), since)
    if slower:
        more = f"the calls themselves take {min(calls_s, extra_s) * 1e3:.3g} ms an iteration more"
        if silent:
            names = ", ".join(str(rank) for rank in silent)
            text = f"nothing is known of rank {names}, nobody else comes late, and {more}: they wait for it, or a link"
            return Cause("rank", silent[0], text, tuple(silent), since)
        return Cause("calls", None, f"nobody comes late, {more}: a link or the network; `lanterne validate` names it")
    return Cause("unknown", None, "no rank comes late and no call takes longer: all are slow alike, or between calls")


def _are_calls_alone(before: Sequence[IterationArrivals], during: Sequence[IterationArrivals], extra_s: float) -> bool:
    """Whether even the quick iterations' calls take longer, while ranks wait for cores between them as they did.

    They must not have waited for long: where most of an iteration is waiting, it varies by more than a link does.
    """
    was, now = (sorted(row.transfer_s for row in rows) for rows in (before, during))
    waited_s, waits_s = (median(row.starved_s for row in rows) for rows in (before, during))
    quick_s = now[len(now) // 10] - was[len(was) // 10]
    usual_s = median((b.end_s - a.end_s) / (b.index - a.index) for a, b in pairwise(before))
    if waited_s > MOST_WAITING * usual_s:
        return False
    return waits_s - waited_s < SAME_WAIT * extra_s and quick_s >= QUICK_SHARE * extra_s


def _grown_by_rank(
    was: Sequence[Mapping[int, float]], now: Sequence[Mapping[int, float]]
) -> dict[int, tuple[float, bool]]:
    """_grown_s() of each rank of `now`; where nothing is said of it, that was 0."""
    ranks = {rank for late_s in now for rank in late_s}
    return {
        rank: _grown_s([late_s.get(rank, 0.0) for late_s in was], [late_s.get(rank, 0.0) for late_s in now])
        for rank in ranks
    }


def _grown_s(was: Sequence[float], now: Sequence[float]) -> tuple[float, bool]:
    """By how much what iterations showed has grown, and whether most of them say so clearly."""
    usual_s, late_s = median(was), median(now)
    grown_s = late_s - usual_s
    error_s = sum(_spread(values) ** 2 / len(values) for values in (was, now)) ** 0.5
    most = sum(value > usual_s + grown_s / 2 for value in now) >= MOST * len(now)
    return grown_s, grown_s > CLEAR_ERRORS * error_s and most


def _spread(values: Sequence[float]) -> float:
    """Standard deviation of the noise, from the median deviation."""
    middle = median(values)
    return 1.4826 * 1.25 * median(abs(value - middle) for value in values)


class Latecomers:
    """Finds ranks, one or two, that become late by themselves: iterations vote, as those on times do.

    Where iteration times vary much, what a rank does longer is lost in them; but it comes later than all others then in
    nearly every iteration. How often it did so before tells what such an iteration is worth. Likewise it is found that
    a rank that came late as a rule does so no more.

    Args:
        arrivals: who came late in the latest iterations.
        first: the first iteration that counts.

    Attributes: `left`: since which iteration, up to the last one seen, the rank that came late as a rule does so no
    more; None while none has.

    Cost: some 10 us an iteration.
    """

    def __init__(self, arrivals: LateArrivals, first: int) -> None:
        self._arrivals = arrivals
        self._next = first
        # Of iterations before a spell: the ranks that stood apart, none of most.
        self._usual: deque[frozenset[int]] = deque(maxlen=USUAL)
        self._runs: dict[frozenset[int], VoteRun] = {}
        # By rank that comes late as a rule: whether it does so no more.
        self._leaving: dict[int, VoteRun] = {}
        self.left: int | None = None

    @property
    def doubtful(self) -> bool:
        """Whether a rank may have become late: the next iterations tell."""
        return any(run.score >= PROVISIONAL for run in self._runs.values())

    def see(self, index: int, usual_s: float, *, learns: bool) -> Latecomer | None:
        """Who has become late up to iteration `index`; of those before it that were not asked about only to learn.

        Args:
            usual_s: what an iteration takes as a rule.
            learns: whether this one says what is usual: no spell lasts.
        """
        found: Latecomer | None = None
        rows = self._arrivals.rows
        last = len(rows) - 1 - rows[-1].index
        # By number from the end: a deque has no way to its middle.
        for at in range(max(last + self._next, 0), last + index + 1):
            row, found = rows[at], None
            if row.calls:
                apart = _apart(row.late_s, APART * usual_s)
                found = self._vote(apart, row.index)
                self.left = self._vote_on_leaving(apart, row.index)
                if learns:
                    self._usual.append(apart)
        self._next = max(index + 1, self._next)
        return found

    def forget(self) -> None:
        """What votes there are count no more: a spell has begun or ended."""
        self._runs.clear()
        self._leaving.clear()
        self.left = None

    def _vote(self, apart: frozenset[int], index: int) -> Latecomer | None:
        """Iteration `index` votes for the ranks that stood apart in it, and against all others."""
        if len(self._usual) < LEAST_USUAL:
            return None
        if apart:
            self._runs.setdefault(apart, VoteRun(0.0))
        for ranks, run in [*self._runs.items()]:
            # One of two, or another beside it: that says nothing against it.
            if not apart or not (ranks < apart or apart < ranks):
                run.set_rate((self._usual.count(ranks) + 1) / (len(self._usual) + 8))
                run.add(inf if ranks == apart else -inf, index)
            # Who stands apart as a rule has not become late.
            if run.score == 0.0 or run.rate >= MAX_RATE:
                del self._runs[ranks]
        found = self._runs.get(apart)
        return None if found is None or found.score < LIKELY else Latecomer(apart, found.start)

    def _vote_on_leaving(self, apart: frozenset[int], index: int) -> int | None:
        """Iteration `index` votes on whether who stood apart as a rule does so no more: since when it does not."""
        count = len(self._usual)
        if count < LEAST_USUAL:
            return None
        if not self._leaving:
            often = Counter(rank for ranks in self._usual for rank in ranks)
            self._leaving = {rank: VoteRun(0.0) for rank, times in often.items() if times >= MAX_RATE * count}
        for rank, run in self._leaving.items():
            if run.score == 0.0:
                run.set_rate((sum(rank not in ranks for ranks in self._usual) + 1) / (count + 8))
            run.add(-inf if rank in apart else inf, index)
        return next((run.start for run in self._leaving.values() if run.score >= LIKELY), None)


def _apart(late_s: Mapping[int, float], least_s: float) -> frozenset[int]:
    """The two ranks that are later than any other by twice `least_s`, or the one that is by so much; or none."""
    ordered = sorted(late_s, key=late_s.__getitem__, reverse=True)
    first, second, third = ([late_s[rank] for rank in ordered[:3]] + [0.0, 0.0, 0.0])[:3]
    if second - third > max(2 * least_s, first - second):
        return frozenset(ordered[:2])
    return frozenset(ordered[:1]) if first - second > least_s else frozenset()


class Blame:
    """Keeps who was blamed for each slow spell, and says so when that changes.

    Args:
        arrivals: who came late in the latest iterations.
        count: tells how many ranks report; None: nobody knows.

    Attributes: `causes`: onset -> the Causes of that spell, in order.
    """

    def __init__(self, arrivals: LateArrivals, count: Callable[[], int] | None = None) -> None:
        self.causes: dict[int, list[Cause]] = {}
        self._arrivals = arrivals
        self._count = count
        self._first = 0
        # What the latest iterations showed, and how many times in a row.
        self._latest: tuple[str, frozenset[int]] | None = None
        self._times = 0

    def begin(
        self,
        first: int,
        onset: int,
        last: int,
        extra_s: float,
        silent: Sequence[int] = (),
        late: Latecomer | None = None,
    ) -> Cause:
        """The job is slow since iteration `onset`, certainly at `last`: the Cause; `first` of those before it on.

        Args:
            late: who shows it by being late.
        """
        cause = self.suspect(first, onset, last, extra_s, silent, late)
        self._keep(onset, cause)
        self._first = first
        self._times = 0
        return cause

    def suspect(
        self,
        first: int,
        onset: int,
        last: int,
        extra_s: float,
        silent: Sequence[int] = (),
        late: Latecomer | None = None,
    ) -> Cause:
        """What begin() would say; nothing is kept of it."""
        before, during = self._arrivals.between(first, onset), self._arrivals.between(onset, last + 1)
        return self._attribute(before, during, extra_s, silent, late)

    def follow(
        self,
        onset: int,
        usual_s: float,
        latest_s: float,
        last: int,
        silent: Sequence[int] = (),
        late: Latecomer | None = None,
    ) -> Cause | None:
        """One more slow iteration, `last`; the latest take `latest_s`: the Cause if it is another by now, else None.

        Args:
            late: who has become late by then; where it is the cause, that need not be seen again.
        """
        told = self.causes.get(onset)
        if told is not None and late is not None and late.ranks <= {*told[-1].ranks}:
            late = None
        since = last + 1 - LATEST if late is None else late.since
        during = self._arrivals.between(max(onset, since), last + 1)
        if told is None or len(during) < LATEST - 2:
            return None
        before = self._arrivals.between(self._first, onset)
        if late is not None and told[-1].kind == "host":
            # What a busy host makes iterations longer by, too, is not put down to who became late meanwhile.
            busy = self._arrivals.between(onset, late.since)
            if len(busy) >= LEAST_USUAL:
                before, usual_s = busy, median(b.end_s - a.end_s for a, b in pairwise(busy))
        # That a spell is over takes some iterations until it is certain: for what little is left nobody is blamed.
        least_s = APART * usual_s
        now = self._attribute(before, during, latest_s - usual_s, silent, late, least_s)
        if {now.kind, told[-1].kind} == {"host", "calls"}:
            # Six iterations of ranks that share cores may show either: what all of them since the onset show counts.
            spell = self._arrivals.between(max(onset, last + 1 - USUAL), last + 1)
            if len(spell) < LEAST_USUAL:
                return None
            spell_s = median(b.end_s - a.end_s for a, b in pairwise(spell))
            now = self._attribute(before, spell, spell_s - usual_s, silent, late, least_s)
        shown, self._latest = self._latest, (now.kind, frozenset(now.ranks))
        self._times = self._times + 1 if self._latest == shown else 1
        known = frozenset(told[-1].ranks)
        if now.kind == "unknown" or self._latest == (told[-1].kind, known):
            return None
        if now.kind == "host" and known:
            # Beside a slow rank others spin for longer, and it waits for its core then, too.
            return None
        # Beside those that are known another comes late by chance sooner than instead of them.
        least = LATEST if known and known < self._latest[1] else IN_A_ROW
        if self._times < least and (late is None or not late.ranks <= {*now.ranks}):
            return None
        now = now._replace(since=since) if now.since is None else now
        told.append(now)
        return now

    def gone(self, onset: int, last: int) -> int | None:
        """Since when, of the iterations up to `last`, those that are blamed come late no more; None while they do."""
        told = self.causes.get(onset)
        if told is None or not told[-1].ranks or told[-1].since is None:
            return None
        since, until = told[-1].since, last + 1 - GONE
        slow = self._arrivals.between(since, min(since + USUAL, until))
        before, latest = self._arrivals.between(self._first, onset), self._arrivals.between(max(since, until), last + 1)
        if len(slow) < IN_A_ROW or not before:
            return None
        middle_s = {
            rank: sum(median(row.late_s.get(rank, 0.0) for row in part) for part in (before, slow)) / 2
            for rank in told[-1].ranks
        }
        low = [row.index for row in latest if all(row.late_s.get(rank, 0.0) < middle_s[rank] for rank in middle_s)]
        return low[0] if len(low) >= GONE - 1 else None

    def recovered(
        self, first: int, relief: int, last: int, usual_s: float, slow_s: float, silent: Sequence[int] = ()
    ) -> Cause:
        """The job was slow from its start until `relief`: the Cause, from iterations since `first` and up to `last`."""
        slow = self._arrivals.between(max(first, relief - USUAL), relief)
        cause = self._attribute(self._arrivals.between(relief, last + 1), slow, slow_s - usual_s, silent)
        self._keep(first, cause)
        return cause

    def _attribute(
        self,
        before: Sequence[IterationArrivals],
        during: Sequence[IterationArrivals],
        extra_s: float,
        silent: Sequence[int],
        late: Latecomer | None = None,
        least_s: float = 0.0,
    ) -> Cause:
        world_size = None if self._count is None else self._count()
        return attribute(before, during, extra_s, silent, late, world_size, least_s)

    def _keep(self, onset: int, cause: Cause) -> None:
        self.causes[onset] = [cause]
        if len(self.causes) > KEPT:
            del self.causes[next(iter(self.causes))]

    def of(self, onset: int, relief: int | None) -> list[dict[str, Any]]:
        """The Causes of a spell [onset, relief), as JSON: those of all onsets in it; at least one, perhaps unknown."""
        told = [
            cause if begin == onset or cause.since is not None else cause._replace(since=begin)
            for begin in sorted([at for at in self.causes if onset <= at and (relief is None or at < relief)])
            for cause in self.causes[begin]
        ]
        return [cause._asdict() | {"ranks": list(cause.ranks)} for cause in told or [UNKNOWN]]
