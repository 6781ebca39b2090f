"""Simulated timelines in the Chrome trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from typing import Any

import numpy as np

from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.simulate.analysis import memory_profile, senders
from lanterne.pipeline.simulate.simulate import Timeline

COMPUTE, NETWORK = "compute", "data parallel"


def chrome_trace(timeline: Timeline, unit_us: float = 1.0) -> dict[str, Any]:
    """The trace of `timeline` as a JSON object: one process per rank, arrows for messages, a counter for its memory.

    Args:
        unit_us: microseconds in one unit of the problem's times.
    """
    plan = timeline.plan
    events: list[dict[str, Any]] = []
    for rank in range(plan.placement.num_ranks):
        events.append(_named("process_name", rank, 0, f"rank {rank}"))
        events += [_named("thread_name", rank, thread, name) for thread, name in enumerate((COMPUTE, NETWORK))]
    actions = [action for rank in plan.ranks for action in rank]
    start, end, rank_of = (timeline.start * unit_us).tolist(), (timeline.end * unit_us).tolist(), plan.rank_of.tolist()
    for action, begin, stop, rank in zip(actions, start, end, rank_of, strict=True):
        events.append(_span(action, rank, 0, begin, stop))
    for rank, action, begin, stop in timeline.data_parallel:
        events.append(_span(action, rank, 1, begin * unit_us, stop * unit_us))
    sender = senders(timeline)
    for to in np.flatnonzero(sender >= 0).tolist():
        source = int(sender[to])
        if rank_of[source] != rank_of[to]:
            arrow: dict[str, Any] = {"cat": "message", "name": str(actions[source]), "id": to, "tid": 0}
            events.append(arrow | {"ph": "s", "pid": rank_of[source], "ts": start[source]})
            events.append(arrow | {"ph": "f", "bp": "e", "pid": rank_of[to], "ts": start[to]})
    for rank, (times, levels) in enumerate(memory_profile(timeline)):
        for at, level in zip((times * unit_us).tolist(), levels.tolist(), strict=True):
            events.append({"ph": "C", "name": "memory", "pid": rank, "tid": 0, "ts": at, "args": {"in use": level}})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _span(action: Action, rank: int, thread: int, start: float, end: float) -> dict[str, Any]:
    about = {"stage": action.stage, "microbatch": action.microbatch}
    return {
        "ph": "X",
        "name": str(action),
        "cat": action.kind,
        "pid": rank,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "args": about,
    }
