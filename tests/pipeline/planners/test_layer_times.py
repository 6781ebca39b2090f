"""Times of layers: those of every layer, of a model of tokens and of one of numbers, and in proportion to the work."""

import numpy as np
import pytest

from lanterne.pipeline.model.stage_gpt import gpt
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.planners.layer_times import layer_times_s


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("model", [gpt(11, 6, 8, 2, 2, 2), mlp((3, 4, 5), rows=2)], ids=["gpt", "mlp"])
def test_every_layer_is_timed(model, dtype):
    times_s = layer_times_s(model, dtype)
    assert times_s.shape == (len(model.layers), 3) and (times_s > 0).all()


def test_a_layer_of_a_thousand_times_the_work_takes_longer():
    times_s = layer_times_s(mlp((10, 10, 1000, 1000, 10), rows=64))
    assert (times_s[2] > times_s[0]).all()
