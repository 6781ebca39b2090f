"""Slack, critical path, bubbles and memory of simulated timelines."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.simulate.analysis import critical_path, memory_profile, slack
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
