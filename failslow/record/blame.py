"""Cause of slow iterations: ranks that arrive late at calls, the calls themselves, or a busy host.

In one iteration a rank is late by as much as it arrives after the middle of the ranks that arrived first (the earliest
half), summed over its calls. What counts is the median over iterations, against that of iterations before: a few large
waits, of a checkpoint or a busy machine, blame no rank. All ranks are named that are late by a fair part of what
iterations take longer, in most of them. The slow ranks may change while the job is slow.

Where iteration times vary much (ranks that share cores, a busy network) they tell late that a job is slow. One or two
ranks that arrive later than any other in nearly every iteration, and did not before, tell it sooner. Times since then
must bear it out.

The live notices and the report are one computation: a cause that is reported while the job runs stays in the report.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.failslow.detect.events import LevelEvent
from lanterne.failslow.detect.tracker import SKIPPED_ROWS
from lanterne.failslow.evidence.comparison import CLEAR_ERRORS, PERSISTENT, error_of
from lanterne.failslow.evidence.persistence import LIKELY, MAX_RATE, PROVISIONAL, VoteRun
from lanterne.failslow.record.bounds import KEPT, OPEN
from lanterne.failslow.record.lateness import MAX_LATE, Matched, Matcher, Seconds

# Iterations before a slow spell that tell what is usual; the latest, which tell the cause; in a row that tell another.
USUAL, LATEST, IN_A_ROW = 64, 6, 3
# A rank is late by this share of what the latest rank is; the latest by half of what iterations take longer.
FAIR_SHARE = 0.3
# A rank stands apart in an iteration in which it arrives later than any other by this share of it, half of a slowdown
# that counts; two do by twice as much: those that share a core are late together.
APART = 0.05
# Share of the extra time that ranks wait for cores between calls on a busy host; in calls they spin while they wait.
STARVED_SHARE = 0.1
LEAST_STARVED_S = 2e-3  # less than a slice of a core's time is how long it takes to wake up
# Iterations, all but one of them, in which ranks that were late are so no more; and those that tell what is usual.
GONE, LEAST_USUAL = 8, 16


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


class Arrivals(NamedTuple):
    """Sums over the calls of each of some iterations, in seconds: a row an iteration, and of two a column a rank.

    Attributes: `numbers` of the iterations; `late_s`, by how much a rank was late of itself, and `core_s`, since
    it had waited for a core; `transfer_s`, what calls took once all had arrived; `starved_s`, for how long ranks had
    waited for cores between calls.
    """

    numbers: NDArray[np.intp]
    late_s: Seconds
    core_s: Seconds
    transfer_s: Seconds
    starved_s: Seconds


class LateArrivals:
    """Sums over the calls of the latest iterations, between KEPT and twice as many; calls may follow their iteration.

    Nothing but its end is kept of an iteration before calls are added: of a healthy job they are added many at a time.
    """

    def __init__(self) -> None:
        self._ends_s: Seconds = np.empty(2 * KEPT)
        # Columns of each iteration: calls, transfer_s, starved_s; and of each rank late_s and core_s.
        self._sums: Seconds = np.zeros((3, 2 * KEPT))
        self._late: Seconds = np.zeros((2, 2 * KEPT, 0))
        # The index of the first row, how many there are, and of how many all calls have been added that are known.
        self._first = self._count = self._added = 0
        self._early: list[Matched] = []

    def clear(self) -> None:
        """Forget all iterations: they begin elsewhere from now on."""
        self._count = self._added = 0
        self._sums[:] = self._late[:] = 0.0

    def end(self, index: int, end_s: float) -> None:
        """Take the end of iteration `index`, the next after the last."""
        if self._count == 2 * KEPT:
            for rows in (self._ends_s, self._sums.T, self._late.swapaxes(0, 1)):
                rows[:KEPT] = rows[KEPT:]
                rows[KEPT:] = 0.0
            self._count, self._added = KEPT, max(self._added - KEPT, 0)
        self._ends_s[self._count] = end_s
        self._count += 1
        self._first = index + 1 - self._count

    def add(self, found: Iterable[Matched] = ()) -> None:
        """Take calls at which all ranks arrived."""
        self._added, parts = self._count, [*self._early, *found]
        if not parts:
            return
        start_s, transfer_s, starved_s, late_at_s, rank, late_s, core_s = map(np.concatenate, zip(*parts, strict=True))
        # The call that ends an iteration is of the next, whether the lead arrived last at it, at that time, or not.
        at, late_at = (self._ends_s[: self._count].searchsorted(times_s, "right") for times_s in (start_s, late_at_s))
        early, late_early = (np.flatnonzero(rows == self._count) for rows in (at, late_at))
        calls = (column[early[-OPEN:]] for column in (start_s, transfer_s, starved_s))
        lates = (column[late_early[-MAX_LATE * OPEN :]] for column in (late_at_s, rank, late_s, core_s))
        self._early = [Matched(*calls, *lates)] if len(early) else []
        # When the first iteration began is not known.
        inside, late_inside = (np.flatnonzero((rows > 0) & (rows < self._count)) for rows in (at, late_at))
        for sums, column in zip(self._sums, (np.ones(len(at)), transfer_s, starved_s), strict=True):
            np.add.at(sums, at[inside], column[inside])
        if (more := int(rank.max(initial=-1)) + 1 - self._late.shape[2]) > 0:
            self._late = np.pad(self._late, ((0, 0), (0, 0), (0, more)))
        for late, column in zip(self._late, (late_s, core_s), strict=True):
            np.add.at(late, (late_at[late_inside], rank[late_inside]), column[late_inside])

    def between(self, first: int, end: int | None = None) -> Arrivals:
        """Return iterations [first, end) of those that are kept and had most of their calls in the sample."""
        if self._early and self._count > self._added:
            self.add()
        calls = self._sums[0, : self._count]
        least = max(np.median(calls[calls > 0][-USUAL:]) / 2, 1) if calls.any() else 1
        stop = self._count if end is None else min(max(end - self._first, 0), self._count)
        rows = np.arange(max(first - self._first, 0), stop)
        rows = rows[calls[rows] >= least]
        late_s, core_s = self._late[:, rows]
        return Arrivals(rows + self._first, late_s, core_s, *self._sums[1:, rows])


class Latecomer(NamedTuple):
    """One or two ranks that arrive later than any other since iteration `since`, and did not before."""

    ranks: frozenset[int]
    since: int


def attribute(
    before: Arrivals,
    during: Arrivals,
    extra_s: float,
    silent: Sequence[int] = (),
    late: Latecomer | None = None,
    world_size: int | None = None,
    least_s: float = 0.0,
) -> Cause:
    """Return the Cause of a slow spell, from iterations before it and in it.

    Args:
        extra_s: what an iteration takes longer.
        silent: ranks of which nothing is known.
        late: ranks that stand apart: beside them others are named that are late by half as much, not by a fair part.
        world_size: ranks that report; None where it is not known.
        least_s: no rank is late by less.

    Ranks are named where their lateness has grown by a fair part of it, and that of no other by nearly as much; the
    calls where they themselves have, and with them ranks that are silent: others may wait for these. Without evidence
    none is, nor are most ranks: their lateness is taken against the earliest half. Nor are ranks that are late by
    waiting for a core, nor calls where ranks wait for cores between them: they do so in them, too. Where they wait no
    longer than before, no busy host explains that calls take longer.
    """
    if len(before.numbers) < 2 or not len(during.numbers) or extra_s <= 0.0:
        return UNKNOWN
    since, half_s = int(during.numbers[0]), extra_s / 2
    grown_s, is_clear = _grown(before.late_s, during.late_s)
    if late is not None:
        # The votes for them are evidence enough.
        is_clear[[rank for rank in late.ranks if rank < len(is_clear)]] = True
    top_s = grown_s[is_clear].max(initial=0.0)
    (calls_s,), (slower,) = _grown(before.transfer_s[:, None], during.transfer_s[:, None])
    if top_s >= max(half_s, calls_s if slower else 0.0, least_s):
        named = is_clear & (grown_s >= (FAIR_SHARE if late is None else 0.5) * top_s)
        if top_s < 2 * grown_s[~named].max(initial=0.0):
            return Cause("unknown", None, "all come late by much the same: a busy machine, or what they share")
        if world_size is not None and named.sum() > world_size // 2:
            return Cause("unknown", None, "most ranks come late: a busy machine, or what they share")
        ranks = _descending(grown_s, named)
        who = "comes" if len(ranks) == 1 else "come"
        told = f"{_in_words(grown_s, ranks, extra_s, 'by ')} an iteration more than before {who} later than the others"
        text = (
            f"{told}, in most of {len(during.numbers)} iterations: slow computing, or waiting for what only they need"
        )
        return Cause("rank", ranks[0], text, ranks, since)
    waits_s, is_clear = _grown(before.core_s, during.core_s)
    starved = _descending(waits_s, is_clear & (waits_s >= FAIR_SHARE * extra_s))
    # Whether or not they did so before: calls of ranks that share cores last long in many ways.
    waited_s, usual_s = (float(np.median(rows.starved_s)) for rows in (during, before))
    slower = slower and calls_s >= half_s
    is_host = bool(starved) or waited_s >= max(STARVED_SHARE * extra_s, LEAST_STARVED_S)
    if is_host and not (
        slower and max(waits_s[[*starved]], default=0.0) < half_s and waited_s - usual_s < STARVED_SHARE / 2 * extra_s
    ):
        each = f"now one, now another, {waited_s * 1e3:.3g} ms an iteration"
        who = f"{_in_words(waits_s, starved, extra_s)} an iteration more than before" if starved else each
        return Cause("host", None, f"ranks wait for cores that other work has, {who}: a busy host", (), since)
    if not slower:
        return Cause(
            "unknown", None, "no rank comes late and no call takes longer: all are slow alike, or between calls"
        )
    more = f"the calls themselves take {min(calls_s, extra_s) * 1e3:.3g} ms an iteration more"
    if silent:
        names = ", ".join(map(str, silent))
        text = f"nothing is known of rank {names}, nobody else comes late, and {more}: they wait for it, or a link"
        return Cause("rank", silent[0], text, tuple(silent), since)
    return Cause("calls", None, f"nobody comes late, {more}: a link or the network; `lanterne validate` names it")


def _grown(was_s: Seconds, now_s: Seconds) -> tuple[Seconds, NDArray[np.bool_]]:
    """Return by how much each column has grown, and whether most rows say so, clearly; both of as many ranks."""
    columns = now_s.shape[1]
    was_s = np.pad(was_s, ((0, 0), (0, columns - was_s.shape[1])))
    usual_s, late_s = np.median(was_s, axis=0), np.median(now_s, axis=0)
    errors_s = [
        error_of(1.4826, len(rows)) * np.median(np.abs(rows - np.median(rows, axis=0)), axis=0)
        for rows in (was_s, now_s)
    ]
    grown_s = late_s - usual_s
    most = (now_s > usual_s + grown_s / 2).mean(axis=0) >= PERSISTENT
    return grown_s, (grown_s > CLEAR_ERRORS * np.hypot(*errors_s)) & most


def _descending(values: Seconds, chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the ranks that are chosen, those of the highest values first."""
    ranks = np.flatnonzero(chosen)
    return tuple(ranks[np.argsort(-values[ranks], kind="stable")].tolist())


def _in_words(values_s: Seconds, ranks: Iterable[int], most_s: float, by: str = "") -> str:
    return ", ".join(f"rank {rank} {by}{min(values_s[rank], most_s) * 1e3:.3g} ms" for rank in ranks)


class Latecomers:
    """Finds one or two ranks that become late by themselves: iterations vote, as they do on times.

    Where iteration times vary much, what a rank does longer is lost in them. But it arrives later than all others then
    in nearly every iteration. How often it did so before tells what such an iteration is worth. The same votes find
    that a rank that arrived late as a rule does so no more.

    Args:
        arrivals: of the latest iterations.
        first: the first iteration that counts.

    Attributes: `left`: since which iteration, up to the last one seen, the rank that arrived late as a rule does so no
    more; None while none has.

    Cost: some 20 us an iteration.
    """

    def __init__(self, arrivals: LateArrivals, first: int) -> None:
        self._arrivals = arrivals
        self._next = first
        # Of iterations before a spell: the ranks that stood apart, none of most.
        self._usual: deque[frozenset[int]] = deque(maxlen=USUAL)
        self._runs: dict[frozenset[int], VoteRun] = {}
        # By rank that arrives late as a rule: whether it does so no more.
        self._leaving: dict[int, VoteRun] = {}
        self.left: int | None = None

    @property
    def doubtful(self) -> bool:
        """Whether a rank may have become late: the next iterations tell."""
        return any(run.score >= PROVISIONAL for run in self._runs.values())

    def see(self, index: int, usual_s: float, *, learns: bool) -> Latecomer | None:
        """Return the ranks that have become late up to iteration `index`; those before it that were not seen count.

        Args:
            usual_s: what an iteration takes as a rule.
            learns: whether this one says what is usual: no spell lasts.
        """
        found: Latecomer | None = None
        rows = self._arrivals.between(self._next, index + 1)
        for at, late_s in zip(rows.numbers.tolist(), rows.late_s, strict=True):
            apart = _apart(late_s, APART * usual_s)
            found = self._vote(apart, at) if len(self._usual) >= LEAST_USUAL else None
            if learns:
                self._usual.append(apart)
        self._next = max(index + 1, self._next)
        return found if len(rows.numbers) and rows.numbers[-1] == index else None

    def forget(self) -> None:
        """Drop all votes: a spell has begun or ended."""
        self._runs.clear()
        self._leaving.clear()
        self.left = None

    def _vote(self, apart: frozenset[int], index: int) -> Latecomer | None:
        """Count the vote of iteration `index` for the ranks that stood apart in it, and against all others."""
        count = len(self._usual)
        if apart:
            self._runs.setdefault(apart, VoteRun(0.0))
        for ranks, run in [*self._runs.items()]:
            # One of two, or another beside it: that says nothing against it.
            if not apart or not (ranks < apart or apart < ranks):
                run.set_rate((self._usual.count(ranks) + 1) / (count + 8))
                run.add(inf if ranks == apart else -inf, index)
            # Ranks that stand apart as a rule have not become late.
            if run.score == 0.0 or run.rate >= MAX_RATE:
                del self._runs[ranks]
        if not self._leaving:
            often = Counter(rank for ranks in self._usual for rank in ranks)
            self._leaving = {rank: VoteRun(0.0) for rank, times in often.items() if times >= MAX_RATE * count}
        for rank, run in self._leaving.items():
            if run.score == 0.0:
                run.set_rate((sum(rank not in ranks for ranks in self._usual) + 1) / (count + 8))
            run.add(-inf if rank in apart else inf, index)
        self.left = next((run.start for run in self._leaving.values() if run.score >= LIKELY), None)
        found = self._runs.get(apart)
        return None if found is None or found.score < LIKELY else Latecomer(apart, found.start)


def _apart(late_s: Seconds, least_s: float) -> frozenset[int]:
    """Return the two ranks that are later than any other by twice `least_s`, or the one that is by `least_s`."""
    ordered = np.argsort(-late_s, kind="stable")[:3].tolist()
    first, second, third = (*late_s[ordered].tolist(), 0.0, 0.0, 0.0)[:3]
    if second - third > max(2 * least_s, first - second):
        return frozenset(ordered[:2])
    return frozenset(ordered[:1]) if first - second > least_s else frozenset()


class Spell(NamedTuple):
    """A slow spell that lasts since iteration `onset`, by `event`; an iteration took `usual_s` `before` it."""

    onset: int
    event: LevelEvent
    usual_s: float
    before: Arrivals


class Blame:
    """The causes of slow iterations, while iterations are of one kind.

    Args:
        iterations: the latest (index, end_s, seconds).
        arrivals: of the latest iterations.
        matcher: tells which ranks report.
        first_row: the index of the first iteration.

    Attributes: `causes`: onset -> the Causes of that spell, in order; `lasting`: the Spell that lasts; `latecomers`:
    finds ranks that arrive late by themselves.
    """

    def __init__(
        self, iterations: deque[tuple[int, float, float]], arrivals: LateArrivals, matcher: Matcher, first_row: int
    ) -> None:
        self.causes: dict[int, list[Cause]] = {}
        self.lasting: Spell | None = None
        self._iterations = iterations
        self._arrivals = arrivals
        self._matcher = matcher
        self._first_row = first_row
        self.latecomers: Latecomers = Latecomers(arrivals, first_row + SKIPPED_ROWS // 2)
        self._calm_from = first_row  # since when nothing was slow, before the spell that lasts
        # The cause that the latest iterations showed, and how many times in a row.
        self._latest: tuple[str, frozenset[int]] | None = None
        self._times = 0

    def judge(self, event: LevelEvent, index: int, *, slow: bool, late: Latecomer | None = None) -> Cause | None:
        """Return the Cause of slow iterations, as known at `index`; None of an event that says nothing about it.

        Args:
            slow: whether iterations are, after `event`.
            late: ranks that have shown it by being late.
        """
        onset = self._first_row + event.index
        if event.ratio > 1.0 and self.lasting is None:
            if (usual := self._usual(onset)) is None:
                return UNKNOWN
            before, usual_s = usual
            during, slow_s = self._arrivals.between(onset, index + 1), self._time_s(onset, index)
            self.lasting = Spell(onset, event, usual_s, before)
            self.latecomers.forget()
            self._times = 0
            return self._keep(onset, self._attribute(before, during, slow_s - usual_s, late))
        if event.ratio < 1.0 and (event.kind == "relief" or not slow):
            self._calm_from = onset
            is_first, self.lasting = self.lasting is None and not self.causes, None
            self.latecomers.forget()
            if is_first and event.kind == "relief":
                # The job was slow from its start.
                first = max(self._iterations[0][0] + 1, self._first_row + SKIPPED_ROWS // 2)
                extra_s = self._time_s(first, onset - 1) - self._time_s(onset, index)
                before, slow_rows = (self._arrivals.between(*span) for span in ((onset, index + 1), (first, onset)))
                return self._keep(first, self._attribute(before, slow_rows, extra_s))
        return None

    def blames(self, late: Latecomer, index: int) -> bool:
        """Return whether what iterations take longer, up to `index`, is put down to `late` and to no other."""
        if (usual := self._usual(late.since)) is None:
            return False
        during, slow_s = self._arrivals.between(late.since, index + 1), self._time_s(late.since, index)
        return {*self._attribute(usual[0], during, slow_s - usual[1], late).ranks} == late.ranks

    def follow(self, index: int, late: Latecomer | None = None) -> Cause | None:
        """Return the Cause at iteration `index` of the spell that lasts, if it is another by now.

        Args:
            late: ranks that have become late; where they are the cause, that need not be seen again.
        """
        if self.lasting is None or (told := self.causes.get(self.lasting.onset)) is None:
            return None
        onset, _, usual_s, before = self.lasting
        last = told[-1]
        if late is not None and late.ranks <= {*last.ranks}:
            late = None
        since = max(index + 1 - LATEST if late is None else late.since, onset)
        during = self._arrivals.between(since, index + 1)
        if len(during.numbers) < LATEST - 2:
            return None
        # That a spell is over takes some iterations until it is certain: no rank is blamed for what little is left.
        least_s = APART * usual_s
        if late is not None and last.kind == "host":
            # What a busy host makes iterations longer by, too, is not put down to ranks that became late meanwhile.
            busy = self._arrivals.between(onset, late.since)
            if len(busy.numbers) >= LEAST_USUAL:
                before, usual_s = busy, self._time_s(onset, late.since - 1)
        now = self._attribute(before, during, self._time_s(index + 1 - LATEST, index) - usual_s, late, least_s)
        if {now.kind, last.kind} == {"host", "calls"}:
            # Six iterations of ranks that share cores may show either: what all of them since the onset show counts.
            first = max(onset, index + 1 - USUAL)
            spell = self._arrivals.between(first, index + 1)
            if len(spell.numbers) < LEAST_USUAL:
                return None
            now = self._attribute(before, spell, self._time_s(first, index) - usual_s, late, least_s)
        shown, known = (now.kind, frozenset(now.ranks)), frozenset(last.ranks)
        self._times = self._times + 1 if shown == self._latest else 1
        self._latest = shown
        if now.kind == "unknown" or shown == (last.kind, known) or (now.kind == "host" and known):
            # Beside a slow rank others spin for longer, and it waits for its core then, too.
            return None
        # Beside ranks that are known another arrives late by chance sooner than instead of them.
        least = LATEST if known and known < shown[1] else IN_A_ROW
        if self._times < least and (late is None or not late.ranks <= shown[1]):
            return None
        told.append(now if now.since is not None else now._replace(since=since))
        return told[-1]

    def gone(self, index: int) -> int | None:
        """Return since when, up to iteration `index`, the ranks that are blamed are late no more; else None."""
        if self.lasting is None or not (told := self.causes.get(self.lasting.onset)):
            return None
        ranks, since = [*told[-1].ranks], told[-1].since
        if not ranks or since is None:
            return None
        until = index + 1 - GONE
        slow = self._arrivals.between(since, min(since + USUAL, until))
        latest = self._arrivals.between(max(since, until), index + 1)
        if len(slow.numbers) < IN_A_ROW:
            return None
        middle_s = sum(np.median(_columns(rows, ranks), axis=0) for rows in (self.lasting.before, slow)) / 2
        low = latest.numbers[(_columns(latest, ranks) < middle_s).all(axis=1)]
        return int(low[0]) if len(low) >= GONE - 1 else None

    def of(self, onset: int, relief: int | None) -> list[dict[str, Any]]:
        """Return the Causes of a spell [onset, relief), as JSON: at least one, perhaps unknown."""
        told = [
            cause if begin == onset or cause.since is not None else cause._replace(since=begin)
            for begin in sorted([at for at in self.causes if onset <= at and (relief is None or at < relief)])
            for cause in self.causes[begin]
        ]
        return [cause._asdict() | {"ranks": list(cause.ranks)} for cause in told or [UNKNOWN]]

    def _time_s(self, first: int, last: int) -> float:
        """Return the median time of iterations [first, last]."""
        begin = self._iterations[0][0]
        rows = islice(self._iterations, max(first - begin, 0), last - begin + 1)
        return median([time_s for *_, time_s in rows] or [0.0])

    def _usual(self, onset: int) -> tuple[Arrivals, float] | None:
        """Return the iterations before `onset` that say what is usual, and what they took; None without any."""
        first = max(onset - USUAL, self._first_row + SKIPPED_ROWS // 2, self._iterations[0][0] + 1)
        # A spell before this one says nothing of what is usual, if some iterations between do.
        if onset - self._calm_from >= LATEST:
            first = max(first, self._calm_from)
        return (self._arrivals.between(first, onset), self._time_s(first, onset - 1)) if first < onset else None

    def _attribute(
        self, before: Arrivals, during: Arrivals, extra_s: float, late: Latecomer | None = None, least_s: float = 0.0
    ) -> Cause:
        silent = sorted(self._matcher.silent)
        return attribute(before, during, extra_s, silent, late, len(self._matcher.last), least_s)

    def _keep(self, onset: int, cause: Cause) -> Cause:
        self.causes[onset] = [cause]
        if len(self.causes) > KEPT:
            del self.causes[next(iter(self.causes))]
        return cause


def _columns(rows: Arrivals, ranks: Sequence[int]) -> Seconds:
    """Return the lateness of `ranks`; that of one that never arrived late is 0."""
    missing = max(ranks) + 1 - rows.late_s.shape[1]
    return np.pad(rows.late_s, ((0, 0), (0, max(missing, 0))))[:, ranks]
