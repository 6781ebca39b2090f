"""A judge of the cost model that shares none of it: messages as flows that share links max-min fairly, event by event.

As in the model a rank is in its next round once its messages of this one are done, and a message starts when both its
ranks are there. Then it waits for the start-up times of the links that it crosses and flows at the rate that all flows
of that moment leave it. For hundreds of ranks in small schedules; the model prices the others.
"""

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.cost import chunk_nbytes
from lanterne.collectives.schedule.ir import REDUCE, CollectiveSchedule, Ints
from lanterne.collectives.topology.topology import Topology

Numbers = NDArray[np.float64]
# A flow with so small a part left is done.
DONE = 1e-9


def simulate_flows(
    schedule: CollectiveSchedule, nbytes: float, topology: Topology, start_s: Numbers | None = None
) -> Numbers:
    """When each rank is done, (world_size,) s.

    Args:
        nbytes: of the larger of a rank's two buffers.
        start_s: (world_size,) when each rank comes; None: all at 0.
    """
    p, unit = schedule.world_size, chunk_nbytes(schedule, nbytes)
    round_of = np.repeat(np.arange(schedule.num_rounds), np.diff(schedule.offsets))
    keys, inverse, chunks = np.unique(
        (round_of * p + schedule.src) * p + schedule.dst, return_inverse=True, return_counts=True
    )
    reduced = np.bincount(inverse, schedule.op == REDUCE, len(keys))
    at, src, dst = keys // p**2, keys // p % p, keys % p
    uses, alpha_s, capacity = _links(topology, src, dst)
    flows = _Flows(uses, np.asarray(chunks * unit, np.float64), capacity)
    # Of each rank its rounds in order, and of each (rank, round) its messages.
    messages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for message in range(len(keys)):
        for rank in (int(src[message]), int(dst[message])):
            messages[rank, int(at[message])].append(message)
    rounds: list[list[int]] = [[] for _ in range(p)]
    for rank, index in sorted(messages):
        rounds[rank].append(index)
    left = {place: len(listed) for place, listed in messages.items()}
    absent = np.full(len(keys), 2)
    finish_s = np.zeros(p) if start_s is None else np.array(start_s, float)
    # (time, 0, rank): it comes to its next round; (time, 1, message): its flow begins.
    events: list[tuple[float, int, int]] = [(float(time_s), 0, rank) for rank, time_s in enumerate(finish_s)]
    heapq.heapify(events)
    now_s = 0.0
    while events or flows.active:
        end_s, done = flows.next_end(now_s)
        if events and events[0][0] <= end_s:
            time_s, kind, number = heapq.heappop(events)
            flows.advance(time_s - now_s)
            now_s = time_s
            if kind:
                flows.begin(number)
                continue
            finish_s[number] = now_s
            if rounds[number]:
                for message in messages[number, rounds[number][0]]:
                    absent[message] -= 1
                    if not absent[message]:
                        heapq.heappush(events, (now_s + float(alpha_s[message]), 1, message))
            continue
        flows.advance(end_s - now_s)
        now_s = end_s
        for message in done:
            flows.end(message)
            for rank in (int(src[message]), int(dst[message])):
                place = rank, int(at[message])
                left[place] -= 1
                if not left[place]:
                    rounds[rank].pop(0)
                    added = sum(reduced[each] for each in messages[place] if dst[each] == rank)
                    heapq.heappush(events, (now_s + topology.gamma_s_per_byte * unit * float(added), 0, rank))
    return finish_s


def _links(topology: Topology, src: Ints, dst: Ints) -> tuple[list[list[int]], Numbers, Numbers]:
    """(the links of each message, its start-up time, the bytes per second of each link)."""
    uses: list[list[int]] = [[] for _ in src]
    alpha_s = np.zeros(len(src))
    capacity: list[float] = []
    for links, (mask, leaves, enters, size, slowdown) in zip(
        topology.links, topology.crossings(src.astype(np.int32), dst.astype(np.int32)), strict=True
    ):
        rate = 1 / np.maximum(slowdown * links.model.beta_s_per_byte, 1e-30)
        for side in (leaves, enters):
            for message, link in zip(np.flatnonzero(mask).tolist(), side.tolist(), strict=True):
                uses[message].append(len(capacity) + link)
            capacity += rate[:size].tolist()
        alpha_s[mask] += links.model.alpha_s
    return uses, alpha_s, np.array(capacity)


class _Flows:
    """The flows of a moment, and their rates."""

    def __init__(self, uses: list[list[int]], nbytes: Numbers, capacity: Numbers) -> None:
        self.active: list[int] = []
        self._uses, self._nbytes, self._capacity = uses, nbytes, capacity
        self._left = nbytes.astype(float)
        self._rate = np.zeros(len(uses))

    def begin(self, message: int) -> None:
        self.active.append(message)
        self._share()

    def end(self, message: int) -> None:
        self.active.remove(message)
        self._share()

    def advance(self, time_s: float) -> None:
        self._left[self.active] -= self._rate[self.active] * time_s

    def next_end(self, now_s: float) -> tuple[float, list[int]]:
        """(when the next flows end, which); infinity where none is active."""
        if not self.active:
            return float("inf"), []
        ends_s = np.maximum(self._left[self.active], 0) / self._rate[self.active]
        least_s = float(ends_s.min())
        near = ends_s <= least_s + DONE * self._nbytes[self.active] / self._rate[self.active]
        return now_s + least_s, [message for message, ends in zip(self.active, near, strict=True) if ends]

    def _share(self) -> None:
        """Max-min: the link with the least for each of its flows fixes their rates, then the next."""
        spare, waiting = self._capacity.copy(), set(self.active)
        users: dict[int, set[int]] = defaultdict(set)
        for message in self.active:
            for link in self._uses[message]:
                users[link].add(message)
        while waiting:
            rate, link = min((spare[link] / len(flows), link) for link, flows in users.items() if flows)
            for message in list(users[link]):
                self._rate[message] = rate
                waiting.discard(message)
                for used in self._uses[message]:
                    users[used].discard(message)
                    spare[used] = max(0.0, spare[used] - rate)
