"""From a RankProgram to work on two CUDA streams: messages in groups on one, folds and copies on the other. Pure.

A stream runs what it is given in order, so nothing polls: the host executor's events become the order on a stream, and
one wait wherever an action needs an earlier one of the other stream. The messages of one (round, segment) are one
group, since NCCL has to start them together. All ranks queue their groups in the order of (round, segment), so the
earliest unfinished group of all ranks can always proceed: no deadlock.
"""

import itertools
from typing import NamedTuple

from lanterne.collectives.execute.rank_program import Message, RankProgram

MESSAGES, WORK = 0, 1


class StreamStep(NamedTuple):
    """Queue the `actions` (indices) of a program on stream `lane`: one group of messages, or one fold or copy.

    `waits_for`: the step of the other lane that must be done before, or None; `records`: another step waits for this.
    """

    lane: int
    actions: tuple[int, ...]
    waits_for: int | None
    records: bool


def lower(program: RankProgram, start: int = 0, stop: int | None = None) -> tuple[StreamStep, ...]:
    """The StreamSteps of the actions `start` to `stop` (default: all), which are whole batches.

    Whatever comes before `start` must be done, on both streams, before the first step.

    Cost: some 2 us per action.
    """
    stop = len(program.actions) if stop is None else stop
    needs = _needs(program)
    items: list[tuple[int, tuple[int, ...]]] = []
    edges = [start, *(batch for batch in program.batches if start < batch < stop), stop]
    for first, last in itertools.pairwise(edges):
        items += _batch_items(program, needs, first, last)
    step_of = {action: number for number, (_, actions) in enumerate(items) for action in actions}
    # Of each lane, up to which step of the other it has waited.
    seen = [-1, -1]
    waits: list[int | None] = []
    recorded = set()
    for lane, actions in items:
        other = [step_of[need] for action in actions for need in needs[action] if need >= start]
        latest = max((number for number in other if items[number][0] != lane), default=-1)
        if latest > seen[lane]:
            seen[lane] = latest
            recorded.add(latest)
            waits.append(latest)
        else:
            waits.append(None)
    return tuple(StreamStep(*item, waits[number], number in recorded) for number, item in enumerate(items))


def _needs(program: RankProgram) -> list[list[int]]:
    """Per action, the actions whose completion it waits for."""
    needs: list[list[int]] = [[] for _ in program.actions]
    for index, followers in enumerate(program.successors):
        for follower in followers:
            needs[follower].append(index)
    return needs


def _batch_items(
    program: RankProgram, needs: list[list[int]], first: int, last: int
) -> list[tuple[int, tuple[int, ...]]]:
    """(lane, actions) of one batch: what its messages need, then the messages, then the rest."""
    messages = [index for index in range(first, last) if type(program.actions[index]) is Message]
    before: set[int] = set()
    todo = list(messages)
    while todo:
        for need in needs[todo.pop()]:
            if need >= first and need not in before:
                before.add(need)
                todo.append(need)
    # A program whose receives wait for one another (credits) cannot be grouped.
    assert before.isdisjoint(messages), "messages of one batch wait for each other"
    others = [index for index in range(first, last) if index not in before and index not in set(messages)]
    items: list[tuple[int, tuple[int, ...]]] = [(WORK, (index,)) for index in sorted(before)]
    if messages:
        items.append((MESSAGES, tuple(messages)))
    return items + [(WORK, (index,)) for index in others]
