"""The benchmark of training: its document, that it compares the losses, its bar."""

import json
import subprocess
import sys

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.speed import training as train_speed
from lanterne.bench.train.job import make_setup

SMALL = "--iterations 2 --blocks 1 --width 16 --heads 2 --length 16 --rows 2".split()


@pytest.mark.parametrize("transport", ["mpi"])
def test_document(transport, tmp_path):
    pytest.importorskip("mpi4py")
    path = tmp_path / "out.json"
    command = [sys.executable, "-m", "evaluation", "train", *SMALL, "--microbatches", "4", "--json", str(path)]
    result = subprocess.run(
        [*command, "--transport", transport], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(path.read_text())
    assert document["same"] and document["largest_difference"] < 1e-5
    assert document["fair_speedup"] == 2 * 4 / 5
    assert [record["contender"] for record in document["results"]] == ["one process", "pipeline"]
    one, many = (record["time_s"] for record in document["results"])
    assert document["speedup"] == [a / b for a, b in zip(one, many, strict=True)] and len(one) == 2
    assert "losses the same" in result.stdout


@pytest.mark.parametrize(
    ("times_s", "difference", "check", "code"),
    [
        ((3.0, 2.0), 0.0, True, 0),
        ((2.0, 2.0), 0.0, True, 1),
        ((2.0, 2.0), 0.0, False, 0),
        ((3.0, 1.0), 1e-3, False, 1),
    ],
)
def test_the_verdict(times_s, difference, check, code, capsys):
    """2 stages and 4 microbatches make 1.6 times one process at best, and the bar 1.28."""
    parser = EVALUATE.build_parser("train")
    args = parser.parse_args([*SMALL, "--microbatches", "4", *["--check"] * check])
    setup = make_setup(args, 2, train_speed._text(0))
    samples = dict(zip(("one process", "pipeline"), ([value] * 3 for value in times_s), strict=True))
    assert train_speed._report(args, setup, samples, difference, "zb_h1") == code
    assert ("NOT THE SAME" in capsys.readouterr().out) == (difference > 0)
