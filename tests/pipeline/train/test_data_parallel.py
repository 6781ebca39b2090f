"""Copies: gradients on their way while the pipeline runs, unequal shares, ZeRO-1's memory, a rank that is late."""

import numpy as np
import pytest

import lanterne
from lanterne.pipeline.model.stage_layers import LayerStage
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.trainer import Trainer, plans

MODEL, TOTAL = mlp((3, 5, 4, 6, 2), rows=2), 6


def batch(iteration, width=3):
    random = np.random.default_rng(iteration)
    return random.normal(size=(TOTAL, 2, width)), random.normal(size=(TOTAL, 2, 2))


@pytest.mark.parametrize("sharded", [False, True], ids=["all_reduce", "zero1"])
@pytest.mark.parametrize("shares", [(1 / 2, 1 / 2), (1 / 6, 2 / 6, 3 / 6)], ids=len)
def test_gradients_are_the_mean_by_shares(shares, sharded):
    """Against the sum done by hand, of vectors that the number of copies does not divide."""

    def job(comm):
        stage = LayerStage(MODEL, 0, 4, Adam(0.1), np.float64, multiple=comm.world_size if sharded else 1)
        stage.gradients[:] = np.random.default_rng(comm.rank).normal(size=len(stage.gradients))
        stage.gradients[stage.chain.num_parameters :] = 0
        given = stage.gradients[: stage.chain.num_parameters].copy()
        copies = Copies({0: comm}, {0: stage}, shares[comm.rank], sharded=sharded)
        copies.start(0)
        copies.progress()
        copies.step()
        assert not stage.gradients.any()
        return given, stage.parameters[: stage.chain.num_parameters], len(stage.optimizer.mean)

    results = lanterne.spawn(len(shares), job)
    expected = LayerStage(MODEL, 0, 4, Adam(0.1), np.float64)
    expected.gradients[:] = sum(share * given for share, (given, _, _) in zip(shares, results, strict=True))
    expected.step()
    for rank, (_, parameters, kept) in enumerate(results):
        np.testing.assert_allclose(parameters, expected.parameters, rtol=1e-12, err_msg=f"rank {rank}")
        assert kept == (-(-len(expected.parameters) // len(shares)) if sharded else len(expected.parameters)), (
            parameters,
            kept,
        )


@pytest.mark.parametrize("sharded", [False, True], ids=["all_reduce", "zero1"])
def test_a_stage_is_reduced_once_its_last_weights_are_done_while_others_go_on(sharded):
    planned = plans(Problem(2, 3, 1, 1, 1), "zb_v", (3, 3))

    def job(comm):
        trainer = Trainer(comm, MODEL, batch, planned, sharded=sharded)
        left, started = len(planned[0].plan.ranks[trainer.place]), {}
        start, after = trainer.copies.start, trainer._after

        def watched(action):
            nonlocal left
            left -= 1
            after(action)

        trainer.copies.start = lambda stage: (started.__setitem__(stage, left), start(stage))
        trainer._after = watched
        trainer.iteration()
        return planned[0].plan.ranks[trainer.place], started

    for actions, started in lanterne.spawn(4, job):
        for stage, left in started.items():
            mine = [index for index, action in enumerate(actions) if action.stage == stage]
            assert len(actions) - left - 1 == mine[-1], (actions, started, stage, left)
        assert len(started) == 2 and sorted(started.values())[0] == 0 < sorted(started.values())[1], (actions, started)
