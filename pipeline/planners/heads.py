"""How early the pieces of work on a route can be done at best: the recursion of bounds.py, which says why it holds.

A piece is the k-th F, B or W to end on a stage. Pieces come in three levels, each needing the level before: F, B, W, or
with time reversed W, B, F. All stages are computed at once, microbatch by microbatch.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.pipeline.plan.costs import Costs, Floats, Ints


class MessageChain(NamedTuple):
    """Messages from each stage to the one `step` (1 or -1) further: link time and latency, (num_stages,) by sender."""

    step: int
    occupancy: Floats
    latency: Floats


# Of a level: the duration of its pieces by stage, and the chain along which each needs the one before it, if any.
Level: TypeAlias = tuple[Floats, MessageChain | None]


def reversed_chain(chain: MessageChain) -> MessageChain:
    """`chain` with time reversed: messages go the other way, and each belongs to the stage that received it."""
    return MessageChain(-chain.step, np.roll(chain.occupancy, chain.step), np.roll(chain.latency, chain.step))


class RouteMemory(NamedTuple):
    """How memory couples the pieces of a route: by stage, in the order of the route.

    A microbatch holds F or F + B of memory on a stage, whichever is less, from F until its W ends there, and the larger
    of them until its B ends, if B gives memory back, or from B on, if it takes some.

    Attributes:
        room: (num_stages,), microbatches that can hold the lesser amount at once.
        more_room: (num_stages,), the same for the larger.
        taker, giver: (num_stages,), levels of the pieces between whose start and end it is held.
        before: for each stage that is not its rank's first, the rank's stages up to it.
        level: of the piece that cannot start on such a stage before its microbatch holds memory on all of them.
    """

    room: Ints
    more_room: Ints
    taker: Ints
    giver: Ints
    before: dict[int, Ints]
    level: int

    def freed(self, level: int, k: int, ends: Floats) -> Floats:
        """(num_stages,): when memory lets the k-th piece (from 0) of `level` start.

        Args:
            ends: (3, num_stages, count), of the pieces by level, known up to the k-th.

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


def memory_coupling(table: Costs, stages: Ints, count: int, *, is_reversed: bool) -> RouteMemory:
    """The RouteMemory of a route's `stages` with `count` microbatches, under the Costs `table`."""
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
    return RouteMemory(
        _room(capacity, np.minimum(after_f, after_b), count * share),
        _room(capacity, np.maximum(after_f, after_b), count * share),
        taker,
        giver,
        {i: own for i, own in before.items() if len(own) > 1},
        level=1 if is_reversed else 0,
    )


def _room(capacity: Floats, held: Floats, enough: Ints) -> Ints:
    """How often `held` fits in `capacity`, at most `enough`: with so much even all of a rank's stages never wait."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.floor(capacity / held * (1 + 1e-9))
    return np.where(np.isfinite(room), np.minimum(room, enough), enough).astype(int)


def releases_of(levels: Sequence[Level], first: Floats, memory: RouteMemory, rank: Ints, count: int) -> Floats:
    """The release of the k-th piece of each level on each stage: (3, num_stages, count).

    Args:
        levels: three; a piece needs that of the level before on its stage, and of its own level along the chain.
        first: (num_stages,) release of everything at level 0.
        memory: the RouteMemory that pieces of level 0 take and pieces of level 2 give back.
        rank: (num_stages,) the rank of each stage.
        count: pieces per stage and level.
    """
    stages = len(first)
    releases, ends = np.zeros((3, stages, count)), np.zeros((3, stages, count))
    others = _others_before(levels, rank)
    machines = [Machines(stages, (4 + sum(map(len, others[level]))) * count) for level in range(3)]
    link_free = np.full((3, stages), -np.inf)
    for k in range(count):
        _add_freed(machines, levels, memory, k, releases)
        ready = first
        for level, (duration, chain) in enumerate(levels):
            ready = np.maximum(ready, memory.freed(level, k, ends))
            busy = machines[level].finish()
            release, end, link_free[level] = _along(chain, ready, busy, duration, link_free[level])
            releases[level, :, k] = release
            for later in range(level, 3):
                machines[later].add(release, duration)
                for stage in others[later][level]:
                    machines[later].add(*_where(stage >= 0, release[stage], duration[stage]))
            ready = np.maximum(end, machines[level].finish())
            ends[level, :, k] = ready
    return releases


def _others_before(levels: Sequence[Level], rank: Ints) -> list[list[list[Ints]]]:
    """By level and by that of earlier pieces: which other stages of its rank have pieces that each of its pieces needs.

    Each is (num_stages,), -1 where a stage needs fewer.
    """
    stages = len(rank)
    found: list[list[list[Ints]]] = [[[] for _ in range(3)] for _ in range(3)]
    for level in range(3):
        for earlier in range(level + 1):
            steps = {chain.step for _, chain in levels[earlier : level + 1] if chain is not None}
            needed = [
                [
                    other
                    for other in np.flatnonzero(rank == rank[stage]).tolist()
                    if (other < stage and +1 in steps) or (other > stage and -1 in steps)
                ]
                for stage in range(stages)
            ]
            most = max(map(len, needed))
            padded = np.array([own + [-1] * (most - len(own)) for own in needed]).reshape(stages, most)
            found[level][earlier] = list(padded.T)
    return found


def _add_freed(
    machines: "Sequence[Machines]", levels: Sequence[Level], memory: RouteMemory, k: int, releases: Floats
) -> None:
    """The pieces that the k-th of level 0 must wait for to have memory: its rank has worked on those too."""
    nth = k - memory.room
    for level in (1, 2):
        freed = np.take_along_axis(releases[level], np.maximum(nth, 0)[:, None], axis=1)[:, 0]
        if (nth >= 0).any():
            for machine in machines[:level]:
                machine.add(*_where(nth >= 0, freed, levels[level][0]))


def _where(mask: NDArray[np.bool_], release: Floats, duration: Floats) -> tuple[Floats, Floats]:
    """Release and duration where there is a piece; elsewhere one that changes nothing."""
    return np.where(mask, release, -np.inf), np.where(mask, duration, 0.0)


def _along(
    chain: MessageChain | None, ready: Floats, busy: Floats, duration: Floats, link_free: Floats
) -> tuple[Floats, Floats, Floats]:
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


class Machines:
    """One machine per stage that must do all pieces added so far, each after its release, interruptions allowed.

    It ends at the largest, over releases h, of h plus the work released at h or later. `through` holds these less
    `added`, all work so far, so that a piece changes only what was released after it.
    """

    def __init__(self, stages: int, size: int) -> None:
        self.release: Floats = np.full((size, stages), -np.inf)
        self.work: Floats = np.zeros((size, stages))
        self.through: Floats = np.full((size, stages), -np.inf)
        self.added: Floats = np.zeros(stages)
        self.used: int = 0

    def add(self, release: Floats, duration: Floats) -> None:
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

    def finish(self) -> Floats:
        """(num_stages,): when each machine ends."""
        return self.through[: self.used].max(axis=0, initial=-np.inf) + self.added
