"""Device arrays through the Communicator on a real GPU: over nccl, several ranks on one GPU too, and staged."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from verdicts import ROOT, assert_right, run_checks, verdict

import lanterne
from lanterne.collectives.late import calls as late
from lanterne.errors import Unavailable
from lanterne.transport.nccl.binding import BINDING_VARIABLE, SHARED_GPU_ENVIRONMENT, checked, find_nccl

SCRIPT = Path(__file__).with_name("gpu_checks.py")
_spec = importlib.util.spec_from_file_location("gpu_checks", SCRIPT)
gpu_checks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gpu_checks)
JOB_S = gpu_checks.JOB_S
# A model that takes the host's CUDA a second.
SMALL = "--blocks 2 --width 16 --length 16 --rows 2 --microbatches 4"
# Who came last is told of each call: where all ranks share two cores, a pause of one makes it the last.
OF_TIMES = {gpu_checks.check_late_rank_by_its_stream}


def named(checks):
    return [
        pytest.param(check, id=check.__name__, marks=[pytest.mark.timing] * (check in OF_TIMES)) for check in checks
    ]


@pytest.fixture(scope="module")
def nccl_job(cupy, request, tmp_path_factory):
    """The finished jobs, one a world size and binding of NCCL's, started when first asked for.

    They run the checks of the tests that were chosen and are not skipped.
    """
    jobs = {}
    chosen = {
        item.callspec.params["check"]
        for item in request.session.items
        if "nccl_job" in item.fixturenames and "check" in item.callspec.params and not item.get_closest_marker("skip")
    }

    def job(world_size, binding="cupy"):
        key = world_size, binding
        if key not in jobs:
            # Where time runs out, what staged calls prove too is missing.
            *first, last = gpu_checks.NCCL
            checks = [*first, *gpu_checks.COMMON, last] if binding == "cupy" else gpu_checks.NCCL4PY
            checks = [check for check in checks if check in chosen] or checks
            report = tmp_path_factory.mktemp(f"{binding}{world_size}") / "report"
            shared = world_size > cupy.cuda.runtime.getDeviceCount()
            environment = {BINDING_VARIABLE: binding} | (SHARED_GPU_ENVIRONMENT if shared else {})
            jobs[key] = run_checks(SCRIPT, [], report, checks, world_size, "direct", environment, JOB_S)
        return jobs[key]

    return job


def _skip_without_nccl4py():
    """It is an extra of its own, and asks for an NCCL as new as the one that it was made for."""
    try:
        checked(*find_nccl("nccl4py"))
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("check", named([*gpu_checks.COMMON, *gpu_checks.NCCL]))
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_over_nccl(nccl_job, world_size, check):
    _, output, verdicts = nccl_job(world_size)
    assert_right(verdicts[check.__name__], world_size, output[-4000:])


@pytest.mark.parametrize("check", named(gpu_checks.NCCL4PY))
@pytest.mark.parametrize("world_size", [3])
def test_over_nccl_by_nccl4py(nccl_job, world_size, check):
    _skip_without_nccl4py()
    _, output, verdicts = nccl_job(world_size, "nccl4py")
    assert_right(verdicts[check.__name__], world_size, output[-4000:])


@pytest.mark.parametrize(
    ("world_size", "binding"), [(1, "cupy"), (2, "cupy"), (3, "cupy"), (3, "nccl4py")], ids="{}-ranks".format
)
def test_the_jobs_end_over_nccl(nccl_job, world_size, binding):
    """A graph is left, and on several ranks a call has failed."""
    if binding == "nccl4py":
        _skip_without_nccl4py()
    code, output, _ = nccl_job(world_size, binding)
    assert code is not None, output[-4000:]


@pytest.mark.parametrize("check", named(gpu_checks.COMMON))
@pytest.mark.parametrize("world_size", [1, 3])
def test_staged_between_threads(cupy, monkeypatch, world_size, check):
    """The path of mpi and ucx: messages through pinned host memory, folds on the device."""
    # A check changes it.
    monkeypatch.setattr(late, "LEAST_NORMAL_S", late.LEAST_NORMAL_S)

    def program(comm):
        # The threads' default stream is one for all: a rank that is held up on it would hold up the others.
        with cupy.cuda.Stream(non_blocking=True):
            return verdict(check, comm)

    verdicts = lanterne.spawn(world_size, program, timeout_s=60.0)
    assert verdicts == [None] * world_size, next(filter(None, verdicts))


def lanterne_command(*arguments, environment=None):
    """What `lanterne ARGUMENTS` ended with, on variables of `environment`, too."""
    return subprocess.run(
        [sys.executable, "-m", "lanterne", *arguments],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
        cwd=ROOT,
        env=os.environ | (environment or {}),
    )


def test_bench_counts_no_wrong_elements(cupy, tmp_path):
    words = "bench all_reduce -n 1 --device cuda --transport nccl --algorithm ring,native --bytes 1M --json"
    for graph in ([], ["--graph"]):
        result = lanterne_command(*words.split(), str(tmp_path / "x.json"), *graph)
        assert result.returncode == 0, result.stderr
        records = json.loads((tmp_path / "x.json").read_text())["results"]
        assert [record["wrong"] for record in records] == [0, 0], graph
        assert {record["device"] for record in records} == {"cuda"}, graph


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        # Ranks that share a GPU make each other slow, which is found.
        ("validate --bytes 1M --repetitions 1 --limit 5s", (0, 1)),
        (f"pipeline train --data README.md --iterations 2 {SMALL} --check", (0,)),
    ],
    ids=["validate", "train"],
)
def test_commands_compute_on_the_device(cupy, words, codes):
    result = lanterne_command(*words.split(), "-n", "2", "--transport", "local", "--device", "cuda")
    assert result.returncode in codes, result.stdout + result.stderr
    assert "bfloat16 product" in result.stdout or "the same: losses differ" in result.stdout, result.stdout


THREADS = """
import lanterne

def main(comm):
    import cupy
    x = cupy.ones(1000, "float32")
    comm.all_reduce(x, x)
    return float(x[0])

assert lanterne.spawn(2, main) == [2.0, 2.0]
"""


def test_ranks_that_are_threads_end_in_silence(cupy):
    """The main thread has not used the device, and CuPy unloads kernels there."""
    result = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=JOB_S, check=False, cwd=ROOT
    )
    assert (result.returncode, result.stderr) == (0, "")


WATCHED = """
import cupy, lanterne

with lanterne.init(transport="nccl") as comm:
    x = cupy.ones(1000, "float32")
    for _ in range(5):
        comm.all_reduce(x, x, algorithm="native")
    cupy.cuda.get_current_stream().synchronize()

from cupy.cuda import nccl

comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
comm.allReduce(x.data.ptr, x.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, cupy.cuda.Stream.null.ptr)
cupy.cuda.Stream.null.synchronize()
"""


def test_a_watched_program_over_nccl_runs_as_it_does_alone(cupy, tmp_path):
    (tmp_path / "job.py").write_text(WATCHED)
    watch = [sys.executable, "-m", "lanterne", "watch", "-n", "1", "--", sys.executable, str(tmp_path / "job.py")]
    result = subprocess.run(watch, capture_output=True, text=True, timeout=JOB_S, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    # Name, size, its unit, count: those of the program, not those that lanterne makes for them.
    calls = [line.split()[:4] for line in result.stderr.splitlines() if line.startswith(("all_reduce", "allReduce"))]
    assert [(call[0], call[3]) for call in calls] == [("all_reduce", "5"), ("allReduce", "1")], result.stderr
    assert "calls on GPUs are timed by the device" in result.stderr
    assert "# calls of cupy.cuda.nccl over NCCL, lanterne over nccl\n" in result.stderr


@pytest.mark.parametrize("binding", ["cupy", "nccl4py"])
def test_a_job_takes_back_a_rank_that_was_killed(cupy, binding):
    """By NCCL's own grow where the binding has it, behind the others; else by a new communicator."""
    if binding == "nccl4py":
        _skip_without_nccl4py()
    environment = {BINDING_VARIABLE: binding, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    environment |= SHARED_GPU_ENVIRONMENT if cupy.cuda.runtime.getDeviceCount() < 3 else {}
    words = ["launch", "-n", "3", "--restarts", "1", "--", sys.executable, str(SCRIPT.with_name("growing_job.py"))]
    result = lanterne_command(*words, environment=environment)
    assert result.returncode == 0, result.stderr
    order = "(0, 1, 2)" if binding == "cupy" else "(0, 2, 1)"
    # NCCL writes its version there, too.
    told = sorted(line for line in result.stdout.splitlines() if line.startswith("rank "))
    assert told == [f"rank {rank}: {order}" for rank in range(3)], result.stdout + result.stderr


def test_links_of_a_pipeline_take_their_time(cupy, tmp_path):
    """On the streams that carry messages between GPUs, and of messages that are staged: no run is early."""
    command = "pipeline run --device cuda --transport nccl"
    problem = "--stages 2 --microbatches 3 --forward 5ms --link 0=20ms --bandwidth 0=100MB/s --message 1M"
    options = "--scheduler zb_h1 --data-plane streams,inline --iterations 2 --json"
    environment = SHARED_GPU_ENVIRONMENT if cupy.cuda.runtime.getDeviceCount() < 2 else {}
    words = f"{command} {problem} {options}".split()
    result = lanterne_command(*words, str(tmp_path / "x.json"), environment=environment)
    assert result.returncode == 0, result.stderr
    for record in json.loads((tmp_path / "x.json").read_text())["results"]:
        assert min(record["measured_makespan_s"]) >= 0.97 * record["predicted_makespan_s"], record["data_plane"]


def test_more_ranks_than_gpus_are_refused_by_name(cupy, tmp_path):
    world_size = cupy.cuda.runtime.getDeviceCount() + 1
    environment = {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}
    code, output, _ = run_checks(SCRIPT, [], tmp_path / "report", [], world_size, "direct", environment)
    assert code == 3 or "share device" in output, output
    assert "share device" in output


def test_no_room_for_scratch_is_a_named_error(cupy):
    from lanterne.kernels.cuda.runtime import CudaRuntime

    _, total_nbytes = cupy.cuda.runtime.memGetInfo()
    with pytest.raises(Unavailable, match="has no room for"):
        CudaRuntime().empty(2 * total_nbytes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_matrix_products_are_right(cupy, dtype):
    from lanterne.kernels.gemm import product

    multiply, wrong_rows = product(1024, dtype, "cuda")
    multiply()
    assert wrong_rows() == 0
