"""The benchmark of planning collectives: what is measured, its bars, bad input."""

import json
from dataclasses import replace

import numpy as np
import pytest

from evaluation.__main__ import EVALUATE
from evaluation.speed import schedules as schedule_speed
from lanterne.collectives.algorithms.catalogue import algorithms_for
from lanterne.collectives.schedule.ir import COPY


def test_document(tmp_path, capsys):
    path = tmp_path / "out.json"
    assert EVALUATE.main(["schedules", "-n", "5,8", "--repeat", "2", "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    names = [(line.name, n) for line in algorithms_for("all_reduce") for n in (5, 8) if not line.refuses(n)]
    assert [(row["algorithm"], row["ranks"]) for row in results] == names
    assert all(len(row[step]) == 2 and min(row[step]) > 0 for row in results for step in ("generated_s", "checked_s"))
    (ring,) = (row for row in results if row["algorithm"] == "ring" and row["ranks"] == 8)
    assert (ring["num_rounds"], ring["num_transfers"]) == (14, 112)
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(names)


@pytest.mark.parametrize(
    ("name", "ranks", "bars"),
    [
        ("ring", 256, {"both": 0.5}),
        ("ring", 257, {"both": 5.0}),
        ("late_join", 256, {"both": 0.5, "generated": 0.05}),
        ("stragglar", 256, {"both": 0.5}),
        ("stragglar", 254, {}),
    ],
)
def test_bars(name, ranks, bars):
    assert schedule_speed.bars_s(name, ranks) == bars


def test_a_missed_bar_is_told(monkeypatch, capsys):
    monkeypatch.setattr(schedule_speed, "BARS_S", (0.0, 0.0))
    command = ["schedules", "-n", "4", "--algorithm", "ring"]
    assert EVALUATE.main(command) == 0 and "missed" not in capsys.readouterr().out
    assert EVALUATE.main([*command, "--check"]) == 1
    assert "missed: both" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-n", "0"], "-n: got '0', expected numbers from 1 to 2048"),
        (["-n", "8,x"], "-n: got '8,x'"),
        (["--repeat", "0"], "--repeat: got '0', expected a whole number of at least 1"),
        (["--collective", "all_reduc"], "collective: got 'all_reduc'"),
        (["--algorithm", "rings"], "algorithm: got 'rings' for all_reduce"),
        (["-n", "6", "--collective", "all_gather", "--algorithm", "rhd"], "which 6 ranks cannot use"),
    ],
)
def test_bad_input(options, message, capsys):
    assert EVALUATE.main(["schedules", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_schedule_that_does_not_reduce_is_noticed(monkeypatch, capsys):
    whole = schedule_speed.make_schedule

    def halved(collective, name, world_size):
        made = whole(collective, name, world_size)
        return replace(made, op=np.full_like(made.op, COPY))

    monkeypatch.setattr(schedule_speed, "make_schedule", halved)
    assert EVALUATE.main(["schedules", "-n", "4", "--algorithm", "ring"]) != 0
    assert capsys.readouterr().err.count("\n") == 1
