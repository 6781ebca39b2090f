"""Slack, critical path, bubbles and memory of simulated timelines."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import DataParallel, Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.analysis import bubble_rate, busy_time, critical_path, memory_profile, senders, slack
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.program import program_of, run_program
from lanterne.pipeline.simulate.simulate import simulate


def drawn(data, **keys):
    problem = data.draw(problems(memory=False, **keys))
    return simulate(data.draw(plans(problem, PLACEMENTS[data.draw(placements)](problem.stages))), problem)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_delaying_an_action_by_its_slack_changes_nothing_and_by_more_does(data):
    timeline = drawn(data)
    assume(timeline.problem.data_parallel is None)
    found = slack(timeline)
    assert found.min() == pytest.approx(0, abs=1e-9)
    i = data.draw(st.integers(0, len(found) - 1))
    assert delayed(timeline, i, found[i]) == pytest.approx(timeline.makespan)
    assert delayed(timeline, i, found[i] + 0.5) >= timeline.makespan + 0.5 - 1e-9


def delayed(timeline, i, delay):
    """The makespan if column i takes `delay` longer: what starts it later is the same to all others."""
    table = costs(timeline.problem, timeline.plan.placement)
    longer = timeline.end - timeline.start
    longer[i] += delay
    return (run_program(program_of(timeline.plan, table, longer)).begun + longer).max()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_data_parallel_reductions_shorten_the_slack_of_their_stage(data):
    timeline = drawn(data)
    found = slack(timeline)
    assert found.min() >= -1e-9
    for _, action, start, end in timeline.data_parallel:
        if action.kind != "AG":
            on_stage = timeline.plan.columns[1] == action.stage
            assert (timeline.end + found)[on_stage].max() <= timeline.makespan - (end - start) + 1e-9, (
                action,
                start,
                end,
            )


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_critical_path_has_no_slack_and_no_gap(data):
    timeline = drawn(data)
    path = list(critical_path(timeline))
    if not path:
        # All-gathers and reductions follow each other without a pause.
        assert slack(timeline).min() > 0
        return
    np.testing.assert_allclose(slack(timeline)[path], 0, atol=1e-9)
    first = timeline.start[path[0]]
    gathers = [end for _, action, _, end in timeline.data_parallel if action.kind == "AG"]
    assert first == 0 or any(first == pytest.approx(end) for end in gathers)
    for a, b in itertools.pairwise(path):
        assert timeline.end[a] <= timeline.start[b] + 1e-9, (a, b)


def test_where_all_gathers_and_reductions_are_the_chain_no_action_is_on_it():
    """Both stages of one rank gather for 5 each and reduce for 3: the second gather ends at 10, all actions by 12."""
    work = DataParallel("zero1", reduce=(3.0,), all_gather=(5.0,))
    problem = Problem(1, 2, 1, 1, 0, data_parallel=work)
    columns = np.array([[0, 3, 0, 3], [0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]], np.int32)
    made = Plan(PLACEMENTS["bidirectional"](1), 2, columns, np.array([0, 4]), "by hand")
    timeline = simulate(made, problem)
    assert timeline.makespan == 16
    assert critical_path(timeline) == ()
    assert slack(timeline).min() > 0


@pytest.mark.parametrize("scheduler", ["1f1b", "zb_h1", "zb_v"])
def test_senders_are_what_the_actions_need(scheduler):
    problem = Problem(3, 4, 1, 2, 3)
    made = plan(problem, scheduler)
    actions = [action for rank in made.ranks for action in rank]
    for i, j in enumerate(senders(simulate(made, problem)).tolist()):
        if j >= 0:
            assert actions[j].microbatch == actions[i].microbatch and abs(actions[j].stage - actions[i].stage) == 1, (
                i,
                j,
            )
            assert actions[j].kind[0] == actions[i].kind[0], (i, j)


def test_bubbles_are_idle_time_over_the_whole():
    problem = Problem(2, 1, 1, 2, 3)
    timeline = simulate(plan(problem, "1f1b"), problem)
    assert timeline.makespan == 12 and busy_time(timeline).tolist() == [6, 6] and bubble_rate(timeline) == 0.5


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_memory_over_time_peaks_where_the_check_says_and_ends_empty(data):
    problem = data.draw(problems(memory=False))
    made = data.draw(plans(problem, PLACEMENTS[data.draw(placements)](problem.stages)))
    peaks = check(made, problem).peak_memory
    for (times, levels), peak in zip(memory_profile(simulate(made, problem)), peaks, strict=True):
        assert (np.diff(times) >= 0).all(), (times, levels, peak)
        assert levels.max(initial=0.0) <= peak + 1e-9, (times, levels, peak)
        assert len(levels) == 0 or levels[-1] == pytest.approx(0, abs=1e-9), (times, levels, peak)


def test_memory_of_1f1b_over_time():
    problem = Problem(2, 2, 1, 2, 3)
    (times, levels), _ = memory_profile(simulate(plan(problem, "1f1b"), problem))
    held = [float(levels[np.searchsorted(times, at, side="right") - 1]) for at in (0.5, 1.5, 11, 12.5, 18)]
    assert held == [1, 2, 2, 1, 0]
