"""Plans on the ranks of a communicator: the same losses as one process, an honest timeline, errors on every rank."""

import numpy as np
import pytest

import lanterne
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportError, TransportTimeout
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.execute.stage_timed import Jitter, timed_stages
from lanterne.pipeline.model.stage_layers import make_stages
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planners.schedulers import SCHEDULERS, plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.train.adam import Adam

STATIC = [name for name, (module, _, _) in SCHEDULERS.items() if module.startswith("schedules.")]
MODEL, MICROBATCHES, ITERATIONS = mlp((3, 5, 4, 6, 5, 4, 3, 5, 2), rows=3), 5, 3


def batch(iteration):
    random = np.random.default_rng(iteration)
    return random.normal(size=(MICROBATCHES, 3, 3)), random.normal(size=(MICROBATCHES, 3, 2))


def train(comm, checked, queue=1, ready_first_s=None):
    """(losses, stage -> weights) of this rank after a few iterations."""
    placement = checked.plan.placement
    every = make_stages(MODEL, placement.num_stages, lambda: Adam(0.01), np.float64, seed=4)
    stages = {stage: every[stage] for stage in placement.stages_of(comm.rank)}
    plane, losses = Inline(comm, queue=queue), []
    for iteration in range(ITERATIONS):
        execute(checked, stages, comm, *batch(iteration), plane=plane, ready_first_s=ready_first_s)
        losses.append([loss for stage in stages.values() for _, loss in sorted(stage.losses.items())])
        for stage in stages.values():
            assert stage.nbytes_held == 0, (iteration, stage)
            stage.step()
    return losses, {number: stage.parameters for number, stage in stages.items()}


def trained(checked, queue=1, ready_first_s=None):
    """The same of all ranks together: ((iterations, microbatches) losses, flat weights)."""
    results = lanterne.spawn(checked.plan.placement.num_ranks, train, checked, queue, ready_first_s)
    losses = [[loss for own, _ in results for loss in own[iteration]] for iteration in range(ITERATIONS)]
    weights = {number: array for _, own in results for number, array in own.items()}
    return np.array(losses), np.concatenate([weights[number] for number in sorted(weights)])


def checked_plan(scheduler, p, microbatches=MICROBATCHES):
    problem = Problem(p, microbatches, 2, 2, 1, link_latency=1)
    return check(plan(problem, scheduler), problem)


@pytest.fixture(scope="module")
def one_process():
    return trained(checked_plan("zb_h1", 1))


@pytest.mark.parametrize("scheduler", [*STATIC, "adaptra", "crosspipe", "crosspipe_wave"])
@pytest.mark.parametrize("p", [2, 3])
def test_every_schedule_trains_as_one_process_does(scheduler, p, one_process):
    losses, weights = trained(checked_plan(scheduler, p))
    np.testing.assert_allclose(losses, one_process[0], rtol=1e-10)
    np.testing.assert_allclose(weights, one_process[1], rtol=1e-8, atol=1e-10)


def test_a_rank_that_is_late_does_something_else_meanwhile():
    """Rank 0 sends F0 late; rank 1, which then has B0 and F1 to do, goes on with what came, and all is done once."""
    problem = Problem(2, 4, 10, 10, 10)
    checked, jitter = check(plan(problem, "zb_h1"), problem), Jitter(0.3, 6.0, seed=1)

    def job(comm):
        stages = timed_stages(problem, checked.plan.placement, comm.rank, 2e-4, jitter=jitter)
        return execute(checked, stages, comm, ready_first_s=2e-4)

    for measured, actions in zip(lanterne.spawn(2, job), checked.plan.ranks, strict=True):
        order = np.argsort(measured.start_s)
        assert (measured.start_s[order][1:] >= measured.end_s[order][:-1]).all(), (measured, actions)
        assert measured.actions == actions and not np.isnan(measured.end_s).any(), (measured, actions)


@pytest.mark.parametrize("scheduler", STATIC)
def test_the_measured_timeline_keeps_the_dependencies(scheduler):
    problem = Problem(2, 3, 1, 2, 1, link_bandwidth=1, message_nbytes=4)
    checked = check(plan(problem, scheduler), problem)
    placement, unit_s = checked.plan.placement, 2e-4
    measured = lanterne.spawn(
        2, lambda comm: execute(checked, timed_stages(problem, placement, comm.rank, unit_s), comm)
    )
    start_s, end_s = (np.concatenate([getattr(m, name) for m in measured]) for name in ("start_s", "end_s"))
    table, ids = costs(problem, placement), checked.plan.ids
    sent_s = {table.target[i]: end for i, end in zip(ids.tolist(), end_s, strict=True)}
    assert [m.actions for m in measured] == list(checked.plan.ranks)
    for column, (i, start) in enumerate(zip(ids.tolist(), start_s, strict=True)):
        if table.slot[i] != table.always:
            assert start >= sent_s[table.slot[i]], (column, i, start)
        assert end_s[column] >= start, (column, i, start)
    for m in measured:
        assert (m.start_s[1:] >= m.end_s[:-1]).all(), m
        assert m.end_s[-1] - m.start_s[0] >= unit_s * 3 * (1 + 2 + 1) * 0.99, m


def failures(p, function):
    """What each rank raises."""

    def attempt(comm):
        with pytest.raises(LanterneError) as caught:
            function(comm)
        return caught.value

    return lanterne.spawn(p, attempt, timeout_s=20)


def mlp_stages(comm, p):
    every = make_stages(MODEL, p, Adam, np.float64)
    return {comm.rank: every[comm.rank]}


@pytest.mark.parametrize("kind", ["forward", "backward_input", "backward_weight", "begin"])
def test_a_stage_that_raises_is_named_on_every_rank(kind):
    checked = checked_plan("zb_h1", 3)

    def job(comm):
        stages = mlp_stages(comm, 3)
        if comm.rank == 1:
            setattr(stages[1], kind, lambda *args: 1 / 0)
        execute(checked, stages, comm, *batch(0))
        comm.barrier()

    words = {"forward": "F1.0", "backward_input": "B1.0", "backward_weight": "W1.0", "begin": "begin"}
    for error in failures(3, job):
        assert f"pipeline rank 1, {words[kind]}: ZeroDivisionError: division by zero" in str(error), error


def test_a_rank_that_leaves_is_named():
    checked = checked_plan("1f1b", 2)

    def job(comm):
        if comm.rank == 1:
            raise InputError("left")
        execute(checked, mlp_stages(comm, 2), comm, *batch(0))

    error = failures(2, job)[0]
    assert isinstance(error, (PeerFailed, TransportError)) and ("rank 1" in str(error) or "left" in str(error))


@pytest.mark.parametrize("ready_first_s", [None, 1e-3])
def test_a_rank_that_never_comes_is_a_timeout(ready_first_s):
    checked = checked_plan("1f1b", 2)

    def job(comm):
        if comm.rank == 0:
            execute(checked, mlp_stages(comm, 2), comm, *batch(0), timeout_s=0.05, ready_first_s=ready_first_s)
        else:
            comm.recv(np.empty(1), 0, tag=3)

    error = failures(2, job)[0]
    assert isinstance(error, TransportTimeout) and error.peers == (1,)


def test_what_does_not_fit():
    checked = checked_plan("1f1b", 2)
    errors = failures(3, lambda comm: execute(checked, {}, comm))
    assert all("a plan for 2 ranks on 3, expected as many" in str(error) for error in errors)
    errors = failures(2, lambda comm: execute(checked, mlp_stages(comm, 2) if comm.rank else {}, comm, *batch(0)))
    assert all("got stages [] on rank 0, expected [0]" in str(error) for error in errors)
    unchecked = checked.plan
    assert isinstance(unchecked, Plan)
    with pytest.raises(InputError, match="got a Plan, expected a CheckedPlan"):
        lanterne.spawn(2, lambda comm: execute(unchecked, {}, comm))
