"""Bars of experiments: met or missed, in words, in JSON, and by the exit code."""

import json
from importlib import import_module

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.papers.experiment import EXPERIMENTS
from lanterne.bench.output.bars import at_least, at_most, near_simulator, near_simulator_by_plane

NAME = "greyhound-table-5"


@pytest.mark.parametrize(
    ("bar", "met", "words"),
    [
        (at_most("overhead", 0.05, 0.05, "{:.0%}"), True, "met: overhead: 5%, expected at most 5%"),
        (at_most("overhead", 0.051, 0.05, "{:.1%}"), False, "MISSED: overhead: 5.1%, expected at most 5.0%"),
        (at_least("gain", 1.5, 1.5), True, "met: gain: 1.5, expected at least 1.5"),
        (at_least("gain", 1.49, 1.5), False, "MISSED: gain: 1.49, expected at least 1.5"),
        (at_most("gain", float("nan"), 1.5), False, "MISSED: gain: nan, expected at most 1.5"),
    ],
)
def test_a_bar(bar, met, words):
    assert bar.is_met == met and str(bar) == words


def test_near_the_simulator_is_judged_by_the_farthest():
    records = [{"measured_s": measured_s, "predicted_s": 2.0} for measured_s in (2.01, [3.0, 1.9, 1.8], 2.04)]
    assert str(near_simulator(records, 0.02)) == "MISSED: measured off simulated: 5.0%, expected at most 2.0%"


def test_near_the_simulator_means_less_where_sends_block():
    records = [{"data_plane": plane, "measured_s": 2.07, "predicted_s": 2.0} for plane in ("inline", "delegate")]
    assert [bar.is_met for bar in near_simulator_by_plane(records)] == [True, False]


@pytest.mark.parametrize(("limit_ms", "met"), [(1e6, True), (1e-9, False)])
def test_check_is_the_exit_code(limit_ms, met, monkeypatch, capsys, tmp_path):
    module = import_module(f"evaluation.papers.{EXPERIMENTS[NAME]}")
    monkeypatch.setattr(module, "QUICK_REPETITIONS", 1)
    monkeypatch.setattr(module, "BARS_MS", {16: limit_ms})
    command = ["experiment", NAME, "--quick", "--json", f"{tmp_path}/out.json"]
    assert EVALUATE.main(command) == 0
    assert EVALUATE.main([*command, "--check"]) == (0 if met else 1)
    assert f"# bar {'met' if met else 'MISSED'}: 16 copies, milliseconds: " in capsys.readouterr().out
    assert [bar["met"] for bar in json.loads((tmp_path / "out.json").read_text())["bars"]] == [met]


def test_an_experiment_without_a_bar_cannot_be_checked(capsys):
    assert EVALUATE.main(["experiment", "crosspipe-15", "--check"]) == 2
    assert "crosspipe-15, which has no bar" in capsys.readouterr().err
