"""Proved lower bounds on the makespan of every plan of a problem on a placement, whatever its order, parts and fusing.

Heads. Consider the k-th F, B or W *to end* on a stage. When it ends, k pieces of that kind have ended there, so have k
of each kind they need, there and on the stages before; and the rank has worked on all of them. So it ends no earlier
than the earliest time by which one machine can do those of the stage, each after its release, even if it may interrupt
them. The release of a k-th piece is the end of the k-th of what it needs, after the message; with memory for C
activations that of the k-th F is also the end of the (k - C)-th W, and the stages of one rank share their memory.
Microbatches need not pass in one order for that, only be counted.

Tails. The same with time reversed: what must follow the k-th last piece.

Bound. On each rank, the pieces with their heads and tails are a one-machine problem; its preemptive optimum (Jackson's
rule) is at most the makespan. So is that of the messages on each link, and of a rank's data-parallel communication.
"""

from functools import lru_cache
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import NamedTuple

import numpy as np

from .action import KINDS
from .costs import costs

F, B, W = (KINDS.index(kind) for kind in ("F", "B", "W"))


class Bounds(NamedTuple):
    """What limits a problem on a placement; `lower_bound` is the largest of them.

    Attributes:
        work: (num_ranks,) by rank: heads, all its work, tails; memory is in the heads and tails.
        link: (num_links,) the same for the messages of each link that takes time.
        lane: (num_ranks,) the same for the data-parallel communication of each rank.
    """

    work: tuple
    link: tuple
    lane: tuple

    @property
    def lower_bound(self):
        return max(*self.work, *self.link, *self.lane)


def lower_bound(problem, placement):
    """A makespan that no plan of `problem` on `placement` can be below."""
    return bounds(problem, placement).lower_bound


@lru_cache(maxsize=64)
def bounds(problem, placement):
    """The Bounds of `problem` on `placement`.

    Cost: some 5 ms for 8 ranks x 32 microbatches, 0.5 s for 64 x 256.
    """
    table = costs(problem, placement)
    work = [[] for _ in range(placement.num_ranks)]
    link = [[] for _ in range(table.num_links)]
    lane = [[] for _ in range(placement.num_ranks)]
    for route in range(placement.num_routes):
        stages = np.arange(placement.route_length) + route * placement.route_length
        count = len(placement.microbatches_of(stages[0], problem.microbatches))
        if count:
            _add_route(table, stages, count, work, link, lane)
    return Bounds(*(tuple(map(preemptive_makespan, jobs)) for jobs in (work, link, lane)))


def _add_route(table, stages, count, work, link, lane):
    """Append the (head, duration, tail) of all pieces and messages of one route to the lists of their rank or link."""
    at = {kind: table.id(kind, stages, 0) for kind in (F, B, W)}
    duration = {kind: table.duration[at[kind]] for kind in at}
    occupancy, latency = ({kind: column[at[kind]] for kind in (F, B)} for column in (table.occupancy, table.latency))
    up, down = _Chain(+1, occupancy[F], latency[F]), _Chain(-1, occupancy[B], latency[B])
    levels = [(duration[F], up), (duration[B], down), (duration[W], None)]
    ahead = _releases(levels, table.all_gather[stages], _memory(table, stages, count, is_reversed=False), count)
    # Reversed, W comes first and F last, and messages go the other way, each kept by the stage that now sends it.
    back_up, back_down = _Chain(+1, *_shifted(down)), _Chain(-1, *_shifted(up))
    levels = [(duration[W], None), (duration[B], back_up), (duration[F], back_down)]
    behind = _releases(levels, table.reduce[stages], _memory(table, stages, count, is_reversed=True), count)
    for level, kind in enumerate((F, B, W)):
        heads, tails = ahead[level], behind[2 - level][:, ::-1]
        for i, stage in enumerate(stages.tolist()):
            rank = table.stage_rank[stage]
            work[rank] += zip(heads[i].tolist(), [float(duration[kind][i])] * count, tails[i].tolist(), strict=True)
            if kind == F:
                lane[rank].append((0.0, float(table.all_gather[stage]), float(duration[F][i] + tails[i, 0])))
            if kind == W:
                lane[rank].append((float(heads[i, -1] + duration[W][i]), float(table.reduce[stage]), 0.0))
    for kind, step in ((F, 1), (B, -1)):
        for i, stage in enumerate(stages.tolist()):
            used = table.link[table.id(kind, stage, 0)]
            if used >= 0:
                heads = ahead[kind][i] + duration[kind][i]
                tails = behind[2 - kind][i + step, ::-1] + duration[kind][i + step] + latency[kind][i]
                link[used] += zip(heads.tolist(), [float(occupancy[kind][i])] * count, tails.tolist(), strict=True)


class _Memory(NamedTuple):
    """How memory couples the pieces of a route: by stage, in the order of the route.

    A microbatch holds F or F + B of memory on a stage, whichever is less, from F until its W ends there, and the larger
    of them until its B ends, if B gives memory back, or from B on, if it takes some.

    Attributes:
        room: (num_stages,) int, microbatches that can hold the lesser amount at once.
        more_room: (num_stages,) int, the same for the larger.
        taker, giver: (num_stages,) int, levels of the pieces between whose start and end it is held.
        before: for each stage that is not its rank's first, the rank's stages up to it.
        level: of the piece that cannot start on such a stage before its microbatch holds memory on all of them.
    """

    room: np.ndarray
    more_room: np.ndarray
    taker: np.ndarray
    giver: np.ndarray
    before: dict
    level: int

    def freed(self, level, k, ends):
        """(num_stages,) float64: when memory lets the k-th piece (from 0) of `level` start.

        Args:
            ends: (3, num_stages, count) float64, of the pieces by level, known up to the k-th.

        Of j stages that hold memory for k + 1 microbatches, less those that have ended on each, at least j (k + 1) -
        room must have ended, and at most k can have on each.
        """
        times = np.zeros(len(self.room))
        if level == 0:
            waits = np.flatnonzero(k >= self.room)
            times[waits] = ends[2, waits, k - self.room[waits]]
        waits = np.flatnonzero((self.taker == level) & (k >= self.more_room))
        times[waits] = np.maximum(times[waits], ends[self.giver[waits], waits, k - self.more_room[waits]])
        if level == self.level:
            for stage, own in self.before.items():
                nth = min(len(own) * (k + 1) - self.room[stage], len(own) * k) - 1
                if nth >= 0:
                    times[stage] = max(times[stage], np.partition(ends[2, own, :k].reshape(-1), nth)[nth])
        return times


def _memory(table, stages, count, is_reversed):
    limits, rank = table.problem.limits, table.stage_rank[stages]
    share = np.array(table.placement.shares())[stages]
    after_f = np.array(limits.forward)[rank]
    after_b = after_f + np.array(limits.backward_input)[rank]
    gives = after_b < after_f
    held_until_b, held_from_b = (0, 1), (1, 2)
    if is_reversed:
        held_until_b, held_from_b = held_from_b, held_until_b
    taker, giver = (np.where(gives, until, since) for until, since in zip(held_until_b, held_from_b, strict=True))
    capacity = np.array(limits.capacity)[rank] * share
    before = {i: np.flatnonzero(rank[: i + 1] == rank[i]) for i in range(len(stages))}
    return _Memory(
        _room(capacity, np.minimum(after_f, after_b), count * share),
        _room(capacity, np.maximum(after_f, after_b), count * share),
        taker,
        giver,
        {i: own for i, own in before.items() if len(own) > 1},
        level=1 if is_reversed else 0,
    )


def _room(capacity, held, enough):
    """How often `held` fits in `capacity`, at most `enough`: with so much even all of a rank's stages never wait."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.floor(capacity / held * (1 + 1e-9))
    return np.where(np.isfinite(room), np.minimum(room, enough), enough).astype(int)


class _Chain(NamedTuple):
    """Messages from each stage to the one `step` (1 or -1) further: link time and latency, (num_stages,) by sender."""

    step: int
    occupancy: np.ndarray
    latency: np.ndarray


def _shifted(chain):
    """Occupancy and latency of `chain` with time reversed: by the stage that received them."""
    return np.roll(chain.occupancy, chain.step), np.roll(chain.latency, chain.step)


def _releases(levels, first, memory, count):
    """The release of the k-th piece of each level on each stage.

    Args:
        levels: three (duration, _Chain or None); a piece needs that of the level before on its stage, and of its own
            level along the chain.
        first: (num_stages,) release of everything at level 0.
        memory: the _Memory that pieces of level 0 take and pieces of level 2 give back.
        count: pieces per stage and level.

    Returns:
        (3, num_stages, count) float64.
    """
    stages = len(first)
    releases, ends = np.zeros((3, stages, count)), np.zeros((3, stages, count))
    machines = [_Machines(stages, (level + 1) * count) for level in range(3)]
    link_free = np.full((3, stages), -np.inf)
    for k in range(count):
        ready = first
        for level, (duration, chain) in enumerate(levels):
            ready = np.maximum(ready, memory.freed(level, k, ends))
            busy = machines[level].finish()
            release, end, link_free[level] = _along(chain, ready, busy, duration, link_free[level])
            releases[level, :, k], ends[level, :, k] = release, end
            for machine in machines[level:]:
                machine.add(release, duration)
            ready = np.maximum(end, machines[level].finish())
            ends[level, :, k] = ready
    return releases


def _along(chain, ready, busy, duration, link_free):
    """Release and end of one piece on every stage, where each needs the one before it along `chain`.

    An end is max(ready, busy, end before + message) + duration; solved for all stages at once, because less the sum
    of what lies before the stage it is a running maximum.
    """
    if chain is None:
        return ready, np.maximum(ready, busy) + duration, link_free
    forth = slice(None, None, chain.step)
    duration, ready, busy, link_free = duration[forth], ready[forth], busy[forth], link_free[forth]
    occupancy, latency = chain.occupancy[forth][:-1], chain.latency[forth][:-1]
    message = occupancy + latency
    ready = ready.copy()
    ready[1:] = np.maximum(ready[1:], link_free[1:] + message)
    before = np.cumsum(np.concatenate(([0.0], message))) + np.cumsum(duration)
    end = np.maximum.accumulate(np.maximum(ready, busy) + duration - before) + before
    release = ready
    release[1:] = np.maximum(ready[1:], end[:-1] + message)
    link_free = link_free.copy()
    link_free[1:] = np.maximum(link_free[1:], end[:-1]) + occupancy
    return release[forth], end[forth], link_free[forth]


class _Machines:
    """One machine per stage that must do all pieces added so far, each after its release, interruptions allowed.

    It ends at the largest, over releases h, of h plus the work released at h or later. `through` holds these less
    `added`, all work so far, so that a piece changes only what was released after it.
    """

    def __init__(self, stages, size):
        self.release = np.full((size, stages), -np.inf)
        self.work = np.zeros((size, stages))
        self.through = np.full((size, stages), -np.inf)
        self.added = np.zeros(stages)
        self.used = 0

    def add(self, release, duration):
        """One more piece per stage."""
        n = self.used
        later = self.release[:n] > release
        self.through[n] = release - self.added
        if later.any():
            self.through[:n] -= later * duration
            self.through[n] += (later * self.work[:n]).sum(axis=0)
        self.added += duration
        self.release[n], self.work[n] = release, duration
        self.used = n + 1

    def finish(self):
        """(num_stages,) float64."""
        return self.through[: self.used].max(axis=0, initial=-np.inf) + self.added


def preemptive_makespan(jobs):
    """The least possible largest end + tail on one machine that may interrupt its jobs; exact, by Jackson's rule.

    Args:
        jobs: (head, duration, tail) tuples.

    Cost: O(n log n).
    Paper: Carlier 1982, section 2.
    """
    jobs = sorted(jobs)
    now, best, waiting, coming = 0.0, 0.0, [], 0
    while waiting or coming < len(jobs):
        if not waiting:
            now = max(now, jobs[coming][0])
        while coming < len(jobs) and jobs[coming][0] <= now:
            _, duration, tail = jobs[coming]
            heappush(waiting, (-tail, duration))
            coming += 1
        minus_tail, left = waiting[0]
        until = jobs[coming][0] if coming < len(jobs) else inf
        if now + left > until:
            heapreplace(waiting, (minus_tail, left - (until - now)))
            now = until
        else:
            heappop(waiting)
            now += left
            best = max(best, now - minus_tail)
    return best
