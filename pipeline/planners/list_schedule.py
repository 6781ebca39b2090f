"""The list scheduler that ADAPTRA and CrossPipe's greedy share: the choice of an idle rank is theirs."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from lanterne.errors import InputError
from lanterne.pipeline.plan.action import KINDS, Action
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.words import B, F, W, letters_of
from lanterne.pipeline.simulate.event_loop import BY_RULE, FIRST_COME, NEVER, Operations, Progress, Times
from lanterne.pipeline.simulate.program import Program, run_program

# Of a state and a rank: the (kind, stage) that is available and fits, or None to wait for the next event.
Choose: TypeAlias = "Callable[[ListState, int], tuple[int, int] | None]"


class ListState:
    """A pipeline in the middle of an iteration, as a rule sees it when it chooses for a rank that is free.

    Kinds are F, B or W as an index of KINDS. The microbatches of a stage and kind go in order.

    Attributes:
        placement, stages: the Placement, and the stages of each rank.
        parts: into how many pieces an action of each kind is cut.
        orders: what each rank has started.
    """

    def __init__(self, problem: Problem, placement: Placement, weight_parts: int) -> None:
        letters = letters_of(costs(problem, placement))
        count = placement.num_stages
        self.placement = placement
        self.stages: list[tuple[int, ...]] = [placement.stages_of(rank) for rank in range(placement.num_ranks)]
        self.parts: tuple[int, int, int] = (1, 1, weight_parts)
        self.orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
        self._total: list[int] = letters.total.tolist()
        self._capacity: list[float] = letters.capacity.tolist()
        self._used: list[float] = [0.0] * placement.num_ranks
        # Memory to give back when the rank is free again.
        self._freed: list[float] = [0.0] * placement.num_ranks
        self._alloc: list[float] = letters.alloc.tolist()
        self._free: list[float] = letters.free.tolist()
        self._reserve: list[float] = reserves(placement, self._alloc[:count], self._alloc[count : 2 * count])
        self._opens: list[float] = openings(problem, placement)
        given, total = letters.operations, letters.total.copy()
        duration, weights = given.duration.copy(), slice(W * count, (W + 1) * count)
        duration[weights] /= weight_parts
        total[weights] *= weight_parts
        first = np.arange(len(total)) * int(total.max())
        none = np.zeros(len(total))
        self.operations: Operations = given._replace(first=first, duration=duration, gather=none)
        # Times that differ by rounding only are one instant: otherwise a W could slip in before a B that is due.
        self._instant: float = 1e-9 * float(given.duration.max())
        self._runs: np.ndarray[tuple[int], np.dtype[np.int64]] = total
        self._now: float = 0.0
        self._times: Times
        self._progress: Progress

    def started(self, kind: int, stage: int) -> int:
        """Return how many actions of `kind` have started on `stage`; for W in pieces, how many pieces."""
        return int(self._progress.count[kind * self.placement.num_stages + stage])

    def available(self, kind: int, stage: int) -> bool:
        """Return whether an action of `kind` could start on `stage` now, memory aside."""
        return self._arrives(kind, stage) <= self._now

    def fits(self, kind: int, stage: int) -> bool:
        """Return whether there is memory for it; an F leaves enough that a microbatch which has begun can also end."""
        count, rank = self.placement.num_stages, self.placement.stage_to_rank[stage]
        need = self._alloc[kind * count + stage]
        if kind == F:
            need += self._reserve[stage]
            for other in self.stages[rank]:
                # A microbatch of another route that has none here must still find its place.
                started = self.started(F, other)
                here = started - self.started(W, other) // self.parts[W]
                apart = self.placement.route(other) != self.placement.route(stage)
                if apart and not here and started < self._total[other]:
                    need += self._alloc[other]
        return need == 0 or self._used[rank] + need <= self._capacity[rank]

    def _arrives(self, kind: int, stage: int) -> float:
        """Return when the next action of `kind` can start on `stage`; NEVER where that is not known."""
        row, whole = kind * self.placement.num_stages + stage, self.started(kind, stage) // self.parts[kind]
        # What has started on a rank that is free has also ended.
        if whole >= self._total[row] or (kind != F and self.started(kind - 1, stage) <= whole):
            return NEVER
        opens = self._opens[stage] if kind == F else 0.0
        source = self._source[row]
        if source < 0:
            return opens
        count = self._progress.count
        return max(opens, self._times.arrival[self._first[row] + whole]) if count[source] > whole else NEVER

    def schedule(self, choose: Choose) -> None:
        """Let `choose` fill `orders`, as far as memory allows."""
        lanes, placement = len(self._capacity), self.placement
        self._source: list[int] = self.operations.source.tolist()
        self._first: list[int] = self.operations.first.tolist()

        def pick(
            operations: Operations, times: Times, progress: Progress, _rule: None, rank: int, now: float
        ) -> tuple[int, float]:
            self._times, self._progress, self._now = times, progress, now + self._instant
            self._used[rank] -= self._freed[rank]
            self._freed[rank] = 0.0
            picked = choose(self, rank)
            if picked is None:
                known = (self._arrives(kind, stage) for kind in (F, B, W) for stage in self.stages[rank])
                return -1, min((at for at in known if at > self._now), default=NEVER)
            kind, stage = picked
            row = kind * placement.num_stages + stage
            turn, part = divmod(progress.count[row], self.parts[kind])
            if part == 0:
                self._used[rank] += self._alloc[row]
            if part + 1 == self.parts[kind]:
                self._freed[rank] = self._free[row]
            microbatch = placement.route(stage) + turn * placement.num_routes
            self.orders[rank].append(Action(KINDS[kind], stage, microbatch, part + 1, self.parts[kind]))
            return row, now

        program = Program.of_lanes(self.operations, lanes, int(self.operations.link.max()) + 1)
        runs = np.bincount(self.operations.lane, self._runs, lanes).astype(np.int64)
        stop = np.cumsum(runs)
        orders = program.orders._replace(order=np.zeros(int(stop[-1]), np.int64), first=stop - runs, stop=stop)
        kinds = np.where(np.arange(lanes) < placement.num_ranks, BY_RULE, FIRST_COME)
        run_program(program._replace(orders=orders, kinds=kinds), pick)


def list_schedule(problem: Problem, placement: Placement, choose: Choose, weight_parts: int = 1) -> list[list[Action]]:
    """Return the order in which each rank starts its actions when `choose` picks them.

    Args:
        weight_parts: pieces into which each W is cut.

    Raises:
        InputError: a rank of two routes cannot hold a microbatch of each.

    Cost: O(A num_ranks) for A actions, besides `choose`.
    """
    state = ListState(problem, placement, weight_parts)
    state.schedule(choose)
    for stage, rank in enumerate(placement.stage_to_rank):
        if state.started(W, stage) == weight_parts * len(placement.microbatches_of(stage, problem.microbatches)):
            continue
        got = f"got {problem.limits.capacity[rank]:g} on rank {rank}"
        raise InputError(f"memory: {got}, expected room for a microbatch of each route")
    return state.orders


def reserves(placement: Placement, forward: Sequence[float], backward: Sequence[float]) -> list[float]:
    """Return per stage the memory that an F leaves free for the rank's later F of the same microbatch, and for one B.

    The oldest microbatch whose F are not all done always finds what it needs, since a later one takes the rank's
    earlier stages only if it leaves that much. So no order of choices ends in a deadlock.

    Args:
        forward, backward: per stage, the memory that an F and a B take.
    """
    found = []
    for stage, rank in enumerate(placement.stage_to_rank):
        own = placement.stages_of(rank)
        later = [other for other in own if other > stage and placement.route(other) == placement.route(stage)]
        found.append(sum(forward[other] for other in later) + max(backward[other] for other in own))
    return found


def openings(problem: Problem, placement: Placement) -> list[float]:
    """Return per stage when its F may run: at the end of its parameters' all-gather, one at a time on each rank."""
    gather = costs(problem, placement).all_gather.tolist()
    opened: list[float] = []
    free = [0.0] * placement.num_ranks
    for stage, rank in enumerate(placement.stage_to_rank):
        free[rank] += gather[stage]
        opened.append(free[rank])
    return opened
