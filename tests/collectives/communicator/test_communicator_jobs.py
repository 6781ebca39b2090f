"""The Communicator between processes, over mpi and ucx: results, and every survivor's error when a rank misbehaves."""

import functools
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("communicator_job.py")
LAUNCH = """import sys
from lanterne.transport.job.launch import launch
sys.exit(launch(sys.argv[3:], int(sys.argv[1]), sys.argv[2]))"""
REQUIRED = os.environ.get("LANTERNE_REQUIRE", "").split(",")


# What one job goes through, in this order.
CASES = "matrix", "verbs", "late", "has_left", "disagrees", "absent", "killed"


def run(transport, n, *cases, trials="off", grace_s=20):
    """The finished job, started by our launcher."""
    if transport == "ucx" and "ucx" not in REQUIRED and find_spec("ucxx") is None:
        pytest.skip("ucxx is not installed (extra ucx)")
    launcher = "mpi" if transport == "mpi" else "direct"
    command = [sys.executable, "-c", LAUNCH, str(n), launcher, sys.executable, JOB, *cases]
    variables = {"CASE_TRANSPORT": transport, "CASE_RANKS": str(n), "LANTERNE_TRIALS": trials}
    variables["LANTERNE_GRACE_S"] = str(grace_s)
    environment = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.fixture(scope="module")
def job():
    """(transport, ranks) -> the finished job of all its cases, started when first asked for."""
    return functools.cache(lambda transport, n: run(transport, n, *CASES))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("transport", "n"), [("mpi", 3), ("ucx", 4)])
def test_every_rank_is_through(job, transport, n, case):
    """Results are right, and where rank 1 misbehaves all others raise and name it."""
    done = job(transport, n)
    assert done.stdout.count(f"over {transport}: {case} fine\n") == n - (case == "killed"), done.stdout + done.stderr
    assert done.returncode != 0, done.stderr


@pytest.mark.parametrize("case", ["verbs", "reused_ids", "has_left"])
def test_over_tcp(case):
    done = run("tcp", 3, case)
    assert done.stdout.count(f"over tcp: {case} fine\n") == 3, done.stdout + done.stderr


@pytest.mark.slow
def test_auto_goes_by_what_the_algorithms_took_in_trials():
    done = run("mpi", 3, "matrix", trials="on")
    assert done.stdout.count("matrix fine\n") == 3, done.stdout + done.stderr


@pytest.mark.parametrize("transport", ["mpi", "ucx"])
def test_store_dies_while_ranks_wait_at_its_board(transport):
    """Our launcher ends a job without a store; whoever is alive until then has raised, and nothing hangs."""
    job = run(transport, 3, "store_dies")
    assert job.returncode == 1
    assert "the store was killed" in job.stderr
    assert "was complete" not in job.stderr


def test_who_gave_a_rank_up_does_not_wait_for_it_at_its_end():
    """MPI ends in order only where all ranks do: one that is stopped would keep the others for ever."""
    job = run("mpi", 3, "stopped", grace_s=1)
    assert job.returncode == 5, job.stderr
    assert "it still ran 1 s after rank" in job.stderr


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
    assert all("over ucx: matrix fine" in line for line in lines)
