"""`./run evaluate pipeline`: its records, and that it notices makespans that differ."""

import json
from types import SimpleNamespace

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.speed import planning

SMALL = ["pipeline", "--shape", "4x8", "--scheduler", "zb_h1", "--repeat", "2", "--json", "-"]


def test_records(capsys):
    assert EVALUATE.main(SMALL) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert (record["stages"], record["microbatches"], record["actions"]) == (4, 8, 3 * 4 * 8)
    assert 0 <= record["gap"] < 0.5 and all(len(record[f"{step}_s"]) == 2 for step in planning.STEPS)


def test_a_makespan_below_the_bound_is_noticed(monkeypatch, capsys):
    monkeypatch.setattr(planning, "simulate", lambda checked, problem: SimpleNamespace(makespan=0.0))
    assert EVALUATE.main(SMALL) == 1
    assert "got makespan 0.0, expected at least" in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["4", "x", "4x", "axb", "4x0", "0x4"])
def test_bad_shapes_are_one_line(capsys, shape):
    assert EVALUATE.main(["pipeline", "--shape", shape]) == 2
    assert "Traceback" not in capsys.readouterr().err
