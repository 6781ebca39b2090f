"""Every layer and loss: gradients against finite differences, buffers, and what is kept."""

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.pipeline.model.layer import LayerChain, Residual
from lanterne.pipeline.model.layers import Attention, Gelu, LayerNorm, Linear, check_tokens
from lanterne.pipeline.model.losses import CrossEntropy, SquaredError

LAYERS = {
    "linear": (Linear(4, 3), (2, 3, 4)),
    "gelu": (Gelu(), (3, 4)),
    "layer norm": (LayerNorm(5), (2, 3, 5)),
    "attention": (Attention(2), (2, 4, 12)),
    "chain": (LayerChain((Linear(4, 6), Gelu(), Linear(6, 4))), (3, 4)),
    "residual": (Residual((LayerNorm(4), Linear(4, 12), Attention(2), Linear(4, 4))), (2, 3, 4)),
}
NUDGE = 1e-6


def drawn(layer, shape, dtype=np.float64):
    random = np.random.default_rng(5)
    flat = layer.initial(random) + 0.1 * random.normal(size=layer.num_parameters)
    return flat.astype(dtype), random.normal(size=shape).astype(dtype), random


def slopes(function, array):
    """The gradient of function() by `array`, by central differences."""
    found = np.zeros_like(array)
    for place in np.ndindex(array.shape):
        value = array[place]
        array[place] = value + NUDGE
        above = function()
        array[place] = value - NUDGE
        below = function()
        array[place] = value
        found[place] = (above - below) / (2 * NUDGE)
    return found


def gradients_of(layer, flat, x, dy):
    """dx, and the flat gradient that W adds."""
    gradients = np.zeros_like(flat)
    _, saved = layer.forward(layer.split(flat), x)
    dx, kept = layer.backward_input(layer.split(flat), saved, dy)
    assert not gradients.any(), "B has computed a weight's gradient"
    layer.backward_weight(kept, layer.split(gradients))
    return dx, gradients


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_finite_differences(name):
    layer, shape = LAYERS[name]
    flat, x, random = drawn(layer, shape)
    dy = random.normal(size=layer.forward(layer.split(flat), x)[0].shape)
    dx, gradients = gradients_of(layer, flat, x, dy)

    def loss():
        return float((layer.forward(layer.split(flat), x)[0] * dy).sum())

    np.testing.assert_allclose(dx, slopes(loss, x), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(gradients, slopes(loss, flat), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", LAYERS)
def test_results_go_into_lent_buffers_and_arguments_stay(name):
    layer, shape = LAYERS[name]
    flat, x, random = drawn(layer, shape, np.float32)
    given = x.copy()
    y, saved = layer.forward(layer.split(flat), x)
    out = np.full_like(y, np.nan)
    again, saved = layer.forward(layer.split(flat), x, out)
    assert again is out and out.dtype == np.float32
    np.testing.assert_array_equal(out, y)
    out[...] = np.nan  # sent and used again before B
    dy = random.normal(size=y.shape).astype(np.float32)
    dy_given = dy.copy()
    expected, _ = layer.backward_input(layer.split(flat), layer.forward(layer.split(flat), x)[1], dy)
    into = np.full_like(x, np.nan)
    dx, kept = layer.backward_input(layer.split(flat), saved, dy, into)
    assert dx is into and dx.dtype == np.float32
    np.testing.assert_array_equal(dx, expected)
    into[...] = np.nan
    gradients = np.zeros_like(flat)
    layer.backward_weight(kept, layer.split(gradients))
    np.testing.assert_array_equal(gradients, gradients_of(layer, flat, x, dy)[1])
    np.testing.assert_array_equal(x, given)
    np.testing.assert_array_equal(dy, dy_given)


@pytest.mark.parametrize("name", ["cross entropy", "squared error"])
def test_losses(name):
    random = np.random.default_rng(3)
    y = random.normal(size=(2, 3, 5))
    loss, target = (
        (CrossEntropy(), random.integers(0, 5, (2, 3)))
        if name == "cross entropy"
        else (SquaredError(), random.normal(size=y.shape))
    )
    _, saved = loss.forward(y, target)
    expected = slopes(lambda: 0.25 * float(loss.forward(y, target)[0]), y)
    np.testing.assert_allclose(loss.backward_input(saved, 0.25), expected, rtol=1e-6, atol=1e-9)


def test_attention_looks_back_only():
    layer, (_, length, _) = Attention(2), (1, 5, 12)
    x = np.random.default_rng(1).normal(size=(1, 5, 12))
    before = layer.forward({}, x)[0].copy()
    x[:, 3] += 1
    after = layer.forward({}, x)[0]
    np.testing.assert_array_equal(after[:, :3], before[:, :3])
    assert (after[:, 3:length] != before[:, 3:]).all()


@pytest.mark.parametrize(
    ("tokens", "text"), [([0.5], "float64"), ([7], "from 7 to 7"), ([-1, 2], "from -1 to 2")], ids=str
)
def test_bad_tokens(tokens, text):
    with pytest.raises(InputError, match=f"inputs: got .*{text}.*expected"):
        check_tokens("inputs", np.array(tokens), 7)
