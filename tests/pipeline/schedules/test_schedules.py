"""Each static schedule against the formulas of its paper, and on every shape."""

import itertools

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.planners.schedulers import SCHEDULERS, load, plan
from lanterne.pipeline.simulate.analysis import bubble_rate, busy_time
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

STATIC = [name for name, (module, _, _) in SCHEDULERS.items() if module.startswith("schedules.")]
SHAPES = [(p, m) for p in (1, 2, 3, 4, 5, 8) for m in (1, 2, 3, 5, 8, 16, 17)]
F, B, W = 1, 2, 3


def simulated(scheduler, p, m, times=(F, B, W), **options):
    problem = Problem(p, m, *times)
    checked = check(plan(problem, scheduler, **options), problem)
    return checked, simulate(checked, problem)


@pytest.mark.parametrize("scheduler", STATIC)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "p{}-m{}".format(*shape))
def test_every_shape_gives_a_valid_plan_not_below_the_bound(scheduler, shape):
    checked, timeline = simulated(scheduler, *shape)
    assert checked.plan.scheduler == scheduler
    assert timeline.makespan >= lower_bound(checked.problem, checked.plan.placement)


@pytest.mark.parametrize("scheduler", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_gpipe_and_1f1b(scheduler, p, m):
    checked, timeline = simulated(scheduler, p, m)
    assert timeline.makespan == (m + p - 1) * (F + B + W)
    assert bubble_rate(timeline) == pytest.approx((p - 1) / (m + p - 1))
    inflight = [m] * p if scheduler == "gpipe" else [min(p - rank, m) for rank in range(p)]
    assert list(checked.peak_memory) == inflight


@pytest.mark.parametrize("stages_per_rank", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (2, 3, 4) for m in (p, 2 * p, 5 * p)])
def test_interleaved_1f1b(p, m, stages_per_rank):
    _, timeline = simulated("interleaved_1f1b", p, m, stages_per_rank=stages_per_rank)
    assert timeline.makespan == pytest.approx((m + (p - 1) / stages_per_rank) * (F + B + W))


@pytest.mark.parametrize("times", [(1, 1, 1), (3, 4, 2), (2, 2, 1)])
@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (2, 3, 4, 8) for m in (p, 2 * p, 3 * p + 1)])
def test_zb_h1_has_bubbles_of_f_plus_b_minus_w(p, m, times):
    checked, timeline = simulated("zb_h1", p, m, times)
    f, b, w = times
    idle = timeline.makespan - busy_time(timeline)
    np.testing.assert_allclose(idle, (p - 1) * (f + b - w))
    assert checked.peak_memory == (min(p, m),) * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (2, 3, 4, 8) for m in (2 * p - 1, 2 * p, 5 * p)])
def test_zb_h2_never_waits(p, m):
    checked, timeline = simulated("zb_h2", p, m, (1, 1, 1))
    offsets = checked.plan.offsets
    spans = [timeline.end[stop - 1] - timeline.start[start] for start, stop in itertools.pairwise(offsets)]
    assert spans == [3 * m] * p
    assert checked.peak_memory == (2 * p - 1,) * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (1, 2, 3, 4, 8) for m in (2 * p, 2 * p + 1, 5 * p)])
def test_zb_v_never_waits_in_the_memory_of_1f1b(p, m):
    checked, timeline = simulated("zb_v", p, m, (2, 2, 2))
    assert timeline.makespan == 6 * m + (p - 1)
    assert max(checked.peak_memory) <= p


def test_an_unknown_scheduler_names_the_known():
    with pytest.raises(InputError, match=r"scheduler: got 'zb' .*, expected one of gpipe, 1f1b"):
        load("zb")
