"""What a simulated timeline says: bubbles, the critical path, how late each action may be, and memory over time."""

import numpy as np

from ..errors import InputError
from .check import total_order
from .costs import costs


def busy_time(timeline):
    """(num_ranks,) float64: time that each rank computes."""
    return np.bincount(timeline.plan.rank_of, timeline.end - timeline.start, minlength=timeline.plan.placement.num_ranks)


def bubble_rate(timeline):
    """1 - busy / (makespan x ranks), in [0, 1]; some papers divide the idle time by the busy time instead."""
    return float(1.0 - busy_time(timeline).sum() / (timeline.makespan * timeline.plan.placement.num_ranks))


def slack(timeline):
    """(num_actions,) float64: how much later each action could start with the makespan as it is and every order kept.

    Messages keep the order that they had on their link.

    Raises:
        InputError: the timeline is one with in-order communication, whose blocking this does not follow.

    Cost: some 3 us per action.
    """
    _check_free(timeline)
    return _latest_starts(timeline) - timeline.start


def critical_path(timeline):
    """Columns of the plan on one chain, from a start at 0 to the makespan, in which each waits for the one before.

    Where two neighbours are on different ranks a message lies between; it may have waited for its link. Before the first column
    there may be a data-parallel all-gather, behind the last a reduction.

    Returns:
        A tuple of ints.

    Raises:
        InputError: as slack.
    """
    _check_free(timeline)
    plan, start, end = timeline.plan, timeline.start, timeline.end
    sender, before_on_link = senders(timeline), _before_on_link(timeline)
    at = _last(timeline)
    path = [at]
    while start[at] > 0:
        ready = timeline.arrival[at]
        if at > plan.offsets[plan.rank_of[at]] and end[at - 1] == start[at]:
            at = at - 1
        elif ready == start[at] and sender[at] >= 0:
            at = int(sender[at])
            while timeline.sent[at] > end[at] and before_on_link[at] >= 0:
                at = int(before_on_link[at])
        else:
            break
        path.append(int(at))
    return tuple(reversed(path))


def memory_profile(timeline):
    """Per rank the steps of its memory: (times, levels), two float64 arrays; levels[i] holds from times[i] on.

    An activation counts from the start of F to the end of W (see problem.Memory), in the unit of the capacity.
    """
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    part, parts = plan.columns[3], plan.columns[4]
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


def _check_free(timeline):
    if timeline.in_order:
        raise InputError("timeline: got one with in-order communication, expected one in which computing never waits for a send")


def senders(timeline):
    """(num_actions,) int64: the column whose message or result each column waits for from another stage; -1 for none."""
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    part, parts = plan.columns[3], plan.columns[4]
    filled_by = np.full(len(table.initial), -1)
    target = np.where(part == parts, table.target[plan.ids], -1)
    filled_by[target[target >= 0]] = np.flatnonzero(target >= 0)
    return np.where(part == 1, filled_by[table.slot[plan.ids]], -1)


def _before_on_link(timeline):
    """(num_actions,) int64: of the column that sends a message over a link, the sender of the link's message before; -1 for none."""
    before = np.full(len(timeline.start), -1)
    for messages in _links(timeline):
        before[messages[1:]] = messages[:-1]
    return before


def _links(timeline):
    """Per link the columns that send over it, in the order in which they did."""
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    sends = np.flatnonzero(~np.isnan(timeline.sent) & (table.link[plan.ids] >= 0))
    links = table.link[plan.ids[sends]]
    return [sends[links == link][np.argsort(timeline.sent[sends[links == link]], kind="stable")] for link in range(table.num_links)]


def _last(timeline):
    """The column that the makespan waits for."""
    last = int(np.argmax(timeline.end))
    ends = [(end, start, rank, action.stage) for rank, action, start, end in timeline.data_parallel if end > timeline.end[last]]
    if not ends:
        return last
    plan = timeline.plan
    _, start, rank, _ = max(ends)
    # A lane that was busy goes back to the reduction before; the first of them started when its stage's last W ended.
    lane = sorted((s, e, action.stage) for holder, action, s, e in timeline.data_parallel if holder == rank and action.kind != "AG")
    position = next(i for i, (s, _, _) in enumerate(lane) if s == start)
    while position and lane[position - 1][1] == lane[position][0]:
        position -= 1
    on_stage = np.flatnonzero((plan.columns[1] == lane[position][2]) & (timeline.end <= lane[position][0]))
    return int(on_stage[np.argmax(timeline.end[on_stage])])


def _latest_starts(timeline):
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    duration = timeline.end - timeline.start
    sender, rank_of = senders(timeline), plan.rank_of
    receiver = np.full(len(duration), -1)
    receiver[sender[sender >= 0]] = np.flatnonzero(sender >= 0)
    latest_end = _latest_ends_of_stages(timeline)
    latest_start = np.full(len(duration), np.inf)
    after_on_link = {int(a): int(b) for messages in _links(timeline) for a, b in zip(messages[:-1], messages[1:], strict=True)}
    latest_send = np.full(len(duration), np.inf)
    waiting = [list(messages) for messages in _links(timeline)]
    # By start, and in a total order of the plan where actions of no duration start together.
    position = np.empty(len(duration), int)
    position[total_order(plan, table)] = np.arange(len(duration))
    for i in np.lexsort((position, timeline.start))[::-1].tolist():
        end = latest_end[i]
        if i + 1 < plan.offsets[rank_of[i] + 1]:
            end = min(end, latest_start[i + 1])
        if receiver[i] >= 0:
            link = table.link[plan.ids[i]] if not np.isnan(timeline.sent[i]) else -1
            # Those behind it on the link were received later than it was sent, so their receivers are known by now.
            while link >= 0 and waiting[link] and latest_send[i] == np.inf:
                j = int(waiting[link].pop())
                latest_send[j] = _latest_send(j, receiver, latest_start, latest_send, after_on_link, table, plan)
            end = min(end, latest_send[i] if link >= 0 else latest_start[receiver[i]] - table.latency[plan.ids[i]])
        latest_start[i] = end - duration[i]
    return latest_start


def _latest_send(j, receiver, latest_start, latest_send, after_on_link, table, plan):
    """The latest time for the first byte of the message of column j."""
    action = plan.ids[j]
    leaves = latest_start[receiver[j]] - table.latency[action]
    if j in after_on_link:
        leaves = min(leaves, latest_send[after_on_link[j]])
    return leaves - table.occupancy[action]


def _latest_ends_of_stages(timeline):
    """(num_actions,) float64: the makespan, or what the data-parallel reduction of the stage leaves of it."""
    plan = timeline.plan
    by_stage = np.full(plan.placement.num_stages, timeline.makespan)
    by_rank = {}
    for rank, action, start, end in timeline.data_parallel:
        if action.kind != "AG":
            by_rank.setdefault(rank, []).append((start, end, action.stage))
    for lane in by_rank.values():
        latest = timeline.makespan
        for start, end, stage in sorted(lane, reverse=True):
            latest -= end - start
            by_stage[stage] = latest
    return by_stage[plan.columns[1]].astype(float)
