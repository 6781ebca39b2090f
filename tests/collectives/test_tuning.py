"""What `auto` measures and chooses: the fit, the cache, the override, and that all ranks agree."""

import json
import logging
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.communicator import Communicator, spawn
from lanterne.collectives.cost import CostModel, price
from lanterne.collectives.registry import make_schedule
from lanterne.collectives.tuning import MISFIT, fit, learn, override
from lanterne.errors import InputError
from lanterne.transport.local import LocalWorld

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


def test_all_ranks_choose_alike_and_say_why(caplog):
    caplog.set_level(logging.INFO, "lanterne.collectives")

    def main(comm):
        comm.tuning.learn()
        out = np.empty(1000, np.float32)
        comm.all_reduce(np.ones(1000, np.float32), out)
        return comm.tuning.choose("all_reduce", 4000), comm.tuning.model, comm.tuning.explain("all_reduce", 4096), float(out[0])

    results = spawn(5, main)
    assert all(result == results[0] for result in results)
    choice, model, explained, value = results[0]
    assert value == 5.0
    assert (choice.algorithm, choice.num_chunks) == explained[0][:2]
    assert [row[2] for row in explained] == sorted(row[2] for row in explained)
    name, chunks, time_s = explained[-1]
    assert time_s == price(make_schedule("all_reduce", name, 5, chunks), 4096, model).makespan_s
    assert f"all_reduce of 4000 bytes: {choice.algorithm}, predicted to take" in caplog.text


def test_groups_go_by_the_model_of_their_parent():
    def main(comm):
        group = comm.split(comm.rank % 2)
        return comm.tuning.source, group.tuning.source, group.tuning.model == comm.tuning.model

    assert spawn(4, main) == [("threads", "threads", True)] * 4


@pytest.mark.parametrize("nbytes", [2**10, 2**30])
def test_few_rounds_for_small_buffers_and_few_bytes_for_large_ones(nbytes):
    communicator = Communicator(LocalWorld(8).transport(0))
    communicator.tuning.adopt(CostModel(3e-6, 1 / 450e9, serial_messages=True), "given")
    assert communicator.tuning.choose("all_reduce", nbytes).algorithm == ("recursive_doubling" if nbytes == 2**10 else "rhd")


def test_without_a_model_there_is_a_choice_but_no_explanation():
    communicator = Communicator(LocalWorld(4).transport(0))
    choice = communicator.tuning.choose("all_reduce", 1000)
    assert choice.algorithm in communicator.algorithms("all_reduce") and choice.reason == "not measured"
    with pytest.raises(InputError, match="without a cost model"):
        communicator.tuning.explain("all_reduce", 1000)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "barrier"])
def test_every_collective_has_a_choice(collective):
    def main(comm):
        return comm.tuning.choose(collective, 1 << 20).algorithm in comm.algorithms(collective)

    assert spawn(3, main) == [True] * 3


def test_the_cache_is_read_and_a_broken_one_is_measured_over(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path))
    models = spawn(2, learn)
    assert models[0] == models[1] and models[0][1] == "measured"
    (file,) = tmp_path.iterdir()
    assert spawn(2, learn) == [(models[0][0], "cache")] * 2
    file.write_text(json.dumps({"schema_version": 1, "alpha_s": -1, "beta_s_per_byte": 0}))
    assert spawn(2, learn)[1][1] == "measured"
    file.write_text("[1, 2")
    assert spawn(2, learn)[0][1] == "measured"
    os.utime(file, (0, 0))
    assert spawn(2, learn)[0][1] == "measured", "a model of long ago is measured anew"


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", "/proc/nowhere")
    assert [source for _, source in spawn(2, learn)] == ["measured"] * 2


@pytest.mark.parametrize(
    ("text", "collective", "expected"),
    [
        ("", "all_reduce", None),
        ("ring", "all_reduce", "ring"),
        ("ring", "broadcast", None),
        ("all_reduce=tree,broadcast=chain", "broadcast", "chain"),
        ("all_reduce=tree", "reduce", None),
        ("chain, ring", "all_reduce", "ring"),
    ],
)
def test_the_override(monkeypatch, text, collective, expected):
    monkeypatch.setenv("LANTERNE_ALGORITHM", text)
    assert override(collective, 4) == expected


@pytest.mark.parametrize("text", ["all_reduce=rign", "reduce_everything=ring", "all_gather=rhd"])
def test_a_bad_override_is_an_error(monkeypatch, text):
    monkeypatch.setenv("LANTERNE_ALGORITHM", text)
    with pytest.raises(InputError, match="got"):
        override("all_gather" if "gather" in text else "all_reduce", 3)


def test_the_override_is_obeyed(monkeypatch):
    monkeypatch.setenv("LANTERNE_ALGORITHM", "all_reduce=tree")
    assert spawn(3, lambda comm: comm.tuning.choose("all_reduce", 8).algorithm) == ["tree"] * 3
