"""`lanterne bench pipeline`: its records, and that it notices makespans that differ."""

import json

from lanterne.bench.cli import main
from lanterne.bench.scores.speed import planning

SMALL = ["bench", "pipeline", "--shape", "4x8", "--scheduler", "zb_h1", "--repeat", "2", "--json", "-"]


def test_records(capsys):
    assert main(SMALL) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert (record["stages"], record["microbatches"], record["actions"]) == (4, 8, 3 * 4 * 8)
    assert 0 <= record["gap"] < 0.5 and all(len(record[f"{step}_s"]) == 2 for step in planning.STEPS)


def test_a_loop_that_does_nothing_is_noticed(monkeypatch, capsys):
    monkeypatch.setattr(planning, "makespan_of_orders", lambda orders, table: 0.0)
    assert main(SMALL) == 1
    assert "expected three equal ones" in capsys.readouterr().err
