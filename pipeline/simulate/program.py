"""Plans as operations of the event loop: one row per column of the plan, one lane per rank."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.pipeline.plan.action import DATA_PARALLEL_KINDS, FUSED, KINDS, Action
from lanterne.pipeline.plan.costs import Costs, Floats, Ints
from lanterne.pipeline.plan.plan import KIND, PART, PARTS, STAGE, Plan
from lanterne.pipeline.simulate.event_loop import (
    FIRST_COME,
    IN_ORDER,
    Decisions,
    Operations,
    Orders,
    Pick,
    Progress,
    Times,
    event_loop,
)

F = KINDS.index("F")
# An action of these kinds finishes the gradient of its weights.
LAST_KINDS = tuple(KINDS.index(kind) for kind in ("W", *(whole for whole, pieces in FUSED.items() if "W" in pieces)))
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = DATA_PARALLEL_KINDS


class Program(NamedTuple):
    """Operations and their orders, as arrays, and what decides the order of lanes that have none.

    Attributes:
        kinds: (num_lanes,) int64: IN_ORDER, FIRST_COME or BY_RULE.
        num_links: links that messages occupy.
    """

    operations: Operations
    orders: Orders
    kinds: Ints
    num_links: int

    @classmethod
    def of_lanes(cls, operations: Operations, num_lanes: int, num_links: int = 0) -> "Program":
        """Return the program in which each lane runs its rows in ascending order."""
        counts = np.bincount(operations.lane, minlength=num_lanes)
        stop = np.cumsum(counts)
        order = np.argsort(operations.lane, kind="stable")
        return cls(operations, Orders(order, stop - counts, stop), np.full(num_lanes, IN_ORDER), num_links)


class Run(NamedTuple):
    """Result of the loop.

    Attributes:
        arrival, begun, ended: (num_runs,) float64; see event_loop.Times.
        left: (num_lanes,) int64: operations that each lane did not get to.
        order: as in Orders, with what lanes ran that had no order.
    """

    arrival: Floats
    begun: Floats
    ended: Floats
    left: Ints
    order: Ints


class Communication(NamedTuple):
    """A rank's all-reduce, reduce-scatter or all-gather with its copies in other pipelines."""

    rank: int
    action: Action
    start: float
    end: float


def program_of(plan: Plan, table: Costs, durations: Floats | None = None) -> Program:
    """Return the program of any plan, parts included; shared links still belong to several lanes.

    Args:
        durations: (num_actions,) by column; by default those of the Costs `table`.
    """
    ids, count = plan.ids, len(plan.ids)
    source, target = senders_of(plan, table), np.full(count, -1)
    target[source[source >= 0]] = np.flatnonzero(source >= 0)
    gather = np.zeros(count)
    if table.all_gather.any():
        for column in first_forwards(plan):
            gather[column] = table.all_gather[plan.columns[STAGE, column]]
    operations = Operations(
        lane=plan.rank_of,
        source=source,
        target=target,
        first=np.arange(count),
        duration=table.duration[ids] / plan.columns[PARTS] if durations is None else durations,
        link=np.where(target >= 0, table.link[ids], -1),
        occupancy=np.where(target >= 0, table.occupancy[ids], 0.0),
        latency=np.where(target >= 0, table.latency[ids], 0.0),
        gather=gather,
    )
    orders = Orders(np.arange(count), plan.offsets[:-1], plan.offsets[1:])
    return Program(operations, orders, np.full(plan.placement.num_ranks, IN_ORDER), table.num_links)


def senders_of(plan: Plan, table: Costs) -> Ints:
    """Return (num_actions,) int64: the column of another stage whose result each column waits for; -1 for none."""
    part, parts = plan.columns[PART], plan.columns[PARTS]
    filled_by = np.full(table.always + 1, -1)
    target = np.where(part == parts, table.target[plan.ids], -1)
    filled_by[target[target >= 0]] = np.flatnonzero(target >= 0)
    return np.where(part == 1, filled_by[table.slot[plan.ids]], -1)


def memory_changes(plan: Plan, table: Costs) -> tuple[Floats, Floats]:
    """Return (num_actions,) each: memory that an action takes from its start, and that it gives back at its end."""
    part, parts = plan.columns[PART], plan.columns[PARTS]
    taken = np.where(part == 1, table.alloc[plan.ids], 0.0)
    return taken, np.where(part == parts, table.free[plan.ids], 0.0)


def first_forwards(plan: Plan) -> list[int]:
    """Return the columns with the first F of each stage, ascending."""
    forwards = np.flatnonzero(plan.columns[KIND] == F)
    _, firsts = np.unique(plan.columns[STAGE, forwards], return_index=True)
    return sorted(forwards[firsts].tolist())


def runs_of_a_row(operations: Operations) -> int:
    """Return how many runs are numbered for each row."""
    return int(operations.first[1]) if len(operations.first) > 1 else 1


def shared_senders(operations: Operations) -> Ints:
    """Return the rows that send over links on which several lanes send, ascending."""
    sends = np.flatnonzero(operations.occupancy > 0)
    links, lanes = operations.link[sends], operations.lane[sends]
    shared = [link for link in np.unique(links).tolist() if len(np.unique(lanes[links == link])) > 1]
    return np.asarray(sends[np.isin(links, shared)], np.int64)


def with_messages(operations: Operations, num_lanes: int, senders: Ints) -> Operations:
    """Return `operations` in which the messages of `senders` are rows of their own.

    They come behind the others. Link i is lane num_lanes + i.
    """
    old, count = operations, len(operations.lane)
    runs = runs_of_a_row(old)
    messages = count + np.arange(len(senders))
    receivers = old.target[senders]
    source = np.concatenate([old.source, senders])
    source[receivers] = messages
    changed: dict[str, NDArray[Any]] = {}
    for name, value in (("target", messages), ("link", -1), ("latency", 0.0), ("occupancy", 0.0)):
        changed[name] = getattr(old, name).copy()
        changed[name][senders] = value
    occupancy = old.occupancy[senders]
    return Operations(
        lane=np.concatenate([old.lane, num_lanes + old.link[senders]]),
        source=source,
        target=np.concatenate([changed["target"], receivers]),
        first=np.arange(count + len(senders)) * runs,
        duration=np.concatenate([old.duration, np.repeat(occupancy, runs if len(old.duration) > count else 1)]),
        link=np.concatenate([changed["link"], np.full(len(senders), -1)]),
        occupancy=np.concatenate([changed["occupancy"], np.zeros(len(senders))]),
        latency=np.concatenate([changed["latency"], old.latency[senders]]),
        gather=np.concatenate([old.gather, np.zeros(len(senders))]),
    )


def with_links(program: Program, turns: Mapping[int, Sequence[int]] | None) -> Program:
    """Return `program` in which links that several lanes send on are lanes too.

    Args:
        turns: link -> the rows that send over it, in the order of their messages. On other shared links, the message
            that is ready first goes first; of several, that of the lowest lane.
    """
    operations, orders, kinds, num_links = program
    senders = shared_senders(operations)
    if turns:
        senders = np.unique(np.concatenate([senders, *(np.array(own) for own in turns.values())]))
    if not len(senders):
        return program
    lanes, count = len(kinds), len(operations.lane)
    longer = with_messages(operations, lanes, senders)
    messages = Program.of_lanes(longer, lanes + num_links)
    order, first, stop = messages.orders
    # The ranks keep their orders.
    order[: len(orders.order)] = orders.order
    link_kinds = np.full(num_links, FIRST_COME)
    for link, own in (turns or {}).items():
        order[first[lanes + link] : stop[lanes + link]] = count + np.searchsorted(senders, np.array(own))
        link_kinds[link] = IN_ORDER
    return Program(longer, messages.orders, np.concatenate([kinds, link_kinds]), num_links)


def run_program(program: Program, pick: Pick | None = None) -> Run:
    """Run `program`; `pick` chooses for lanes that are BY_RULE.

    Cost: some 0.5 us per operation, a tenth of that once a planner is imported, which has the loop compiled.
    """
    operations, orders, kinds, num_links = program
    rows, lanes = len(operations.lane), len(kinds)
    decides = bool((kinds != IN_ORDER).any())
    times = Times(*(np.zeros(rows * runs_of_a_row(operations)) for _ in Times._fields))
    progress = new_progress(lanes, rows, num_links)
    compiled: Any = None if decides else sys.modules.get("lanterne.pipeline.simulate.compiled")
    if compiled is not None and compiled.is_ready():
        compiled.run_in_order(operations, orders, times, progress)
        return Run(*times, orders.stop - progress.at, orders.order)
    lists = Orders(*_lists(orders))
    found, at = Times(*_lists(times)), Progress(*_lists(progress))
    decisions = Decisions(kinds.tolist(), [0.0] * lanes, [0.0] * len(lists.order)) if decides else None
    event_loop(max, pick)(Operations(*_lists(operations)), lists, found, at, decisions)
    arrival, begun, ended = map(np.array, found)
    return Run(arrival, begun, ended, orders.stop - np.array(at.at), np.array(lists.order))


def _lists(columns: Iterable[NDArray[Any]]) -> Iterator[list[Any]]:
    """Yield `columns` as lists, which plain Python reads faster than arrays."""
    return (column.tolist() for column in columns)


def new_progress(num_lanes: int, num_rows: int, num_links: int) -> Progress:
    """Return working memory for the loop, as arrays."""
    by_lane = {name: np.zeros(num_lanes, np.int64) for name in ("at", "stop", "stack")}
    clocks = {name: np.zeros(num_lanes) for name in ("clock", "gathered")}
    return Progress(
        **by_lane,
        **clocks,
        asleep=np.zeros(num_lanes, np.bool_),
        count=np.zeros(num_rows, np.int64),
        busy_until=np.zeros(num_links + 1),
    )


def gathers_of(plan: Plan, table: Costs) -> list[Communication]:
    """Return the all-gathers, one at a time on a rank, in the order of the first F of its stages."""
    if not table.all_gather.any():
        return []
    now = [0.0] * plan.placement.num_ranks
    found = []
    for column in first_forwards(plan):
        rank, stage = int(plan.rank_of[column]), int(plan.columns[STAGE, column])
        begins = now[rank]
        now[rank] += float(table.all_gather[stage])
        found.append(Communication(rank, Action(ALL_GATHER, stage, 0), begins, now[rank]))
    return found


def reduces_of(plan: Plan, table: Costs, ended: Floats, gathers: Sequence[Communication]) -> list[Communication]:
    """Return the all-reduces or reduce-scatters, one at a time on a rank, in the order in which its stages finish."""
    if not table.reduce.any():
        return []
    given = table.problem.data_parallel
    kind = REDUCE_SCATTER if given is not None and given.kind == "zero1" else ALL_REDUCE
    lane = [0.0] * plan.placement.num_ranks
    for gather in gathers:
        lane[gather.rank] = gather.end
    lasts = np.flatnonzero(np.isin(plan.columns[KIND], LAST_KINDS))
    finished = dict(zip(plan.columns[STAGE, lasts].tolist(), ended[lasts].tolist(), strict=True))
    found = []
    for stage, ready in sorted(finished.items(), key=lambda item: (table.stage_rank[item[0]], item[1])):
        rank = int(table.stage_rank[stage])
        begins = max(lane[rank], ready)
        lane[rank] = begins + float(table.reduce[stage])
        found.append(Communication(rank, Action(kind, stage, 0), begins, lane[rank]))
    return found
