"""Late receives: by hand, against the simulator, and monotone."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate


def by_hand(*ranks):
    plan = Plan.from_actions([[Action.parse(word) for word in rank.split()] for rank in ranks], unidirectional(2), 2)
    return check(plan, Problem(2, 2, 1, 1, 1), memory=False)


def test_a_message_waits_for_a_rank_that_computes():
    """F 2, B 3, W 1, latency 4. F0.1 was sent at 4, but rank 1 computes until 14 and posts for it only then."""
    checked = by_hand("F0.0 F0.1 B0.0 W0.0 B0.1 W0.1", "F1.0 B1.0 W1.0 F1.1 B1.1 W1.1")
    problem = Problem(2, 2, 2, 3, 1, [4])
    words = [str(action) for rank in checked.plan.ranks for action in rank]
    late, ahead = simulate(checked, problem, rendezvous=True), simulate(checked, problem)
    at = words.index("F1.1")
    assert (ahead.start[at], late.start[at]) == (12, 16)
    assert (late.sent[words.index("F0.1")], late.sent[words.index("F0.0")]) == (12, 2)


def test_messages_that_come_before_are_posted_too():
    """Rank 1 waits for F0.1 first: the plan is wrong, but for F0.0's sake its message is the second on the link."""
    checked = by_hand("F0.0 F0.1 B0.1 W0.1 B0.0 W0.0", "F1.1 F1.0 B1.1 W1.1 B1.0 W1.0")
    problem = Problem(2, 2, 2, 3, 1, [0], link_bandwidth=1, message_nbytes=5)
    timeline = simulate(checked, problem, rendezvous=True)
    assert timeline.start[6:8].tolist() == [12, 14]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_late_receives_never_help_and_cost_nothing_without_delays(data):
    problem = dataclasses.replace(data.draw(problems(memory=False)), data_parallel=None, shared_links=())
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    checked = check(data.draw(plans(problem, placement)), problem, memory=False)
    late, ahead = simulate(checked, problem, rendezvous=True), simulate(checked, problem)
    assert (late.start >= ahead.start - 1e-9).all()
    quick = dataclasses.replace(problem, link_latency=0, link_bandwidth=None)
    assert simulate(checked, quick, rendezvous=True).start == pytest.approx(simulate(checked, quick).start)
