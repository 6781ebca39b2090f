"""The benchmark of forged connections: a job withstands some of each kind; what would be missed is."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from lanterne.bench.scores import strangers


@pytest.mark.slow
def test_a_job_goes_on():
    command = [sys.executable, "-m", "lanterne", "bench", "strangers", "--connections", "40", "--bursts", "1"]
    ended = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, timeout=120, check=False)
    (record,) = json.loads(ended.stdout)["results"]
    assert (record["wrong"], record["crashed"], record["ports"]) == (0, False, 3), ended.stderr
    assert set(record["connections"].values()) == {4}
    assert record["grown_nbytes"] <= strangers.GROWTH_NBYTES and record["call_s"] and record["quiet_call_s"]


def record_of(folder, *, slower=1.0, wrong=0, grown=0, exit_code=0, ranks=strangers.RANKS):
    for rank in range(ranks):
        np.savez(folder / f"rank{rank}.npz", times=[(0.5, 1e-3), (1.5, 1e-3 * slower)], wrong=wrong)
    attack = SimpleNamespace(bursts=[(1, 2)], calm=[(0, 1)], made={"drip": 1}, ports={1}, grown_nbytes=grown)
    return strangers.verdict(folder, attack, exit_code)


@pytest.mark.parametrize(
    ("options", "missed"),
    [({}, False), ({"slower": 1.2}, True), ({"wrong": 1}, True), ({"grown": 65 << 20}, True), ({"exit_code": 1}, True)],
)
def test_the_verdict(tmp_path, options, missed):
    assert record_of(tmp_path, **options)["missed"] == missed


def test_a_rank_that_ended_is_missed(tmp_path):
    assert record_of(tmp_path, ranks=1)["crashed"]
