"""Readiness-first execution: a rank that waits longer than planned does something else meanwhile.

A rank goes by its plan. Where what comes next is not there when the plan's own pause is over, or the rank is late and
only a W comes next, it takes one of the following actions that can run, a B before an F before a W: its message is
there, its rank has done what it needs, no earlier action of its kind and stage and none that sends to the same rank is
left, and with it done first the rest of the plan still fits in memory. So the rest of all plans is always a plan that
can run: nothing deadlocks, and messages of a pair keep their order. Without jitter no rank is late, and all is as
planned.

Paper: readiness-first execution, arXiv 2605.18750; differs: the pause, and memory and message order as the plan's.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lanterne.pipeline.plan.action import KINDS, Action, dependencies
from lanterne.pipeline.plan.costs import Floats, costs
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.event_loop import BY_RULE, NEVER, Operations, Pick, Progress, Times
from lanterne.pipeline.simulate.program import memory_changes, program_of, run_program, senders_of, with_links
from lanterne.pipeline.simulate.simulate import Timeline, check_alone, message_turns, simulate, timeline_of

# How many of the following actions a rank looks at, and what share of a time is rounding.
REACH, ROUNDING = 64, 1e-6
# What others wait for comes first.
URGENCY = {"B": 0, "BW": 0, "F": 1, "W": 2}


class ReadyFirst:
    """Rest of one rank's plan, and the choice of its next action.

    Args:
        planned: the Timeline of the plan: how long the rank pauses before each action if nothing is late.
        rank: of the plan. Memory is that of the problem that the plan was checked for.
    """

    def __init__(self, checked: CheckedPlan, planned: Timeline, rank: int) -> None:
        plan, table = checked.plan, costs(checked.problem, checked.plan.placement)
        first, stop = plan.offsets[rank : rank + 2].tolist()
        own = slice(first, stop)
        self.left: list[int] = list(range(first, stop))
        self.used: float = 0.0
        self.capacity: float = checked.problem.limits.capacity[rank] * (1 + 1e-9)
        taken, given = (each[own] for each in memory_changes(plan, table))
        self.takes: dict[int, float] = dict(zip(self.left, taken.tolist(), strict=True))
        self.gives: dict[int, float] = dict(zip(self.left, given.tolist(), strict=True))
        ends = np.concatenate([[0.0], planned.end[own][:-1]])
        pauses = np.maximum(planned.start[own] - ends, 0.0) * (1 + ROUNDING)
        latest = planned.start[own] + ROUNDING * planned.makespan
        self.latest: dict[int, float] = dict(zip(self.left, latest.tolist(), strict=True))
        urgencies = [URGENCY[action.kind] for action in plan.ranks[rank]]
        self.urgency: dict[int, int] = dict(zip(self.left, urgencies, strict=True))
        self.pause: dict[int, float] = dict(zip(self.left, pauses.tolist(), strict=True))
        self.needs: dict[int, set[int]]
        self.lanes: dict[int, tuple[str, int]]
        self.needs, self.lanes = _needs_and_lanes(plan.ranks[rank], first, checked)
        sender = senders_of(plan, table)
        to = {int(source): int(plan.rank_of[i]) for i, source in enumerate(sender.tolist()) if source >= 0}
        found = {column: to.get(column, rank) for column in self.left}
        self.peer: dict[int, int] = {column: peer for column, peer in found.items() if peer != rank}
        self.done: set[int] = set()

    def pick(self, now: float, since: float, is_here: Callable[[int], bool]) -> int | float | None:
        """Return the column to run now, or until when to wait without a message, or None where only a message helps.

        Args:
            since: since when the rank has had nothing to do.
            is_here: of a column of this rank, whether what it waits for from other ranks is there.
        """
        if not self.left:
            return None
        head = self.left[0]
        if is_here(head):
            if now <= self.latest[head] or self.urgency[head] < URGENCY["W"]:
                return head
        elif now < (until := since + self.pause[head]):
            return until
        found = None
        level = peak = self.used
        lanes: set[tuple[str, int]] = set()
        peers: set[int] = set()
        for column in self.left[:REACH]:
            lane, peer = self.lanes[column], self.peer.get(column)
            fits = peak + self.takes[column] <= self.capacity
            free = lane not in lanes and peer not in peers and self.needs[column] <= self.done
            if fits and free and (found is None or self.urgency[column] < self.urgency[found]) and is_here(column):
                found = column
                if not self.urgency[column]:
                    break
            lanes.add(lane)
            if peer is not None:
                peers.add(peer)
            level += self.takes[column]
            peak = max(peak, level)
            level -= self.gives[column]
        return found

    def begin(self, column: int) -> None:
        """Record that the rank runs `column` now."""
        self.left.remove(column)
        self.used += self.takes[column]

    def end(self, column: int) -> None:
        """Record that `column` is done."""
        self.used -= self.gives[column]
        self.done.add(column)


def _needs_and_lanes(
    actions: Sequence[Action], first: int, checked: CheckedPlan
) -> tuple[dict[int, set[int]], dict[int, tuple[str, int]]]:
    """Return by column the rank's own columns that it needs done, and which columns keep the plan's order."""
    placement = checked.plan.placement
    last: dict[tuple[str, int, int, int], int] = {}
    for i, action in enumerate(actions):
        last[action.kind, action.stage, action.microbatch, action.part] = first + i
        last[action.kind, action.stage, action.microbatch, 0] = first + i
    needs: dict[int, set[int]] = {}
    lanes: dict[int, tuple[str, int]] = {}
    for i, action in enumerate(actions):
        own: set[int] = set()
        for need in dependencies(action, placement):
            part = need.part if action.part > 1 else 0
            for kind in (need.kind, "BW") if need.kind == "B" else (need.kind,):
                if (kind, need.stage, need.microbatch, part) in last:
                    own.add(last[kind, need.stage, need.microbatch, part])
        needs[first + i] = own
        lanes[first + i] = action.kind, action.stage
    return needs, lanes


def simulate_ready_first(checked: CheckedPlan, problem: Problem, durations: Floats | None = None) -> Timeline:
    """Return the Timeline of ranks that run what is ready; by default with the problem's durations.

    Cost: some 30 us per action.
    """
    planned = simulate(checked, problem)
    if durations is None:
        durations = planned.end - planned.start
    rules = [ReadyFirst(checked, planned, rank) for rank in range(checked.plan.placement.num_ranks)]
    plan, table = checked.plan, costs(problem, checked.plan.placement)
    check_alone(table)
    program = program_of(plan, table, durations)
    operations = program.operations
    linked = with_links(program, message_turns(plan, table, operations))
    linked.kinds[: len(rules)] = BY_RULE
    ran, count = run_program(linked, _picking(rules)), len(plan.ids)
    return timeline_of(plan, problem, operations, ran.begun[:count], ran.arrival[:count], in_order=True)


def _picking(rules: Sequence[ReadyFirst]) -> Pick:
    """Return the hook of the event loop that asks each rank's rule."""
    running: list[int | None] = [None] * len(rules)

    def pick(
        operations: Operations, times: Times, progress: Progress, _rule: None, lane: int, now: float
    ) -> tuple[int, float]:
        def arrives(row: int) -> float:
            source = operations.source[row]
            return 0.0 if source < 0 else times.arrival[row] if progress.count[source] else NEVER

        rule, last = rules[lane], running[lane]
        if last is not None:
            rule.end(last)
            running[lane] = None
        picked = rule.pick(now, progress.clock[lane], lambda row: arrives(row) <= now)
        if isinstance(picked, int):
            rule.begin(picked)
            running[lane] = picked
            return picked, now
        soonest = min((at for at in map(arrives, rule.left[:REACH]) if at > now), default=NEVER)
        return -1, soonest if picked is None else min(soonest, picked)

    return pick


def work_bound(checked: CheckedPlan, problem: Problem, durations: Floats) -> float:
    """Return a makespan that no order of work on these ranks can be below with these durations.

    Each rank does its work once a microbatch has come to its first stage; or its F and B, and then a gradient goes back
    from there, with one W where the route begins.

    Args:
        durations: (num_actions,), by column.
    """
    plan, table = checked.plan, costs(problem, checked.plan.placement)
    placement, shape = plan.placement, (len(KINDS), plan.placement.num_stages, plan.microbatches)
    each = np.bincount(plan.ids, durations, np.prod(shape, dtype=int)).reshape(shape)
    # A fused backward sends its gradient when all of it is done.
    backward = each[KINDS.index("B")] + each[KINDS.index("BW")]
    away = (table.latency + table.occupancy).reshape(shape)
    comes, goes = np.zeros(placement.num_stages), np.zeros(placement.num_stages)
    for route in range(placement.num_routes):
        own = range(route * placement.route_length, (route + 1) * placement.route_length)
        turns = list(placement.microbatches_of(own[0], plan.microbatches))
        forth, back = np.zeros(len(turns)), each[KINDS.index("W")][own[0], turns]
        for stage in own:
            comes[stage] = forth.min(initial=np.inf)
            goes[stage] = back.min(initial=np.inf) if stage > own[0] else 0.0
            forth = forth + each[0][stage, turns] + away[0][stage, turns]
            following = stage + 1 if stage + 1 in own else stage
            back = back + backward[stage, turns] + away[KINDS.index("B")][following, turns]
    rank_of = np.array(placement.stage_to_rank)
    bound = 0.0
    for rank in range(placement.num_ranks):
        held = (rank_of == rank) & np.isfinite(comes)
        if not held.any():
            continue
        start, both = comes[held].min(), each[0][held].sum() + backward[held].sum()
        bound = max(bound, start + each[:, held].sum(), start + both + goes[held].min())
    return float(bound)
