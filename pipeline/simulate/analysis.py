"""What a simulated timeline says: bubbles, the critical path, how late each action may be, and memory over time."""

import numpy as np

from lanterne.errors import InputError
from lanterne.pipeline.plan.costs import Floats, Ints, costs
from lanterne.pipeline.plan.plan import PART, PARTS, STAGE
from lanterne.pipeline.simulate.check_plan import total_order
from lanterne.pipeline.simulate.program import senders_of
from lanterne.pipeline.simulate.simulate import Timeline


def busy_time(timeline: Timeline) -> Floats:
    """(num_ranks,) float64: time that each rank computes."""
    ranks = timeline.plan.placement.num_ranks
    busy = np.bincount(timeline.plan.rank_of, timeline.end - timeline.start, minlength=ranks)
    return np.asarray(busy, np.float64)


def bubble_rate(timeline: Timeline) -> float:
    """1 - busy / (makespan x ranks), in [0, 1]; some papers divide the idle time by the busy time instead."""
    return float(1.0 - busy_time(timeline).sum() / (timeline.makespan * timeline.plan.placement.num_ranks))


def slack(timeline: Timeline) -> Floats:
    """(num_actions,) float64: how much later each action could start with the makespan as it is and every order kept.

    Messages keep the order that they had on their link.

    Raises:
        InputError: the timeline is one with in-order communication, whose blocking this does not follow.

    Cost: some 3 us per action.
    """
    _check_free(timeline)
    return _latest_starts(timeline) - timeline.start


def critical_path(timeline: Timeline) -> tuple[int, ...]:
    """Columns of the plan on one chain, from a start at 0 to the makespan, in which each waits for the one before.

    Where two neighbours are on different ranks a message lies between; it may have waited for its link. Before the
    first column there may be a data-parallel all-gather, behind the last a reduction; none where those of a rank, one
    after the other, are the whole chain.

    Raises:
        InputError: as slack.
    """
    _check_free(timeline)
    plan, start, end = timeline.plan, timeline.start, timeline.end
    sender, before_on_link = senders(timeline), _before_on_link(timeline)
    at = _last(timeline)
    if at is None:
        return ()
    path = [at]
    # `sent` is worked out backwards from the arrival, so it may be rounded.
    rounding = 1e-9 * timeline.makespan
    while start[at] > 0:
        ready = timeline.arrival[at]
        if at > plan.offsets[plan.rank_of[at]] and end[at - 1] == start[at]:
            at = at - 1
        elif ready == start[at] and sender[at] >= 0:
            at = int(sender[at])
            while timeline.sent[at] > end[at] + rounding and before_on_link[at] >= 0:
                at = int(before_on_link[at])
        else:
            break
        path.append(int(at))
    return tuple(reversed(path))


def memory_profile(timeline: Timeline) -> list[tuple[Floats, Floats]]:
    """Per rank the steps of its memory: (times, levels); levels[i] holds from times[i] on.

    An activation counts from the start of F to the end of W (see StageMemory), in the unit of the capacity.
    """
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    part, parts = plan.columns[PART], plan.columns[PARTS]
    alloc = np.where(part == 1, table.alloc[plan.ids], 0.0)
    free = np.where(part == parts, table.free[plan.ids], 0.0)
    profile = []
    for first, stop in zip(plan.offsets[:-1].tolist(), plan.offsets[1:].tolist(), strict=True):
        times = np.concatenate([timeline.end[first:stop], timeline.start[first:stop]])
        changes = np.concatenate([-free[first:stop], alloc[first:stop]])
        # At one instant, memory is given back before it is taken: an action ends before the next one starts.
        order = np.argsort(times, kind="stable")
        profile.append((times[order], np.round(np.cumsum(changes[order]), 9)))
    return profile


def _check_free(timeline: Timeline) -> None:
    if timeline.in_order:
        raise InputError(
            "timeline: got one with in-order communication, expected one in which computing never waits for a send"
        )


def senders(timeline: Timeline) -> Ints:
    """(num_actions,) int64: the column of another stage whose result each column waits for; -1 for none."""
    return senders_of(timeline.plan, costs(timeline.problem, timeline.plan.placement))


def _before_on_link(timeline: Timeline) -> Ints:
    """(num_actions,) int64: of a column that sends over a link, the one that sent over it before; -1 for none."""
    before = np.full(len(timeline.start), -1)
    for messages in _links(timeline):
        before[messages[1:]] = messages[:-1]
    return before


def _links(timeline: Timeline) -> list[Ints]:
    """Per link the columns that send over it, in the order in which they did."""
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    sends = np.flatnonzero(~np.isnan(timeline.sent) & (table.link[plan.ids] >= 0))
    links = table.link[plan.ids[sends]]
    return [
        sends[links == link][np.argsort(timeline.sent[sends[links == link]], kind="stable")]
        for link in range(table.num_links)
    ]


def _last(timeline: Timeline) -> int | None:
    """The column that the makespan waits for; None: it waits for all-gathers before reductions alone."""
    plan, last = timeline.plan, int(np.argmax(timeline.end))
    if timeline.end[last] == timeline.makespan:
        return last
    # A reduction ends last. Its rank's queue up; the first of them without a pause started when its stage was done.
    rank = max(timeline.data_parallel, key=lambda each: each.end).rank
    own = [each for each in timeline.data_parallel if each.rank == rank and each.action.kind != "AG"]
    lane = sorted((each.start, each.end, each.action.stage) for each in own)
    first = len(lane) - 1
    while first and lane[first - 1][1] == lane[first][0]:
        first -= 1
    on_stage = np.flatnonzero(plan.columns[STAGE] == lane[first][2])
    at = int(on_stage[np.argmax(timeline.end[on_stage])])
    return at if timeline.end[at] == lane[first][0] else None


def _latest_starts(timeline: Timeline) -> Floats:
    """(num_actions,) float64: backwards through actions and messages, each before all that wait for it."""
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    count = len(timeline.start)
    sender, sends = senders(timeline), np.flatnonzero(~np.isnan(timeline.sent))
    receiver = np.full(count, -1)
    receiver[sender[sender >= 0]] = np.flatnonzero(sender >= 0)
    next_on_link = np.full(count, -1)
    for messages in _links(timeline):
        next_on_link[messages[:-1]] = messages[1:]
    last_of_rank = np.isin(np.arange(count) + 1, plan.offsets)
    # The message of column i is node count + i. At one time an action comes before its message, and actions in a total
    # order.
    position = np.empty(count, int)
    position[total_order(plan, table)] = np.arange(count)
    nodes = np.concatenate([np.arange(count), count + sends])
    ties = np.concatenate([position, np.full(len(sends), count)])
    nodes = nodes[np.lexsort((ties, np.concatenate([timeline.start, timeline.sent[sends]])))]
    duration, latency, occupancy = timeline.end - timeline.start, table.latency[plan.ids], table.occupancy[plan.ids]
    latest = np.concatenate([_stage_deadlines(timeline)[plan.columns[STAGE]], np.full(count, np.inf)])
    for node in nodes[::-1].tolist():
        if node >= count:
            i = node - count
            leaves = latest[receiver[i]] - latency[i]
            if next_on_link[i] >= 0:
                leaves = min(leaves, latest[count + next_on_link[i]])
            latest[node] = leaves - occupancy[i]
            continue
        end = latest[node]
        if not last_of_rank[node]:
            end = min(end, latest[node + 1])
        if receiver[node] >= 0:
            end = min(end, latest[receiver[node] if np.isnan(timeline.sent[node]) else count + node])
        latest[node] = end - duration[node]
    return latest[:count]


def _stage_deadlines(timeline: Timeline) -> Floats:
    """(num_stages,) float64: by when each must be done: the makespan less its rank's reductions from its own on."""
    deadlines = np.full(timeline.plan.placement.num_stages, timeline.makespan)
    left: dict[int, float] = {}
    for rank, action, start, end in sorted(timeline.data_parallel, key=lambda each: -each.start):
        if action.kind != "AG":
            left[rank] = left.get(rank, timeline.makespan) - (end - start)
            deadlines[action.stage] = left[rank]
    return deadlines
