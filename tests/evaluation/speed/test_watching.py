"""./run evaluate failslow: its made-up job is what it claims, and it runs."""

import json
from types import SimpleNamespace

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.speed import watching
from evaluation.speed.watching import CALLS, call_log


def test_call_log():
    symbols, times_s, lengths_s = call_log(50, 3)
    marker = ("all_reduce", 4096, 0)
    assert symbols.count(marker) == len(lengths_s) == 50
    assert times_s == sorted(times_s)
    assert times_s[-1] == pytest.approx(sum(lengths_s))
    foreign = sum(symbol[0] == "barrier" for symbol in symbols)
    assert len(symbols) == 50 * CALLS + foreign and 0 < foreign < 0.03 * len(symbols)


def test_it_runs_and_writes(tmp_path):
    file = tmp_path / "speed.json"
    words = ["--transport", "local", "-n", "2", "--blocks", "1", "--repetitions", "1", "--iteration", "2"]
    assert EVALUATE.main(["failslow", *words, "--json", str(file)]) == 0
    results = json.loads(file.read_text())["results"]
    assert len(results) == 7
    assert all(record["valid"] and record["samples"] for record in results)
    assert next(r for r in results if r["what"].startswith("period, error"))["median"] < 1e-3


def test_bad_input(capsys):
    assert EVALUATE.main(["failslow", "--blocks", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def evenly(times, microbatches):
    each = microbatches // len(times)
    return SimpleNamespace(microbatches=(each,) * len(times), makespan=each * max(times))


def test_what_is_not_recorded_or_balanced_is_not_valid(monkeypatch):
    assert all(record["valid"] for record in (watching._recorded(1, 100), *watching._rebalance(1)))
    monkeypatch.setattr(
        "lanterne.failslow.record.adapters.watch_communicator", lambda kind, name, recorder, bare: bare.all_reduce
    )
    monkeypatch.setattr(watching, "rebalance", evenly)
    monkeypatch.setattr(watching, "iteration_times", lambda symbols, times_s: [])
    assert not any(record["valid"] for record in (watching._recorded(1, 100), *watching._rebalance(1)))
    assert next(watching._period(1))["median"] == 1.0
