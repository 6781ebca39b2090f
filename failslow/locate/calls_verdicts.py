"""Who is slow or missing, from what clusters write of their calls: verdicts on a CallTable.

First who has not come: a call that others are in, which some rank never began; then what makes steps long (locate.py,
on an Activity); then who always comes last, where only durations are known: in a collective the late rank's is the
shortest, on whatever clock. A rank that wrote nothing is a suspect. Where nothing can be told, a verdict of cause
"none" says what would tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lanterne.failslow.locate.activity import activity
from lanterne.failslow.locate.formats.foreign_calls import DONE, CallTable, Process
from lanterne.failslow.locate.locate import Verdict, locate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


LAST_SHARE = 0.8  # chosen: share of the calls that a blamed rank comes last to
WAIT_SHARE = 0.1  # chosen: share of their time that the others wait for it
LEAST_CALLS = 5
REGULAR = 0.7  # chosen: share of the calls that a blamed rank comes last to, of those as far apart as most that it does
SILENT_SHARE = 0.25  # chosen: of more the records were not made, rather than the ranks lost


NEEDS = (
    "beginnings and durations of calls tell who computes slowly: NCCL_INSPECTOR_DUMP_VERBOSE=1, "
    "TORCH_NCCL_ENABLE_TIMING=1, or a torch.profiler trace of some steps on every rank"
)


def diagnose(table: CallTable) -> tuple[list[Verdict], list[str]]:
    """(verdicts, notes) on calls of all ranks. Cost: 2 s for 10^6 calls."""
    missing = _missing(table)
    read = _read(table)
    unread = [rank for rank in table.expected if rank not in read]
    silent = _silent(table, unread)
    found, notes = activity(table), []
    slow: list[Verdict] = []
    if found.trace is not None:
        slow = [verdict for verdict in locate(found.trace) if verdict.cause != "none"]
        shape = f"{len(found.trace.steps)} steps of {found.trace.replicas} replicas x {found.trace.stages} stages"
        notes += [f"{shape}, from the calls alone: what varies inside a step is not known", *found.notes]
    if not slow:
        slow = _late(table)
    verdicts = [*missing, *slow, *silent]
    if not verdicts:
        needs, why = NEEDS, found.why
        if unread and (table.state != DONE).any():
            shown = ", ".join(map(str, unread[:8])) + (", ..." if len(unread) > 8 else "")
            needs = f"what ranks {shown} wrote would tell whom calls wait for"
            why = "of too many ranks nothing was read"
        verdicts = [Verdict("none", (), None, 0.0, {"calls": len(table.rank), "needs": why and needs})]
        notes += [f"{why}: {needs}"] if why else []
    return [_named(verdict, table) for verdict in verdicts], notes


def _named(verdict: Verdict, table: CallTable) -> Verdict:
    """With hosts, processes and GPUs of its ranks, where they are known."""
    places = {str(rank): vars(table.processes.get(rank, Process())) for rank in verdict.ranks[:64]}
    known = {rank: about for rank, about in places.items() if any(value is not None for value in about.values())}
    evidence = {**verdict.evidence, **({"places": known} if known else {})}
    return Verdict(verdict.cause, verdict.ranks, verdict.stage, verdict.saving, evidence)


def _missing(table: CallTable) -> list[Verdict]:
    """The ranks that others wait for in a call which they never began, or that their source says are lost."""
    import numpy as np

    behind: dict[int, str] = dict(table.behind)
    read = _read(table)
    collective = (table.peer < 0) & (table.number >= 0)
    waiting: set[int] = set()
    for group in np.unique(table.group[collective & (table.state != DONE)]).tolist():
        rows = np.flatnonzero(collective & (table.group == group))
        pending = rows[table.state[rows] != DONE]
        members = set(table.groups[group].ranks or np.unique(table.rank[rows]).tolist())
        reached = {rank: -1 for rank in members}
        for rank in np.unique(table.rank[rows]).tolist():
            reached[rank] = int(table.number[rows[table.rank[rows] == rank]].max())
        # The first call that does not end, of those that every rank has begun or not yet.
        number = int(table.number[pending].min())
        # Of whom nothing was read, it is not known what they came to.
        absent = sorted(rank for rank, last in reached.items() if last < number and rank in read)
        here = rows[table.number[rows] == number]
        names = {rank: table.names[table.name[row]] for row in here.tolist() for rank in [int(table.rank[row])]}
        waiting |= {int(rank) for rank in np.unique(table.rank[pending]).tolist()}
        told = f"{table.names[table.name[pending[0]]]} {number} of group {table.groups[group].name}"
        if absent and len(absent) < len(members):
            for rank in absent:
                behind.setdefault(rank, f"it has not come to {told}; its last there is {max(reached[rank], 0)}")
        elif len(set(names.values())) > 1:
            usual = max(set(names.values()), key=list(names.values()).count)
            odd = {rank: name for rank, name in names.items() if name != usual}
            behind |= {r: f"it called {name} where others called {usual}, as call {number}" for r, name in odd.items()}
    # Who itself waits in another call is not the one that others wait for, if there is one that does not.
    free = {rank: text for rank, text in behind.items() if rank not in waiting}
    behind = free or behind
    if not behind:
        return []
    ranks = tuple(sorted(behind))
    about = {"state": "missing", "missing": [{"rank": rank, "because": behind[rank]} for rank in ranks]}
    return [Verdict("worker", ranks, None, 0.0, about)]


def _read(table: CallTable) -> set[int]:
    """The ranks of which something was read, or whose source says that they are lost."""
    return set(table.rank.tolist()) | set(table.processes) | set(table.behind)


def _silent(table: CallTable, unread: Sequence[int]) -> list[Verdict]:
    """The ranks of which nothing was read, where they are few, or a single one."""
    if not unread or len(unread) > max(1, SILENT_SHARE * len(table.expected)):
        return []
    because = "nothing of it was read: lost, or the one that all wait for; its host's own records would tell"
    return [Verdict("worker", tuple(unread), None, 0.0, {"state": "silent", "because": because})]


def _late(table: CallTable) -> list[Verdict]:
    """The rank whose collectives are the shortest: all others wait for it."""
    import numpy as np

    rows = np.flatnonzero((table.peer < 0) & (table.number >= 0) & np.isfinite(table.took_s) & (table.state == DONE))
    rows = rows[np.lexsort((table.took_s[rows], table.number[rows], table.group[rows]))]
    if not len(rows):
        return []
    changes = (np.diff(table.group[rows]) != 0) | (np.diff(table.number[rows]) != 0)
    first = np.concatenate(([0], np.flatnonzero(changes) + 1))
    counts = np.diff(np.append(first, len(rows)))
    sizes = np.array([max(group.size, len(group.ranks)) for group in table.groups])[table.group[rows[first]]]
    # Lost rows may hide the shortest; of two ranks the one is as much late as the other waits.
    whole = (counts >= np.maximum(3, 0.8 * sizes)) if (counts > 2).any() else counts >= 2
    if not whole.any():
        return []
    took_s = table.took_s[rows]
    shortest_s, usual_s = took_s[first], took_s[first + counts // 2]
    wait_s, last = np.where(whole, usual_s - shortest_s, 0.0), table.rank[rows[first]]
    found = _latest(last, wait_s, usual_s, whole, rows[first], table)
    return [] if found is None else [found]


def _latest(
    last: NDArray[np.int64], wait_s: NDArray[np.float64], usual_s: NDArray[np.float64], whole: NDArray[np.bool_],
    rows: NDArray[np.intp], table: CallTable,
) -> Verdict | None:  # fmt: skip
    import numpy as np

    clear = whole & (wait_s > WAIT_SHARE * usual_s)
    ranks = np.unique(last[clear])
    shares = {rank: float(wait_s[clear & (last == rank)].sum() / wait_s[whole].sum()) for rank in ranks.tolist()}
    if not shares:
        return None
    rank = max(shares, key=shares.__getitem__)
    own = clear & (last == rank)
    groups = np.unique(table.group[table.rank == rank])
    cost = float(wait_s[own].sum() / max(usual_s[whole].sum(), 1e-30))
    if own.sum() < LEAST_CALLS or shares[rank] < LAST_SHARE or cost < WAIT_SHARE:
        return None
    judged = np.flatnonzero(whole)
    come, of = _recurring(table.group[rows[judged]], table.number[rows[judged]], own[judged])
    if come < LEAST_CALLS or come < REGULAR * of:
        return None
    evidence: dict[str, Any] = {
        "state": "late",
        "last_arriver_share": shares[rank],
        "calls": int(own.sum()),
        "others_wait_s": float(np.median(wait_s[own])),
        "groups": len(groups),
    }
    # What the step would gain is not known: only what others spend waiting.
    return Verdict("worker", (rank,), None, 0.0, evidence)


def _recurring(group: NDArray[np.int64], number: NDArray[np.int64], own: NDArray[np.bool_]) -> tuple[int, int]:
    """How many of the calls are `own`, and how many there are, of those as far apart as most own ones are.

    Of each group's, from its first own call to its last: as of a call that comes once a step.
    """
    import numpy as np

    come = of = 0
    for one in np.unique(group[own]).tolist():
        its, numbers = own[group == one], number[group == one]
        gaps, counts = np.unique(np.diff(np.sort(numbers[its])), return_counts=True)
        if len(gaps):
            places = numbers % int(gaps[counts.argmax()])
            place = int(np.bincount(places[its]).argmax())
            chosen = (places == place) & (numbers >= numbers[its].min()) & (numbers <= numbers[its].max())
            come, of = come + int((its & chosen).sum()), of + int(chosen.sum())
    return come, of
