"""Linear layers in parts: together they compute, and learn, what the whole does."""

import numpy as np
import pytest

import lanterne
from lanterne.errors import InputError
from lanterne.pipeline.model.layers import Linear
from lanterne.pipeline.model.stage_gpt import gpt
from lanterne.pipeline.model.tensor_parallel import column_linear, row_linear

WHOLE = Linear(12, 24)
X, DY = (np.random.default_rng(seed).normal(size=(2, 5, size)) for seed, size in ((1, 12), (2, 24)))


def passed(layer, x, dy):
    """(y, dx, gradients, flat) of any layer."""
    flat = layer.initial(np.random.default_rng(7))
    parameters, gradients = layer.split(flat), np.zeros_like(flat)
    y, saved = layer.forward(parameters, x)
    dx, kept = layer.backward_input(parameters, saved, dy)
    layer.backward_weight(kept, layer.split(gradients))
    return y, dx, gradients


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("bands", [1, 3])
def test_columns(parts, bands):
    y, dx, gradients = passed(WHOLE, X, DY)

    def job(comm):
        layer = column_linear(WHOLE, comm, bands)
        own = np.arange(24).reshape(bands, parts, -1)[:, comm.rank].reshape(-1)
        found = passed(layer, X, DY[..., own])
        np.testing.assert_allclose(found[0], y[..., own], rtol=1e-12)
        np.testing.assert_allclose(found[1], dx, rtol=1e-12)
        np.testing.assert_allclose(found[2], layer.part_of(gradients), rtol=1e-12)
        return layer.part_of(np.arange(layer.num_whole))

    places = np.concatenate(lanterne.spawn(parts, job))
    np.testing.assert_array_equal(np.sort(places), np.arange(WHOLE.num_parameters))


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_rows(parts):
    y, dx, gradients = passed(WHOLE, X, DY)

    def job(comm):
        layer = row_linear(WHOLE, comm)
        own = slice(comm.rank * 12 // parts, (comm.rank + 1) * 12 // parts)
        found = passed(layer, np.ascontiguousarray(X[..., own]), DY)
        np.testing.assert_allclose(found[0], y, rtol=1e-12)
        np.testing.assert_allclose(found[1], dx[..., own], rtol=1e-12)
        np.testing.assert_allclose(found[2], layer.part_of(gradients), rtol=1e-12)
        return layer.part_of(np.arange(layer.num_whole))

    places = np.unique(np.concatenate(lanterne.spawn(parts, job)))
    np.testing.assert_array_equal(places, np.arange(WHOLE.num_parameters))


def test_what_cannot_be_cut():
    def job(comm):
        for cut in (lambda: column_linear(Linear(4, 10), comm), lambda: row_linear(Linear(10, 4), comm)):
            with pytest.raises(InputError, match=r"of 10 (outputs|inputs), expected a multiple of 3"):
                cut()
        with pytest.raises(InputError, match="got 4 heads on 3 tensor-parallel ranks"):
            gpt(11, 6, 12, 4, 1, 2, tensor=comm)

    lanterne.spawn(3, job)
    assert column_linear(WHOLE, None) is WHOLE and row_linear(WHOLE, None) is WHOLE
