"""lanterne bench failslow: its made-up job is what it claims, and it runs."""

import json

import pytest

from lanterne.bench import cli
from lanterne.bench.scores.speed.watching import CALLS, call_log


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
    assert cli.main(["bench", "failslow", *words, "--json", str(file)]) == 0
    results = json.loads(file.read_text())["results"]
    assert len(results) == 7
    assert all(record["valid"] and record["samples"] for record in results)
    assert next(r for r in results if r["what"].startswith("period, error"))["median"] < 1e-3


def test_bad_input(capsys):
    assert cli.main(["bench", "failslow", "--blocks", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
