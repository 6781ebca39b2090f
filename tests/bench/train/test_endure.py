"""`pipeline train --endure`: what it refuses, what it tells, and, slow, that it has the losses of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lanterne
from lanterne.bench import cli
from lanterne.bench.train import endure
from lanterne.errors import InputError
from lanterne.pipeline.train.enduring import GroupChange

ROOT = Path(__file__).resolve().parents[3]
TRAIN = ["--data", "README.md"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--copies", "1"], "--copies: got it without --endure"),
        (["--kill", "1@3"], "--kill: got it without --endure"),
        (["--endure", "--transport", "mpi"], "got --transport mpi, expected tcp or ucx"),
        (["--endure", "--transport", "tcp", "--spare-rails", "lo"], "got --spare-rails beside it"),
        (["--endure", "--transport", "tcp", "--slow-rank", "1=2x@3:5"], "got --slow-rank without --mitigate or"),
        (["--endure", "--transport", "tcp", "--kill", "4@1"], "--kill: got '4@1', expected R@K"),
        (["--endure", "--transport", "tcp", "--kill", "1@0"], "--kill: got '1@0', expected R@K"),
        (["--endure", "--transport", "tcp", "--kill", "one"], "--kill: got 'one', expected R@K"),
    ],
)
def test_what_cannot_be(options, said):
    args = cli.LANTERNE.build_parser("pipeline train").parse_args(["-n", "4", *TRAIN, *options])
    with pytest.raises(InputError) as refused:
        endure.check(args)
    assert said in str(refused.value)


def test_what_is_told():
    change = GroupChange(4, 3, (), 1, 0.25, "memory", "rank 3 failed: killed")
    said = "# iteration 5: rank 3 failed: killed: 3 ranks go on, 1 again, state from memory, in 250 ms"
    assert endure.told(change) == said
    assert endure.parse_kill("3@20", 4) == endure.Kill(3, 19)
    assert endure.name_of({"width": 3}) == endure.name_of({"width": 3}) != endure.name_of({"width": 4})


def test_results_that_different_ranks_heard_of_are_merged():
    def run(comm):
        heard = {0: [0, 2], 1: [0, 1], 2: []}[comm.rank]
        return endure.merged(comm, {number: {"iteration": number, "loss": number / 2} for number in heard})

    found = lanterne.spawn(3, run)[0]
    assert [(each["iteration"], each["loss"]) for each in found] == [(0, 0.0), (1, 0.5), (2, 1.0)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        ["--stages", "2", "--copies", "1"],
        ["--stages", "2", "--copies", "1", "--zero1"],
        ["--stages", "1"],
        ["--stages", "2", "--copies", "1", "--mitigate", "--slow-rank", "2=3x@40:80"],
        ["--stages", "2", "--copies", "1", "--adapt", "--slow-link", "0=20ms@20:60"],
        ["--stages", "2", "--copies", "1", "--cap", "256KiB", "--listen", "0"],
    ],
    ids=["2x2", "2x2 ZeRO-1", "4 copies", "mitigated", "adapted", "capped"],
)
def test_killed_twice_and_back_twice_the_losses_are_those_of_one_process(tmp_path, options):
    out = tmp_path / "out.json"
    small = "--blocks 4 --width 16 --length 16 --rows 2 --microbatches 8 --iterations 400".split()
    command = [sys.executable, "-P", "-m", "lanterne", "pipeline", "train", "-n", "4", *TRAIN, *options, *small]
    command += ["--transport", "tcp", "--endure", "--restarts", "1", "--kill", "3@10", "--kill", "0@200", "--check"]
    result = subprocess.run(
        [*command, "--json", str(out)], check=False, cwd=ROOT, capture_output=True, text=True, timeout=800
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(out.read_text())
    assert document["check"]["same"] and len(document["results"]) >= 398
    assert document["ranks"] == 4 and all(each["repeated"] <= 3 for each in document["changes_of_ranks"])
