"""Whatever dies, the others learn of it, the job ends with a code that says so, and no process is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import MARK, PATIENCE_S, assert_none_left, marked, wait_until

from lanterne.errors import InputError, Unavailable
from lanterne.transport.job import launch as launch_module
from lanterne.transport.job import room
from lanterne.transport.job.guard import exit_code
from lanterne.transport.job.launch import MAX_WORLD_SIZE, launch

HERE = Path(__file__).resolve().parents[1]

JOB = str(HERE / "job.py")
LAUNCH = (
    "import sys; from lanterne.transport.job.launch import launch; "
    "sys.exit(launch(sys.argv[3:], int(sys.argv[2]), sys.argv[1]))"
)
SURVIVORS = 7


def start(mark, launcher, world_size, *command, **variables):
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, launcher, str(world_size), *command],
        env=os.environ | {MARK: mark} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
        # Who runs the tests in the background of a shell ignores SIGINT, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (one system call)
    )


def finish(process, mark):
    output, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert_none_left(mark)
    return process.returncode, output, errors


def start_and_wait_until_ready(mark, launcher, world_size, *arguments, **variables):
    process = start(mark, launcher, world_size, sys.executable, JOB, *arguments, **variables)
    ready = [process.stdout.readline() for _ in range(world_size)]
    assert sorted(ready) == [f"ready {rank}\n" for rank in range(world_size)], process.communicate()
    return process


@pytest.mark.parametrize("launcher", ["mpi", "direct"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_rank_runs_and_finds_the_others(mark, launcher, world_size):
    code, output, errors = finish(start(mark, launcher, world_size, sys.executable, JOB, "report"), mark)
    assert (code, errors) == (0, "")
    reports = sorted((json.loads(line) for line in output.splitlines()), key=lambda report: report["rank"])
    ranks = [str(rank) for rank in range(world_size)]
    assert [report["variables"] for report in reports] == [
        {
            "RANK": rank,
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": rank,
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }
        for rank in ranks
    ]
    assert all(report["payloads"] == ranks and report["one_host"] for report in reports)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("launcher", "how", "code", "reason"),
    [
        ("mpi", "kill", 128 + signal.SIGKILL, r"killed by signal 9 \(SIGKILL\)"),
        ("direct", "kill", 128 + signal.SIGKILL, r"killed by signal 9 \(SIGKILL\)"),
        ("mpi", "exit", 5, "exited with code 5"),
        ("direct", "raise", 1, "(exited with code 1|its connection ended without goodbye)"),
    ],
)
def test_survivors_learn_of_a_death(mark, launcher, how, code, reason):
    options = ["--mpi"] if launcher == "mpi" else []
    got, output, errors = finish(start(mark, launcher, 4, sys.executable, JOB, *options, "--child", how), mark)
    seen = re.findall(r"rank (\d) sees: rank 1 failed: (.*)", output)
    assert sorted(rank for rank, _ in seen) == ["0", "2", "3"], output + errors
    assert all(re.fullmatch(reason, text) for _, text in seen), seen
    # Where an exception unwinds the interpreter first, the others may end before it.
    assert got in ({code, SURVIVORS} if how == "raise" else {code})
    assert "BAD TERMINATION" not in output + errors


@pytest.mark.parametrize(("how", "why"), [("os._exit(0)", "left the job"), ("os.kill(os.getpid(), 9)", "killed by")])
def test_a_rank_that_ends_before_it_has_joined_is_named(mark, how, why):
    program = (
        f"import os, sys; {how} if os.environ['RANK'] == '1' else None\n"
        "from lanterne.transport.job.bootstrap import connect\n"
        # One write, also where Python does not buffer: the ranks share the pipe.
        "try: connect(60)\nexcept Exception as error: sys.stdout.write(f'{error}\\n')"
    )
    started = time.monotonic()
    _, output, errors = finish(start(mark, "direct", 3, sys.executable, "-c", program), mark)
    assert len(re.findall(rf"^rank 1 failed: .*{why}", output, re.M)) == 2, output + errors
    assert time.monotonic() - started < PATIENCE_S  # half of the wait


def test_nobody_waits_in_mpi_finalize_for_a_rank_that_cannot(mark):
    assert finish(start(mark, "mpi", 3, sys.executable, JOB, "finalize"), mark) == (0, "", "")


VICTIMS = {
    "store": "lanterne.transport.store.server",
    "guard": "lanterne.transport.job.guard",
    "mpiexec": "mpiexec",
    "proxy": "hydra_pmi_proxy",
}


@pytest.mark.parametrize(
    ("launcher", "victim"),
    [("mpi", victim) for victim in ("launcher", *VICTIMS)]
    + [("direct", victim) for victim in ("launcher", "store", "guard")],
)
def test_nothing_survives_the_death_of_a_helper(mark, launcher, victim):
    process = start_and_wait_until_ready(mark, launcher, 2, "--child", "wait")
    assert wait_until(lambda: len(marked(mark, "sleep")) == 2)
    environment = Path(f"/proc/{marked(mark, 'job.py')[-1]}/environ").read_bytes().split(b"\0")
    (token,) = (entry.partition(b"=")[2] for entry in environment if entry.startswith(b"LANTERNE_TOKEN="))
    assert len(token) == 32
    assert not marked(mark, token.decode()), "the token is on a command line"
    if victim == "launcher":
        pids = [process.pid]
    else:
        word = VICTIMS[victim]
        pids = [pid for pid in marked(mark, word) if pid != process.pid]
        if victim == "mpiexec":
            pids = [pid for pid in pids if "hydra_pmi_proxy" not in Path(f"/proc/{pid}/cmdline").read_text()]
    assert pids
    os.kill(pids[0], signal.SIGKILL)
    code, _output, _errors = finish(process, mark)
    assert code != 0


@pytest.mark.parametrize(
    ("launcher", "number", "code"),
    [("mpi", signal.SIGTERM, 128 + signal.SIGTERM), ("direct", signal.SIGINT, -signal.SIGINT)],
)
def test_a_stopped_launcher_ends_its_ranks(mark, launcher, number, code):
    process = start_and_wait_until_ready(mark, launcher, 2, "wait")
    process.send_signal(number)
    ended, _output, errors = finish(process, mark)
    assert ended == code and "store" not in errors and "lanterne:" not in errors


def test_survivors_that_hang_are_ended_after_the_grace_time(mark):
    script = "import os, sys, time; sys.exit(5) if os.environ['RANK'] == '1' else time.sleep(600)"
    process = start(mark, "direct", 3, sys.executable, "-c", script, LANTERNE_GRACE_S="0.2")
    code, _output, errors = finish(process, mark)
    assert code == 5
    why = "killed by signal 15 (SIGTERM): it still ran 0.2 s after rank 1 had failed"
    assert sorted(errors.splitlines()) == [f"lanterne: rank 0 {why}", f"lanterne: rank 2 {why}"]


DIES_WHILE_MPI_STARTS = """
import os, re, signal, sys, time
from lanterne.transport.job.bootstrap import connect

group = connect(60)
first = int(group.exchange("pid", b"%d" % os.getpid())[0])
if group.rank == 1:
    found, deadline_s = None, time.monotonic() + float(sys.argv[1])
    while not found and time.monotonic() < deadline_s:
        found = re.search(r"/dev/shm/mpich_shm_\\S+", open(f"/proc/{first}/maps").read())
    print(found[0] if found else "", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
from mpi4py import MPI
"""


def test_the_memory_of_an_mpi_that_could_not_start_is_removed(mark):
    command = [sys.executable, "-c", DIES_WHILE_MPI_STARTS, str(PATIENCE_S)]
    code, output, errors = finish(start(mark, "mpi", 2, *command, LANTERNE_GRACE_S="0.2"), mark)
    if not output.strip():
        pytest.skip("this MPI takes no memory of MPICH's kind")
    assert code == 128 + signal.SIGKILL and "it still ran 0.2 s after rank 1 had failed" in errors
    assert not Path(output.strip()).exists()


def test_a_job_started_from_a_rank_of_another(mark):
    inner = [sys.executable, "-c", LAUNCH, "direct", "2", sys.executable, JOB, "report"]
    code, output, errors = finish(start(mark, "mpi", 1, *inner), mark)
    assert (code, errors) == (0, "")
    assert output.count('"payloads": ["0", "1"]') == 2


def test_a_job_that_takes_too_long_is_ended(mark):
    code = (
        "import sys; from lanterne.transport.job.launch import launch; from lanterne.errors import TransportTimeout\n"
        "try: launch([sys.executable, '-c', 'import time; time.sleep(600)'], 2, 'direct', timeout_s=1)\n"
        "except TransportTimeout as error: print(error, error.peers)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert finish(process, mark) == (0, "launch: rank 0, 1 still ran after 1 s and was ended (0, 1)\n", "")


def test_output_passes_through_unmangled(mark):
    script = "import os, sys; os.environ['RANK'] == '0' and sys.stdout.write('ä│\\t' * 30000 + '\\n')"
    for launcher in ("mpi", "direct"):
        code, output, errors = finish(start(mark, launcher, 2, sys.executable, "-X", "utf8", "-c", script), mark)
        assert (code, output, errors) == (0, "ä│\t" * 30000 + "\n", ""), launcher


@pytest.mark.parametrize("world_size", [0, -1, MAX_WORLD_SIZE + 1, 100000, 2.0, "2", True])
def test_world_sizes_refused(world_size):
    with pytest.raises(InputError, match=f"got {world_size} ranks, expected 1 to"):
        launch([sys.executable], world_size)


@pytest.mark.parametrize(
    ("command", "launcher", "message"),
    [
        ([], "direct", "got command ''"),
        (["no-such-program"], "direct", "'no-such-program'"),
        (["true"], "slurm", "got launcher 'slurm'"),
    ],
)
def test_commands_refused(command, launcher, message):
    with pytest.raises(InputError, match=message):
        launch(command, 2, launcher)


def test_no_mpiexec(monkeypatch, tmp_path):
    monkeypatch.setattr(launch_module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="pip install mpich"):
        launch_module.find_mpiexec()


@pytest.mark.parametrize(
    ("variables", "got"),
    [
        ("", "no variables that say its rank and size"),
        ("PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0", "a world of 1 ranks"),
    ],
)
def test_an_mpiexec_that_makes_worlds_of_one_rank(monkeypatch, tmp_path, variables, got):
    fake = tmp_path / "mpiexec"
    # mpiexec -n N COMMAND...: starts N processes that know nothing of each other.
    fake.write_text(
        f'#!/bin/sh\nn=$2; shift 2; unset PMI_FD\nfor i in $(seq $n); do env {variables} "$@" & done; wait\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(launch_module, "find_mpiexec", lambda: str(fake))
    for name in ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unavailable, match=f"{fake}: got {got} .* expected a world of 3"):
        launch([sys.executable, "-c", "raise SystemExit('a rank ran')"], 3)


def test_an_mpiexec_that_starts_nothing(monkeypatch, tmp_path):
    fake = tmp_path / "mpiexec"
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setattr(launch_module, "find_mpiexec", lambda: str(fake))
    monkeypatch.setattr(launch_module, "START_S", 0.1)
    monkeypatch.setattr(launch_module, "START_RANK_S", 0.1)
    monkeypatch.setattr(launch_module, "END_S", 0.2)
    with pytest.raises(Unavailable, match=f"{fake}: started 0 ranks in 0.3 s, expected 2"):
        launch([sys.executable], 2)


def test_a_batch_system_does_not_take_the_ranks_elsewhere(mark):
    slurm = {"SLURM_JOB_ID": "5", "SLURM_NODELIST": "nodea,nodeb", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)"}
    code, output, errors = finish(start(mark, "mpi", 2, sys.executable, JOB, "report", **slurm), mark)
    assert (code, errors) == (0, "")
    assert output.count('"payloads": ["0", "1"]') == 2


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, (0, "exited with code 0")), (3 << 8, (3, "exited with code 3")), (9, (137, "killed by signal 9 (SIGKILL)"))],
)
def test_exit_codes(status, expected):
    assert exit_code(status) == expected


@pytest.mark.parametrize(("free_nbytes", "told"), [(0, "; /dev/shm is full (0 MB free); give more"), (1 << 30, "")])
def test_what_a_bus_error_means(monkeypatch, free_nbytes, told):
    monkeypatch.setattr(room, "_free_nbytes", lambda: free_nbytes)
    code, words = exit_code(signal.SIGBUS)
    assert code == 128 + signal.SIGBUS and words.startswith(f"killed by signal 7 (SIGBUS){told}")


@pytest.mark.parametrize("grace", ["x", "-1", "nan", "inf"])
def test_grace_times_refused(monkeypatch, grace):
    monkeypatch.setenv("LANTERNE_GRACE_S", grace)
    with pytest.raises(InputError, match=f"LANTERNE_GRACE_S: got '{grace}', expected seconds"):
        launch([sys.executable], 2, "direct")


GOES_ON = """
import os, signal
import numpy as np
import lanterne
comm = lanterne.init(timeout_s=20)
x, y, step = np.ones(1000), np.empty(1000), 0
victims = [2, 0]
while step < 20:
    if comm.world_size == 2 + len(victims) and victims and comm.ranks[comm.rank] == victims[0] and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_reduce(x, y)
    except lanterne.TransportError:
        comm = comm.shrink()
        victims.pop(0)
        step = 0
        continue
    assert (y == comm.world_size).all()
    step += 1
os.write(1, f"{comm.ranks}\\n".encode())  # at once, so that lines do not mix
comm.close()
"""


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ucx", marks=pytest.mark.slow)])
def test_survivors_go_on_and_the_job_ends_well(mark, transport):
    process = start(mark, "direct", 4, sys.executable, "-P", "-c", GOES_ON, LANTERNE_TRANSPORT=transport)
    code, output, errors = finish(process, mark)
    assert code == 0 and output == "(1, 3)\n" * 2, (output, errors)
    assert "rank 0, 1, 3 go on without rank 2" in errors and "rank 1, 3 go on without rank 0" in errors


AGREES = """
import os, signal, time
import numpy as np
import lanterne
comm = lanterne.init(timeout_s=20)
x, y, agreed = np.ones(1000), np.empty(1000), []
while sum(agreed) < 12:
    done = True
    try:
        comm.all_reduce(x, y)
    except lanterne.TransportError:
        done = False
    if comm.rank == 0 and len(agreed) == 5:
        time.sleep(0.3)  # so that the others wait for it there
        os.kill(os.getpid(), signal.SIGKILL)
    agreed.append(comm.agree(done))
    if not agreed[-1]:
        comm = comm.shrink()
assert (y == 3).all()
os.write(1, f"{comm.ranks} {agreed}\\n".encode())
comm.close()
"""


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ucx", marks=pytest.mark.slow)])
def test_all_that_live_agree_although_one_dies_while_they_do(mark, transport):
    process = start(mark, "direct", 4, sys.executable, "-P", "-c", AGREES, LANTERNE_TRANSPORT=transport)
    code, output, errors = finish(process, mark)
    assert code == 0 and output == f"(1, 2, 3) {[1] * 6 + [0] + [1] * 6}\n" * 3, (output, errors)
    assert errors.count("rank 1, 2, 3 go on without rank 0") == 1


GROWS = """
import os, signal, time
import numpy as np
import lanterne
comm = lanterne.init(timeout_s=30)
step, more = (-1, 5) if comm.epoch else (0, 5)
while more:
    if step == 5 and comm.epoch == 0 and comm.rank == 1 and comm.world_size == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        told = np.empty(comm.world_size, np.int64)
        comm.all_gather(np.array([step]), told)
        step = told.max() + 1
        more -= comm.epoch
        after = comm.grow()
    except lanterne.TransportError:
        after = comm.shrink()
    comm = after
    time.sleep(0.02)
os.write(1, f"{comm.rank} of {comm.world_size} {comm.newcomers} {os.environ['RANK']}\\n".encode())
comm.close()
"""


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ucx", marks=pytest.mark.slow)])
def test_a_rank_that_was_killed_is_started_again(mark, transport):
    command = [sys.executable, "-P", "-m", "lanterne", "launch", "-n", "3", "--restarts", "1", "--transport", transport]
    variables = {name: text for name, text in os.environ.items() if name != "LANTERNE_TRANSPORT"}
    process = subprocess.Popen(
        [*command, "--", sys.executable, "-P", "-c", GROWS],
        env=variables | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, output, errors = finish(process, mark)
    assert code == 0, errors
    assert sorted(output.splitlines()) == ["0 of 3 (1,) 0", "1 of 3 (1,) 1", "2 of 3 (1,) 2"], errors
    assert "rank 0, 2 go on without rank 1" in errors and "rank 1 was taken in" in errors
    assert "is started again" in errors


def test_mpiexec_has_no_restarts():
    with pytest.raises(InputError, match="whose ranks end together, expected tcp or ucx"):
        launch([sys.executable], 2, "mpi", restarts=1)


def test_ranks_have_the_variables_of_torchrun_and_a_port_for_each_attempt(mark, tmp_path):
    """torch's store of an attempt that has failed is not to be met: also by a rank that fails later than another."""
    code = (
        "import os, pathlib, sys, time\n"
        "names = 'RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR TORCHELASTIC_RESTART_COUNT'.split()\n"
        "os.write(1, ' '.join([os.environ['MASTER_PORT'], *map(os.environ.get, names)]).encode() + b'\\n')\n"
        "place = pathlib.Path(sys.argv[1]) / os.environ['RANK']\n"
        "time.sleep(0.5 * int(os.environ['RANK']))\n"
        "if not place.exists(): place.touch(); sys.exit(5)\n"
    )
    words = [sys.executable, "-P", "-m", "lanterne", "launch", "-n", "2", "--restarts", "1", "--", sys.executable, "-c"]
    done = subprocess.run(
        [*words, code, tmp_path], env=os.environ | {MARK: mark}, capture_output=True, text=True, check=False
    )
    said = sorted(done.stdout.splitlines())
    first = int(said[0].split()[0])
    expected = [f"{first + attempt} {rank} {rank} 2 2 127.0.0.1 {attempt}" for attempt in (0, 1) for rank in (0, 1)]
    assert (done.returncode, said) == (0, expected), done.stderr
    assert_none_left(mark)
