"""The recursion behind the bounds: its machines, its messages, its memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import preemptive_makespan
from lanterne.pipeline.planners.heads import Machines, MessageChain, memory_coupling, releases_of, reversed_chain


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 20), st.integers(1, 5)), min_size=1))
def test_machines_end_when_interruptible_work_can(pieces):
    machines = Machines(2, len(pieces))
    for i, (a, work_a, b, work_b) in enumerate(pieces):
        machines.add(np.array([a, b], float), np.array([work_a, work_b], float))
        first = preemptive_makespan([(head, work, 0) for head, work, _, _ in pieces[: i + 1]])
        second = preemptive_makespan([(head, work, 0) for _, _, head, work in pieces[: i + 1]])
        # A piece without work ends with its release, which the machine still counts.
        np.testing.assert_array_equal(machines.finish(), [first, second], err_msg=f"{i + 1} pieces")


def heads(capacity=None, count=4):
    """Three stages, F 1, B 2, W 1, a message of 3 on the link and 5 under way after stage 0."""
    problem = Problem(3, count, 1, 2, 1, max_inflight_activations=capacity)
    table, stages = costs(problem, unidirectional(3)), np.arange(3)
    up, down = (
        MessageChain(+1, np.array([3.0, 0, 0]), np.array([5.0, 0, 0])),
        MessageChain(-1, np.zeros(3), np.zeros(3)),
    )
    levels = [(np.ones(3), up), (np.full(3, 2.0), down), (np.ones(3), None)]
    memory = memory_coupling(table, stages, count, is_reversed=False)
    return releases_of(levels, np.zeros(3), memory, stages, count)


def test_forwards_follow_their_messages():
    forward = heads()[0]
    assert forward[0].tolist() == [0, 0, 0, 0]  # A piece is released when its needs are met, not when its rank is free.
    assert forward[1].tolist() == [9, 12, 15, 18]
    assert forward[2].tolist() == [10, 13, 16, 19]


def test_backwards_wait_for_the_machine_too():
    _, backward, weight = heads()
    assert backward[2].tolist() == [11, 14, 17, 20]
    assert backward[1].tolist() == [13, 16, 19, 22]
    assert (weight >= backward + 2).all()


def test_memory_holds_forwards_back():
    assert heads(capacity=2)[0][0, :2].tolist() == [0, 0]
    # The third F of stage 0 waits for the first W there: F 9 + 1 + 1, B of three stages, W.
    assert heads(capacity=2)[0][0, 2] == 11 + 6 + 1


def test_a_chain_reversed_twice_is_itself():
    chain = MessageChain(+1, np.array([1.0, 2, 0]), np.array([3.0, 4, 0]))
    again = reversed_chain(reversed_chain(chain))
    assert again.step == chain.step
    assert again.occupancy.tolist() == chain.occupancy.tolist() and again.latency.tolist() == chain.latency.tolist()
    assert reversed_chain(chain).occupancy.tolist() == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_nothing_is_released_later_than_in_one_rank_after_the_other(count):
    assert heads(count=count).shape == (3, 3, count)
    assert (np.diff(heads(count=count), axis=2) >= 0).all()
