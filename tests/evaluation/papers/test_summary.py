"""The table of all experiments: what it says of values that agree, differ, are absent, and of bars that are missed."""

import json

from evaluation.papers import summary
from evaluation.papers.experiment import EXPERIMENTS


def written(folder, name, values, bars=()):
    document = {"quick": name == "h800", "paper_values": values, "bars": list(bars)}
    (folder / f"{name}.json").write_text(json.dumps(document))


def value(what, ours, paper, reason="", agrees=True):
    return {"what": what, "ours": ours, "paper": paper, "reason": reason, "off": None, "agrees": agrees}


def test_each_figure_has_its_verdict_or_says_where_it_is(tmp_path):
    missed = {"what": "its bar", "found": 2.0, "limit": 1.0, "met": False}
    written(tmp_path, "adaptra-8", [value("near", 1.04, 1.0), value("far", 1.2, 1.0, "why"), value("gone", None, 1.0)])
    written(tmp_path, "h800", [], [missed, missed | {"what": "met", "met": True}])
    written(tmp_path, "greyhound-table-6", [value("busy", 1.0, 1.0, agrees=None)])
    lines = list(summary.table(tmp_path))
    assert (
        "| figures 4, 5, 8 | agrees with the paper within 5%: 1 of 3 values; differs: far by +20.0%: why; "
        "differs: gone no value: reason unknown | `./run evaluate experiment adaptra-8` |"
    ) in lines
    assert (
        "| the authors' published runs | no value to compare; misses its bar: its bar | "
        "`./run evaluate experiment h800` (`--quick`) |"
    ) in lines
    (busy,) = (line for line in lines if line.startswith("| table 6 |"))
    assert "(others kept the machine busy)" in busy
    assert "| figure 9 | cannot be run here: NCCL's kernels beside computing on one GPU | |" in lines


def test_only_what_is_missing_is_run_and_failures_are_named(tmp_path, monkeypatch, capsys):
    written(tmp_path, "stragglar-5", [])
    asked = []

    def run(command, **_):
        asked.append(command[command.index("experiment") + 1])
        return type("Done", (), {"returncode": int(asked[-1] == "stragglar-8")})

    monkeypatch.setattr(summary.subprocess, "run", run)
    assert summary.main([str(tmp_path), "--only", "stragglar"]) == 1
    assert asked == [name for name in EXPERIMENTS if name.startswith("stragglar") and name != "stragglar-5"]
    assert "failed: stragglar-8" in capsys.readouterr().err
