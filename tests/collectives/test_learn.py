"""What is measured for `auto`: the fit, the trials, the cache, and that all ranks know the same."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives import learn as module
from lanterne.collectives.communicator import spawn
from lanterne.collectives.cost import CostModel
from lanterne.collectives.learn import MISFIT, TRIED_NBYTES, fit, learn, measure_factors
from lanterne.collectives.predict import candidates, predictions

SIZES = [64, 4096, 32768, 262144, 1048576]


def test_a_line_is_found_again():
    model = fit(SIZES, [5e-6 + 2e-10 * size for size in SIZES], 1e-10)
    assert model.pieces == () and model.gamma_s_per_byte == 1e-10
    assert model.alpha_s == pytest.approx(5e-6, rel=1e-6) and model.beta_s_per_byte == pytest.approx(2e-10, rel=1e-6)


@given(st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5))
def test_whatever_was_measured_the_model_is_near_it(times_s):
    model = fit(SIZES, times_s)
    predicted = model.message_s(np.array(SIZES, float))
    if not model.pieces:
        assert (np.abs(predicted - times_s) <= MISFIT * np.array(times_s) * (1 + 1e-9)).all()
    else:
        assert predicted[:-1] == pytest.approx(times_s[:-1], rel=1e-6)


def test_a_bent_line_gets_pieces():
    model = fit(SIZES, [2e-6, 2.1e-6, 20e-6, 60e-6, 300e-6])
    assert [piece.nbytes for piece in model.pieces] == SIZES[:-1]


def test_those_that_are_predicted_to_be_near_are_tried_and_the_others_not_favoured(monkeypatch):
    model = CostModel(1e-5, 1e-9, 1e-10)

    def times(communicator, calls, repeats):
        assert 1 <= len(calls) <= 2
        for call in calls:
            call()
        return np.arange(1.0, len(calls) + 1)[:, None] * 1e-3

    monkeypatch.setattr(module, "_times", times)
    monkeypatch.setattr(module, "MAX_TRIED", 2)
    monkeypatch.setattr(module, "ENOUGH_S", 1.0)
    results = spawn(3, lambda comm: measure_factors(comm, model))
    assert results[0] == results[1] == results[2]
    for nbytes in TRIED_NBYTES:
        rows = predictions("all_reduce", 3, nbytes, model)
        factors = {row.algorithm: row.factor for row in results[0] if row.nbytes == nbytes}
        assert set(factors) == {line.name for line in candidates("all_reduce", 3)}
        assert factors[rows[0][0]] == pytest.approx(1e-3 / rows[0][2])
        assert {factors[name] for name, _, _ in rows[2:]} == {max(factors.values())}


def test_slow_networks_are_not_tried_for_long():
    assert spawn(3, lambda comm: measure_factors(comm, CostModel(1.0, 1e-3))) == [()] * 3


def test_the_cache_is_read_and_a_broken_one_is_measured_over(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path))
    models = spawn(2, learn)
    assert models[0] == models[1] and models[0][2] == "measured"
    (file,) = tmp_path.iterdir()
    assert spawn(2, learn) == [(*models[0][:2], "cache")] * 2
    file.write_text(json.dumps({"schema_version": 2, "model": {"alpha_s": -1, "beta_s_per_byte": 0}, "factors": []}))
    assert spawn(2, learn)[1][2] == "measured"
    file.write_text("[1, 2")
    assert spawn(2, learn)[0][2] == "measured"
    os.utime(file, (0, 0))
    assert spawn(2, learn)[0][2] == "measured", "a model of long ago is measured anew"


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", "/proc/nowhere")
    assert [source for _, _, source in spawn(2, learn)] == ["measured"] * 2
