"""The event-driven list scheduler that ADAPTRA and CrossPipe's greedy share: the choice of an idle rank is theirs."""

from heapq import heapify, heappop, heappush
from itertools import count

from ..errors import InputError
from .action import KINDS, Action, dependencies
from .costs import costs

F, B, W = (KINDS.index(kind) for kind in "FBW")


class State:
    """A pipeline in the middle of an iteration, as a rule sees it; the microbatches of a stage and kind go in order.

    Attributes, by [kind][stage], kind being F, B or W as an index of KINDS:
        ready, started: how many actions may start by now, and have started; W in pieces of which `parts[W]` make one.
        done: how many whole actions have ended.
        total: how many there will be, per stage.
    and, by rank: stages (those that it holds), used and capacity (memory), busy.
    """

    def __init__(self, problem, placement, weight_parts):
        tables = costs(problem, placement)
        stages, microbatches = placement.num_stages, problem.microbatches
        self.placement, self.parts = placement, (1, 1, weight_parts)
        self.rank_of = placement.stage_to_rank
        self.stages = [placement.stages_of(rank) for rank in range(placement.num_ranks)]
        self.total = [len(placement.microbatches_of(stage, microbatches)) for stage in range(stages)]
        self.ready, self.started, self.done = ([[0] * stages for _ in (F, B, W)] for _ in range(3))
        self.capacity = [value * (1 + 1e-9) for value in problem.limits.capacity]
        self.used, self.busy = [0.0] * placement.num_ranks, [False] * placement.num_ranks

        def per_stage(table):
            return [
                [table[tables.id(kind, stage, placement.route(stage))] for stage in range(stages)] for kind in (F, B, W)
            ]

        names = ("duration", "latency", "occupancy", "link", "alloc", "free")
        self.duration, self.latency, self.occupancy, self.link, self.alloc, self.free = (
            per_stage(getattr(tables, name).tolist()) for name in names
        )
        self._reserve = self._reserves()

    def available(self, kind, stage):
        """Whether an action of `kind` could start on `stage` now, memory aside."""
        return self.started[kind][stage] < self.ready[kind][stage]

    def fits(self, kind, stage):
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

    def _reserves(self):
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


def list_schedule(problem, placement, choose, weight_parts=1):
    """The order in which each rank starts its actions when `choose` picks them, as per-rank lists of Action.

    Args:
        choose: (state, rank) -> (kind, stage) that is available and fits, or None to wait for the next event.
        weight_parts: pieces into which each W is cut.

    Raises:
        InputError: a rank of two routes cannot hold a microbatch of each.

    Cost: O(A log A) for A actions, besides `choose`.
    """
    state = State(problem, placement, weight_parts)
    followers, arrived = _followers(placement)
    orders = [[] for _ in range(placement.num_ranks)]
    link_free, serial = {}, count()
    # Events: (time, serial number, kind, stage, which need of it is met); None for the end of an action.
    events = [(time, next(serial), F, stage, -1) for stage, time in _openings(problem, placement).items()]
    heapify(events)
    # Times that differ by rounding only are one instant: otherwise a W could slip in before a B that is due.
    instant = 1e-9 * max(max(times) for times in state.duration)
    touched = set(range(placement.num_ranks))

    def arrive(kind, stage, index):
        arrived[kind][stage][index] += state.total[stage] if index < 0 else 1
        state.ready[kind][stage] = min(arrived[kind][stage]) * state.parts[kind]
        touched.add(state.rank_of[stage])

    def end(kind, stage, now):
        rank = state.rank_of[stage]
        state.busy[rank] = False
        touched.add(rank)
        if state.started[kind][stage] % state.parts[kind]:
            return
        state.done[kind][stage] += 1
        state.used[rank] -= state.free[kind][stage]
        for next_kind, next_stage, index in followers[kind][stage]:
            if next_stage == stage:
                arrive(next_kind, next_stage, index)
                continue
            link, free = state.link[kind][stage], now
            if link >= 0:
                free = link_free[link] = max(now, link_free.get(link, 0.0)) + state.occupancy[kind][stage]
            heappush(events, (free + state.latency[kind][stage], next(serial), next_kind, next_stage, index))

    now = 0.0
    while True:
        while events and events[0][0] <= now + instant:
            time, _, kind, stage, index = heappop(events)
            if index is None:
                end(kind, stage, time)
            else:
                arrive(kind, stage, index)
        for rank in sorted(touched):
            picked = None if state.busy[rank] else choose(state, rank)
            if picked is None:
                continue
            kind, stage = picked
            parts = state.parts[kind]
            turn, part = divmod(state.started[kind][stage], parts)
            microbatch = placement.microbatches_of(stage, problem.microbatches)[turn]
            orders[rank].append(Action(KINDS[kind], stage, microbatch, part + 1, parts))
            state.started[kind][stage] += 1
            state.busy[rank] = True
            if part == 0:
                state.used[rank] += state.alloc[kind][stage]
            heappush(events, (now + state.duration[kind][stage] / parts, next(serial), kind, stage, None))
        touched.clear()
        if not events:
            break
        now = events[0][0]
    for stage, rank in enumerate(state.rank_of):
        if state.done[W][stage] < state.total[stage]:
            got = f"got {problem.limits.capacity[rank]:g} on rank {rank}"
            raise InputError(f"memory: {got}, expected room for a microbatch of each route")
    return orders


def _followers(placement):
    """([kind][stage] -> what its end lets start, as (kind, stage, which need)), and the counters of needs met.

    The last counter of an F is for the opening of its stage.
    """
    stages = range(placement.num_stages)
    followers = [[[] for _ in stages] for _ in (F, B, W)]
    arrived = [[None] * len(stages) for _ in (F, B, W)]
    for kind in (F, B, W):
        for stage in stages:
            needs = dependencies(Action(KINDS[kind], stage, placement.route(stage)), placement)
            arrived[kind][stage] = [0] * (len(needs) + (kind == F))
            for index, need in enumerate(needs):
                followers[KINDS.index(need.kind)][need.stage].append((kind, stage, index))
    return followers, arrived


def _openings(problem, placement):
    """Stage -> when its F may run: at 0, or at the end of its parameters' all-gather, one at a time on each rank."""
    gather = costs(problem, placement).all_gather.tolist()
    opened, free = {}, [0.0] * placement.num_ranks
    for stage, rank in enumerate(placement.stage_to_rank):
        opened[stage] = free[rank] = free[rank] + gather[stage]
    return opened
