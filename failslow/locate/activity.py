"""A Trace from calls alone: what each rank computed in each step is the time between its calls.

Formats that clusters write tell calls, not operations. Clocks of ranks need not agree: only times of one rank's clock
are subtracted. Who computes for which replica and stage follows from who sends to whom; steps from the call that comes
once in each, by its number, so that lost rows move nothing. In a pipeline the time before a message forward is that
microbatch's forward, and before a message backward its backward; the last stage's two are told by their sum. Where
there are no messages a step's compute is one operation, and locate() is told so by `coarse`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from lanterne.failslow.evidence.comparison import PERSISTENT
from lanterne.failslow.locate.formats.foreign_calls import DONE, CallTable
from lanterne.failslow.locate.trace import LEAST_TOLD, Trace, filled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lanterne.failslow.locate.replay import Array, Operation, StageLink


# A label marks steps where most ranks have it, so often.
MARKED_STEPS = 4
TOGETHER_S = 2e-5  # chosen: calls that begin within it are posted together
WAITING = 0.1  # chosen: share of the time between calls by which a send lasts longer that waits
# chosen: times as far that compute is from usual when told from the beginnings of sends that wait, if these do not
# block
STEADIER = 0.995
MAX_STEPS = 512  # chosen: of more steps several are one, by their medians, as what is slow for long shows there too
TOLD_BY = 64  # chosen: messages that a step begins with, of which those of two steps are compared


# Of a forward and a backward with no message between them: a backward takes twice a forward.
SHARES = {"F": 1 / 3, "B": 2 / 3}


@dataclass(frozen=True, eq=False)
class Activity:
    """What calls tell of compute: a Trace of it, or why there is none (`why`); `notes` on how it was come by."""

    trace: Trace | None
    why: str
    notes: tuple[str, ...]


def activity(table: CallTable) -> Activity:
    """The Activity of calls. Cost: 0.5 s for 10^6 calls."""
    import numpy as np

    known = np.isfinite(table.start_s) & np.isfinite(table.took_s) & (table.state == DONE)
    if not known.any():
        return Activity(None, "no record has both a beginning and a duration", ())
    free_s = table.start_s + np.where(_started_sends(table, known), 0.0, table.took_s)
    layout = _layout(table)
    ranks = layout.ravel()
    stepped = _steps(table, known)
    if stepped is None:
        return Activity(None, "no collective recurs on most ranks: steps are not known", ())
    ids, bounds = stepped
    if layout.shape[1] > 1:
        if not len(table.steps):
            bounds = _with_lost_ends(bounds, layout)
        return _pipeline(table, known, free_s, ids, bounds, layout)
    compute_s = np.full((len(ids), len(ranks)), np.nan)
    for column, rank in enumerate(ranks.tolist()):
        if rank in bounds:
            found = _kernels(table, rank, bounds[rank], ids)
            compute_s[:, column] = _gaps(table, known, free_s, rank, bounds[rank], ids) if found is None else found
    return _activity(ids, layout, [compute_s[:, :, None]], [(("F", 0, 0),)], {}, coarse=True)


def _activity(
    ids: NDArray[np.int64], layout: NDArray[np.int64], compute_s: list[Array], order: list[tuple[Operation, ...]],
    links: dict[StageLink, Array], coarse: bool,
    split: tuple[frozenset[int], ...] = (),
) -> Activity:  # fmt: skip
    """The Activity of (S, D, operations) seconds of each stage, NaN where not known, which is filled in."""
    import numpy as np

    if (block := -(-len(ids) // MAX_STEPS)) > 1:
        ids, compute_s = ids[::block], [_thinned(durations, block) for durations in compute_s]
        links = {link: _thinned(alone, block) for link, alone in links.items()}
    for durations in compute_s:
        # What takes no time is no compute: a call was still on when the next began.
        durations[durations <= TOGETHER_S] = np.nan
    told = np.stack([np.isfinite(durations).mean(axis=2) for durations in compute_s], axis=2)
    # A step that most ranks lack, as the first or the last, is none.
    whole = np.median(told, axis=(1, 2)) >= LEAST_TOLD
    replicas = (told[whole].mean(axis=0) >= LEAST_TOLD).all(axis=1) if whole.any() else np.zeros(len(layout), bool)
    if not replicas.any():
        return Activity(None, "no step is told by most ranks with the calls around it", ())
    compute_s = [durations[whole][:, replicas] for durations in compute_s]
    known = tuple(np.isfinite(durations) for durations in compute_s)
    links = {link: alone[whole][:, replicas] for link, alone in links.items()}
    out = layout[~replicas].ravel().tolist()
    notes = (f"the replicas of ranks {out[:8]} are left out: they tell too little",) if out else ()
    whole_s = tuple(filled(compute_s, order))
    trace = Trace(
        ids[whole], layout[replicas], tuple(order), whole_s, links, {}, notes, coarse=coarse, known=known, split=split
    )
    return Activity(trace, "", notes)


def _layout(table: CallTable) -> NDArray[np.int64]:
    """(D, P) ranks: those that send to each other are a pipeline, in the order of their numbers."""
    import numpy as np

    ranks = np.unique(table.rank)
    root = {rank: rank for rank in ranks.tolist()}

    def find(rank: int) -> int:
        while root[rank] != rank:
            root[rank] = rank = root[root[rank]]
        return rank

    pairs = np.unique(np.stack([table.rank, table.peer])[:, table.peer >= 0], axis=1)
    for one, other in pairs.T.tolist():
        if one in root and other in root:
            low, high = sorted((find(one), find(other)))
            root[high] = low
    chains: dict[int, list[int]] = {}
    for rank in ranks.tolist():
        chains.setdefault(find(rank), []).append(rank)
    lengths = [len(chain) for chain in chains.values()]
    usual = max(set(lengths), key=lambda length: (lengths.count(length) * length, length), default=0)
    return np.array([chain for chain in chains.values() if len(chain) == usual], np.int64).reshape(-1, usual)


def _steps(table: CallTable, known: NDArray[np.bool_]) -> tuple[NDArray[np.int64], dict[int, Array]] | None:
    """(numbers of steps, rank -> rows of (step, begin_s, end_s)); None where nothing tells them."""
    import numpy as np

    if len(table.steps):
        spans = table.steps
        found = {
            int(rank): np.stack([own[:, 1], own[:, 2], own[:, 2] + own[:, 3]], axis=1)
            for rank in np.unique(spans[:, 0])
            for own in [spans[spans[:, 0] == rank]]
        }
        return np.unique(spans[:, 1]).astype(np.int64), found
    marker = _marker(table, known)
    if marker is None:
        return None
    rows = np.flatnonzero(marker)
    step = _step_of(table, rows)
    ends = table.start_s[rows] + table.took_s[rows]
    found = {}
    for rank in np.unique(table.rank[rows]).tolist():
        own = np.flatnonzero(table.rank[rows] == rank)
        own = own[np.argsort(ends[own], kind="stable")]
        numbers, times = step[own], ends[own]
        whole = np.flatnonzero(np.diff(numbers) == 1)
        found[rank] = np.stack([numbers[whole + 1].astype(float), times[whole], times[whole + 1]], axis=1)
    ids = np.unique(np.concatenate([rows[:, 0] for rows in found.values()])).astype(np.int64)
    return (ids, found) if len(ids) else None


def _with_lost_ends(bounds: Mapping[int, Array], layout: NDArray[np.int64]) -> dict[int, Array]:
    """`bounds` with those of steps whose last call a rank lost: it ended when it did on the ranks of the same stage."""
    import numpy as np

    found = dict(bounds)
    for stage in layout.T.tolist():
        ranks = [rank for rank in stage if rank in bounds and len(bounds[rank])]
        if len(ranks) < 2:
            continue
        steps = np.unique(np.concatenate([bounds[rank][:, 0] - back for rank in ranks for back in (0, 1)]))
        ends = np.full((len(ranks), len(steps)), np.nan)
        for own_s, rank in zip(ends, ranks, strict=True):
            for back, column in ((1, 1), (0, 2)):
                own_s[np.searchsorted(steps, bounds[rank][:, 0] - back)] = bounds[rank][:, column]
        most = ends[np.argmax(np.isfinite(ends).sum(axis=1))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            shared_s = np.nanmedian(ends - np.nanmedian(ends - most, axis=1, keepdims=True), axis=0)
        for own_s, rank in zip(ends, ranks, strict=True):
            at = np.flatnonzero(np.isfinite(own_s - shared_s))
            if not len(at):
                continue
            # Its clock may go faster or slower than theirs.
            guess_s = shared_s + np.interp(steps, steps[at], (own_s - shared_s)[at])
            all_s = np.where(np.isfinite(own_s), own_s, guess_s)
            whole = np.flatnonzero((np.diff(steps) == 1) & (np.diff(all_s) > 0))
            found[rank] = np.stack([steps[whole + 1], all_s[whole], all_s[whole + 1]], axis=1)
    return found


def _marker(table: CallTable, known: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Rows of the collective that comes least often on most ranks, but not rarely: once a step."""
    import numpy as np

    collective = known & (table.peer < 0)
    sizes = np.array([group.size for group in table.groups] or [0], np.int64)
    label = table.name * (int(sizes.max()) + 1) + sizes[table.group]
    ranks = len(np.unique(table.rank))
    found: list[tuple[float, int, int]] = []
    for one in np.unique(label[collective]).tolist():
        rows = collective & (label == one)
        counts = np.unique(table.rank[rows], return_counts=True)[1]
        if len(counts) >= PERSISTENT * ranks and np.median(counts) >= MARKED_STEPS:
            size = int(sizes[table.group[np.argmax(rows)]])
            found.append((float(np.median(counts)), -size, one))
    if not found:
        return None
    # Of those that come as often (rows are lost), that of the largest group.
    least = min(found)[0]
    chosen = min((one for one in found if one[0] <= 1.25 * least), key=lambda one: (one[1], one[0]))
    marker: NDArray[np.bool_] = collective & (label == chosen[2])
    return marker


def _step_of(table: CallTable, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """The step of each marker row, equal on all ranks: by the call's number in its group, else by its order."""
    import numpy as np

    step = np.zeros(len(rows), np.int64)
    for group in np.unique(table.group[rows]).tolist():
        own = np.flatnonzero(table.group[rows] == group)
        numbers = table.number[rows[own]]
        if (numbers >= 0).all():
            distinct = np.unique(numbers)
            period = max(1, int(np.median(np.diff(distinct)))) if len(distinct) > 1 else 1
            step[own] = (numbers - int(np.bincount(distinct % period).argmax())) // period
            step[own] -= step[own].min()
        else:
            for rank in np.unique(table.rank[rows[own]]).tolist():
                mine = own[table.rank[rows[own]] == rank]
                step[mine[np.argsort(table.start_s[rows[mine]], kind="stable")]] = np.arange(len(mine))
    return step


def _kernels(table: CallTable, rank: int, bounds: Array, ids: NDArray[np.int64]) -> Array | None:
    """Seconds of compute kernels in each step; None where the rank told none."""
    import numpy as np

    own = table.compute[table.compute[:, 0] == rank]
    if not len(own):
        return None
    order = np.argsort(own[:, 1], kind="stable")
    total = np.concatenate(([0.0], np.cumsum(own[order, 2])))
    first, last = (np.searchsorted(own[order, 1], bounds[:, k]) for k in (1, 2))
    found = np.full(len(ids), np.nan)
    found[np.searchsorted(ids, bounds[:, 0].astype(np.int64))] = total[last] - total[first]
    return np.where(found > 0, found, np.nan)


def _started_sends(table: CallTable, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The sends, where ranks go on while they last; else none.

    A rank that goes on computes as long whether its send waits or not, so that where it waits the time from its
    beginning to the next call is nearer to what is usual where it does not than that from its end.
    """
    import numpy as np

    started = np.zeros(len(known), bool)
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((table.start_s[rows], table.rank[rows]))]
    start_s, rank, end_s = table.start_s[rows], table.rank[rows], table.start_s[rows] + table.took_s[rows]
    codes = [code for code, name in enumerate(table.names) if "send" in name.lower() and "recv" not in name.lower()]
    is_send = (table.peer[rows] >= 0) & np.isin(table.name[rows], codes)
    if not is_send.any():
        return started
    # Those that are posted together begin together.
    batch = np.cumsum(np.append(True, (np.diff(start_s) > TOGETHER_S) | (np.diff(rank) != 0))) - 1
    at = np.flatnonzero(np.diff(batch, prepend=-1))
    received_s, to = start_s[at].copy(), np.full(len(at), -1)
    np.maximum.at(received_s, batch[~is_send], end_s[~is_send])
    np.maximum.at(to, batch[is_send], table.peer[rows[is_send]])
    low, high = _batch_numbers(table, rows, batch)
    follows = (np.diff(rank[at]) == 0) & (low[1:] >= 0) & (low[:-1] >= 0) & _follow_whole(low, high)[1:]
    own = np.flatnonzero(is_send & np.append(follows, False)[batch])
    begins_s, here = start_s[at], batch[own]
    # Between two batches a rank computes what it sends next: of the same rank and receiver as long.
    keys = np.stack([rank[own], to[here + 1]])
    over_s = received_s[here], np.maximum(received_s[here], end_s[own])
    if not len(own):
        return started
    both_s = [begins_s[here + 1] - free_s for free_s in over_s]
    waits = both_s[0] - both_s[1] > WAITING * np.median(both_s[0])
    spread_s = [_spread(keys, values, waits) for values in both_s]
    if spread_s[0] < STEADIER * spread_s[1]:
        started[rows[is_send]] = True
    return started


def _spread(keys: NDArray[np.int64], values: Array, waits: NDArray[np.bool_]) -> float:
    """The median distance of those values that `waits` from the median of those with the same column that do not.

    0 where nothing tells it.
    """
    import numpy as np

    _, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    free = np.flatnonzero(~waits)
    free = free[np.argsort(which[free], kind="stable")]
    usual = np.full(int(which.max()) + 1, np.nan)
    for part in np.split(free, np.flatnonzero(np.diff(which[free])) + 1) if len(free) else ():
        usual[which[part[0]]] = np.median(values[part])
    apart = np.abs(values - usual[which])[waits]
    apart = apart[np.isfinite(apart)]
    return float(np.median(apart)) if len(apart) else 0.0


def _calls_of(
    table: CallTable, known: NDArray[np.bool_], free_s: Array, rank: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """A rank's calls: (rows as they began, the batch that each is posted in, seconds before each batch).

    These are since all before it was over; NaN before the first.
    """
    import numpy as np

    rows = np.flatnonzero(known & (table.rank == rank))
    rows = rows[np.argsort(table.start_s[rows], kind="stable")]
    start_s, before_s = table.start_s[rows], np.maximum.accumulate(free_s[rows])
    first = np.append(True, np.diff(start_s) > TOGETHER_S)[: len(rows)]
    at = np.flatnonzero(first)
    return rows, np.cumsum(first) - 1, np.append(np.nan, np.maximum(0.0, start_s[at][1:] - before_s[at[1:] - 1]))


def _gaps(
    table: CallTable, known: NDArray[np.bool_], free_s: Array, rank: int, bounds: Array, ids: NDArray[np.int64]
) -> Array:
    """Seconds between the calls of `rank` in each step."""
    import numpy as np

    rows, batch, gaps_s = _calls_of(table, known, free_s, rank)
    if not len(rows):
        # A profiler tells its steps, but of no call when it was.
        return np.full(len(ids), np.nan)
    total = np.concatenate(([0.0], np.cumsum(np.nan_to_num(gaps_s))))
    starts_s = table.start_s[rows][np.append(True, np.diff(batch) > 0)]
    # A gap belongs to the step in which it ends.
    first, last = (np.searchsorted(starts_s, bounds[:, k], "left") for k in (1, 2))
    found = np.full(len(ids), np.nan)
    found[np.searchsorted(ids, bounds[:, 0].astype(np.int64))] = total[last] - total[first]
    return np.where(found > 0, found, np.nan)


def _thinned(values: Array, block: int) -> Array:
    """The medians of so many steps each."""
    import numpy as np

    padded = np.full((-(-len(values) // block) * block, *values.shape[1:]), np.nan)
    padded[: len(values)] = values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        median: Array = np.nanmedian(padded.reshape(-1, block, *values.shape[1:]), axis=1)
    return median


# -- pipelines


def _pipeline(
    table: CallTable, known: NDArray[np.bool_], free_s: Array, ids: NDArray[np.int64], bounds: Mapping[int, Array],
    layout: NDArray[np.int64],
) -> Activity:  # fmt: skip
    """The Activity of a pipeline, operation by operation."""
    import numpy as np

    replicas, stages = layout.shape
    sends = np.isin(table.name, [code for code, name in enumerate(table.names) if "send" in name.lower()])
    # (stage, replica) -> kind of operation -> (S, m) seconds of it.
    told: dict[tuple[int, int], dict[str, Array]] = {}
    for replica, chain in enumerate(layout.tolist()):
        for stage, rank in enumerate(chain):
            if rank in bounds and len(bounds[rank]):
                told[stage, replica] = _messages(table, known, free_s, sends, rank, stage, chain, bounds[rank], ids)
    counts = [found.shape[1] for kinds in told.values() for found in kinds.values()]
    if not counts:
        return Activity(None, "no message has its step", ())
    microbatches = int(np.median(counts))
    compute_s, order = [], []
    for stage in range(stages):
        operations = _one_f_one_b(stage, stages, microbatches)
        durations = np.full((len(ids), replicas, len(operations)), np.nan)
        last = stage == stages - 1
        for replica in range(replicas):
            kinds = told.get((stage, replica), {})
            for place, (kind, m, _) in enumerate(operations):
                known_s = kinds.get("FB" if last else kind)
                if known_s is not None and m < known_s.shape[1]:
                    durations[:, replica, place] = known_s[:, m] * (SHARES[kind] if last else 1.0)
        compute_s.append(durations)
        order.append(operations)
    first = _split(compute_s[0], compute_s[-1], order)
    split = (first, *[frozenset[int]()] * (stages - 2), frozenset(range(len(order[-1]))))
    links = {
        (boundary, direction): alone
        for boundary in range(stages - 1)
        for direction, step in (("forward", 1), ("backward", -1))
        if (alone := _alone(table, known, ids, bounds, layout, boundary, step)) is not None
    }
    return _activity(ids, layout, compute_s, order, links, coarse=False, split=split)


def _split(first: Array, last: Array, order: list[tuple[Operation, ...]]) -> frozenset[int]:
    """Split, in place, what the first stage did without a message between, as the last stage's microbatches are long.

    It sends nothing after a backward, so that the forward that follows is told with it, and by both of their messages.
    Gives the places that are split.
    """
    import numpy as np

    places: set[int] = set()
    weight = {m: last[:, :, i] for i, (kind, m, _) in enumerate(order[-1]) if kind == "F"}
    for i, (one, other) in enumerate(pairwise(order[0])):
        back, forward = first[:, :, i].copy(), first[:, :, i + 1].copy()
        both = np.isfinite(back) & np.isfinite(forward)
        if (one[0], other[0]) != ("B", "F") or (np.abs(back - forward)[both] <= 1e-6 * back[both]).mean() < 0.5:
            continue
        total = np.where(np.isfinite(back), back, forward)
        # Where the last stage lacks a microbatch, as is usual there.
        ratio = weight[other[1]] / weight[one[1]]
        told = ratio[np.isfinite(ratio)]
        ratio = np.where(np.isfinite(ratio), ratio, np.median(told) if len(told) else 1.0)
        share = 1 / (1 + SHARES["F"] / SHARES["B"] * ratio)
        first[:, :, i], first[:, :, i + 1] = share * total, (1 - share) * total
        places |= {i, i + 1}
    return frozenset(places)


def _messages(
    table: CallTable, known: NDArray[np.bool_], free_s: Array, sends: NDArray[np.bool_], rank: int, stage: int,
    chain: list[int], bounds: Array, ids: NDArray[np.int64],
) -> dict[str, Array]:  # fmt: skip
    """(S, m) seconds of the forwards "F", backwards "B" or, of the last stage, both "FB", of a rank's microbatches."""
    import numpy as np

    rows, batch, gaps_s = _calls_of(table, known, free_s, rank)
    if not len(rows):
        return {}
    spans = bounds[np.argsort(bounds[:, 1])]
    span = np.searchsorted(spans[:, 1], table.start_s[rows], "right") - 1
    inside = (span >= 0) & (table.start_s[rows] < spans[span, 2])
    step = np.searchsorted(ids, spans[span, 0].astype(np.int64))
    ahead, behind = stage + 1 < len(chain), stage > 0
    forward = (table.peer[rows] == chain[stage + 1]) if ahead else np.zeros(len(rows), bool)
    backward = (table.peer[rows] == chain[stage - 1]) if behind else np.zeros(len(rows), bool)
    is_send = sends[rows]

    def in_batch(chosen: NDArray[np.bool_], by: int) -> NDArray[np.bool_]:
        """For each call, whether one of `chosen` is in the batch `by` after its own."""
        has = np.zeros(batch[-1] + 2 + abs(by), bool)
        has[batch[chosen]] = True
        return has[np.maximum(batch + by, -1)]

    # A gap after a collective has more in it than one microbatch: what is between steps.
    low, high = _batch_numbers(table, rows, batch)
    # And one after a message that is lost has its waiting in it, or all that is between steps.
    begins = span[np.flatnonzero(np.diff(batch, prepend=-1))]
    whole = _follow_whole(low, high) & (np.diff(begins, prepend=-2) == 0)
    before_s = np.where(in_batch(table.peer[rows] >= 0, -1) & whole[batch], gaps_s[batch], np.nan)
    wanted: dict[str, tuple[NDArray[np.bool_], Array]] = {}
    if behind and ahead:
        wanted = {"F": (forward & is_send, before_s), "B": (backward & is_send, before_s)}
    elif behind:
        wanted = {"FB": (backward & is_send, before_s)}
    else:
        # The first stage sends nothing after a backward; what follows is a message, but for the step's last.
        after_s = np.append(np.where(whole, gaps_s, np.nan), np.nan)[batch + 1]
        wanted = {"F": (forward & is_send, before_s), "B": (forward & ~is_send, after_s)}
    found: dict[str, Array] = {}
    for kind, (chosen, seconds) in wanted.items():
        at = np.flatnonzero(chosen & inside)
        if len(at):
            index = _index(low[batch[at]], step[at])
            if kind == "B" and not behind:
                # What follows a backward is a message, or after the last the same collective in every step.
                final = index == index.max(initial=0)
                after = np.append(table.name[rows[np.flatnonzero(np.diff(batch, prepend=-1))]], -1)[batch[at] + 1]
                usual = np.bincount(after[final] + 1).argmax() - 1
                index = np.where(np.where(final, after == usual, in_batch(table.peer[rows] >= 0, 1)[at]), index, -1)
            at, index = at[index >= 0], index[index >= 0]
            found[kind] = np.full((len(ids), int(index.max(initial=0)) + 1), np.nan)
            found[kind][step[at], index] = seconds[at]
    return found


def _batch_numbers(table: CallTable, rows: NDArray[np.intp], batch: NDArray[np.intp]) -> NDArray[np.int64]:
    """(2, batches): the lowest and the highest number of a rank's messages in each batch, -1 where none is told."""
    import numpy as np

    numbers = np.where(table.peer[rows] >= 0, table.number[rows], -1)
    none = 1 << 62
    low, high = np.full(int(batch[-1]) + 1, none), np.full(int(batch[-1]) + 1, -1)
    np.minimum.at(low, batch, np.where(numbers >= 0, numbers, none))
    np.maximum.at(high, batch, numbers)
    return np.stack([np.where(low == none, -1, low), high])


def _follow_whole(low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each batch, whether nothing is lost between it and the one before, nor of that one's beginning."""
    import numpy as np

    before = np.append(-1, high[:-1])
    whole: NDArray[np.bool_] = (low < 0) | (before < 0) | (low <= before + 1)
    whole[1:] &= whole[:-1].copy()
    return whole


def _index(numbers: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of its step's messages each is, by its batch's number, which tells where one is lost.

    Where there are no numbers, by their order.
    """
    import numpy as np

    order = np.argsort(step, kind="stable")
    count = np.empty(len(step), np.int64)
    count[order] = np.arange(len(step)) - np.searchsorted(step[order], step[order])
    period = 0 if (numbers < 0).any() else _period(numbers, step)
    if period < 1:
        return count
    # A message has the same place in every step's numbers, or one more, where what was posted with it is lost: no step
    # has both.
    at = numbers % period
    _, which = np.unique(step, return_inverse=True)
    seen = np.zeros((int(which.max()) + 1, period), bool)
    seen[which, at] = True
    # In a row from one on that follows none.
    found = np.flatnonzero(seen.any(axis=0))
    begins = int(np.argmax(np.diff(found, prepend=found[-1] - period) > 1))
    owner, own = np.arange(period), int(found[begins]) - 2
    for place in np.roll(found, -begins).tolist():
        if (place - own) % period != 1 or (seen[:, place] & seen[:, own]).any():
            own = place
        owner[place] = own
    places = np.unique(owner[found])
    # The step's first is the one after the longest stretch of numbers of others.
    turn = int(np.argmax(np.diff(np.append(places, places[0] + period)))) + 1
    index: NDArray[np.int64] = (np.searchsorted(places, owner[at]) - turn) % len(places)
    return index


def _period(numbers: NDArray[np.int64], step: NDArray[np.int64]) -> int:
    """By how much messages' numbers grow from step to step, as most of those that recur do; 0 where none recurs.

    The first of a step would tell it, too, but it may be lost.
    """
    import numpy as np

    # In the order of their beginnings: those that a step begins with say enough.
    steps = [(one, numbers[step == one][:TOLD_BY]) for one in np.unique(step).tolist()]
    grown = [
        (ahead // (later - one))[ahead % (later - one) == 0]
        for (one, own), (later, other) in pairwise(steps)
        for ahead in [np.subtract.outer(other, own).ravel()]
    ]
    periods, votes = np.unique(np.concatenate([np.empty(0, np.int64), *grown]), return_counts=True)
    return int(periods[votes.argmax()]) if len(periods) else 0


def _one_f_one_b(stage: int, stages: int, microbatches: int) -> tuple[Operation, ...]:
    warmup = min(stages - stage - 1, microbatches)
    order: list[Operation] = [("F", m, 0) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order += [("F", warmup + m, 0), ("B", m, 0)]
    return (*order, *(("B", m, 0) for m in range(microbatches - warmup, microbatches)))


def _alone(
    table: CallTable, known: NDArray[np.bool_], ids: NDArray[np.int64], bounds: Mapping[int, Array],
    layout: NDArray[np.int64], boundary: int, step: int,
) -> Array | None:  # fmt: skip
    """(S, D) seconds of the shortest message of each step: it waited for nobody. None where ranks have none."""
    import numpy as np

    sender = boundary if step == 1 else boundary + 1
    seen = np.full((2, len(ids), len(layout)), np.nan)
    for replica, chain in enumerate(layout.tolist()):
        ends = (chain[sender], chain[sender + step])
        for end, (rank, peer, word) in enumerate(((*ends, "send"), (*reversed(ends), "recv"))):
            codes = [code for code, name in enumerate(table.names) if word in name.lower()]
            rows = np.flatnonzero(known & (table.rank == rank) & (table.peer == peer) & np.isin(table.name, codes))
            if not len(rows) or rank not in bounds or not len(bounds[rank]):
                continue
            spans = bounds[rank][np.argsort(bounds[rank][:, 1])]
            span = np.searchsorted(spans[:, 1], table.start_s[rows], "right") - 1
            at = np.minimum(np.searchsorted(ids, spans[span, 0].astype(np.int64)), len(ids) - 1)
            inside = (span >= 0) & (table.start_s[rows] < spans[span, 2]) & (ids[at] == spans[span, 0])
            np.fmin.at(seen[end, :, replica], at[inside], table.took_s[rows[inside]])
    # Where one end lacks a step, the other's may all have waited for it.
    both = np.isfinite(seen).any(axis=1).all(axis=0)
    alone = np.where(both, np.minimum(*seen), np.fmin(*seen))
    lacking = np.isnan(alone)
    if lacking.all(axis=0).any():
        return None
    return np.where(lacking, np.nanmedian(alone, axis=0), alone)
