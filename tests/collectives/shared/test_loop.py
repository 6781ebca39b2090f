"""The compiled loop in any order: ranks of one thread take turns, with slots so few and small that each has to wait."""

import ctypes
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_outputs import expected

from lanterne.collectives.call.sizes import _PARTS
from lanterne.collectives.execute.arguments import Key
from lanterne.collectives.shared import shared_calls, shared_memory
from lanterne.collectives.shared.pieces import WAYS
from lanterne.collectives.shared.shared_calls import SharedPlan
from lanterne.collectives.shared.shared_memory import SharedMemory, nbytes_for
from lanterne.kernels.arrays import address_of
from lanterne.kernels.cpu import meet
from lanterne.kernels.cpu.meet import DONE, IDLE, MeetLayout
from lanterne.kernels.dtypes import DTYPES


@pytest.fixture(scope="module", autouse=True)
def few_and_small():
    with pytest.MonkeyPatch.context() as patch:
        for module in (shared_calls, shared_memory):
            patch.setattr(module, "LAYOUT", MeetLayout(slots=2, slot_nbytes=24, line_nbytes=64))
        # A look in vain is soon over.
        patch.setattr(meet, "POLLS", 2)
        meet.advance_function.cache_clear()
        yield
    meet.advance_function.cache_clear()


def make(memories, collective, count, root):
    """(plans, outputs, what they have to be) of a call of all ranks, on int32."""
    n = len(memories)
    in_parts, out_parts = _PARTS[collective](n)
    inputs = [np.arange(count * in_parts, dtype=np.int32) * (rank + 1) + 7 for rank in range(n)]
    outputs = [np.full(count * out_parts, -1, np.int32) for _ in range(n)]
    way = WAYS[collective]
    op, of_root = "sum" if way.folds else None, root if way.from_root or way.to_root else None
    key = Key(collective, "shared", op, "int32", count, of_root, None, None, None, None)
    plans = [SharedPlan(key, DTYPES["int32"], False, n, rank, memory) for rank, memory in enumerate(memories)]
    for rank, plan in enumerate(plans):
        source = outputs[rank] if collective == "broadcast" else inputs[rank]
        source[:] = inputs[rank]
        plan.words[0], plan.words[1] = address_of(source), address_of(outputs[rank])
    return plans, inputs, outputs, [expected(collective, inputs, n, root)(rank) for rank in range(n)]


def memories_of(n):
    view = memoryview(bytearray(nbytes_for(n)))
    return [SharedMemory(view, n, rank, False) for rank in range(n)]


@settings(max_examples=60)
@given(
    st.integers(2, 4),
    st.lists(st.tuples(st.sampled_from(sorted(set(WAYS) - {"barrier"})), st.integers(0, 20), st.integers(0, 3)),
             min_size=1, max_size=5),
    st.integers(0, 1 << 32),
)  # fmt: skip
def test_every_order_of_turns_gives_every_rank_its_results(n, calls, seed):
    random = Random(seed)
    memories = memories_of(n)
    made = [make(memories, collective, count, root % n) for collective, count, root in calls]
    at, begun = [0] * n, [False] * n
    turns = 0
    while left := [rank for rank in range(n) if at[rank] < len(made)]:
        rank = random.choice(left)
        plan = made[at[rank]][0][rank]
        if plan.advance(not begun[rank], plan.words_at) == DONE:
            _, _, outputs, wanted = made[at[rank]]
            assert wanted[rank] is None or (outputs[rank] == wanted[rank]).all()
            at[rank] += 1
        begun[rank] = at[rank] < len(made) and made[at[rank]][0][rank] is plan
        turns += 1
        assert turns < 20_000, "nobody gets on"


def test_a_rank_alone_gets_as_far_as_there_is_room():
    memories = memories_of(2)
    plans, *_ = make(memories, "all_reduce", 30, 0)
    assert plans[0].advance(1, plans[0].words_at) != DONE
    assert plans[0].advance(0, plans[0].words_at) == IDLE
    assert plans[0].standing == (1, 2, 0), "of five pieces as many as slots"
    assert memories[0].missing(1, 0, 2) == [1]


def test_only_who_is_in_the_same_call_is_there():
    memories = memories_of(2)
    (first, _), *_ = make(memories, "all_reduce", 3, 0)
    (_, other), *_ = make(memories, "all_reduce", 4, 0)
    first.advance(1, first.words_at)
    other.advance(1, other.words_at)
    assert first.advance(0, first.words_at) == other.advance(0, other.words_at) == IDLE
    assert memories[1].missing(1, 0, 2) == [0]


def test_after_a_broadcast_of_two_roots_nobody_is_in_the_same_call():
    """A root reads nothing, so the broadcast itself ends on both."""
    memories = memories_of(2)
    for root in range(2):
        plans, *_ = make(memories, "broadcast", 3, root)
        assert plans[root].advance(1, plans[root].words_at) == DONE
    plans, *_ = make(memories, "all_reduce", 3, 0)
    for rank in (0, 1, 0, 1):
        assert plans[rank].advance(plans[rank].standing[0] == 0, plans[rank].words_at) != DONE
    assert [memory.missing(2, 0, 2) for memory in memories] == [[1], [0]]


def test_words_are_where_the_loop_has_them():
    assert ctypes.sizeof(make(memories_of(2), "broadcast", 1, 0)[0][0].words) == 8 * len(meet.CALL)
