"""torch.distributed over lanterne does what it does over gloo, and says who died; see torch_rank.py."""

import functools
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import free_port

JOB = Path(__file__).with_name("torch_rank.py")
SIZE = 3
CHECKS = re.findall(r"^def (check_\w+)", JOB.read_text(), re.MULTILINE)
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("torch") is None and "torch" not in os.environ.get("LANTERNE_REQUIRE", "").split(","),
        reason="PyTorch is not installed (extra torch); ./run test -m torch",
    ),
]


def run(*words, size=SIZE):
    """By rank, (what it said: a dict by name, its exit code, its error output)."""
    shared = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), *words],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ends = [rank.communicate(timeout=150) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    said = [{line["name"]: line["said"] for line in map(json.loads, out.splitlines())} for out, _ in ends]
    return [(said[i], rank.returncode, ends[i][1]) for i, rank in enumerate(ranks)]


@functools.cache
def outcome():
    return run(*CHECKS)


@pytest.mark.parametrize("check", [*CHECKS, "end"])
def test_as_over_gloo(check):
    for said, _, errors in outcome():
        assert said.get(check, f"never came:\n{errors[-2000:]}") == "", said.get(check)


def test_a_rank_that_is_killed_is_named_by_the_others():
    *survivors, (_, code, _) = run("killed")
    assert code == -9
    for said, code, errors in survivors:
        assert "rank 2 failed" in said.get("killed", errors), said or errors
        assert code == 0, errors
