"""A plan made ready for the engine's loops, orders of ids and tables of lists, and its run."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lanterne.pipeline.plan.action import DATA_PARALLEL_KINDS, FUSED, KINDS, Action
from lanterne.pipeline.plan.costs import Costs, Ints, Tables
from lanterne.pipeline.plan.plan import KIND, PART, PARTS, STAGE, Plan
from lanterne.pipeline.simulate.engine import Events, flow

F = KINDS.index("F")
# An action of these kinds finishes the gradient of its weights.
LAST_KINDS = tuple(KINDS.index(kind) for kind in ("W", *(whole for whole, pieces in FUSED.items() if "W" in pieces)))
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = DATA_PARALLEL_KINDS


class EngineProgram(NamedTuple):
    """What the engine runs. An id is whatever indexes the lists; the gate of stage s (see costs) is len(kinds) + s.

    Attributes:
        orders: a list of ids per rank.
        tables: the Tables by id, gates included.
        kinds, stages: the kind (index in KINDS) and stage of each id, gates not included.
    """

    orders: list[list[int]]
    tables: Tables
    kinds: list[int]
    stages: list[int]


class Communication(NamedTuple):
    """A rank's all-reduce, reduce-scatter or all-gather with its copies in other pipelines."""

    rank: int
    action: Action
    start: float
    end: float


class EngineRun(NamedTuple):
    """What the engine found; `makespan` is inf after a deadlock."""

    starts: list[list[float]]
    full: list[float]
    data_parallel: list[Communication]
    makespan: float


def program_of_orders(orders: list[list[int]], table: Costs) -> EngineProgram:
    """The EngineProgram of orders of action ids; built at no cost from the Costs `table`."""
    kinds, stages = table.kinds_and_stages
    return EngineProgram(orders, table.lists, kinds, stages)


def program_of_plan(plan: Plan, table: Costs) -> EngineProgram:
    """The EngineProgram of any plan, parts included: its ids are the plan's columns."""
    ids, part, parts = plan.ids, plan.columns[PART], plan.columns[PARTS]
    slot = np.where(part == 1, table.slot[ids], table.always)
    target = np.where(part == parts, table.target[ids], -1)
    columns = table.duration[ids] / parts, slot, target, table.latency[ids], table.occupancy[ids], table.link[ids]
    orders = [list(range(start, stop)) for start, stop in pairwise(plan.offsets.tolist())]
    tables = Tables.of(columns, table.gates)
    return EngineProgram(orders, tables, plan.columns[KIND].tolist(), plan.columns[STAGE].tolist())


def senders_of(plan: Plan, table: Costs) -> Ints:
    """(num_actions,) int64: the column of another stage whose result each column waits for; -1 for none."""
    part, parts = plan.columns[PART], plan.columns[PARTS]
    filled_by = np.full(len(table.initial), -1)
    target = np.where(part == parts, table.target[plan.ids], -1)
    filled_by[target[target >= 0]] = np.flatnonzero(target >= 0)
    return np.where(part == 1, filled_by[table.slot[plan.ids]], -1)


def run(
    program: EngineProgram, table: Costs, queue: int | None = None, turns: Mapping[int, Sequence[int]] | None = None
) -> EngineRun:
    """Run `program` under the Costs `table`; `queue` and `turns` as for engine.Events."""
    initial = table.initial_list
    gathers: list[Communication] = []
    if table.gathers:
        program, initial, gathers = _with_gates(program, table)
    if queue is None and not turns and not table.shared:
        starts, full = flow(program.orders, program.tables, initial, table.num_links)
    else:
        starts, full = Events(program.orders, program.tables, initial, table.num_links, queue, turns).run()
    duration, makespan = program.tables.duration, 0.0
    for order, begun in zip(program.orders, starts, strict=True):
        if len(begun) < len(order):
            return EngineRun(starts, full, [], float("inf"))
        if begun:
            makespan = max(makespan, begun[-1] + duration[order[-1]])
    reduces = _reduces(program, table, starts, gathers) if table.reduces else []
    makespan = max([makespan, *(each.end for each in gathers), *(each.end for each in reduces)])
    if table.gathers:
        real = len(program.kinds)
        starts = [
            [start for action, start in zip(order, begun, strict=True) if action < real]
            for order, begun in zip(program.orders, starts, strict=True)
        ]
    return EngineRun(starts, full, gathers + reduces, makespan)


def _with_gates(program: EngineProgram, table: Costs) -> tuple[EngineProgram, list[float], list[Communication]]:
    """The program with each stage's gate before its first F, the slots with the ends of the all-gathers, and those."""
    kinds, stages = program.kinds, program.stages
    initial, orders = list(table.initial_list), []
    gathers: list[Communication] = []
    for rank, order in enumerate(program.orders):
        gated: list[int] = []
        seen: set[int] = set()
        now = 0.0
        for action in order:
            if kinds[action] == F and stages[action] not in seen:
                stage = stages[action]
                seen.add(stage)
                gated.append(len(kinds) + stage)
                ends = now + table.all_gather[stage].item()
                gathers.append(Communication(rank, Action(ALL_GATHER, stage, 0), now, ends))
                initial[table.always + 1 + stage] = now = ends
            gated.append(action)
        orders.append(gated)
    return program._replace(orders=orders), initial, gathers


def _reduces(
    program: EngineProgram, table: Costs, starts: list[list[float]], gathers: list[Communication]
) -> list[Communication]:
    """The all-reduces or reduce-scatters, in the order in which the rank's stages finish; one at a time on a rank."""
    kinds, stages, duration = program.kinds, program.stages, program.tables.duration
    given = table.problem.data_parallel
    kind = REDUCE_SCATTER if given is not None and given.kind == "zero1" else ALL_REDUCE
    found = []
    for rank, (order, begun) in enumerate(zip(program.orders, starts, strict=True)):
        finished: dict[int, float] = {}
        for action, start in zip(order, begun, strict=True):
            if action < len(kinds) and kinds[action] in LAST_KINDS:
                finished[stages[action]] = start + duration[action]
        lane = max((each.end for each in gathers if each.rank == rank), default=0.0)
        for stage, ready in sorted(finished.items(), key=lambda item: item[1]):
            start = max(lane, ready)
            lane = start + table.reduce[stage].item()
            found.append(Communication(rank, Action(kind, stage, 0), start, lane))
    return found
