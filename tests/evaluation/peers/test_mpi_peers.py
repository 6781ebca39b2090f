"""The comparison with MPI's own all-reduce: its document, its checks, its bad input."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from evaluation.peers.mpi_peers import CONTENDERS, HEAPS, Contest, plain_ring

ABSENT = find_spec("mpi4py") is None and "mpi" not in os.environ.get("LANTERNE_REQUIRE", "").split(",")


def run(*arguments):
    command = [sys.executable, "-m", "evaluation", "mpi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.skipif(ABSENT, reason="mpi4py is not installed")
def test_all_contenders_are_right_and_rounds_are_timed():
    result = run("-n", "3", "--bytes", "10000", "--iterations", "2", "--json", "-")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    records = document["results"]
    assert [(record["heap"], record["algorithm"]) for record in records] == [(h, a) for h in HEAPS for a in CONTENDERS]
    for record in records:
        assert record["wrong"] == 0 and record["nbytes"] == 9996 and len(record["time_s"]) == 2, record
    assert records[-1]["over_mpi"] == 1.0
    assert len(document["rounds"]["ring_round_s"]) == len(document["rounds"]["sendrecv_s"]) == 10
    assert "MPI_Allreduce" in result.stderr and "a round of 8 bytes" in result.stderr


def test_the_plain_ring_alone_copies():
    class One:
        size, rank = 1, 0

    out = np.zeros(4)
    plain_ring(One(), np.arange(4.0), out)
    assert (out == np.arange(4)).all()


@pytest.mark.parametrize(
    "arguments", [["--iterations", "0"], ["--bytes", "8"], ["--bytes", "many"], ["-n", "0"], ["--timeout", "-1s"]]
)
def test_bad_input(arguments):
    result = run(*arguments)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and "expected" in result.stderr


def test_a_call_that_is_not_made_is_wrong(monkeypatch):
    contest = object.__new__(Contest)
    contest.mpi = SimpleNamespace(MAX=None)
    contest.bare = SimpleNamespace(
        size=2, rank=0, Barrier=lambda: None, bcast=lambda value: value, allreduce=lambda value, op=None: value
    )
    monkeypatch.setattr(Contest, "call", lambda self, name, source, out: None)
    found = contest.compare(64, HEAPS[0], 1)
    assert [(record["algorithm"], record["wrong"]) for record in found] == [(name, 2 * 16) for name in CONTENDERS]
