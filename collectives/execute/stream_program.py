"""From a RankProgram to work on two CUDA streams: messages in groups on one, folds beside them on the other. Pure.

A stream runs what it is given in order, so nothing polls: the host executor's events become the order on a stream, and
one wait wherever an action needs an earlier one of the other stream. The messages of one (round, segment) are one
group, since NCCL has to start them together. A group takes in the next one where that needs nothing of it, and no two
of its messages have the same peer and direction: NCCL runs those one after the other, and each beside all others.

Every rank queues its groups in the order of (round, segment), and what a group needs is of earlier groups. So the
earliest message that is not done has begun at both ends, whatever was merged: no deadlock.
"""

import itertools
from typing import NamedTuple

from lanterne.collectives.execute.rank_program import Message, RankProgram

MESSAGES, WORK = 0, 1


# A group takes in another while its messages are so short that starting a group takes longer than their bytes.
MERGED_NBYTES = 1 << 20  # chosen: 3 us at 360 GB/s, a group starts in 8
# And of so many messages at most: more of them NCCL's kernel runs in several batches, one after the other.
MERGED_MESSAGES = 8  # NCCL_MAX_DEV_WORK_P2P_PER_BATCH in NCCL's device.h


class StreamStep(NamedTuple):
    """Queue the `actions` (indices) of a program on stream `lane`: one group of messages, or one fold or copy.

    `waits_for`: the step of the other lane that must be done before, or None; `records`: another step waits for this.
    """

    lane: int
    actions: tuple[int, ...]
    waits_for: int | None
    records: bool


class _Group:
    """Messages that start together: what they need and is not done by then, they, and what comes after."""

    def __init__(self, before: list[int], messages: dict[int, Message], after: list[int]) -> None:
        self.before, self.messages, self.after = before, messages, after

    def takes_in(self, other: "_Group", needs: list[list[int]]) -> bool:
        """Make `other`, the next one, a part of this, unless it has to come after this; whether it is one now."""
        together = [*self.messages.values(), *other.messages.values()]
        if sum(message.nbytes for message in together) > MERGED_NBYTES or not self.messages:
            return False
        if len(together) > min(MERGED_MESSAGES, len({(message.sends, message.peer) for message in together})):
            return False
        open_actions = {*self.messages, *self.after}
        if any(need in open_actions for index in (*other.before, *other.messages) for need in needs[index]):
            return False
        self.before += other.before
        self.messages |= other.messages
        self.after += other.after
        return True


def lower(program: RankProgram, start: int = 0, stop: int | None = None) -> tuple[StreamStep, ...]:
    """The StreamSteps of the actions `start` to `stop` (default: all), which are whole batches.

    Whatever comes before `start` must be done, on both streams, before the first step.

    Cost: some 2 us per action.
    """
    stop = len(program.actions) if stop is None else stop
    needs = _needs(program)
    groups: list[_Group] = []
    edges = [start, *(batch for batch in program.batches if start < batch < stop), stop]
    for first, last in itertools.pairwise(edges):
        group = _group(program, needs, first, last)
        if not groups or not groups[-1].takes_in(group, needs):
            groups.append(group)
    items = _items(groups, needs)
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


def _group(program: RankProgram, needs: list[list[int]], first: int, last: int) -> _Group:
    """The _Group of one batch."""
    actions = enumerate(program.actions[first:last], first)
    messages = {index: action for index, action in actions if type(action) is Message}
    before: set[int] = set()
    todo = list(messages)
    while todo:
        for need in needs[todo.pop()]:
            if need >= first and need not in before:
                before.add(need)
                todo.append(need)
    # A program whose receives wait for one another (credits) cannot be grouped.
    assert before.isdisjoint(messages), "messages of one batch wait for each other"
    after = [index for index in range(first, last) if index not in before and index not in messages]
    return _Group(sorted(before), messages, after)


def _items(groups: list[_Group], needs: list[list[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """(lane, actions) in the order in which they are queued.

    A fold that has to come between two groups is on their stream: there is nothing beside which it could run, and no
    stream has to wait for another.
    """
    items: list[tuple[int, tuple[int, ...]]] = []
    for number, group in enumerate(groups):
        items += [(WORK, (index,)) for index in group.before]
        if group.messages:
            items.append((MESSAGES, tuple(group.messages)))
        following = groups[number + 1] if number + 1 < len(groups) else None
        between = _between(group, following, needs)
        items += [(MESSAGES if index in between else WORK, (index,)) for index in group.after]
    return items


def _between(group: _Group, following: _Group | None, needs: list[list[int]]) -> set[int]:
    """The actions after `group` that need its messages, and without which `following` cannot start, if there is one."""
    behind, messages = set[int](), set(group.messages)
    for index in group.after:
        if any(need in messages or need in behind for need in needs[index]):
            behind.add(index)
    if following is None or not following.messages:
        return behind
    needed, todo = set[int](), [*following.messages, *following.before]
    while todo:
        for need in needs[todo.pop()]:
            if need in behind and need not in needed:
                needed.add(need)
                todo.append(need)
    return needed
