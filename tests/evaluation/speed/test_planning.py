"""`./run evaluate pipeline`: its records, and that it notices makespans that differ."""

import json

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.speed import planning

SMALL = ["pipeline", "--shape", "4x8", "--scheduler", "zb_h1", "--repeat", "2", "--json", "-"]


def test_records(capsys):
    assert EVALUATE.main(SMALL) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert (record["stages"], record["microbatches"], record["actions"]) == (4, 8, 3 * 4 * 8)
    assert 0 <= record["gap"] < 0.5 and all(len(record[f"{step}_s"]) == 2 for step in planning.STEPS)


def test_a_loop_that_does_nothing_is_noticed(monkeypatch, capsys):
    monkeypatch.setattr(planning, "makespan_of_orders", lambda orders, table: 0.0)
    assert EVALUATE.main(SMALL) == 1
    assert "expected three equal ones" in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["4", "x", "4x", "axb", "4x0", "0x4"])
def test_bad_shapes_are_one_line(capsys, shape):
    assert EVALUATE.main(["pipeline", "--shape", shape]) == 2
    assert "Traceback" not in capsys.readouterr().err
