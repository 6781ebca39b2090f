"""From programs to streams: nothing lost, every dependency kept, groups that all ranks can issue without deadlock."""

from bisect import bisect_right
from collections import deque

import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS
from lanterne.collectives.execute import stream_program
from lanterne.collectives.execute.compile_program import compile_program
from lanterne.collectives.execute.plans import checked_schedule
from lanterne.collectives.execute.rank_program import Message
from lanterne.collectives.execute.stream_program import MESSAGES, WORK, lower

LINES = [line for line in ALGORITHMS if line[0] != "barrier"]


def program_of(
    collective, algorithm, rank, world_size=5, count=4000, segment_nbytes=600, in_place=False, align=1, chunks=None
):
    checked = checked_schedule(collective, algorithm, world_size, chunks)
    return compile_program(checked, rank, count, 4, segment_nbytes=segment_nbytes, in_place=in_place, align=align)


def order_of(steps):
    """Step by (lane, position): what each step is known to come after, as a function."""
    after = []
    last = {MESSAGES: None, WORK: None}
    for number, step in enumerate(steps):
        before = set()
        for earlier in (last[step.lane], step.waits_for):
            if earlier is not None:
                before |= {earlier} | after[earlier]
        after.append(before)
        last[step.lane] = number
    return after


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("collective", "algorithm"), LINES, ids=lambda value: value)
def test_every_dependency_is_kept(collective, algorithm, in_place):
    world_size = 4 if algorithm in ("rhd", "stragglar") else 5
    for rank in range(world_size):
        program = program_of(collective, algorithm, rank, world_size, in_place=in_place)
        steps = lower(program)
        assert sorted(index for step in steps for index in step.actions) == list(range(len(program.actions))), rank
        step_of = {index: number for number, step in enumerate(steps) for index in step.actions}
        after = order_of(steps)
        for index, followers in enumerate(program.successors):
            for follower in followers:
                assert step_of[index] in after[step_of[follower]], (rank, index, follower)
        for number, step in enumerate(steps):
            if step.waits_for is not None:
                assert steps[step.waits_for].lane != step.lane and steps[step.waits_for].records, (rank, number, step)
                assert step.waits_for < number, (rank, number, step)
            kinds = {type(program.actions[index]) is Message for index in step.actions}
            assert kinds == {True} or len(step.actions) == 1, (rank, number, step)
            assert kinds == {False} or step.lane == MESSAGES, (rank, number, step)


def groups_of(program, steps):
    return [step for step in steps if type(program.actions[step.actions[0]]) is Message]


@pytest.mark.parametrize(("collective", "algorithm"), LINES, ids=lambda value: value)
def test_groups_meet_without_deadlock(collective, algorithm):
    """Every rank issues its groups in order, and a group ends once each of its messages has met its other end."""
    world_size = 4 if algorithm in ("rhd", "stragglar") else 5
    groups = []
    for rank in range(world_size):
        program = program_of(collective, algorithm, rank, world_size)
        groups.append(
            deque(
                [
                    (rank, m.peer, m.nbytes) if m.sends else (m.peer, rank, m.nbytes)
                    for m in (program.actions[index] for index in step.actions)
                    if m.nbytes
                ]
                for step in groups_of(program, lower(program))
            )
        )
    seen = [[0] * len(queue) for queue in groups]
    posted = {}
    at = [0] * world_size
    moved = True
    while moved:
        moved = False
        for rank in range(world_size):
            if at[rank] == len(groups[rank]):
                continue
            group = groups[rank][at[rank]]
            if not seen[rank][at[rank]]:
                seen[rank][at[rank]] = 1
                moved = True
                for message in group:
                    posted.setdefault((message, rank), []).append(at[rank])
            if all(matched(posted, message, rank, at[rank]) for message in group):
                at[rank] += 1
                moved = True
    assert at == [len(queue) for queue in groups]


def matched(posted, message, rank, group):
    """Whether the other end of `message` has posted as many of its kind as this end, up to `group`."""
    src, dst, _ = message
    other = dst if rank == src else src
    mine = sum(at <= group for at in posted[message, rank])
    return other == rank or len(posted.get((message, other), [])) >= mine


def test_the_join_is_a_part_of_its_own():
    for rank in range(5):
        program = program_of("all_reduce", "late_join", rank)
        before, join = lower(program, 0, program.join_start), lower(program, program.join_start)
        indices = [index for steps in (before, join) for step in steps for index in step.actions]
        assert sorted(indices) == list(range(len(program.actions))), rank
        late = [
            index for step in before for index in step.actions
            if type(program.actions[index]) is Message and program.actions[index].peer == 4
        ]  # fmt: skip
        assert not late or rank == 4, rank
        assert all(step.waits_for is None or step.waits_for < len(join) for step in join), rank


@pytest.mark.parametrize(("algorithm", "chunks", "most"), [("ring", None, 1.0), ("late_join", 2, 0.7)])
def test_short_messages_that_need_nothing_of_each_other_share_a_group(monkeypatch, algorithm, chunks, most):
    """In a ring each round needs the one before; in a late join few do. Long messages stay apart."""
    counts = {}
    for merged_nbytes in (0, 1 << 20):
        monkeypatch.setattr(stream_program, "MERGED_NBYTES", merged_nbytes)
        counts[merged_nbytes] = 0
        for rank in range(8):
            program = program_of("all_reduce", algorithm, rank, 8, segment_nbytes=1 << 20, chunks=chunks)
            groups = groups_of(program, lower(program))
            counts[merged_nbytes] += len(groups)
            messages = sum(type(action) is Message for action in program.actions)
            assert sum(len(step.actions) for step in groups) == messages, rank
    assert counts[1 << 20] <= most * counts[0], counts
    assert (counts[1 << 20] < counts[0]) == (most < 1), counts


@pytest.mark.parametrize(("collective", "algorithm"), LINES, ids=lambda value: value)
def test_messages_of_several_rounds_share_a_group_where_nccl_runs_all_of_them_at_once(collective, algorithm):
    """Else one that has to wait for another may be waited for by that, through other ranks."""
    world_size = 4 if algorithm in ("rhd", "stragglar") else 5
    for rank in range(world_size):
        program = program_of(collective, algorithm, rank, world_size)
        for step in groups_of(program, lower(program)):
            rounds = {bisect_right(program.batches, index) for index in step.actions}
            messages = [program.actions[index] for index in step.actions]
            ways = {(message.sends, message.peer) for message in messages}
            assert len(rounds) == 1 or len(messages) == len(ways) <= 8, (rank, messages)


def test_what_has_to_be_between_two_groups_is_on_their_stream(monkeypatch):
    """Of a ring, all; where a segment is folded while the next one arrives, not."""
    monkeypatch.setattr(stream_program, "MERGED_NBYTES", 0)
    for segment_nbytes, lanes in ((1 << 20, {MESSAGES}), (600, {MESSAGES, WORK})):
        program = program_of("all_reduce", "ring", 0, segment_nbytes=segment_nbytes)
        steps = lower(program, 0, program.batches[-1])  # But for the copy of the rank's own part at the end.
        assert {step.lane for step in steps} == lanes, segment_nbytes
        if lanes == {MESSAGES}:
            assert not any(step.records or step.waits_for is not None for step in steps)


def test_receives_that_wait_for_each_other_cannot_be_grouped():
    checked = checked_schedule("all_reduce", "allpairs", 5)
    program = compile_program(checked, 0, 4000, 4, segment_nbytes=1 << 20, credits=1)
    with pytest.raises(AssertionError, match="wait for each other"):
        lower(program)


@pytest.mark.parametrize("align", [1, 64, 1024])
@pytest.mark.parametrize("segment_nbytes", [100, 4096, 1 << 20])
def test_alignment_cuts_all_ranks_alike(align, segment_nbytes):
    sizes = {}
    for rank in range(5):
        program = program_of("all_reduce", "ring", rank, count=10_007, segment_nbytes=segment_nbytes, align=align)
        for action in program.actions:
            if type(action) is Message:
                pair = (rank, action.peer) if action.sends else (action.peer, rank)
                sizes.setdefault((pair, action.sends), []).append(action.nbytes)
        assert all(nbytes <= max(segment_nbytes, 4 * align) for values in sizes.values() for nbytes in values), rank
    for (pair, sends), values in sizes.items():
        assert values == sizes[pair, not sends], (pair, sends, values)
