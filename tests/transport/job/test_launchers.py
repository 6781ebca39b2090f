"""What the environments of launchers mean. Those of Slurm, MPICH and Open MPI were taken from real ones."""

import os
import stat
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.transport.job import secret
from lanterne.transport.job.launchers import ALONE, VARIABLES, find_launch, find_step, first_host, in_a_batch_script

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[0-3]",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
}
BATCH = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[0-3]", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "3"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
PMIX = {"PMIX_RANK": "3"}
POD = {"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-0.job", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "way", "library"),
    [
        (HYDRA, "mpi", "mpich"),
        (OPEN_MPI, "mpi", "openmpi"),
        (TORCHRUN, "address", ""),
        (POD, "address", ""),
        (STEP, "step", ""),
        (STEP | HYDRA, "mpi", "mpich"),  # srun --mpi=pmi2
        (STEP | PMIX, "mpi", "openmpi"),  # srun --mpi=pmix
        (STEP | {"SLURM_PROCID": "0"} | OPEN_MPI, "mpi", "openmpi"),  # mpirun's daemons are steps
        (STEP | TORCHRUN, "address", ""),
        (BATCH | OPEN_MPI, "mpi", "openmpi"),
        (HYDRA | TORCHRUN, "mpi", "mpich"),  # they agree
        # torchrun, once on each host, started by an MPI launcher
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "1"} | TORCHRUN | {"TORCHELASTIC_RUN_ID": "x"}, "address", ""),
        # mpirun in a shell that is a step of one task
        (HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"} | OPEN_MPI, "mpi", "openmpi"),
        (HYDRA | {"WORLD_SIZE": "9"}, "mpi", "mpich"),
        ({"LANTERNE_STORE": "127.0.0.1:9", "RANK": "3", "WORLD_SIZE": "4"} | STEP, "store", ""),
        ({key: value for key, value in STEP.items() if "STEP_N" not in key} | {"SLURM_NTASKS": "4"}, "step", ""),
    ],
)
def test_who_started_it(variables, way, library):
    launch = find_launch(variables)
    assert (launch.launcher.way, launch.launcher.library, launch.rank, launch.world_size) == (way, library, 3, 4)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        BATCH,
        {key: value for key, value in BATCH.items() if key != "SLURM_PROCID"},  # salloc
        STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # srun --pty bash
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "1"},
        {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
    ],
)
def test_nobody_did(variables):
    assert find_launch(variables) is ALONE


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PMI_RANK": "1"}, "PMI_SIZE: not set beside PMI_RANK=1"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK: not set beside OMPI_COMM_WORLD_SIZE=2"),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK: got 'x', expected a number"),
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "PMI_RANK: got 2, expected less than PMI_SIZE, 2"),
        ({"WORLD_SIZE": "4"}, "RANK: not set beside WORLD_SIZE=4, expected all of RANK, "),
        ({"RANK": "1"}, "WORLD_SIZE: not set beside RANK=1"),
        ({"JOB_COMPLETION_INDEX": "1"}, "WORLD_SIZE: not set beside JOB_COMPLETION_INDEX=1, .*kubernetes"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "SLURM_JOB_ID: not set beside SLURM_PROCID=1"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "SLURM_JOB_ID: not set beside SLURM_PROCID=0"),
        (BATCH | {"SLURM_PROCID": "1"}, "SLURM_STEP_ID: not set beside SLURM_PROCID=1"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "3"}, "SLURM_PROCID: got 3, expected less than SLURM_STEP_NUM_TASKS, 3"),
        (HYDRA | TORCHRUN | {"WORLD_SIZE": "5"}, "two launchers: got PMI_RANK=3 with PMI_SIZE=4 .* and RANK=3"),
        (HYDRA | OPEN_MPI | {"PMI_RANK": "2"}, "two launchers: got OMPI_COMM_WORLD_RANK=3"),
    ],
)
def test_half_and_two_launchers(variables, message):
    with pytest.raises(InputError, match=message) as refused:
        find_launch(variables)
    assert "\n" not in str(refused.value)


WHOLE = (STEP, HYDRA, OPEN_MPI, TORCHRUN, POD)


@given(st.sampled_from(WHOLE), st.data())
def test_no_part_of_a_launchers_variables_is_another_world(whole, data):
    part = {name: whole[name] for name in data.draw(st.sets(st.sampled_from(sorted(whole))))}
    try:
        launch = find_launch(part)
    except InputError:
        return
    expected = find_launch(whole)
    known = {name for name in part if any(word in name for word in ("RANK", "PROCID", "INDEX"))}
    assert (launch.rank, launch.world_size or 4) == (3, 4) or (launch is ALONE and not known), (launch, expected)


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=5) | st.integers(-2, 9).map(str)))
@example({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "1"})
def test_any_environment_is_understood_or_refused(variables):
    try:
        launch = find_launch(variables)
    except InputError as error:
        assert str(error).split(":")[0] in (*VARIABLES, "two launchers")
        return
    assert launch.rank >= 0 and (launch.rank < launch.world_size or launch.world_size == 0)


def test_where_a_step_meets():
    step = find_step(STEP)
    assert (step.name, step.host) == ("12.0", "n1")
    assert find_step(STEP | {"SLURM_STEP_NODELIST": "n7"}).host == "127.0.0.1"
    ports = {find_step(STEP | {"SLURM_STEP_ID": str(step)}).port for step in range(100)}
    assert len(ports) > 95 and all(20000 <= port < 32000 for port in ports)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[3-5,8],gpu1", "n3"),
        ("n[01-03]", "n01"),
        ("n[7,9]-ib,x", "n7-ib"),
        ("rack[2-3]node[05,7-9]", "rack2node05"),
    ],
)
def test_the_first_host(hosts, first):
    assert first_host(hosts) == first


def test_a_batch_script_is_no_task_of_its_job():
    assert (in_a_batch_script(BATCH), in_a_batch_script(STEP), in_a_batch_script({})) == (8, 0, 0)


def test_a_jobs_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", str(tmp_path / "cache"))
    one, two, again = secret.job_secret("port 1"), secret.job_secret("port 2"), secret.job_secret("port 1")
    assert one == again != two and len(one) == 64
    (file,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with pytest.raises(InputError, match="with mode 644, expected one that only user"):
        secret.job_secret("port 1")
    file.chmod(0o600)
    file.write_bytes(b"short")
    assert secret.job_secret("port 1") is None
    monkeypatch.setenv("LANTERNE_CACHE", "off")
    assert secret.job_secret("port 1") is None


def test_processes_that_start_together_make_one_key(tmp_path):
    code = "from lanterne.transport.job.secret import job_secret; print(job_secret('x'))"
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"LANTERNE_CACHE": str(tmp_path)}, stdout=-1)
        for _ in range(4)
    ]
    told = [process.communicate(timeout=60)[0] for process in started]
    assert len(set(told)) == 1 and len(told[0]) == 65
    assert [file.name for file in tmp_path.iterdir()] == [secret.FILE]


@pytest.mark.parametrize(
    ("variables", "whole"), [({"PMI_RANK": "1"}, True), ({"RANK": "1"}, True), ({"PMI_RANK": "1"}, False)]
)
def test_init_says_it_in_one_line(variables, whole):
    caught = "" if whole else "try: lanterne.init()\nexcept ValueError: raise SystemExit(9)\n"
    code = f"import lanterne\n{caught}lanterne.init()"
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=clean | variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == (1 if whole else 9)
    assert ended.stderr.count("\n") == whole and ("not set beside" in ended.stderr) == whole
