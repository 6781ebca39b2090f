"""Too little of a host is named before it kills: shared memory, open files."""

import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
from processes import free_port

from lanterne.errors import Unavailable
from lanterne.transport.job import room

MB = 1_000_000


@pytest.mark.parametrize(
    ("free_nbytes", "num_ranks", "mpich", "gives"),
    [
        (4 * MB, 4, True, "refused"),
        (4 * MB, 4, False, "without"),
        (8 * MB, 4, True, "without"),
        (16 * MB, 4, False, "without"),
        (24 * MB, 4, False, "without"),
        (33 * MB, 4, False, "all"),
        (64 * MB, 16, True, "without"),
        (1000 * MB, 64, True, "all"),
    ],
)
def test_shared_memory(monkeypatch, free_nbytes, num_ranks, mpich, gives):
    monkeypatch.setattr(room.os, "statvfs", lambda _path: SimpleNamespace(f_bavail=free_nbytes // 4096, f_frsize=4096))
    variables = {}
    if gives == "refused":
        with pytest.raises(Unavailable, match=r"shared memory: got 4 MB free in /dev/shm, expected 4\.4 MB or more"):
            room.check_shared_memory(num_ranks, variables, mpich=mpich)
        return
    room.check_shared_memory(num_ranks, variables, mpich=mpich)
    assert variables == ({"UCX_TLS": "^posix"} if gives == "without" else {})
    chosen = {"UCX_TLS": "tcp"}
    room.check_shared_memory(num_ranks, chosen, mpich=mpich)
    assert chosen == {"UCX_TLS": "tcp"}


@pytest.mark.parametrize(
    ("limits", "num_ranks", "after"), [((24, 24), 4, None), ((24, 4096), 4, 72), ((4096, 4096), 4, 4096)]
)
def test_open_files(limits, num_ranks, after):
    """In a process of its own: a limit can only be lowered."""
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, {limits})
from lanterne.transport.job.room import make_room_for_files
make_room_for_files({num_ranks})
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if after is None:
        assert "open files: got a limit of 24, expected 72 or more for 4 ranks; raise it with" in ended.stderr
    else:
        assert ended.stdout == f"{after}\n", ended.stderr


# "step": what sets RANK and WORLD_SIZE starts them, which looks at nothing of the host.
RANKS = """
import os, subprocess, sys
from lanterne.transport.job.launch import launch
from lanterne.transport.job.launch import find_mpiexec
program = "import lanterne, numpy as np, os; c = lanterne.init(); x = np.ones(1 << 18, np.float32);"
program += "c.all_reduce(x, x); assert (x == 4).all(); os.write(1, b'done\\\\n'); c.close()"
command = [sys.executable, "-c", program]
if sys.argv[1] == "mpiexec":
    sys.exit(subprocess.run([find_mpiexec(), "-n", "4", *command], timeout=60).returncode)
if sys.argv[1] != "step":
    sys.exit(launch(command, 4, sys.argv[1], 60))
job = os.environ | {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
job["LANTERNE_TOKEN"] = "0" * 32
ranks = [subprocess.Popen(command, env=job | {"RANK": str(rank)}) for rank in range(4)]
sys.exit(max(rank.wait(60) for rank in ranks))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a /dev/shm of its own needs root")
@pytest.mark.parametrize(
    ("size", "launcher"),
    [
        *((1, "mpi"), (5, "mpiexec"), (1, "direct"), (16, "mpi"), (24, "direct"), (24, "step")),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((16, "direct"), (24, "mpi"), (1, "step"))),
    ],
)
def test_a_job_in_little_shared_memory_runs_or_says_so(launcher, size):
    """16 and 24 MiB are where UCX takes shared memory on some ranks and has none left for others.

    In 5 MiB MPICH has room for all ranks, but a slower rank finds less free than all need.
    """
    inside = f'mount -t tmpfs -o size={size}m tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", inside, "sh", sys.executable, "-c", RANKS, launcher, str(free_port())]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    ended = subprocess.run(
        command,
        env=os.environ | {"LANTERNE_TRIALS": "off"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if size == 1 and launcher == "mpi":
        assert "shared memory: got 1.05 MB free in /dev/shm, expected 4.4 MB" in ended.stderr
    else:
        assert (ended.returncode, ended.stdout.count("done")) == (0, 4), ended.stderr
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
