"""Models in stages: any cut and any plan train as one stage does, and hold the memory that the simulation says."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_runner import run_plan
from problems import PLACEMENTS, placements, plans

from lanterne.errors import InputError
from lanterne.pipeline.model.stage_gpt import gpt, windows
from lanterne.pipeline.model.stage_layers import make_stages
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import SCHEDULERS, plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.train.adam import Adam

STATIC = [name for name, (module, _, _) in SCHEDULERS.items() if module.startswith("schedules.")]
ONE_STAGE_PER_RANK = [name for name in STATIC if name not in ("interleaved_1f1b", "zb_v")]
TEXT = np.frombuffer(b"the quick brown fox jumps over the lazy dog; " * 4, np.uint8).astype(np.int64) % 32
MICROBATCHES, ITERATIONS = 6, 3
MODELS = {"mlp": mlp((3, 5, 4, 6, 5, 4, 3, 5, 2), rows=3), "gpt": gpt(32, 8, 8, 2, blocks=3, rows=2)}


def batch(name, iteration, microbatches=MICROBATCHES):
    if name == "gpt":
        return windows(TEXT, microbatches, 2, 8, seed=iteration)
    random = np.random.default_rng(iteration)
    return random.normal(size=(microbatches, 3, 3)), random.normal(size=(microbatches, 3, 2))


def stages_of(name, num_stages, dtype=np.float64, **options):
    return make_stages(MODELS[name], num_stages, lambda: Adam(0.01), dtype, seed=4, **options)


def one_stage_plan(microbatches):
    return plan(Problem(1, microbatches, 1, 1, 1), "zb_h1")


def trained(name, a_plan, stages, iterations=ITERATIONS):
    """(losses, the weights of the first route) after some iterations."""
    losses = [run_plan(a_plan, stages, *batch(name, i, a_plan.microbatches)) for i in range(iterations)]
    held = stages[: a_plan.placement.route_length]
    return np.array(losses), np.concatenate([stage.parameters for stage in held])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_plan_trains_as_one_stage_does(data):
    placement = PLACEMENTS[data.draw(placements)](data.draw(st.integers(1, 2)))
    microbatches = data.draw(st.integers(1, 4))
    made = data.draw(plans(Problem(placement.num_ranks, microbatches, 1, 1, 1), placement))
    stages = stages_of("mlp", placement.route_length)
    for _ in range(placement.num_routes - 1):
        stages += stages_of("mlp", placement.route_length)
    losses, weights = trained("mlp", made, stages, 2)
    expected_losses, expected_weights = trained("mlp", one_stage_plan(microbatches), stages_of("mlp", 1), 2)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-10)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("num_stages", [2, 3, 5, 8])
def test_the_same_bits_however_the_layers_are_cut(name, dtype, num_stages):
    order = one_stage_plan(MICROBATCHES).ranks[0]
    by_stage = [[action._replace(stage=stage) for action in order] for stage in range(num_stages)]
    # GPipe order, so that every stage has the microbatches in one order.
    for rank in by_stage:
        rank.sort(key=lambda action: "FBW".index(action.kind))
    made = Plan.from_actions(by_stage, unidirectional(num_stages), MICROBATCHES)
    whole = Plan.from_actions([[a._replace(stage=0) for a in by_stage[0]]], unidirectional(1), MICROBATCHES)
    losses, weights = trained(name, made, stages_of(name, num_stages, dtype))
    expected_losses, expected_weights = trained(name, whole, stages_of(name, 1, dtype))
    assert weights.dtype == dtype
    np.testing.assert_array_equal(losses, expected_losses)
    np.testing.assert_array_equal(weights, expected_weights)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheduler", ONE_STAGE_PER_RANK)
def test_bytes_held_are_what_the_simulation_says(name, scheduler):
    p, num_microbatches = 3, 5
    made = plan(Problem(p, num_microbatches, 1, 1, 1), scheduler)
    stages = stages_of(name, p)
    after_f, after_b = bytes_of_one(name, stages)
    memory = {
        "forward": after_f,
        "backward_input": [b - f for f, b in zip(after_f, after_b, strict=True)],
        "backward_weight": [-b for b in after_b],
    }
    simulated = check(made, Problem(p, num_microbatches, 1, 1, 1, memory=memory)).peak_memory
    most = most_of(lambda rank: stages[rank].nbytes_held, name, made, stages)
    assert most == list(simulated)


def most_of(held, name, made, stages):
    """The most that held(rank) gives on each rank after an action, while `made` runs; 0 is left."""
    ranks = made.placement.num_ranks
    most = [0] * ranks

    def after(column):
        rank = int(made.rank_of[column])
        most[rank] = max(most[rank], held(rank))

    run_plan(made, stages, *batch(name, 0, made.microbatches), after=after)
    assert [held(rank) for rank in range(ranks)] == [0] * ranks
    return most


def bytes_of_one(name, stages):
    """Bytes that each stage holds of a microbatch after its F and after its B."""
    inputs, targets = batch(name, 0, 1)
    x, dy, after_f, after_b = None, None, [], []
    for stage in stages:
        stage.begin(1, inputs, targets)
        x = stage.forward(0, x)
        after_f.append(stage.nbytes_held)
    for stage in reversed(stages):
        dy = stage.backward_input(0, dy)
        after_b.append(stage.nbytes_held)
        stage.backward_weight(0)
        assert stage.nbytes_held == 0, stage
        stage.gradients[...] = 0
    return after_f, after_b[::-1]


@pytest.mark.parametrize("starts", [(0, 0, 8), (0, 9, 8), (1, 4, 8), (0, 8), (0, 4, 7)], ids=str)
def test_starts_that_do_not_cut_the_model(starts):
    with pytest.raises(InputError, match="starts: got"):
        stages_of("mlp", 2, starts=starts)


X, Y = batch("mlp", 0, 2)
WRONG = {
    "W before B": (lambda s: (s.forward(0), s.backward_weight(0)), "W of microbatch 0: it waits for its B"),
    "B before F": (lambda s: s.backward_input(1), "B of microbatch 1: it is not held"),
    "F twice": (lambda s: (s.forward(0), s.forward(0)), "F of microbatch 0: it is held already"),
    "step with work left": (lambda s: (s.forward(0), s.step()), r"step: microbatches \[0\] are under way"),
    "begin with work left": (lambda s: (s.forward(1), s.begin(2, X, Y)), r"begin: microbatches \[1\] are under way"),
    "W early in parts": (
        lambda s: (s.forward(0), s.backward_input(0, None, None, 1, 2), s.backward_weight(0, 1, 1)),
        "W of microbatch 0: it waits for its B",
    ),
    "targets missing": (lambda s: s.begin(2, X), "targets: got none, expected one for each of 2"),
    "inputs too few": (lambda s: s.begin(3, X, Y), "inputs: got 2, expected one for each of 3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(case):
    (stage,) = stages_of("mlp", 1)
    stage.begin(2, X, Y)
    use, text = WRONG[case]
    with pytest.raises(InputError, match=text):
        use(stage)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ((np.zeros((3, 4)),), r"x: got float64 \(3, 4\), expected float64 \(3, 5\)"),
        ((None,), "x: got none"),
        ((np.zeros((3, 5), np.float32),), "x: got float32"),
        ((np.zeros((3, 5)), np.zeros((2, 4))), "out: got"),
        ((np.zeros((3, 5)), np.zeros((4, 3)).T), "out: got a non-contiguous array"),
    ],
    ids=range(5),
)
def test_wrong_arrays(arrays, text):
    stage = stages_of("mlp", 8)[1]
    stage.begin(1)
    with pytest.raises(InputError, match=text):
        stage.forward(0, *arrays)
