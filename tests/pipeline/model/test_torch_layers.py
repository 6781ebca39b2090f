"""Modules of PyTorch as stages: the losses of torch alone, with copies and ZeRO-1, and from a checkpoint."""

import copy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import lanterne
from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.model.torch_layers import torch_model
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.rank_layout import make_layout
from lanterne.pipeline.train.trainer import Trainer, plans

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[3]))
from examples.train_torch import batch, gpt  # noqa: E402

ITERATIONS, RATE = 4, 1e-2


# Made once: ranks are threads here, and torch has one seed for all.
MODULES = [layer.module for layer in gpt(16, 8, 16, 2, 2, 2).layers]


def loss_of(y, target):
    return torch.nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())


@pytest.fixture(scope="module")
def alone():
    """Losses of every microbatch, by torch and its Adam."""
    model = torch.nn.Sequential(*copy.deepcopy(MODULES))
    optimizer, losses = torch.optim.Adam(model.parameters(), RATE), []
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        own = [loss_of(model(torch.from_numpy(x)), torch.from_numpy(y)) for x, y in zip(*batch(iteration), strict=True)]
        (sum(own) / len(own)).backward()
        optimizer.step()
        losses.append([float(loss.detach()) for loss in own])
    return np.array(losses)


def train(comm, stages, scheduler, sharded, keep=None):
    copies = comm.world_size // stages
    problem = Problem(stages, 4 // copies, 1, 1, 1)
    layout = make_layout(comm.world_size, stages, copies, 1)
    trainer = Trainer(
        comm,
        torch_model(MODULES, loss_of, batch(0)[0][0]),
        batch,
        plans(problem, scheduler, [4 // copies] * copies),
        layout=layout,
        optimizer=partial(Adam, RATE),
        sharded=sharded,
    )
    losses = []
    for iteration in range(ITERATIONS):
        if keep == iteration:
            state = trainer.state()
            trainer.iteration()
            trainer.restore(state)
        losses.append(trainer.iteration().losses.reshape(-1).tolist())
    trainer.close()
    return losses


@pytest.mark.parametrize(
    ("ranks", "stages", "scheduler", "sharded"),
    [
        (1, 1, "gpipe", False),
        (2, 2, "1f1b", False),
        (2, 2, "zb_v", False),
        (2, 1, "zb_h1", True),
        (4, 2, "zb_h1", True),
    ],
)
def test_losses_are_those_of_torch_alone(ranks, stages, scheduler, sharded, alone):
    losses = lanterne.spawn(ranks, train, stages, scheduler, sharded)[0]
    np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_it_goes_on_from_a_checkpoint(alone):
    losses = lanterne.spawn(2, train, 2, "zb_h1", False, 2)[0]
    np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_what_cannot_be_a_layer():
    x, loss = np.zeros((2, 3), np.float32), torch.nn.functional.mse_loss
    for given, told in (
        ([], "got no modules"),
        ([3], r"modules\[0\]: got a int, expected a torch.nn.Module"),
        ([torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)], r"modules\[1\]: got batch normalisation"),
        ([torch.nn.Linear(3, 4), torch.nn.Linear(5, 4)], r"modules\[1\]: RuntimeError: .*mat1 and mat2"),
    ):
        with pytest.raises(InputError, match=told):
            torch_model(given, loss, x)


def test_saved_activations_of_torch_stay_where_they_are():
    def job(comm):
        model = torch_model(MODULES, loss_of, batch(0)[0][0])
        planned = plans(Problem(1, 4, 1, 1, 1), "gpipe")
        trainer = Trainer(comm, model, batch, planned, cap_nbytes=4200, spill_nbytes=1 << 20)
        trainer.iteration()

    with pytest.raises((InputError, LanterneError), match="--cap"):
        lanterne.spawn(1, job)
