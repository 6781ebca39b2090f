"""Modules of PyTorch as stages: the losses of torch alone, with copies and ZeRO-1, and from a checkpoint."""

import copy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import lanterne
from lanterne.errors import InputError
from lanterne.pipeline.model.torch_layers import TorchLayer, find_joints, torch_model
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


class Tied(torch.nn.Module):
    """Uses a weight twice on the way, one aside, one not at all; and adds what does not pass by the input."""

    def __init__(self):
        super().__init__()
        self.once = torch.nn.Linear(3, 3)
        self.twice = torch.nn.Linear(3, 3)
        self.again = self.twice
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        y = self.twice(torch.tanh(self.once(x)))
        return self.again(torch.tanh(y * self.scale.exp())) + self.scale.sin()


@pytest.mark.parametrize(
    "make",
    [
        Tied,
        lambda: torch.nn.Linear(3, 2, bias=False),
        lambda: torch.nn.LayerNorm(3),
        lambda: torch.nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True),
        torch.nn.Tanh,
    ],
)
def test_gradients_are_those_of_torch_in_one_or_in_two(make):
    torch.manual_seed(1)
    module = make().double()
    x = torch.randn(2, 4, 6 if isinstance(module, torch.nn.TransformerEncoderLayer) else 3, dtype=torch.float64)
    given = x.clone().requires_grad_()
    y = module(given)
    dy = torch.randn_like(y)
    wanted = torch.autograd.grad(y, [given, *module.parameters()], dy, allow_unused=True)
    layer = TorchLayer(copy.deepcopy(module))
    held = dict(layer.module.named_parameters())
    parameters = {name: value.detach().numpy() for name, value in module.named_parameters()}
    for is_split in (False, True):
        gradients = {name: np.ones(value.shape) for name, value in parameters.items()}
        for _ in range(2):
            found, saved = layer.forward(parameters, x.numpy())
            np.testing.assert_allclose(found, y.detach().numpy(), err_msg=f"split {is_split}")
            if is_split:
                dx, kept = layer.backward_input(parameters, saved, dy.numpy())
                layer.backward_weight(kept, gradients)
            else:
                dx = layer.backward(parameters, saved, dy.numpy(), gradients)
            np.testing.assert_allclose(dx, wanted[0].numpy(), atol=1e-12, err_msg=f"split {is_split}")
        for (name, value), gradient in zip(gradients.items(), wanted[1:], strict=True):
            expected = np.broadcast_to(1 + (0 if gradient is None else 2 * gradient.numpy()), value.shape)
            np.testing.assert_allclose(value, expected, atol=1e-12, err_msg=f"split {is_split}, {name}")
    assert all(value is held[name] for name, value in layer.module.named_parameters()), "the module is as it was"


def test_w_goes_back_from_where_parameters_join():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    layer, parameters = TorchLayer(module), {name: value.detach().numpy() for name, value in module.named_parameters()}
    _, saved = layer.forward(parameters, np.ones((2, 3), np.float32))
    assert [(type(joint.node).__name__, joint.parameters) for joint in find_joints(saved)] == [
        ("AddmmBackward0", [0, 1]),
        ("AddmmBackward0", [2, 3]),
    ]


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
