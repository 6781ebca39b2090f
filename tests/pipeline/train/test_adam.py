"""Adam: by hand, in pieces, and bad settings."""

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.pipeline.train.adam import Adam


def test_two_steps_by_hand():
    adam, x = Adam(0.1, 0.5, 0.75, 1e-8), np.array([1.0])
    adam.step(x, np.array([2.0]))
    # Mean and square, made unbiased, are 2 and 4: a step of the learning rate.
    assert x[0] == pytest.approx(0.9)
    adam.step(x, np.array([-1.0]))
    mean, square = (0.25 * 2 - 0.5) / 0.75, (0.75 * 0.25 * 4 + 0.25) / (1 - 0.75**2)
    assert x[0] == pytest.approx(0.9 - 0.1 * mean / square**0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_pieces_give_the_bits_of_the_whole(dtype):
    random = np.random.default_rng(2)
    whole, adam, pieces = random.normal(size=11).astype(dtype), Adam(0.1), [Adam(0.1), Adam(0.1)]
    cut = [whole[:4].copy(), whole[4:].copy()]
    for _ in range(3):
        gradient = random.normal(size=11).astype(dtype)
        adam.step(whole, gradient)
        for piece, x, part in zip(pieces, cut, (gradient[:4], gradient[4:]), strict=True):
            piece.step(x, part)
    assert whole.dtype == adam.mean.dtype == dtype
    np.testing.assert_array_equal(np.concatenate(cut), whole)


@pytest.mark.parametrize("settings", [{"learning_rate": 0}, {"mean_decay": 1}, {"square_decay": -0.1}, {"epsilon": 0}])
def test_bad_settings(settings):
    with pytest.raises(InputError, match="Adam: got"):
        Adam(**settings)
