"""Jobs of tests/torch: the ranks of one job on this host, and the mark of tests that need PyTorch."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from processes import free_port

SIZE = 3
# Then a rank hangs: less than pytest's own limit, since that ends no ranks. Busy machines have needed 200.
HANGS_S = 280
needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("torch") is None and "torch" not in os.environ.get("LANTERNE_REQUIRE", "").split(","),
        reason="PyTorch is not installed (extra torch); ./run test -m torch",
    ),
]


def run(*words, job, size=SIZE, **variables):
    """By rank, (what it said: a dict by name, its exit code, its error output)."""
    shared = os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **variables}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(job), *words],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ends = [rank.communicate(timeout=HANGS_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    said = [{line["name"]: line["said"] for line in map(json.loads, out.splitlines())} for out, _ in ends]
    return [(said[i], rank.returncode, ends[i][1]) for i, rank in enumerate(ranks)]
