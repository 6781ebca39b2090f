"""The simulator against golden numbers, a slow second opinion, and the laws that it promises."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.action import Action, dependencies
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.compiled import run_in_order
from lanterne.pipeline.simulate.event_loop import IN_ORDER, Times
from lanterne.pipeline.simulate.program import new_progress, program_of, run_program, with_links
from lanterne.pipeline.simulate.simulate import simulate

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data" / "cases.json").read_text())["cases"]
}
PUBLISHED = {"1f1b": "1F1B", "zb_h1": "ZB-H1", "zb_h2": "ZB-H2", "zb_v": "torch-ZBVZeroBubble"}


@pytest.mark.parametrize("scheduler", PUBLISHED)
@pytest.mark.parametrize("case", CASES)
def test_peak_memory_says_whether_a_plan_fits(case, scheduler):
    problem = Problem.from_dict(CASES[case])
    peaks = check(plan(problem, scheduler), problem, memory=False).peak_memory
    fits = all(peak <= capacity for peak, capacity in zip(peaks, problem.limits.capacity, strict=True))
    assert fits == CASES[case]["within_memory"][PUBLISHED[scheduler]]


@pytest.mark.parametrize(
    ("scheduler", "delay", "expected"), [("1f1b", 0, 450), ("1f1b", 10, 550), ("zb_h1", 0, 390), ("zb_h1", 10, 460)]
)
def test_golden_numbers_of_four_stages(scheduler, delay, expected):
    problem = Problem(4, 12, 10, 10, 10, [delay, 0, 0])
    assert simulate(plan(problem, scheduler), problem).makespan == expected


def by_definition(made, problem):
    """Start times by repeated relaxation of the rules in simulate.py's first paragraph; slow and plain."""
    placement = made.placement
    actions = [action for rank in made.ranks for action in rank]
    index = {action: i for i, action in enumerate(actions)}
    last = {action[:3]: i for i, action in enumerate(actions) if action.part == action.parts}
    rank_of = made.rank_of.tolist()
    duration = [
        problem.durations[a.kind][r] / placement.shares()[a.stage] / a.parts
        for a, r in zip(actions, rank_of, strict=True)
    ]
    floor = [0.0] * len(actions)
    if problem.data_parallel and problem.data_parallel.kind == "zero1":
        lane = [0.0] * placement.num_ranks
        seen = set()
        for i, action in enumerate(actions):
            if action.kind == "F" and action.stage not in seen:
                seen.add(action.stage)
                lane[rank_of[i]] += problem.data_parallel.all_gather[rank_of[i]] / placement.shares()[action.stage]
                floor[i] = lane[rank_of[i]]
    start = list(floor)
    for _ in range(len(actions) + 1):
        link_free, arrival = {}, {}
        for i, action in enumerate(actions):
            for other in actions:
                if (
                    action.part == action.parts
                    and other.part == 1
                    and other.stage != action.stage
                    and other.microbatch == action.microbatch
                ):
                    needs = [n.kind for n in dependencies(other, placement) if n.stage == action.stage]
                    if action.kind in needs or (action.kind == "BW" and "B" in needs):
                        src, dst = rank_of[i], rank_of[index[other]]
                        busy = (
                            problem.occupancy(src, dst, problem.message_nbytes[action.kind != "F"])
                            if src != dst
                            else 0.0
                        )
                        leaves = max(start[i] + duration[i], link_free.get((src, dst), 0.0) if busy else 0.0) + busy
                        if busy:
                            link_free[src, dst] = leaves
                        arrival[index[other]] = leaves + (problem.latency(src, dst) if src != dst else 0.0)
        new = []
        for i, action in enumerate(actions):
            before = [new[i - 1] + duration[i - 1]] if i and rank_of[i - 1] == rank_of[i] else []
            local = [
                last.get(n[:3], last.get(("BW", *n[1:3])))
                for n in dependencies(action, placement)
                if n.stage == action.stage and n.parts == 1
            ]
            new.append(max([floor[i], arrival.get(i, 0.0), *before, *(start[j] + duration[j] for j in local)]))
        if new == start:
            return np.array(start), np.array(duration)
        start = new
    raise AssertionError("no fixed point")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_simulate_is_the_least_solution_of_the_rules(data):
    problem = data.draw(problems(stages=st.integers(1, 3), microbatches=st.integers(1, 3), memory=False))
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement))
    timeline = simulate(made, problem)
    start, duration = by_definition(made, problem)
    np.testing.assert_allclose(timeline.start, start, atol=1e-9)
    ends = [float(max(start + duration))]
    if problem.data_parallel:
        ends += [end for *_, end in timeline.data_parallel]
    assert timeline.makespan == pytest.approx(max(ends))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_compiled_loop_gives_the_same_times_to_the_bit(data):
    problem = data.draw(problems(shared=True))
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement))
    program = with_links(program_of(made, costs(problem, placement)), None)
    if (program.kinds != IN_ORDER).any():
        return
    plain, rows = run_program(program), len(program.operations.lane)
    times = Times(*(np.zeros(rows) for _ in Times._fields))
    ran = run_in_order(program.operations, program.orders, times, new_progress(len(program.kinds), rows, 99))
    assert ran == rows
    for name in Times._fields:
        np.testing.assert_array_equal(getattr(plain, name), getattr(times, name), err_msg=name)


def slower(data, problem):
    """`problem` with one of its times or sizes grown."""
    key = data.draw(st.sampled_from(["forward", "backward_input", "backward_weight", "link_latency", "message_nbytes"]))
    grown = np.array(getattr(problem, key), float)
    if grown.size == 0:
        return problem
    place = data.draw(st.integers(0, grown.size - 1))
    grown.flat[place] += data.draw(st.integers(1, 5))
    return dataclasses.replace(problem, **{key: grown.tolist()})


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from([None, 0, 1, 2, 5]))
def test_no_time_falls_when_something_gets_slower(data, queue):
    problem = data.draw(problems(memory=False))
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement))
    mode = {"in_order": queue is not None, "queue": queue or 0}
    before, after = simulate(made, problem, **mode), simulate(made, slower(data, problem), **mode)
    assert (after.start >= before.start - 1e-9).all() and after.makespan >= before.makespan - 1e-9


def in_turn(made, problem):
    """`made` with the order that the messages had on each shared link."""
    timeline, table = simulate(made, problem), costs(problem, made.placement)
    actions = [action for rank in made.ranks for action in rank]
    on_link = {}
    for i in np.argsort(timeline.sent, kind="stable").tolist():
        if not np.isnan(timeline.sent[i]) and table.link[made.ids[i]] >= 0:
            on_link.setdefault(int(table.link[made.ids[i]]), []).append(actions[i]._replace(part=1, parts=1))
    return dataclasses.replace(made, message_order=tuple(map(tuple, on_link.values())))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_with_a_message_order_shared_links_are_monotone_too(data):
    problem = data.draw(problems(stages=st.integers(2, 4), memory=False, shared=True))
    assume(problem.shared_links)
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement))
    fixed = in_turn(made, problem)
    before = simulate(fixed, problem)
    np.testing.assert_allclose(before.start, simulate(made, problem).start, atol=1e-9)
    assert (simulate(fixed, slower(data, problem)).start >= before.start - 1e-9).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_messages_of_a_shared_link_never_overlap(data):
    problem = data.draw(problems(stages=st.integers(2, 4), shared=True))
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement))
    timeline, table = simulate(made, problem), costs(problem, placement)
    for link in range(table.num_links):
        at = np.flatnonzero((table.link[made.ids] == link) & ~np.isnan(timeline.sent))
        at = at[np.argsort(timeline.sent[at])]
        ends = timeline.sent[at] + table.occupancy[made.ids[at]]
        assert (timeline.sent[at][1:] >= ends[:-1] - 1e-9).all(), link
        assert (timeline.sent[at] >= timeline.end[at] - 1e-9).all(), link


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 3))
def test_blocking_never_helps_and_less_so_with_a_longer_queue(data, queue):
    problem = data.draw(problems(memory=False))
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement))
    free, long, short = (
        simulate(made, problem),
        simulate(made, problem, in_order=True, queue=queue + 1),
        simulate(made, problem, in_order=True, queue=queue),
    )
    assert (short.start >= long.start - 1e-9).all() and (long.start >= free.start - 1e-9).all()


def test_head_of_line_blocking_as_in_figure_6_of_adaptra():
    """F 10, delay 30, one send under way: F0.1's send waits for F0.0's, so F0.2 starts when that has arrived."""
    ranks = [["F0.0", "F0.1", "F0.2", "BW0.0", "BW0.1", "BW0.2"], ["F1.0", "BW1.0", "F1.1", "BW1.1", "F1.2", "BW1.2"]]
    made = Plan.from_actions([[Action.parse(word) for word in rank] for rank in ranks], unidirectional(2), 3)
    problem = Problem(2, 3, 10, 5, 5, [30])
    assert simulate(made, problem).start[:3].tolist() == [0, 10, 20]
    assert simulate(made, problem, in_order=True, queue=0).start[:3].tolist() == [0, 40, 80]
    assert simulate(made, problem, in_order=True, queue=1).start[:3].tolist() == [0, 10, 40]
    assert simulate(made, problem, in_order=True, queue=2).start[:3].tolist() == [0, 10, 20]
    # Each transfer takes its turn: they arrive 40, 70 and 100.
    assert simulate(made, problem, in_order=True, queue=9).arrival[[6, 8, 10]].tolist() == [40, 70, 100]


def test_messages_queue_on_a_shared_link():
    """F0.0 and F0.1 end at 1 and 2 and fill the link from 1 to 21; F1.0 ends at 12 and waits if it has that link."""
    problem = Problem(2, 2, 2, 1, 1, link_bandwidth=1, message_nbytes=10, shared_links=[[[0, 1], [1, 0]]])
    made = plan(problem, "interleaved_1f1b")
    words = [str(action) for rank in made.ranks for action in rank]
    at = [words.index(word) for word in ("F1.0", "F1.1", "F2.0", "F2.1")]
    assert simulate(made, problem).arrival[at].tolist() == [11, 21, 31, 41]
    assert simulate(made, dataclasses.replace(problem, shared_links=())).arrival[at].tolist() == [11, 21, 22, 32]


def test_the_order_on_a_shared_link_can_be_planned():
    problem = Problem(2, 2, 2, 1, 1, link_bandwidth=1, message_nbytes=10, shared_links=[[[0, 1], [1, 0]]])
    made = in_turn(plan(problem, "interleaved_1f1b"), problem)
    order = list(made.message_order[0])
    again = Plan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.message_order == made.message_order
    assert simulate(again, problem).makespan == simulate(made, problem).makespan
    with pytest.raises(ScheduleError, match="messages wait for each other"):
        simulate(dataclasses.replace(made, message_order=(tuple(reversed(order)),)), problem)
    with pytest.raises(ScheduleError, match="1 messages too few"):
        simulate(dataclasses.replace(made, message_order=(tuple(order[1:]),)), problem)
    with pytest.raises(ScheduleError, match=r"got W0\.0"):
        simulate(dataclasses.replace(made, message_order=((*order, Action("W", 0, 0)),)), problem)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, 12),
        ({"kind": "all_reduce", "time": [7, 1]}, 19),
        ({"kind": "zero1", "reduce_scatter": 3, "all_gather": 2}, 17),
        ({"kind": "zero1", "reduce_scatter": 0, "all_gather": [0, 9]}, 18.5),
    ],
)
def test_data_parallel_communication_counts(given, expected):
    """Two stages, one microbatch, F 1, B 2, W 3; W of rank 1 is in the shadow of the path through rank 0."""
    problem = Problem(2, 1, 1, [2, 2], [3, 0], link_latency=[1.5], data_parallel=given)
    assert simulate(plan(problem, "zb_h1"), problem).makespan == expected


def test_bad_queue_and_deadlock():
    problem = Problem(2, 1, 1, 1, 1)
    with pytest.raises(InputError, match="queue: got -1"):
        simulate(plan(problem, "1f1b"), problem, in_order=True, queue=-1)
    stuck = Plan.from_actions(
        [[Action("BW", 0, 0), Action("F", 0, 0)], [Action("F", 1, 0), Action("BW", 1, 0)]], unidirectional(2), 1
    )
    left = run_program(program_of(stuck, costs(problem, stuck.placement))).left
    assert left.tolist() == [2, 2]
