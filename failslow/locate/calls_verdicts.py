"""Who is slow or missing, from what clusters write of their calls: verdicts on a CallTable.

First who has not come: a call that others are in, which some rank never began; then what makes steps long (locate.py,
on an Activity); then who always comes last, where only durations are known: in a collective the late rank's is the
shortest, on whatever clock. A rank that wrote nothing is a suspect. Where nothing can be told, a verdict of cause
"none" says what would tell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lanterne.failslow.evidence.comparison import MIN_STEPS, worst_span
from lanterne.failslow.evidence.progress import Progress, Stall, oldest_call, roots, stall
from lanterne.failslow.locate.activity import Activity, activity
from lanterne.failslow.locate.formats.foreign_calls import DONE, CallTable, Process
from lanterne.failslow.locate.locate import (
    MIN_SAVING,
    Verdict,
    least_group_seen,
    locate,
    silent,
    slow_group,
    slow_groups,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


WAIT_SHARE = 0.1  # chosen: share of their time that the others wait for a late rank
PARTS = 16  # of the time, in which waits are compared
SILENT_SHARE = 0.25  # chosen: of more the records were not made, rather than the ranks lost


NEEDS = (
    "beginnings and durations of calls, which tell who computes slowly: NCCL_INSPECTOR_DUMP_VERBOSE=1, "
    "TORCH_NCCL_ENABLE_TIMING=1, or a torch.profiler trace of some steps on every rank"
)


UNJOINED = "records of a process with several GPUs do not tell which one they are of"


def diagnose(table: CallTable) -> tuple[list[Verdict], list[str]]:
    """Return (verdicts, notes) on calls of all ranks. Cost: 2 s for 10^6 calls.

    Ranks of each of several jobs are numbered from 0; their evidence has the `job`.
    """
    if table.jobs:
        parts = [(name, *diagnose(table.job(first, count))) for name, first, count in table.jobs]
        verdicts = [replace(one, evidence={**one.evidence, "job": name}) for name, found, _ in parts for one in found]
        named = [verdict for verdict in verdicts if verdict.cause != "none"]
        return named or verdicts, [f"job {name}: {note}" for name, _, notes in parts for note in notes]
    missing = _missing(table) + _unplaced(table)
    read = _read(table)
    unread = [rank for rank in table.expected if rank not in read]
    silent = _silent(table, unread)
    found, notes = activity(table), []
    if table.unjoined:
        # A call of an unknown rank looks like computing.
        found = Activity(None, UNJOINED, ())
    slow: list[Verdict] = []
    healthy: list[Verdict] = []
    groups, group_seen = _groups(table)
    if found.trace is not None:
        slow = locate(found.trace)
        healthy = [verdict for verdict in slow if verdict.cause == "none"]
        slow = slow[len(healthy) :]
        shape = f"{len(found.trace.steps)} steps of {found.trace.replicas} replicas x {found.trace.stages} stages"
        notes += [f"{shape}, from the calls alone: what varies inside a step is not known", *found.notes]
    elif not table.unjoined:
        # Whoever is in a slow group comes late to others.
        slow_groups_of = {rank for one in groups for rank in one.ranks}
        slow = [one for one in _late(table) if slow_groups_of.isdisjoint(one.ranks)]
    verdicts = [*missing, *slow, *groups, *silent]
    if not verdicts:
        needs, why = NEEDS, found.why
        if unread and (table.state != DONE).any():
            shown = ", ".join(map(str, unread[:8])) + (", ..." if len(unread) > 8 else "")
            needs = f"what ranks {shown} wrote, which tells whom calls wait for"
            why = "of too many ranks nothing was read"
        elif table.unjoined:
            needs = "records of one process for each GPU, or of communicators that have all GPUs of their processes"
        lacking = [needs] if why else []
        about: dict[str, Any] = {"calls": len(table.rank), "needs": why and needs}
        for verdict in healthy:
            lacking += verdict.missing
            about |= verdict.evidence
        if group_seen > 1.0 and "least_slowdown" in about:
            about["least_slowdown"] |= {"group": group_seen}
        verdicts = [Verdict("none", (), None, 0.0, about, not lacking, tuple(lacking))]
        notes += [f"{why}: {needs}"] if why else []
    return [_named(verdict, table) for verdict in verdicts], notes


def _named(verdict: Verdict, table: CallTable) -> Verdict:
    """With hosts, processes and GPUs of its ranks, where they are known."""
    places = {str(rank): vars(table.processes.get(rank, Process())) for rank in verdict.ranks[:64]}
    known = {rank: about for rank, about in places.items() if any(value is not None for value in about.values())}
    evidence = {**verdict.evidence, **({"places": known} if known else {})}
    return replace(verdict, evidence=evidence)


def _missing(table: CallTable) -> list[Verdict]:
    """Return the ranks that others wait for in a call, or that their source reports as lost."""
    behind: dict[int, str] = dict(table.behind)
    waits: dict[int, set[int]] = {}
    ties: set[int] = set()
    for group, ranks in _progress(table).items():
        names = _called(table, group, oldest_call(ranks))
        found = stall(ranks, names, _is_rooted([*names.values()]))
        if found is None:
            continue
        for rank in found.waiting:
            # Without anybody to name, it waits for an unknown rank.
            waits.setdefault(rank, set()).update(found.behind or (-1,))
        name, of, what = next(iter(names.values()), "call").partition(" of ")
        call = f"{name} {found.number}{of}{what} in group {table.groups[group].name}"
        ties |= set(found.behind) if found.is_tie else set()
        for rank in found.behind:
            behind.setdefault(rank, _because(rank, found, call, names, ranks[rank]))
    for rank, peer in _unanswered(table):
        waits.setdefault(rank, set()).add(peer)
        if peer >= 0:
            behind.setdefault(peer, f"rank {rank} waits for a message with it that it has not begun")
    # A rank that waits for others, or for an unknown one, is named only where nobody else can be.
    ends = roots(behind, waits)
    named = tuple(sorted({rank for rank in ends if rank in table.behind or not waits.get(rank)} or ends))
    if not named:
        return []
    about = {"state": "missing", "missing": [{"rank": rank, "because": behind[rank]} for rank in named]}
    lacking = {table.doubtful[rank] for rank in named if rank in table.doubtful}
    if any(waits.get(rank) for rank in named) or not ties.isdisjoint(named):
        lacking.add("the programs of these ranks: no majority tells which of them is wrong")
    return [Verdict("worker", named, None, 0.0, about, not lacking, tuple(sorted(lacking)))]


def _unplaced(table: CallTable) -> list[Verdict]:
    """Return what is known of processes whose ranks are not."""
    if not table.unplaced:
        return []
    about = [{"rank": None, "process": process, "because": because} for process, because in table.unplaced.items()]
    lacking = ("which ranks of the job these processes are: a RAS document in JSON has all of them",)
    return [Verdict("worker", (), None, 0.0, {"state": "missing", "missing": about}, False, lacking)]


def _because(rank: int, found: Stall, call: str, names: Mapping[int, str], progress: Progress) -> str:
    """Return in words why `rank` is behind."""
    if found.kind == "missing":
        last = f"its last there is {progress.begun}" if progress.begun > 0 else "no call of it there is recorded"
        return f"it has not begun {call}; {last}"
    if found.kind == "inside":
        return f"it is held in {call}, which others have finished"
    others = sorted({name for other, name in names.items() if other != rank and name != names[rank]})
    where = f"as call {found.number} of group {call.rpartition(' in group ')[2]}"
    return f"it called {names[rank]} where others called {', '.join(others[:3])}, {where}"


def _is_rooted(names: Sequence[str]) -> bool:
    """Return whether a call may be over on one rank before another has begun it."""
    plain = {name.lower().strip("_").partition(" ")[0] for name in names}
    rooted = ("broadcast", "scatter", "gather")
    return any(name.startswith(rooted) or name in ("reduce", "_reduce_oop") for name in plain)


def _progress(table: CallTable) -> dict[int, dict[int, Progress]]:
    """Return the Progress of each rank in each group in which a call is not over."""
    import numpy as np

    found: dict[int, dict[int, Progress]] = {}
    read = _read(table)
    rows = np.flatnonzero((table.peer < 0) & (table.number >= 0))
    pending = table.state[rows] != DONE
    told = {group for group, ranks in table.progress.items() if any(one.begun > one.finished for one in ranks.values())}
    for group in sorted(set(np.unique(table.group[rows][pending]).tolist()) | told):
        own = rows[table.group[rows] == group]
        ranks = dict(table.progress.get(group, {}))
        for rank in set(np.unique(table.rank[own]).tolist()) - ranks.keys():
            numbers, are_done = table.number[own], table.state[own] == DONE
            its = table.rank[own] == rank
            begun, left = int(numbers[its].max()), numbers[its & ~are_done]
            ranks[rank] = Progress(int(left.min()) - 1 if len(left) else begun, begun)
        # Nothing is known of ranks that wrote nothing.
        for rank in set(table.groups[group].ranks) & read - ranks.keys():
            ranks[rank] = Progress(0, 0)
        found[group] = ranks
    return found


def _called(table: CallTable, group: int, number: int) -> dict[int, str]:
    """Return what each rank called as call `number` of `group`."""
    import numpy as np

    rows = np.flatnonzero((table.peer < 0) & (table.group == group) & (table.number == number))
    names = {int(table.rank[row]): table.names[table.name[row]] for row in rows.tolist()}
    told = table.called.get((group, number), {})
    # In as many words only where all are told in these.
    return told if told.keys() >= names.keys() else names


def _unanswered(table: CallTable) -> list[tuple[int, int]]:
    """Return (rank, peer): `rank` is in a message with `peer`, which has not begun its own side; -1 if nobody knows.

    Where records go back to the first message, all of them are counted. Elsewhere only receives that are not over can
    be compared: of sends the receiver may have finished its side.
    """
    import numpy as np

    rows = np.flatnonzero(table.peer >= 0)
    if not (table.state[rows] != DONE).any():
        return []
    is_send = np.array(["send" in name.lower() for name in table.names])[table.name[rows]]
    begun: Counter[tuple[int, int, bool]] = Counter()
    left: Counter[tuple[int, int, bool]] = Counter()
    columns = (table.rank[rows], table.peer[rows], is_send, table.state[rows] != DONE)
    for rank, peer, sends, is_open in zip(*(column.tolist() for column in columns), strict=True):
        begun[rank, peer, sends] += 1
        left[rank, peer, sends] += is_open
    lowest = {
        rank: int(table.number[rows][table.rank[rows] == rank].min()) for rank in np.unique(table.rank[rows]).tolist()
    }
    read = _read(table)
    found = []
    for (rank, peer, sends), count in left.items():
        if not count:
            continue
        if peer not in read:
            found.append((rank, -1))
            continue
        is_whole = lowest[rank] in (0, 1) and lowest.get(peer, 1) in (0, 1)
        other = peer, rank, not sends
        if begun[rank, peer, sends] > begun[other] if is_whole else not sends and count > left[other]:
            found.append((rank, peer))
    return found


def _read(table: CallTable) -> set[int]:
    """The ranks of which something was read, or whose source says that they are lost."""
    return set(table.rank.tolist()) | set(table.processes) | set(table.behind)


def _silent(table: CallTable, unread: Sequence[int]) -> list[Verdict]:
    """The ranks of which nothing was read, where they are few, or a single one."""
    if not unread or table.partial or len(unread) > max(1, SILENT_SHARE * len(table.expected)):
        return []
    because = "nothing of it was read: lost, or the one that all wait for; its host's own records would tell"
    return [silent(tuple(unread), because)]


def _groups(table: CallTable) -> tuple[list[Verdict], float]:
    """Return verdicts on groups whose collectives are slower than those of their copies, and what would have been seen.

    The latter is the times its copies from which on any group would be slow, 0.0 where none is compared.

    Copies make the same call of as many bytes, and their ranks are as far apart from each other.
    """
    import numpy as np

    total_s = float(np.nanmax(_span_s(table), initial=0.0))
    found: dict[int, Verdict] = {}
    seen = 0.0
    for (name, *_), copies in _copies(table).items():
        calls = min(map(len, copies.values()))
        if len(copies) < 2 or calls < MIN_STEPS:
            continue
        alone_s = np.stack([seconds[:calls] for seconds in copies.values()], axis=1)
        if np.median(alone_s, axis=1).sum() < MIN_SAVING * total_s or not (alone_s > 0).all():
            continue
        groups = list(copies)
        seen = max(seen, least_group_seen(alone_s))
        for place, steps, effect in slow_groups(alone_s):
            saved_s = float(alone_s[steps, place].sum() * (1 - np.exp(-effect)))
            ranks = table.groups[groups[place]].ranks
            one = slow_group(ranks, None, saved_s / total_s if total_s else 0.0, name, alone_s, effect)
            about = {"group": table.groups[groups[place]].name, "copies": len(copies)}
            one = replace(one, evidence=one.evidence | about)
            if groups[place] not in found or found[groups[place]].saving < one.saving:
                found[groups[place]] = one
    return list(found.values()), seen


def _copies(table: CallTable) -> dict[tuple[Any, ...], dict[int, NDArray[np.float64]]]:
    """Return (call, bytes, how its ranks lie) -> group -> seconds of each of its calls, waiting excluded.

    A call counts where all ranks of its group have recorded it.
    """
    import numpy as np

    rows = np.flatnonzero((table.peer < 0) & (table.number >= 0) & np.isfinite(table.took_s) & (table.state == DONE))
    rows = rows[np.lexsort((table.number[rows], table.nbytes[rows], table.name[rows], table.group[rows]))]
    keys = np.stack([column[rows] for column in (table.group, table.name, table.nbytes, table.number)])
    first = np.flatnonzero(np.append(True, (np.diff(keys, axis=1) != 0).any(axis=0))[: len(rows)])
    counts = np.diff(np.append(first, len(rows)))
    found: dict[tuple[Any, ...], dict[int, NDArray[np.float64]]] = {}
    if not len(rows):
        return found
    alone_s = np.minimum.reduceat(table.took_s[rows], first)
    sizes = np.array([len(group.ranks) for group in table.groups])[keys[0, first]]
    whole = (counts == sizes) & (sizes > 1)
    series, which = np.unique(keys[:3, first[whole]], axis=1, return_inverse=True)
    for index, (group, name, nbytes) in enumerate(series.T.tolist()):
        ranks = table.groups[group].ranks
        key = table.names[name], nbytes, tuple(rank - ranks[0] for rank in ranks)
        found.setdefault(key, {})[group] = alone_s[whole][which.reshape(-1) == index]
    return found


def _span_s(table: CallTable) -> NDArray[np.float64]:
    """Return the seconds from each rank's first call to its last."""
    import numpy as np

    told = np.isfinite(table.start_s)
    found = np.full((2, 1 + int(table.rank.max(initial=0))), np.nan)
    np.fmin.at(found[0], table.rank[told], table.start_s[told])
    np.fmax.at(found[1], table.rank[told], table.start_s[told])
    spans: NDArray[np.float64] = found[1] - found[0]
    return spans


def _late(table: CallTable) -> list[Verdict]:
    """Return the rank that all others wait for: for a span of the time it waits least itself, in all its groups.

    A rank that another one makes late comes last, too, but has waited for that one elsewhere.
    """
    import numpy as np

    waits_s, usual_s = _waits_s(table)
    if len(waits_s) < 2:
        return []
    ranks, by_part_s = np.array(list(waits_s)), np.stack([*waits_s.values()])
    found = []
    for place in np.unique(by_part_s.argmin(axis=0)).tolist():
        others_s = np.delete(by_part_s, place, axis=0)
        apart_s = others_s.mean(axis=0) - by_part_s[place]
        is_least = by_part_s[place] <= others_s.min(axis=0)
        if (span := worst_span(is_least & (apart_s >= WAIT_SHARE * usual_s))) is not None:
            share = float(apart_s[slice(*span)].sum() / others_s.mean(axis=0)[slice(*span)].sum())
            told_s = float(apart_s[slice(*span)].mean())
            evidence = {"state": "late", "last_arriver_share": share, "others_wait_s": told_s}
            # What the step would gain is not known: only what others spend waiting.
            found.append((span[1] - span[0], Verdict("worker", (int(ranks[place]),), None, 0.0, evidence)))
    return [max(found, key=lambda pair: pair[0])[1]] if found else []


def _waits_s(table: CallTable) -> tuple[dict[int, NDArray[np.float64]], float]:
    """Return rank -> seconds that it waits in a call of each of its groups, in each part of the time; and their usual.

    A call counts where all ranks of its group have recorded it: the shortest waits for nobody.
    """
    import numpy as np

    rows = np.flatnonzero((table.peer < 0) & (table.number >= 0) & np.isfinite(table.took_s) & (table.state == DONE))
    rows = rows[np.lexsort((table.number[rows], table.group[rows]))]
    found: dict[int, NDArray[np.float64]] = {}
    usual: dict[int, float] = {}
    for group in np.unique(table.group[rows]).tolist():
        own = rows[table.group[rows] == group]
        _, call, counts = np.unique(table.number[own], return_inverse=True, return_counts=True)
        whole = counts >= max(2, table.groups[group].size)
        if whole.sum() < PARTS:
            continue
        shortest_s = np.full(len(counts), np.inf)
        np.minimum.at(shortest_s, call, table.took_s[own])
        part = (np.cumsum(whole) - 1) * PARTS // whole.sum()
        own, call = own[whole[call]], call[whole[call]]
        for rank in np.unique(table.rank[own]).tolist():
            its = table.rank[own] == rank
            seconds, parts = (table.took_s[own] - shortest_s[call])[its], part[call][its]
            sums = np.bincount(parts, seconds, PARTS) / np.maximum(np.bincount(parts, minlength=PARTS), 1)
            found[rank] = found.get(rank, np.zeros(PARTS)) + sums
            usual[rank] = usual.get(rank, 0.0) + float(table.took_s[own][its].mean())
    return found, float(np.median([*usual.values()])) if usual else 0.0
