"""What is said of times that were measured while others kept the machine busy."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.papers import experiment
from lanterne.bench.output import load
from lanterne.bench.output.bars import at_most
from lanterne.collectives.auto.load_meter import LoadMeter, machine_s


@pytest.mark.parametrize(("cores", "said"), [(0.0, ""), (0.3, ""), (0.31, "others used 0.3 cores"), (4, "4.0 cores")])
def test_the_note(cores, said):
    note = load.busy_note(cores)
    assert said in note and bool(note) == bool(said)


def test_processes_that_were_started_are_no_others():
    meter = LoadMeter()
    assert meter.started_s == 0
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    assert meter.started_s > 0.01
    spent_s = sum(machine_s()) - meter._all_s
    lasted_s = time.monotonic() - meter._start_s
    assert meter.foreign_cores() < (spent_s - meter.started_s) / lasted_s + 0.3


@pytest.mark.parametrize(
    ("cores", "started_s", "check", "code", "met"),
    [
        (0.0, 1.0, True, 1, False),
        (2.0, 1.0, True, 3, None),
        (2.0, 1.0, False, 0, None),
        (2.0, 0.0, True, 1, False),  # nothing was measured
    ],
)
def test_an_experiment_has_no_verdict_on_a_busy_machine(
    monkeypatch, tmp_path, capsys, cores, started_s, check, code, met
):
    meter = SimpleNamespace(started_s=started_s, foreign_cores=lambda: cores)
    made = SimpleNamespace(
        __doc__="title", COLUMNS=[("a", "")], NOTES="", run=lambda quick: [{"a": 1}], row=lambda record: [record["a"]],
        bars=lambda records: [at_most("figure", 2.0, 1.0)],
    )  # fmt: skip
    monkeypatch.setattr(experiment, "LoadMeter", lambda: meter)
    monkeypatch.setattr(experiment, "_load", lambda name: made)
    file = tmp_path / "out.json"
    words = ["experiment", "crosspipe-8", "--json", str(file), *["--check"] * check]
    assert EVALUATE.main(words) == code
    out, err = capsys.readouterr()
    busy = met is None
    assert ("# busy: others used 2.0 cores" in out) == busy and ("MISSED" in out) == (check and not busy)
    assert ("no verdict" in err) == (busy and check)
    document = json.loads(file.read_text())
    assert document["foreign_cores"] == cores and [bar["met"] for bar in document["bars"]] == [met]


@pytest.mark.parametrize("cores", [0.0, 1.0])
def test_benchmarks_end_with_the_load(monkeypatch, capsys, cores):
    monkeypatch.setattr(LoadMeter, "foreign_cores", lambda meter: cores)
    assert EVALUATE.main("schedules -n 4 --collective all_gather".split()) == 0
    assert ("# busy: others used 1.0 cores" in capsys.readouterr().err) == bool(cores)
