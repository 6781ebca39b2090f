"""A job outlives a death before it is together, and its store where a Redis is named; else it ends with that."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import MARK, PATIENCE_S, assert_none_left, free_port, marked
from redis_servers import NAME, needs_redis, redis_server, sentinels

ROOT = Path(__file__).resolve().parents[3]
STORE = "lanterne.transport.store.server"
PYTHON = [sys.executable, "-P"]

DIES_IN_INIT = """
import os, signal, sys
import numpy as np
import lanterne
from lanterne.collectives import jobs
from lanterne.transport.job.guard import descendants
def die(*given, **more):
    pid = os.getpid()
    if "store" in sys.argv:
        launcher = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
        pid = next(p for p in descendants(launcher) if b"store.server" in open(f"/proc/{p}/cmdline", "rb").read())
    os.kill(pid, signal.SIGKILL)
    return original(*given, **more)
if os.environ["RANK"] == "1" and "LANTERNE_JOIN" not in os.environ:
    name = {"before": "init", "together": "open_transport", "connected": "open_communicator"}[sys.argv[1]]
    original = getattr(jobs, name)
    die() if name == "init" else setattr(jobs, name, die)
comm = lanterne.init(timeout_s=15 if "store" in sys.argv else 30)
x = np.empty(1000)
comm.all_reduce(np.full(1000, comm.rank + 1.0), x)
assert (x == 6).all()
os.write(1, f"{comm.rank} of {comm.world_size} {sorted(comm.newcomers)}\\n".encode())
comm.close()
"""


def start(mark, *words, **variables):
    variables = {name: text for name, text in os.environ.items() if name != "LANTERNE_TRANSPORT"} | variables
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*PYTHON, *words], env=variables | {MARK: mark}, cwd=ROOT, **pipes)


def launch(mark, *words, **variables):
    return start(mark, "-m", "lanterne", "launch", "-n", "3", "--transport", "tcp", *words, **variables)


@pytest.fixture
def redis(tmp_path):
    pytest.importorskip("redis")
    with redis_server(tmp_path) as (port, _):
        yield f"redis://127.0.0.1:{port}"


def finish(process):
    output, errors = process.communicate(timeout=2 * PATIENCE_S)
    return process.returncode, output, errors


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "when", ["together", pytest.param("before", marks=SLOW), pytest.param("connected", marks=SLOW)]
)
def test_who_dies_in_init_is_started_again_and_all_begin_together(mark, when):
    code, output, errors = finish(launch(mark, "--restarts", "1", "--", *PYTHON, "-c", DIES_IN_INIT, when))
    assert code == 0, errors
    assert sorted(output.splitlines()) == [f"{rank} of 3 [0, 1, 2]" for rank in range(3)], errors
    assert "rank 1 killed by signal 9 (SIGKILL), and is started again" in errors
    assert_none_left(mark)


@SLOW
@needs_redis
def test_the_store_dies_in_init_and_all_begin_together_at_another(mark, redis):
    words = ["--restarts", "1", "--", *PYTHON, "-c", DIES_IN_INIT, "together", "store"]
    code, output, errors = finish(launch(mark, *words, LANTERNE_STORE=redis))
    assert code == 0, errors
    assert sorted(output.splitlines()) == [f"{rank} of 3 [0, 1, 2]" for rank in range(3)], errors
    assert "the store was killed, and is started again" in errors
    assert_none_left(mark)


def test_without_restarts_it_ends_the_job_as_ever(mark):
    code, output, errors = finish(launch(mark, "--", *PYTHON, "-c", DIES_IN_INIT, "before"))
    assert code == 137 and not output and "rank 1 killed by signal 9" in errors
    assert_none_left(mark)


@SLOW
def test_a_job_whose_program_always_fails_ends_once_its_restarts_are_over(mark):
    fails = "import os, lanterne; lanterne.init(timeout_s=30); os._exit(3)"
    code, _output, errors = finish(launch(mark, "--restarts", "1", "--", *PYTHON, "-c", fails))
    assert code == 3 and errors.count("is started again") == 3, errors
    assert_none_left(mark)


ASKED_FOR_WHAT_CANNOT_BE = """
import os, sys
import lanterne
if sys.argv[1] == "all":
    sys.exit(2)
comm = lanterne.init(timeout_s=30)
if comm.rank == 1:
    os._exit(2)
try:
    comm.barrier()
except lanterne.TransportError:
    comm = comm.shrink()
    comm.barrier()
os.write(1, f"{comm.world_size} go on\\n".encode())
comm.close()
"""


@pytest.mark.parametrize(("who", "said"), [("all", ""), ("rank 1", "2 go on\n" * 2)])
def test_bad_input_is_no_death_to_be_started_again_from_and_is_the_jobs_end(mark, who, said):
    words = ["--restarts", "3", "--", *PYTHON, "-c", ASKED_FOR_WHAT_CANNOT_BE, who]
    code, output, errors = finish(launch(mark, *words))
    assert (code, output) == (2, said) and "is started again" not in errors, errors
    assert_none_left(mark)


DIES_AT_THE_END = """
import os, signal, time
import lanterne
comm = lanterne.init(timeout_s=30)
comm.barrier()
if comm.rank == 1:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
os.write(1, b"done\\n")
comm.close()
"""


def test_who_dies_when_the_others_are_done_and_comes_back_to_nobody_fails_nothing(mark):
    code, output, errors = finish(launch(mark, "--restarts", "3", "--", *PYTHON, "-c", DIES_AT_THE_END))
    assert (code, output) == (0, "done\n" * 2), errors
    assert errors.count("is started again") == errors.count("rank 1 is not taken in: the job is over") == 1, errors


GOES_ON = """
import os, time
import numpy as np
import lanterne
comm = lanterne.init("tcp")
x, step, shrunk = np.empty(1000), 0, 0
comm.barrier()
os.write(1, b"ready\\n")
while step < 40:
    try:
        comm.all_reduce(np.full(1000, comm.rank + 1.0), x)
        told = np.empty(1, np.int64)
        comm.all_reduce(np.array([step + 1]), told, "max")
        step = int(told[0]) if shrunk else 0
        comm = comm.grow()
    except lanterne.TransportError as error:
        if os.environ["RANK"] == "0":
            os.write(2, f"{error}\\n".encode())
        comm = comm.shrink()
        shrunk += 1
    time.sleep(0.01)
assert (x == comm.world_size * (comm.world_size + 1) / 2).all()
os.write(1, f"{comm.rank} of {comm.world_size} {shrunk}\\n".encode())
comm.close()
"""


def end_store(mark, process):
    assert [process.stdout.readline() for _ in range(3)] == ["ready\n"] * 3, process.communicate()
    (pid,) = marked(mark, STORE)
    os.kill(pid, signal.SIGKILL)


@needs_redis
def test_the_store_dies_and_all_go_on_with_another(mark, redis):
    process = launch(mark, "--", *PYTHON, "-c", GOES_ON, LANTERNE_STORE=redis)
    end_store(mark, process)
    code, output, errors = finish(process)
    assert code == 0, errors
    assert sorted(output.splitlines()) == [f"{rank} of 3 1" for rank in range(3)], errors
    assert "lanterne: the store was killed, and is started again" in errors and "connection lost" in errors
    assert_none_left(mark)


def ranks_of_hosts(mark, **variables):
    job = {"LANTERNE_TOKEN": "0123456789abcdef", "WORLD_SIZE": "3", "LANTERNE_TIMEOUT_S": "30"} | variables
    own = [{"RANK": str(rank), "LANTERNE_HOST_ID": f"host {rank}"} for rank in range(3)]
    return [start(mark, "-c", GOES_ON, **job, **each) for each in own]


def wait_until_ready(ranks):
    assert [rank.stdout.readline() for rank in ranks] == ["ready\n"] * 3, [rank.communicate() for rank in ranks]


def assert_go_on(ranks, left, shrunk=1):
    said = [finish(rank) for rank in ranks]
    for place, rank in enumerate(left):
        assert said[rank][:2] == (0, f"{place} of {len(left)} {shrunk}\n"), said


def test_a_job_ends_with_its_store_and_says_what_outlives_it(mark):
    ranks = ranks_of_hosts(mark, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    wait_until_ready(ranks)
    os.kill(*marked(mark, STORE), signal.SIGKILL)
    for code, _, errors in map(finish, ranks):
        assert (code, "killed: name a Redis in LANTERNE_STORE to outlive it" in errors) == (1, True), errors
    assert_none_left(mark)


@needs_redis
@pytest.mark.parametrize("dies", ["store", "its host"])
def test_a_redis_outlives_the_host_of_the_store(mark, redis, dies):
    ranks = ranks_of_hosts(mark, LANTERNE_STORE=redis)
    wait_until_ready(ranks)
    if dies == "its host":
        ranks[0].kill()
    os.kill(*marked(mark, STORE), signal.SIGKILL)
    assert_go_on(ranks, range(dies != "store", 3))
    assert_none_left(mark)


@needs_redis
def test_a_sentinel_fails_over_and_the_job_goes_on_without_the_host_that_is_lost_then(mark, tmp_path):
    with sentinels(tmp_path) as (ports, master):
        ranks = ranks_of_hosts(
            mark, LANTERNE_STORE=f"redis+sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{NAME}"
        )
        wait_until_ready(ranks)
        master.kill()
        ranks[0].kill()
        os.kill(*marked(mark, STORE), signal.SIGKILL)
        assert_go_on(ranks, [1, 2])
    assert_none_left(mark)


@needs_redis
def test_a_redis_that_dies_ends_the_job_on_every_rank(mark, tmp_path):
    with redis_server(tmp_path) as (port, process):
        ranks = ranks_of_hosts(mark, LANTERNE_STORE=f"redis://127.0.0.1:{port}", LANTERNE_TIMEOUT_S="6")
        wait_until_ready(ranks)
        process.kill()
        for code, _, errors in map(finish, ranks):
            assert code == 1 and f"LANTERNE_STORE: redis://127.0.0.1:{port}: no store within" in errors, errors
            assert f"it cannot write to redis://127.0.0.1:{port} of LANTERNE_STORE" in errors, errors
    assert_none_left(mark)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:{}", r"LANTERNE_STORE: redis://127.0.0.1:\d+: no .* within [\d.]+ s: .*Connection refused"),
        ("http://127.0.0.1:{}", r"LANTERNE_STORE: got 'http://127.0.0.1:\d+', expected host:port, redis://"),
        ("redis://no.such.host:{}", "LANTERNE_STORE: got redis://no.such.host:.*, whose host has no address"),
    ],
)
def test_a_store_that_is_not_there_is_named_on_every_rank(mark, url, said):
    pytest.importorskip("redis")
    ranks = ranks_of_hosts(mark, LANTERNE_STORE=url.format(free_port()), LANTERNE_TIMEOUT_S="3")
    for code, _, errors in map(finish, ranks):
        assert code == 1 and re.search(f"^lanterne: {said}", errors, re.M) and errors.count("\n") == 1, errors
