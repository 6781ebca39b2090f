"""The study of wrong and absent late ranks: its mixes, its critical delays, a small run."""

import json

import numpy as np
import pytest

from evaluation.__main__ import EVALUATE
from evaluation.persistence import ALGORITHMS, Predictor, crossing, late_ranks, mix, paper_critical_delay
from lanterne.bench.collective.measure import CollectiveCase
from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.cost import CostModel


@pytest.mark.parametrize(("share", "named"), [(0.77, 17), (0.9, 20), (0.95, 21), (1, 22), (0, 0)])
def test_the_named_rank_is_late_in_its_share_of_calls(share, named):
    found = late_ranks(8, 7, share, 22)
    assert len(found) == 22 and found.count(7) == named
    wrong = [rank for rank in found if rank != 7]
    assert abs(2 * wrong.count(None) - len(wrong)) <= 1
    assert found == late_ranks(8, 7, share, 22)


@pytest.mark.parametrize(
    ("y", "x"),
    [([1, -1, -2], 0.5), ([3, 1, -1], 1.5), ([0, 1, 2], 0), ([-1, 1, 1], 0), ([3, 2, 1], None), ([2, 0, -2], 1)],
)
def test_crossing(y, x):
    assert crossing([0, 1, 2], y) == x


@pytest.mark.parametrize(("n", "milliseconds"), [(8, 0.940), (256, 0.093)])
def test_the_papers_critical_delays(n, milliseconds):
    found = paper_critical_delay(n)
    assert 1e3 * found["formula_s"] == pytest.approx(milliseconds, abs=5e-4)
    assert found["schedules_s"] == pytest.approx(found["formula_s"], rel=1e-6)


def predictions(comm):
    if comm.rank:
        return None
    comm.tuning.adopt(CostModel(0.0, 1.0), "test")
    predictor = Predictor(comm, CostModel(0.0, 1.0), 56 << 20)
    unit_s = 56 << 20
    cases = {"ring": (7, 7), "stragglar right": (7, 7), "stragglar wrong": (7, 3), "auto": (7, 3)}
    return {
        name: predictor.time_s(name.split()[0], named, late, 2 * unit_s) / unit_s - 2
        for name, (named, late) in cases.items()
    }


def test_predictions():
    found = spawn(8, predictions)[0]
    assert found["ring"] == pytest.approx(14 / 8)
    # The early reduce-scatter is over when the late rank comes; named wrongly, all waits for another one.
    assert found["stragglar right"] == pytest.approx(9 / 7)
    assert found["stragglar wrong"] > 14 / 8
    assert found["auto"] <= 9 / 7


@pytest.mark.slow
def test_a_small_run(tmp_path, capsys):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    words = ["--share", "50", "--calls", "2", "--bytes", "128K", "--rate", "1gbit", "--delay", "5ms"]
    assert EVALUATE.main(["persistence", "-n", "4", *words, "--json", str(file), "--plot", str(picture)]) == 0
    document = json.loads(file.read_text())
    assert [record["algorithm"] for record in document["results"]] == list(ALGORITHMS)
    for record in document["results"]:
        assert record["wrong"] == 0 and len(record["time_s"]) == 2 and 3 in record["late_rank"], record
    assert {record["algorithm"] for record in document["critical_delays"]} == set(ALGORITHMS[1:])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "0.940 ms by the paper's formula" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "persistence: got no job"),
        (["-n", "2"], "-n: got 2, expected 4 to 64"),
        (["-n", "4", "--share", "most"], "--share: got 'most'"),
        (["-n", "4", "--share", "120"], "--share: got '120'"),
        (["-n", "4", "--bytes", "1K"], "--bytes: got 1K"),
        (["-n", "4", "--calls", "0"], "--calls: got 0"),
        (["-n", "4", "--plot", "x.txt"], "ends in"),
    ],
)
def test_bad_input(words, part, capsys):
    assert EVALUATE.main(["persistence", *words]) == 2
    assert part in capsys.readouterr().err


def test_a_call_that_is_not_made_is_wrong(monkeypatch):
    monkeypatch.setattr(CollectiveCase, "call", lambda self, algorithm, **options: None)

    def program(comm):
        case = CollectiveCase(comm, "all_reduce", 1 << 12, np.dtype(np.float32), "sum")
        predictor = Predictor(comm, CostModel(1e-6, 1e-9), 1 << 14)
        return mix(case, predictor, 3, 1.0, {"calls": 1, "delay_s": 1e-3})

    found = spawn(4, program)[0]
    assert [record["algorithm"] for record in found] == list(ALGORITHMS)
    assert min(record["wrong"] for record in found) > 0
