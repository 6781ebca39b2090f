"""lanterne cost: figures of the paper in its records, one line for bad input, files that are what they say."""

import json

import pytest

from lanterne.bench.cli import main
from lanterne.bench.collective import cost
from lanterne.collectives.algorithms.catalogue import algorithms_for
from lanterne.collectives.late.arrivals import ArrivalLog
from lanterne.collectives.schedule.cost import CostModel

PAPER = "cost all_reduce --nbytes 1GiB --alpha 3us --bandwidth 450GB/s".split()


def records(capsys, *arguments):
    assert main([*PAPER, *arguments, "--json", "-"]) == 0
    return {(r["ranks"], r["algorithm"]): r for r in json.loads(capsys.readouterr().out)["results"]}


def test_figures_of_the_paper(capsys):
    found = records(capsys, "-n", "8,256", "--algorithm", "ring,stragglar", "--delay", "0,3ms")
    assert round(1e3 * found[8, "stragglar"]["critical_delay_s"], 3) == 0.940
    assert round(1e3 * found[256, "stragglar"]["critical_delay_s"], 3) == 0.093
    # 9 rounds of s/7 after the arrival, once the delay covers the reduce-scatter: figure 6c's lower edge.
    ideal_s = 9 * (3e-6 + 2**30 / 7 / 450e9)
    assert found[8, "stragglar"]["ideal_s"] == pytest.approx(ideal_s)
    assert found[8, "stragglar"]["exposed_s"] == pytest.approx([found[8, "stragglar"]["time_s"], ideal_s])
    assert found[8, "ring"]["time_s"] == found[8, "ring"]["ideal_s"]


def test_algorithms_that_cannot_be_used_are_left_out():
    names = [
        record["algorithm"] for record in cost.study(algorithms_for("all_reduce"), 7, 2**20, CostModel(1e-6, 1e-9))
    ]
    assert "late_join" in names
    assert "stragglar" not in names


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plot(tmp_path, capsys, suffix, start):
    path = tmp_path / f"f.{suffix}"
    assert main([*PAPER, "-n", "4,8", "--algorithm", "ring,stragglar,late_join", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(start)
    assert "late_join" in capsys.readouterr().out


@pytest.mark.filterwarnings("error")
def test_arrivals_are_priced_beside_the_bound(tmp_path, capsys):
    """By hand: of ranks at 0, 0 and 1, two merge half a buffer, so the rest takes at least (4 - 1) / 3 of s/rate."""
    path = tmp_path / "f.json"
    words = "all_reduce --arrivals 0,0,1 --algorithm ring,any_arrival --nbytes 1GB --bandwidth 1GB/s --alpha 50us"
    assert main(["cost", *words.split(), "--json", str(path)]) == 0
    records = {each["algorithm"]: each for each in json.loads(path.read_text())["results"]}
    assert {each["bound_s"] for each in records.values()} == {1.0}
    assert records["ring"]["exposed_s"] == pytest.approx(4 / 3, 0.001)
    assert 1.0 <= records["any_arrival"]["exposed_s"] < 1.08
    assert "bound" in capsys.readouterr().out
    log = ArrivalLog(3)
    for last_s in (0.0, 1.0, 1.0):
        log.note(2, last_s, True, [0.0, 0.0, last_s])
    (profile := tmp_path / "profile.json").write_text(json.dumps({"arrivals": log.snapshot().to_json()}))
    assert main(["cost", *words.replace("0,0,1", str(profile)).split(), "--json", str(path)]) == 0
    again = {each["algorithm"]: each for each in json.loads(path.read_text())["results"]}
    assert again["any_arrival"] == records["any_arrival"] | {
        "calls": 3,
        "arrivals_s": [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
        "worst_s": again["any_arrival"]["worst_s"],
    }
    assert again["any_arrival"]["worst_s"] > 4 / 3
    assert main(["cost", *words.split(), "--plot", str(tmp_path / "f.svg")]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["broadcast", "-n", "2,8"],
        ["barrier", "-n", "4"],
        ["all_reduce", "-n", "1"],
        ["all_reduce", "-n", "2", "--nbytes", "0,1K"],
    ],
)
def test_plots_with_little_to_show(tmp_path, capsys, arguments):
    path = tmp_path / "f.svg"
    assert main(["cost", *arguments, "--plot", str(path)]) == 0
    assert path.stat().st_size > 1000
    assert "Warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "4x"], "-n: got '4x', expected rank counts from 1 to 1024"),
        (["-n", "2000"], "-n: got '2000'"),
        (["--nbytes", "1Q"], "--nbytes: got '1Q'"),
        (["--alpha", "3"], "--alpha: got '3', expected a time with its unit, such as 50ms"),
        (["--algorithm", "rings"], "algorithm: got 'rings' for all_reduce"),
        (["--plot", "f.gif", "-n", "4", "--algorithm", "ring"], "expected a name that ends in .png, .svg or .pdf"),
        (["--plot", "/nowhere/f.png", "-n", "4", "--algorithm", "ring"], "cannot write /nowhere/f.png"),
        (["-n", "3", "--algorithm", "stragglar"], "expected one that can"),
        (["--bandwidth", "0"], "--bandwidth: got '0'"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert main([*PAPER, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
