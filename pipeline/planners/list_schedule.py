"""The event-driven list scheduler that ADAPTRA and CrossPipe's greedy share: the choice of an idle rank is theirs."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.pipeline.plan.action import KINDS, Action, dependencies
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.problem import Problem

F, B, W = (KINDS.index(kind) for kind in "FBW")

# Of a state and a rank: the (kind, stage) that is available and fits, or None to wait for the next event.
Choose: TypeAlias = "Callable[[ListState, int], tuple[int, int] | None]"
# By [kind][stage], what the end of an action lets start: (kind, stage, which of its needs that is).
Followers: TypeAlias = list[list[list[tuple[int, int, int]]]]


class ListState:
    """A pipeline in the middle of an iteration, as a rule sees it; the microbatches of a stage and kind go in order.

    Attributes, by [kind][stage], kind being F, B or W as an index of KINDS:
        ready, started: how many actions may start by now, and have started; W in pieces of which `parts[W]` make one.
        done: how many whole actions have ended.
        total: how many there will be, per stage.
    and, by rank: stages (those that it holds), used and capacity (memory), busy.
    """

    def __init__(self, problem: Problem, placement: Placement, weight_parts: int) -> None:
        tables = costs(problem, placement)
        stages, microbatches = placement.num_stages, problem.microbatches
        self.placement = placement
        self.parts: tuple[int, int, int] = (1, 1, weight_parts)
        self.rank_of: tuple[int, ...] = placement.stage_to_rank
        self.stages: list[tuple[int, ...]] = [placement.stages_of(rank) for rank in range(placement.num_ranks)]
        self.total: list[int] = [len(placement.microbatches_of(stage, microbatches)) for stage in range(stages)]
        self.ready: list[list[int]] = [[0] * stages for _ in (F, B, W)]
        self.started: list[list[int]] = [[0] * stages for _ in (F, B, W)]
        self.done: list[list[int]] = [[0] * stages for _ in (F, B, W)]
        self.capacity: list[float] = [value * (1 + 1e-9) for value in problem.limits.capacity]
        self.used: list[float] = [0.0] * placement.num_ranks
        self.busy: list[bool] = [False] * placement.num_ranks

        def per_stage(table: NDArray[Any]) -> list[list[Any]]:
            by_id = table.tolist()
            return [[by_id[tables.id(kind, stage, 0)] for stage in range(stages)] for kind in (F, B, W)]

        # Microbatches of unequal lengths are planned for as if they were of their mean.
        mean = np.repeat(tables.duration.reshape(-1, microbatches).mean(axis=1), microbatches)
        self.duration: list[list[float]] = per_stage(mean)
        self.latency: list[list[float]] = per_stage(tables.latency)
        self.occupancy: list[list[float]] = per_stage(tables.occupancy)
        self.link: list[list[int]] = per_stage(tables.link)
        self.alloc: list[list[float]] = per_stage(tables.alloc)
        self.free: list[list[float]] = per_stage(tables.free)
        self._reserve = self._reserves()

    def available(self, kind: int, stage: int) -> bool:
        """Whether an action of `kind` could start on `stage` now, memory aside."""
        return self.started[kind][stage] < self.ready[kind][stage]

    def fits(self, kind: int, stage: int) -> bool:
        """Whether there is memory for it; an F leaves enough that a microbatch which has begun can also end."""
        rank = self.rank_of[stage]
        need = self.alloc[kind][stage]
        if kind == F:
            need += self._reserve[stage]
            for other in self.stages[rank]:
                # A microbatch of another route that has none here must still find its place.
                here = self.started[F][other] - self.done[W][other]
                if (
                    self.placement.route(other) != self.placement.route(stage)
                    and not here
                    and self.started[F][other] < self.total[other]
                ):
                    need += self.alloc[F][other]
        return need == 0 or self.used[rank] + need <= self.capacity[rank]

    def begin(self, kind: int, stage: int) -> Action:
        """Take note that the next action of `kind`, or piece of one, starts on `stage`; returns it."""
        rank, parts = self.rank_of[stage], self.parts[kind]
        turn, part = divmod(self.started[kind][stage], parts)
        self.started[kind][stage] += 1
        self.busy[rank] = True
        if part == 0:
            self.used[rank] += self.alloc[kind][stage]
        microbatch = self.placement.route(stage) + turn * self.placement.num_routes
        return Action(KINDS[kind], stage, microbatch, part + 1, parts)

    def end(self, kind: int, stage: int) -> bool:
        """Take note that the action of `kind` under way on `stage`, or its piece, ends; returns whether it is done."""
        rank = self.rank_of[stage]
        self.busy[rank] = False
        if self.started[kind][stage] % self.parts[kind]:
            return False
        self.done[kind][stage] += 1
        self.used[rank] -= self.free[kind][stage]
        return True

    def _reserves(self) -> list[float]:
        """Per stage: memory that an F leaves free for the rank's later F of the same microbatch, and for one B.

        The oldest microbatch whose F are not all done always finds what it needs: whoever comes later takes the
        rank's earlier stages only if it leaves that much. So no order of choices ends in a deadlock.
        """
        reserves = []
        for stage, rank in enumerate(self.rank_of):
            later = [
                other
                for other in self.stages[rank]
                if other > stage and self.placement.route(other) == self.placement.route(stage)
            ]
            reserves.append(
                sum(self.alloc[F][other] for other in later) + max(self.alloc[B][other] for other in self.stages[rank])
            )
        return reserves


class _Events:
    """What is still to happen, in order of time: ends of actions and arrivals of what others wait for.

    An event is (time, serial number, kind, stage, index): need `index` of the next action of `kind` on `stage` is met,
    or, where it is None, the action under way there ends.
    """

    def __init__(self, state: ListState, problem: Problem) -> None:
        self.state = state
        self.followers, self.arrived = _followers(state.placement)
        self.link_free: dict[int, float] = {}
        self.serial = count()
        opened = enumerate(_openings(problem, state.placement))
        self.heap: list[tuple[float, int, int, int, int | None]] = [
            (time, next(self.serial), F, stage, -1) for stage, time in opened
        ]
        heapify(self.heap)
        # Times that differ by rounding only are one instant: otherwise a W could slip in before a B that is due.
        self.instant = 1e-9 * max(max(times) for times in state.duration)

    def push(self, time: float, kind: int, stage: int, index: int | None = None) -> None:
        heappush(self.heap, (time, next(self.serial), kind, stage, index))

    def advance(self) -> tuple[float, set[int]]:
        """Let all that happens at the next moment happen; returns that moment and the ranks that it concerns."""
        now = self.heap[0][0]
        touched: set[int] = set()
        while self.heap and self.heap[0][0] <= now + self.instant:
            time, _, kind, stage, index = heappop(self.heap)
            touched.add(self.state.rank_of[stage])
            if index is not None:
                self.arrive(kind, stage, index)
            elif self.state.end(kind, stage):
                self.follow(kind, stage, time)
        return now, touched

    def arrive(self, kind: int, stage: int, index: int) -> None:
        """Need `index` of one more action is met, or that of all of them: the opening of a stage, which comes last."""
        met = self.arrived[kind][stage]
        met[index] += self.state.total[stage] if index < 0 else 1
        self.state.ready[kind][stage] = min(met) * self.state.parts[kind]

    def follow(self, kind: int, stage: int, now: float) -> None:
        """The action of `kind` on `stage` is done: what waits for it there may start, other stages get a message."""
        state = self.state
        for next_kind, next_stage, index in self.followers[kind][stage]:
            if next_stage == stage:
                self.arrive(next_kind, stage, index)
                continue
            link, left = state.link[kind][stage], now
            if link >= 0:
                left = self.link_free[link] = max(now, self.link_free.get(link, 0.0)) + state.occupancy[kind][stage]
            self.push(left + state.latency[kind][stage], next_kind, next_stage, index)


def list_schedule(problem: Problem, placement: Placement, choose: Choose, weight_parts: int = 1) -> list[list[Action]]:
    """The order in which each rank starts its actions when `choose` picks them.

    Args:
        weight_parts: pieces into which each W is cut.

    Raises:
        InputError: a rank of two routes cannot hold a microbatch of each.

    Cost: O(A log A) for A actions, besides `choose`.
    """
    state = ListState(problem, placement, weight_parts)
    events = _Events(state, problem)
    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    while events.heap:
        now, touched = events.advance()
        for rank in sorted(touched):
            picked = None if state.busy[rank] else choose(state, rank)
            if picked is None:
                continue
            kind, stage = picked
            orders[rank].append(state.begin(kind, stage))
            events.push(now + state.duration[kind][stage] / state.parts[kind], kind, stage)
    for stage, rank in enumerate(state.rank_of):
        if state.done[W][stage] < state.total[stage]:
            got = f"got {problem.limits.capacity[rank]:g} on rank {rank}"
            raise InputError(f"memory: {got}, expected room for a microbatch of each route")
    return orders


def _followers(placement: Placement) -> tuple[Followers, list[list[list[int]]]]:
    """The Followers, and the counters of needs met by [kind][stage].

    The last counter of an F is for the opening of its stage.
    """
    stages = range(placement.num_stages)
    followers: Followers = [[[] for _ in stages] for _ in (F, B, W)]
    arrived: list[list[list[int]]] = [[[] for _ in stages] for _ in (F, B, W)]
    for kind in (F, B, W):
        for stage in stages:
            needs = dependencies(Action(KINDS[kind], stage, 0), placement)
            arrived[kind][stage] = [0] * (len(needs) + (kind == F))
            for index, need in enumerate(needs):
                followers[KINDS.index(need.kind)][need.stage].append((kind, stage, index))
    return followers, arrived


def _openings(problem: Problem, placement: Placement) -> list[float]:
    """Per stage, when its F may run: at 0, or at the end of its parameters' all-gather, one at a time on each rank."""
    gather = costs(problem, placement).all_gather.tolist()
    opened: list[float] = []
    free = [0.0] * placement.num_ranks
    for stage, rank in enumerate(placement.stage_to_rank):
        free[rank] += gather[stage]
        opened.append(free[rank])
    return opened
