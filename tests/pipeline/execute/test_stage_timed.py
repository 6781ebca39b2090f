"""Timed stages: what they wait for, on a clock that the test drives."""

import pytest

from lanterne.pipeline.execute import stage_timed
from lanterne.pipeline.execute.stage_timed import Clock, TimedStage, timed_stages
from lanterne.pipeline.plan.placement import bidirectional, loop, unidirectional
from lanterne.pipeline.plan.problem import Problem


@pytest.fixture
def now(monkeypatch):
    """A clock: a one-element list; every wait ends 3 s late."""
    time = [100.0]
    monkeypatch.setattr(stage_timed.time, "monotonic", lambda: time[0])

    def late(deadline_s, spin_s):
        time[0] = max(time[0], deadline_s) + 3

    monkeypatch.setattr(stage_timed, "wait_until", late)
    return time


def test_lateness_does_not_add_up(now):
    stage = TimedStage((10, 20, 30), Clock())
    stage.begin(2)
    stage.forward(0)
    stage.backward_input(0)
    stage.backward_weight(0)
    assert stage.clock.deadline_s == 160 and now[0] == 163


def test_stages_of_a_problem():
    problem = Problem(2, 3, [2, 4], 6, 8, link_bandwidth=1, message_nbytes=(7, 9))
    stages = timed_stages(problem, loop(2), 1, unit_s=0.5)
    assert list(stages) == [1, 3]
    assert [stage.durations_s for stage in stages.values()] == [(1, 1.5, 2)] * 2
    assert stages[1].clock is stages[3].clock
    assert (stages[1].output_shape, stages[3].output_shape) == ((9,), None)
    assert timed_stages(problem, unidirectional(2), 0, 1)[0].durations_s == (2, 6, 8)
    both = timed_stages(problem, bidirectional(2), 0, 1)
    assert both[0].input_shape is None and both[3].output_shape is None
