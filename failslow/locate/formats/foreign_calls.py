"""Calls of all ranks as columns, whatever wrote them: what every reader fills and what diagnosis needs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any

from lanterne.failslow.evidence.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# How far a call came.
DONE, STARTED, QUEUED = 0, 1, 2
# Of a CallTable, those with a value for each call.
COLUMNS = ("rank", "group", "name", "number", "peer", "nbytes", "start_s", "took_s", "state")
# Seconds that no recorded call lasts: rubbish.
LONGEST_S = 1e7
# Ranks that no job has: rubbish, which would be counted up one by one.
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Process:
    """Who a rank is: `host` and `pid`, None where not told; `gpu`, its number there."""

    host: str | None = None
    pid: int | None = None
    gpu: int | None = None


@dataclass
class RankSet:
    """A communicator: its `name`, how many ranks it has and, as far as known, which (global numbers, in its order)."""

    name: str
    size: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class CallTable:
    """Calls, one a row, and compute spans.

    Attributes: columns `rank`, `group` (index of `groups`), `name` (index of `names`), `number` (the call's in its
    group, equal on all its ranks; -1: not told), `peer` (a message's other rank, -1: a collective), `nbytes` (-1: not
    told), `start_s` (of the rank's own clock, NaN: not told), `took_s` (NaN: not told), `state` (DONE, STARTED,
    QUEUED); `compute`: (rank, start_s, took_s) rows of compute kernels; `steps`: (rank, step, start_s, took_s) rows of
    steps that a profiler marked; `behind`: evidence of ranks that others wait for, in words, by rank (told as such by
    its source); `unplaced`: the same of processes of which nothing tells the rank; `doubtful`: what would tell more of
    such a rank, by rank; `progress`: group -> rank -> Progress, where the source reports it; `called`: (group, number)
    -> rank -> the call in words, of unfinished calls; `partial`: the source need not have a file of every rank;
    `unjoined`: ranks of whose processes records were left out, as nothing tells which rank they are of; `jobs`: (name,
    first rank, how many ranks) of each job where there are several; `processes`, `notes`, `used` and `skipped`:
    how many records, and why not.
    """

    rank: NDArray[np.int64]
    group: NDArray[np.int64]
    name: NDArray[np.int64]
    number: NDArray[np.int64]
    peer: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    start_s: NDArray[np.float64]
    took_s: NDArray[np.float64]
    state: NDArray[np.int64]
    groups: tuple[RankSet, ...]
    names: tuple[str, ...]
    compute: NDArray[np.float64]
    steps: NDArray[np.float64]
    behind: dict[int, str]
    unplaced: dict[str, str]
    doubtful: dict[int, str]
    progress: dict[int, dict[int, Progress]]
    called: dict[tuple[int, int], dict[int, str]]
    partial: bool
    unjoined: frozenset[int]
    jobs: tuple[tuple[str, int, int], ...]
    processes: dict[int, Process]
    expected: tuple[int, ...]
    used: Counter[str]
    skipped: Counter[str]
    notes: tuple[str, ...]

    def job(self, first: int, count: int) -> CallTable:
        """Return the table of the job of ranks [first, first + count), which are numbered from 0 there."""
        import numpy as np

        def own(ranks: Mapping[int, Any]) -> dict[int, Any]:
            return {rank - first: value for rank, value in ranks.items() if 0 <= rank - first < count}

        inside = (self.rank >= first) & (self.rank < first + count)
        columns = {name: getattr(self, name)[inside] for name in COLUMNS}
        columns["rank"] -= first
        columns["peer"] = np.where(columns["peer"] >= 0, columns["peer"] - first, -1)
        groups = [RankSet(one.name, one.size, tuple(rank - first for rank in one.ranks)) for one in self.groups]
        groups = [RankSet(one.name) if min(one.ranks, default=0) < 0 else one for one in groups]
        expected = tuple(rank - first for rank in self.expected if 0 <= rank - first < count)
        return replace(
            self, **columns, groups=tuple(groups), behind=own(self.behind),
            doubtful=own(self.doubtful), processes=own(self.processes),
            progress={group: own(ranks) for group, ranks in self.progress.items()},
            unjoined=frozenset(own(dict.fromkeys(self.unjoined))),
            called={key: own(ranks) for key, ranks in self.called.items()}, expected=expected, jobs=(),
        )  # fmt: skip


@dataclass
class CallBuilder:
    """Collects a CallTable row by row; rows that say nothing are counted.

    Attributes: `used`, `skipped`: records by their format, and by why not; `behind`, `unplaced`, `doubtful`,
    `progress`, `called`, `partial`, `unjoined`, `jobs`, `processes` and `notes` as CallTable;
    `expected`, ranks that the job has, whether they report or not; `same`: a group -> the one that it turned out to be.
    """

    used: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    behind: dict[int, str] = field(default_factory=dict)
    unplaced: dict[str, str] = field(default_factory=dict)
    doubtful: dict[int, str] = field(default_factory=dict)
    progress: dict[int, dict[int, Progress]] = field(default_factory=dict)
    called: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)
    partial: bool = False
    unjoined: set[int] = field(default_factory=set)
    jobs: tuple[tuple[str, int, int], ...] = ()
    processes: dict[int, Process] = field(default_factory=dict)
    expected: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    groups: list[RankSet] = field(default_factory=list)
    same: dict[int, int] = field(default_factory=dict)
    _group_of: dict[Hashable, int] = field(default_factory=dict)
    _name_of: dict[str, int] = field(default_factory=dict)
    _whole: tuple[array[int], ...] = field(default_factory=lambda: tuple(array("q") for _ in range(7)))
    _real: tuple[array[float], array[float]] = field(default_factory=lambda: (array("d"), array("d")))
    _compute: array[float] = field(default_factory=lambda: array("d"))
    _steps: array[float] = field(default_factory=lambda: array("d"))
    _dropped: list[tuple[int, int]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many calls were taken."""
        return len(self._real[0])

    def drop(self, first: int, stop: int) -> None:
        """Leave calls [first, stop) out of the table."""
        self._dropped.append((first, stop))

    def group(self, key: Hashable, name: str, size: int = 0, ranks: Iterable[int] = ()) -> int:
        """The index of the group that `key` stands for, made at first sight; more is learnt of it as it is told."""
        index = self._group_of.get(key)
        if index is None:
            index = self._group_of[key] = len(self.groups)
            self.groups.append(RankSet(name))
        known = self.groups[index]
        known.size = max(known.size, size)
        known.ranks = known.ranks or tuple(ranks)
        return index

    def add(
        self, rank: int, group: int, name: str, number: int, peer: int, nbytes: int, start_s: float, took_s: float,
        state: int = DONE,
    ) -> None:  # fmt: skip
        """Take a call, values as CallTable's columns; one that did not end has no end, one of no length is refused."""
        if not (isnan(took_s) or 0.0 <= took_s < LONGEST_S):
            self.skipped["a time that is no number, or negative"] += 1
            return
        code = self._name_of.setdefault(name, len(self._name_of))
        for column, value in zip(self._whole, (rank, group, code, number, peer, nbytes, state), strict=True):
            column.append(value)
        self._real[0].append(start_s if abs(start_s) < float("inf") else nan)
        self._real[1].append(took_s)

    def add_all(
        self, names: Sequence[str], name: NDArray[np.int64], rank: NDArray[np.int64], group: NDArray[np.int64],
        number: NDArray[np.int64], peer: NDArray[np.int64], nbytes: NDArray[np.int64],
        start_s: NDArray[np.float64], took_s: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Take calls that have ended, as `add` does one by one; `name` counts in `names`."""
        import numpy as np

        fits = np.isnan(took_s) | ((took_s >= 0.0) & (took_s < LONGEST_S))
        if not fits.all():
            self.skipped["a time that is no number, or negative"] += int((~fits).sum())
        codes = np.array([self._name_of.setdefault(text, len(self._name_of)) for text in names], np.int64)
        whole = (rank, group, codes[name], number, peer, nbytes, np.full(len(name), DONE))
        for column, values in zip(self._whole, whole, strict=True):
            column.frombytes(values[fits].astype(np.int64).tobytes())
        self._real[0].frombytes(np.where(np.isfinite(start_s), start_s, nan)[fits].tobytes())
        self._real[1].frombytes(took_s[fits].tobytes())

    def add_compute(self, rank: int, start_s: float, took_s: float) -> None:
        """Take a span in which `rank` computed."""
        if 0.0 <= took_s < LONGEST_S and abs(start_s) < float("inf"):
            self._compute.extend((rank, start_s, took_s))
        else:
            self.skipped["a time that is no number, or negative"] += 1

    def add_step(self, rank: int, step: int, start_s: float, took_s: float) -> None:
        """Take a step that a profiler marked; `step` is -1 where its number is none."""
        if step >= 0 and 0.0 <= took_s < LONGEST_S and abs(start_s) < float("inf"):
            self._steps.extend((rank, step, start_s, took_s))
        else:
            self.skipped["a step without its number or its times"] += 1

    def table(self) -> CallTable:
        """Return all that was taken. The columns are the builder's own memory, so that nothing more can be taken."""
        import numpy as np

        whole = [np.frombuffer(column, np.int64) for column in self._whole]
        times = [np.frombuffer(column, np.float64) for column in self._real]
        if self._dropped:
            kept = np.ones(self.rows, np.bool_)
            for first, stop in self._dropped:
                kept[first:stop] = False
            whole, times = [column[kept] for column in whole], [column[kept] for column in times]
        rank, group, name, number, peer, nbytes, state = whole
        if self.same:
            group = np.array([self.same.get(index, index) for index in range(len(self.groups))], np.int64)[group]
            for index, other in self.same.items():
                self.progress.setdefault(other, {}).update(self.progress.pop(index, {}))
                for key in [key for key in self.called if key[0] == index]:
                    self.called.setdefault((other, key[1]), {}).update(self.called.pop(key))
        start_s, took_s = times
        members = {member for one in self.groups for member in one.ranks}
        expected = tuple(sorted(self.expected | members | set(np.unique(rank).tolist())))
        compute, steps = (np.array(a).reshape(-1, n) for a, n in ((self._compute, 3), (self._steps, 4)))
        return CallTable(
            rank, group, name, number, peer, nbytes, start_s, took_s, state, tuple(self.groups), tuple(self._name_of),
            compute, steps, self.behind, self.unplaced, self.doubtful, self.progress, self.called, self.partial,
            frozenset(self.unjoined), self.jobs, self.processes, expected, self.used, self.skipped, tuple(self.notes),
        )  # fmt: skip


def whole(value: Any, default: int = -1) -> int:
    """`value` as an int where it is a number or digits; else `default`."""
    # No bool; and asked first, since it is so a million times.
    if type(value) is int:
        return value if -(1 << 62) < value < 1 << 62 else default
    if isinstance(value, float):
        return int(value) if not isnan(value) and abs(value) < 1 << 53 else default
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) < 19:
        return int(value)
    return default


def real(value: Any, scale: float = 1.0) -> float:
    """`value` times `scale` where it is a number, infinite where it is too large for a float; else NaN."""
    try:
        return value * scale if isinstance(value, (int, float)) and not isinstance(value, bool) else nan
    except OverflowError:
        return inf


def rank_told(*values: Any) -> int:
    """The first of `values` that is a rank of a job's; -1 where none is."""
    return next((rank for rank in map(whole, values) if 0 <= rank < MOST_RANKS), -1)


def size_told(value: Any) -> int:
    """`value` as the ranks that a job or group has; 0 where it is no number, or more than any has."""
    size = whole(value)
    return size if 0 < size <= MOST_RANKS else 0


def ranks_in(value: Any) -> tuple[int, ...]:
    """Ranks from a list, or its text such as "[0, 1]"; empty where it is neither."""
    if isinstance(value, str):
        words = value.strip().strip("[]").replace(",", " ").split()
        value = [int(word) for word in words] if all(word.isdecimal() and len(word) < 10 for word in words) else ()
    if isinstance(value, (list, tuple)):
        found = tuple(whole(one) for one in value)
        return found if all(one >= 0 for one in found) else ()
    return ()
