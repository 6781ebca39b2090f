"""The Communicator between processes, over mpi and ucx: results, and every survivor's error when a rank misbehaves."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("communicator_job.py")
LAUNCH = """import sys
from lanterne.transport.launch import launch
sys.exit(launch(sys.argv[3:], int(sys.argv[1]), sys.argv[2]))"""
REQUIRED = os.environ.get("LANTERNE_REQUIRE", "").split(",")


def run(transport, n, case):
    """The finished job, started by our launcher."""
    if transport == "ucx" and "ucx" not in REQUIRED and find_spec("ucxx") is None:
        pytest.skip("ucxx is not installed (extra ucx)")
    launcher = "mpi" if transport == "mpi" else "direct"
    command = [sys.executable, "-c", LAUNCH, str(n), launcher, sys.executable, JOB, case]
    environment = {**os.environ, "CASE_TRANSPORT": transport, "CASE_RANKS": str(n), "LANTERNE_GRACE_S": "20"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.mark.parametrize(("transport", "n"), [("mpi", 3), ("mpi", 4), ("ucx", 4)])
def test_all_collectives(transport, n):
    job = run(transport, n, "matrix")
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("fine") == n


@pytest.mark.parametrize("case", ["killed", "absent", "disagrees"])
@pytest.mark.parametrize("transport", ["mpi", "ucx"])
def test_survivors_raise(transport, case):
    job = run(transport, 3, case)
    survivors = 3 if case in ("absent", "disagrees") else 2
    assert job.stdout.count("fine") == survivors, job.stdout + job.stderr
    assert (job.returncode != 0) == (case == "killed")


@pytest.mark.parametrize(("transport", "n"), [("mpi", 3), ("mpi", 4), ("ucx", 4)])
def test_late_ranks_are_found_out(transport, n):
    job = run(transport, n, "late")
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("fine") == n


@pytest.mark.parametrize("transport", ["mpi", "ucx"])
def test_store_dies_while_ranks_wait_at_its_board(transport):
    """Our launcher ends a job without a store; whoever is alive until then has raised, and nothing hangs."""
    job = run(transport, 3, "store_dies")
    assert job.returncode == 1
    assert "the store was killed" in job.stderr
    assert "was complete" not in job.stderr


def test_torchrun_variables():
    """Two plain processes that find each other by environment variables alone."""
    if "ucx" not in REQUIRED and find_spec("ucxx") is None:
        pytest.skip("ucxx is not installed (extra ucx)")
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CASE_RANKS": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, JOB, "matrix"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    lines = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert all("fine" in line and "over ucx" in line for line in lines)
