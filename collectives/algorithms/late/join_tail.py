"""The last q - 1 rounds of late_join: every early rank receives one chunk that it lacks in each, and then lacks none.

In roles at the last exchange; chunk tau is the one exchanged tau rounds before it. Role e lacks tau exactly if
a((e + tau) mod N) > tau. A round is one minimum-cost flow on classes of alike ranks, so its size hardly grows with n:

    what a receiver lacks  ->  chunk tau  ->  what a sender holds

The costs keep the next rounds possible: rare chunks first (-n/(holders + k) for the k-th further copy), and not to
receivers that already hold other scarce ones, since each rank sends only one chunk a round. A chunk that y ranks hold
must be with n / 2^(rounds left) after the round, or doubling cannot finish it.
"""

import random
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.ir import Ints

# Of each round: source role, destination role, tau of every copy; role N is the late rank.
Tail: TypeAlias = list[tuple[Ints, Ints, Ints]]

_SCALE = 10_000


def find_tail(age: Ints, seed: int) -> Tail | None:
    """The tail for ages a(d), or None if this seed finds none."""
    early = len(age)
    world_size = early + 1
    rounds_left = (world_size - 1).bit_length() - 1
    lacked = lacked_after_injection(age)
    noise = random.Random(seed)
    tail = []
    while rounds_left:
        rounds_left -= 1
        found = _tail_round(lacked, world_size, rounds_left, noise)
        if found is None:
            return None
        _, receivers, taus = found
        lacked[receivers] &= ~(1 << taus)
        tail.append(found)
    return tail if not lacked.any() else None


def lacked_after_injection(age: Ints) -> Ints:
    """(N,) bit masks: bit tau is set where the role lacks chunk tau."""
    early = len(age)
    roles = np.arange(early)
    lacked = np.zeros(early, np.int64)
    for tau in range(int(age.max())):
        lacked |= (age[(roles + tau) % early] > tau).astype(np.int64) << tau
    return lacked


def chunk_scarcity(holders: Ints, world_size: int) -> NDArray[np.float64]:
    """How much each holder of a chunk is needed to send it next, at most 1: array, like `holders`."""
    doubled = np.minimum(world_size, 2 * holders)
    return np.minimum(1.0, (world_size - doubled) / doubled)


def _tail_round(
    lacked: Ints, world_size: int, rounds_left: int, noise: random.Random
) -> tuple[Ints, Ints, Ints] | None:
    """One round (sources, destinations, taus) from the masks `lacked`, or None."""
    early = len(lacked)
    chunks = [tau for tau in range(int(lacked.max()).bit_length()) if (lacked >> tau & 1).any()]
    holders = {tau: world_size - int((lacked >> tau & 1).sum()) for tau in chunks}
    distinct, class_of = np.unique(lacked, return_inverse=True)
    counts: list[int] = np.bincount(class_of).tolist()
    masks: list[int] = distinct.tolist()
    arcs = _Arcs()
    source, sink = arcs.node(), arcs.node()
    receiver = [arcs.node() for _ in masks]
    sender = [*(arcs.node() for _ in masks), arcs.node()]
    into = {tau: arcs.node() for tau in chunks}
    out = {tau: arcs.node() for tau in chunks}
    scarcity = dict(zip(chunks, chunk_scarcity(np.array([holders[tau] for tau in chunks]), world_size), strict=True))
    for i, (mask, count) in enumerate(zip(masks, counts, strict=True)):
        arcs.add(source, receiver[i], count)
        arcs.add(sender[i], sink, count)
        held = sum(scarcity[tau] for tau in chunks if not mask >> tau & 1)
        for tau in chunks:
            if mask >> tau & 1:
                arcs.add(receiver[i], into[tau], count, scarcity[tau] * held * (1 + 0.05 * noise.random()))
            else:
                arcs.add(out[tau], sender[i], count)
    arcs.add(sender[-1], sink, 1)
    for tau in chunks:
        arcs.add(out[tau], sender[-1], 1)
        y = holders[tau]
        needed = max(0, -(-world_size // 2**rounds_left) - y)
        most = min(y, world_size - y)
        if needed > most:
            return None
        arcs.add(into[tau], out[tau], needed, -1000.0)
        copies = np.arange(needed + 1, most + 1)
        arcs.add_many(into[tau], out[tau], -world_size / (y + copies))
    flow = arcs.solve(source, sink, early)
    if flow is None:
        return None
    gained = {tau: sum(flow.get((node, into[tau]), 0) for node in receiver) for tau in chunks}
    if any((holders[tau] + gained[tau]) * 2**rounds_left < world_size for tau in chunks):
        return None
    members = np.split(np.argsort(class_of, kind="stable"), np.cumsum(counts)[:-1])
    to = {tau: _take(members, [flow.get((node, into[tau]), 0) for node in receiver]) for tau in chunks}
    members = [*np.split(np.argsort(class_of, kind="stable"), np.cumsum(counts)[:-1]), np.array([early])]
    by = {tau: _take(members, [flow.get((out[tau], node), 0) for node in sender]) for tau in chunks}
    taus = np.repeat(chunks, [len(to[tau]) for tau in chunks])
    return np.concatenate(list(by.values())), np.concatenate(list(to.values())), taus


def _take(members: list[Ints], counts: list[int]) -> Ints:
    """The first counts[i] of members[i], for all i, in one array; they leave `members`."""
    taken = [roles[:count] for roles, count in zip(members, counts, strict=True)]
    members[:] = [roles[count:] for roles, count in zip(members, counts, strict=True)]
    return np.concatenate(taken)


class _Arcs:
    """A flow problem under construction: arcs (tail, head, capacity, unit cost)."""

    def __init__(self) -> None:
        self._nodes = 0
        self._columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])

    def node(self) -> int:
        """A new node."""
        self._nodes += 1
        return self._nodes - 1

    def add(self, tail: int, head: int, capacity: int, cost: float = 0.0) -> None:
        """One arc."""
        for column, value in zip(self._columns, (tail, head, capacity, int(_SCALE * cost)), strict=True):
            column.append(value)

    def add_many(self, tail: int, head: int, costs: NDArray[np.float64]) -> None:
        """Parallel arcs of capacity 1, one for each of `costs`."""
        values = (
            [tail] * len(costs),
            [head] * len(costs),
            [1] * len(costs),
            (_SCALE * costs).astype(np.int64).tolist(),
        )
        for column, more in zip(self._columns, values, strict=True):
            column.extend(more)

    def solve(self, source: int, sink: int, amount: int) -> dict[tuple[int, int], int] | None:
        """The flow {(tail, head): units} of least cost that carries `amount`, or None where so much cannot flow."""
        from ortools.graph.python import min_cost_flow

        tails, heads, capacities, costs = self._columns
        problem: Any = min_cost_flow.SimpleMinCostFlow()
        arcs = problem.add_arcs_with_capacity_and_unit_cost(tails, heads, capacities, costs)
        problem.set_node_supply(source, amount)
        problem.set_node_supply(sink, -amount)
        if problem.solve() != problem.OPTIMAL:
            return None
        flow: dict[tuple[int, int], int] = {}
        for tail, head, units in zip(tails, heads, problem.flows(arcs).tolist(), strict=True):
            if units:
                flow[tail, head] = flow.get((tail, head), 0) + units
        return flow
