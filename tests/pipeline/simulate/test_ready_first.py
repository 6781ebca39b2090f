"""Readiness-first: the plan itself without jitter, faster with it, within memory, complete and free of deadlocks."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import PLACEMENTS, placements, plans, problems

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.ready_first import simulate_ready_first, work_bound
from lanterne.pipeline.simulate.simulate import simulate


def jittered(checked, problem, draw):
    """(fixed order, readiness-first, bound) with durations drawn as many times as usual."""
    usual = simulate(checked, problem)
    durations = (usual.end - usual.start) * draw(len(usual.start))
    fixed, ready = (run(checked, problem, durations=durations).makespan for run in (simulate, simulate_ready_first))
    return fixed, ready, work_bound(checked, problem, durations)


def seldom_long(seed):
    return lambda count: np.where(np.random.default_rng(seed).random(count) < 0.02, 10.0, 1.0)


def gaussian(seed):
    return lambda count: np.maximum(np.random.default_rng(seed).normal(1, 0.2, count), 0.05)


@pytest.mark.parametrize(
    ("shape", "drawn", "gain"),
    [((4, 12), seldom_long, 1.05), ((8, 32), seldom_long, 1.15), ((8, 32), gaussian, 1.03)],
    ids=["4x12-seldom-long", "8x32-seldom-long", "8x32-gaussian"],
)
def test_jitter_costs_less(shape, drawn, gain):
    problem = Problem(*shape, 10, 10, 10)
    checked = check(plan(problem, "zb_h1"), problem)
    found = np.array([jittered(checked, problem, drawn(seed)) for seed in range(20)])
    fixed, ready, bound = found.mean(axis=0)
    assert fixed / ready >= gain
    assert (found[:, 2] <= found[:, 1] * (1 + 1e-9)).all() and bound < ready


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_without_jitter_it_is_the_plan(data):
    problem = dataclasses.replace(data.draw(problems(memory=False)), data_parallel=None)
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    checked = check(data.draw(plans(problem, placement)), problem)
    ready, planned = simulate_ready_first(checked, problem), simulate(checked, problem)
    assert ready.makespan <= planned.makespan * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_whatever_lasts_longer_it_ends_and_keeps_memory_and_the_order_of_messages(data, seed):
    problem = dataclasses.replace(data.draw(problems()), data_parallel=None)
    placement = PLACEMENTS[data.draw(placements)](problem.stages)
    made = data.draw(plans(problem, placement, within_memory=True))
    if made is None:
        return
    checked = check(made, problem)
    usual = simulate(checked, problem)
    durations = (usual.end - usual.start) * np.random.default_rng(seed).choice([1.0, 7.0], len(usual.start))
    ready = simulate_ready_first(checked, problem, durations)
    assert not np.isnan(ready.start).any()
    # What was run, in this order, is a plan that is right and fits; checked as any other.
    ranks = pairwise(made.offsets.tolist())
    order = [sorted(range(*own), key=lambda i: (ready.start[i], ready.end[i])) for own in ranks]
    ran = Plan.from_actions(
        [[made.ranks[rank][i - made.offsets[rank]] for i in own] for rank, own in enumerate(order)],
        placement,
        made.microbatches,
    )
    check(ran, problem)
    assert work_bound(checked, problem, durations) <= ready.makespan * (1 + 1e-9)
    table = costs(problem, placement)
    sends = [i for i in range(len(made.ids)) if table.target[made.ids[i]] >= 0]
    for rank in range(placement.num_ranks):
        for peer in range(placement.num_ranks):
            to = [i for i in sends if made.rank_of[i] == rank and _receiver(made, table, i) == peer and rank != peer]
            assert [i for i in order[rank] if i in set(to)] == to, (rank, peer)


def _receiver(made, table, column):
    if made.columns[3, column] != made.columns[4, column]:
        return -1
    waiting = np.flatnonzero((table.slot[made.ids] == table.target[made.ids[column]]) & (made.columns[3] == 1))
    return int(made.rank_of[waiting[0]]) if len(waiting) else -1
