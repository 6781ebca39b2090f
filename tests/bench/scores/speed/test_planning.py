"""`lanterne bench pipeline`: its records, and that it notices makespans that differ."""

import json
from types import SimpleNamespace

from lanterne.bench.cli import main
from lanterne.bench.scores.speed import planning

SMALL = ["bench", "pipeline", "--shape", "4x8", "--scheduler", "zb_h1", "--repeat", "2", "--json", "-"]


def test_records(capsys):
    assert main(SMALL) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert (record["stages"], record["microbatches"], record["actions"]) == (4, 8, 3 * 4 * 8)
    assert 0 <= record["gap"] < 0.5 and all(len(record[f"{step}_s"]) == 2 for step in planning.STEPS)


def test_a_makespan_below_the_bound_is_noticed(monkeypatch, capsys):
    monkeypatch.setattr(planning, "simulate", lambda checked, problem: SimpleNamespace(makespan=0.0))
    assert main(SMALL) == 1
    assert "got makespan 0.0, expected at least" in capsys.readouterr().err
