"""Devices: their rules by hand, against the simulator, and that twice all times is twice the iteration."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.devices import COMPUTE, RECEIVE, SEND, Devices, Issued, issue_order, on_devices
from lanterne.pipeline.simulate.simulate import simulate

RULES = [
    Devices(),
    Devices(hardware_queues=0),
    Devices(hardware_queues=3, streams_per_pair=2),
    Devices(blocking_groups=True),
    Devices(delegates=2, hold=3.0, message_cost=0.5),
]


def two_ranks(first, second, microbatches=2):
    ranks = [[Action.parse(word) for word in words.split()] for words in (first, second)]
    plan = Plan.from_actions(ranks, unidirectional(2), microbatches)
    return check(plan, Problem(2, microbatches, 1, 1, 1), memory=False)


SPLIT = ("F0.0 F0.1 B0.0 W0.0 B0.1 W0.1", "F1.0 B1.0 F1.1 B1.1 W1.0 W1.1")
FUSED = ("F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1")


def starts(run, checked):
    words = [str(action) for rank in checked.plan.ranks for action in rank]
    return dict(zip(words, run.timeline().start.tolist(), strict=True))


def test_a_send_that_is_held_back_holds_back_the_computing_issued_after_it():
    """F 2, B 3, W 1; rank 0 issues F0 >F0 F1 >F1 ..., and its sends are held back for 10."""
    checked, problem = two_ranks(*SPLIT), Problem(2, 2, 2, 3, 1, link_latency=[[0, 10], [0, 0]])
    held = starts(on_devices(checked, problem, Devices(hardware_queues=1)), checked)
    free = starts(on_devices(checked, problem, Devices(hardware_queues=0)), checked)
    # The spinning kernel begins at 2 and the send at 12; with one queue F0.1 begins no earlier.
    assert (free["F0.1"], held["F0.1"]) == (2, 12)
    assert free["F1.0"] == held["F1.0"] == 12


def test_a_blocking_group_ends_when_its_peers_have_begun():
    """F 2, BW 4, delays of 10 down: rank 0 is held at 2 to 12 and at 14 to 24, and receives B0 with its second send."""
    checked, problem = two_ranks(*FUSED), Problem(2, 2, 2, 3, 1, link_latency=[[0, 10], [0, 0]])
    found = starts(on_devices(checked, problem, Devices(blocking_groups=True)), checked)
    assert (found["F0.1"], found["F1.0"], found["BW1.0"]) == (12, 12, 14)
    assert (found["BW0.0"], found["F1.1"]) == (24, 24)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_with_nothing_in_the_way_it_is_the_simulator(data):
    """A delegate for each microbatch, which costs and holds nothing, is a message that never blocks."""
    problem = dataclasses.replace(data.draw(problems(memory=False, occupancy=False)), data_parallel=None)
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    checked = check(data.draw(plans(problem, placement)), problem, memory=False)
    timeline = on_devices(checked, problem, Devices(delegates=problem.microbatches)).timeline()
    if len(set(placement.stage_to_rank)) == placement.num_stages:
        assert timeline.start == pytest.approx(simulate(checked, problem).start)
    else:
        # Several stages of a rank share the delegates to a peer.
        assert (timeline.start >= simulate(checked, problem).start - 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(RULES))
def test_twice_all_times_is_twice_the_iteration(data, devices):
    problem = data.draw(problems(memory=False, occupancy=False))
    problem = dataclasses.replace(problem, data_parallel=None, recompute=None)
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    checked = check(data.draw(plans(problem, placement, parts=False)), problem, memory=False)
    devices = dataclasses.replace(devices, gap=0.25)
    twice = {
        key: np.multiply(getattr(problem, key), 2).tolist()
        for key in ("forward", "backward_input", "backward_weight", "link_latency")
    }
    doubled = dataclasses.replace(problem, **twice)
    own = {key: 2 * getattr(devices, key) for key in ("gap", "hold", "message_cost")}
    try:
        once = on_devices(checked, problem, devices).makespan()
    except ScheduleError:
        # Blocking calls in this order wait for each other, whatever they last.
        with pytest.raises(ScheduleError):
            on_devices(checked, doubled, dataclasses.replace(devices, **own)).makespan()
        return
    assert on_devices(checked, doubled, dataclasses.replace(devices, **own)).makespan() == pytest.approx(2 * once)


def test_what_cannot_be():
    checked, problem = two_ranks(*SPLIT), Problem(2, 2, 2, 3, 1, link_latency=[1])
    order = issue_order(checked)
    assert [issued.mark for issued in order[0][:4]] == [COMPUTE, SEND, COMPUTE, SEND]
    with pytest.raises(InputError, match=r"issue\[1\]: got 9 kernels, expected 10"):
        on_devices(checked, problem, Devices(), [order[0], order[1][:-1]])
    with pytest.raises(InputError, match="expected at least 0, 1 or 2"):
        on_devices(checked, problem, Devices(streams_per_pair=3))
    # Rank 0 receives B0 before it sends F0, on one stream: each waits for the other.
    crossed = [Issued(RECEIVE, 2), *(issued for issued in order[0] if issued != Issued(RECEIVE, 2))]
    with pytest.raises(ScheduleError, match="wait for each other"):
        on_devices(checked, problem, Devices(), [crossed, order[1]]).timeline()
    shared = Problem(3, 2, 1, 1, 1, link_bandwidth=1, message_nbytes=1, shared_links=[[[0, 1], [1, 2]]])
    with pytest.raises(InputError, match="shared_links"):
        on_devices(checked, shared, Devices())
