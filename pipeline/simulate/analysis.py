"""Analysis of a simulated timeline: bubbles, the critical path, the slack of each action, and memory over time."""

from itertools import pairwise

import numpy as np

from lanterne.errors import InputError
from lanterne.pipeline.plan.costs import Floats, Ints, costs
from lanterne.pipeline.plan.plan import STAGE
from lanterne.pipeline.simulate.precedence import Precedences
from lanterne.pipeline.simulate.program import memory_changes, senders_of
from lanterne.pipeline.simulate.simulate import Timeline


def busy_time(timeline: Timeline) -> Floats:
    """Return (num_ranks,) float64: the time that each rank computes."""
    ranks = timeline.plan.placement.num_ranks
    busy = np.bincount(timeline.plan.rank_of, timeline.end - timeline.start, minlength=ranks)
    return np.asarray(busy, np.float64)


def bubble_rate(timeline: Timeline) -> float:
    """Return 1 - busy / (makespan x ranks), in [0, 1]; some papers divide the idle time by the busy time instead."""
    return float(1.0 - busy_time(timeline).sum() / (timeline.makespan * timeline.plan.placement.num_ranks))


def slack(timeline: Timeline) -> Floats:
    """Return (num_actions,) float64: how much later each could start with the same makespan and every order kept.

    Messages keep the order that they had on their link.

    Raises:
        InputError: the timeline is one with in-order communication, whose blocking this does not follow.

    Cost: some 3 us per action.
    """
    _check_free(timeline)
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    # The same operations with time reversed: each begins when all that wait for it have ended.
    backwards = Precedences()
    for duration in (timeline.end - timeline.start).tolist():
        backwards.add(duration)
    for first, stop in pairwise(plan.offsets.tolist()):
        for column in range(first, stop - 1):
            backwards.wait(column, column + 1)
    moves: dict[int, int] = {}
    for receiver, sender in enumerate(senders(timeline).tolist()):
        if sender >= 0:
            latency, occupancy = (float(each[plan.ids[sender]]) for each in (table.latency, table.occupancy))
            moves[sender] = backwards.add(occupancy, backwards.add(latency, receiver))
            backwards.wait(sender, moves[sender])
    for messages in _links(timeline):
        for before, behind in pairwise(messages.tolist()):
            backwards.wait(moves[before], moves[behind])
    reductions: dict[int, int] = {}
    for rank, action, start, end in sorted(timeline.data_parallel, key=lambda each: -each.start):
        if action.kind != "AG":
            reductions[rank] = backwards.add(end - start, reductions.get(rank))
            last = np.flatnonzero(plan.columns[STAGE] == action.stage)[-1]
            backwards.wait(int(last), reductions[rank])
    _, ended = backwards.times()
    return timeline.makespan - ended[: len(timeline.start)] - timeline.start


def critical_path(timeline: Timeline) -> tuple[int, ...]:
    """Return the columns on one chain, from a start at 0 to the makespan, in which each waits for the one before.

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
    """Return per rank the steps of its memory: (times, levels); levels[i] holds from times[i] on.

    An activation counts from the start of F to the end of W (see StageMemory), in the unit of the capacity.
    """
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    alloc, free = memory_changes(plan, table)
    profile = []
    for first, stop in zip(plan.offsets[:-1].tolist(), plan.offsets[1:].tolist(), strict=True):
        times = np.concatenate([timeline.end[first:stop], timeline.start[first:stop]])
        changes = np.concatenate([-free[first:stop], alloc[first:stop]])
        # At one instant memory is freed before it is taken: an action ends before the next one starts.
        order = np.argsort(times, kind="stable")
        profile.append((times[order], np.round(np.cumsum(changes[order]), 9)))
    return profile


def _check_free(timeline: Timeline) -> None:
    if timeline.in_order:
        raise InputError(
            "timeline: got one with in-order communication, expected one in which computing never waits for a send"
        )


def senders(timeline: Timeline) -> Ints:
    """Return (num_actions,) int64: the column of another stage whose result each column waits for; -1 for none."""
    return senders_of(timeline.plan, costs(timeline.problem, timeline.plan.placement))


def _before_on_link(timeline: Timeline) -> Ints:
    """Return (num_actions,) int64: for a column that sends over a link, the previous one on it; -1 for none."""
    before = np.full(len(timeline.start), -1)
    for messages in _links(timeline):
        before[messages[1:]] = messages[:-1]
    return before


def _links(timeline: Timeline) -> list[Ints]:
    """Return per link the columns that send over it, in the order of their messages."""
    plan, table = timeline.plan, costs(timeline.problem, timeline.plan.placement)
    sends = np.flatnonzero(~np.isnan(timeline.sent) & (table.link[plan.ids] >= 0))
    links = table.link[plan.ids[sends]]
    return [
        sends[links == link][np.argsort(timeline.sent[sends[links == link]], kind="stable")]
        for link in range(table.num_links)
    ]


def _last(timeline: Timeline) -> int | None:
    """Return the column that the makespan waits for; None if it waits for all-gathers before reductions alone."""
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
