"""One suite that every transport passes (conformance.py); a new transport adds a line to PROCESS or THREADS.

The orderly checks of a process transport share one job; each failure has a job of its own.
"""

import os
import threading
from importlib.util import find_spec
from pathlib import Path

import conformance
import pytest
from verdicts import assert_right, run_checks, verdict

from lanterne.transport.local import LocalWorld
from lanterne.transport.shaped import Link, ShapedTransport

SCRIPT = Path(conformance.__file__)
RANKS = 3
NAMES = [check.__name__ for check in conformance.ORDERLY]


def plain(world, rank):
    return world.transport(rank, timeout_s=60.0)


def shaped(world, rank):
    return ShapedTransport(plain(world, rank), Link(latency_s=0.001, bandwidth_bytes_per_s=20e9))


THREADS = {"local": plain, "shaped": shaped}
# transport -> (the launcher, the module it needs)
PROCESS = {"mpi": ("mpi", "mpi4py"), "ucx": ("direct", "ucxx")}


def run_threads(make, check, world_size=RANKS):
    """Run `check` on every rank of a fresh local world; the verdicts by rank."""
    world = LocalWorld(world_size)
    verdicts = ["did not end"] * world_size

    def rank_main(rank):
        transport = make(world, rank)
        verdicts[rank] = verdict(check, transport)
        transport.close()

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    return verdicts


@pytest.mark.parametrize("check", conformance.IN_THREADS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", THREADS)
def test_threads(name, check):
    assert run_threads(THREADS[name], check) == [None] * RANKS


@pytest.mark.parametrize("name", THREADS)
def test_threads_peer_exits(name):
    assert run_threads(THREADS[name], conformance.failure_peer_exits) == [None] * RANKS


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_threads_other_world_sizes(world_size):
    for check in (conformance.check_barrier, conformance.check_ordering, conformance.check_both_directions):
        assert run_threads(plain, check, world_size) == [None] * world_size, check


def run_job(name, report, checks):
    """Run conformance.py over the transport `name`; what run_checks returns."""
    launcher, module = PROCESS[name]
    if find_spec(module) is None:
        if name in os.environ.get("LANTERNE_REQUIRE", "").split(","):
            pytest.fail(f"LANTERNE_REQUIRE names {name}, but {module} is not installed")
        pytest.skip(f"{module} is not installed")
    # Survivors wait for 20 s in the checks of failures: their launcher must not end them before.
    return run_checks(SCRIPT, [name], report, checks, RANKS, launcher, environment={"LANTERNE_GRACE_S": "60"})


@pytest.fixture(scope="module")
def orderly(tmp_path_factory):
    """The finished orderly jobs, one a transport, started when first asked for."""
    jobs = {}

    def job(name):
        if name not in jobs:
            jobs[name] = run_job(name, tmp_path_factory.mktemp(name) / "report", conformance.ORDERLY)
        return jobs[name]

    return job


@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("name", PROCESS)
def test_processes(orderly, name, check):
    code, output, verdicts = orderly(name)
    assert_right(verdicts[check], RANKS, output)
    assert code == 0 or any(record["wrong"] for records in verdicts.values() for record in records), output


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESS)
def test_a_huge_message(tmp_path, name):
    code, output, verdicts = run_job(name, tmp_path / "report", [conformance.check_huge])
    assert_right(verdicts["check_huge"], RANKS, output)
    assert code == 0, output


@pytest.mark.parametrize("failure", conformance.FAILURES, ids=lambda failure: failure.__name__)
@pytest.mark.parametrize("name", PROCESS)
def test_processes_failures(tmp_path, name, failure):
    code, output, verdicts = run_job(name, tmp_path / "report", [failure])
    killed = failure is conformance.failure_peer_killed
    assert_right(verdicts[failure.__name__], RANKS - killed, output)
    assert (code != 0) == killed, output
