import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from processes import MARK, PATIENCE_S, assert_none_left, free_port

import lanterne
from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.transport.job import bootstrap, launchers
from lanterne.transport.job.launch import find_mpiexec
from lanterne.transport.rank_group import Group

HERE = Path(__file__).resolve().parents[1]

JOB = [sys.executable, str(HERE / "job.py")]
SURVIVORS = 7


@pytest.fixture
def alone(monkeypatch):
    """No launcher's variables around."""
    for name in ("LANTERNE_TOKEN", "LANTERNE_LAUNCHER", *launchers.VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def start(mark, command, **variables):
    return subprocess.Popen(
        command,
        env=os.environ | {MARK: mark} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
    )


def start_by_torchrun_variables(mark, world_size, *arguments, **variables):
    place = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), **variables}
    return [start(mark, [*JOB, *arguments], RANK=str(rank), **place) for rank in reversed(range(world_size))][::-1]


def test_one_process_is_a_job(alone):
    with bootstrap.connect() as group:
        assert (group.rank, group.world_size, group.hosts, group.store) == (0, 1, (group.host,), None)
        assert group.exchange("x", b"mine") == [b"mine"]
        group.barrier()
        group.check_peers()
        assert group.failed() == {}
    group.close()


@pytest.mark.parametrize(
    "variables",
    [
        {"TORCHELASTIC_USE_AGENT_STORE": "True"},
        {"LANTERNE_TOKEN": "the same on all ranks", "LANTERNE_BIND": "lo"},
    ],
)
def test_torchrun_variables(mark, alone, variables):
    ranks = start_by_torchrun_variables(mark, 3, "report", **variables)
    outputs = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    assert all('"payloads": ["0", "1", "2"]' in output and '"one_host": true' in output for output, _ in outputs)
    assert_none_left(mark)


@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_variables_and_a_death_that_of_the_stores_starter_too(mark, alone, victim):
    ranks = start_by_torchrun_variables(mark, 3, "wait")
    assert [rank.stdout.readline() for rank in ranks] == [f"ready {rank}\n" for rank in range(3)]
    ranks[victim].kill()
    for rank, process in enumerate(ranks):
        output, errors = process.communicate(timeout=PATIENCE_S)
        if rank != victim:
            assert output == f"rank {rank} sees: rank {victim} failed: its connection ended without goodbye\n", errors
            assert process.returncode == SURVIVORS, (rank, process)
    assert_none_left(mark)


def test_a_job_on_the_port_of_one_that_was_just_killed(mark, alone):
    port = str(free_port())
    killed = start_by_torchrun_variables(mark, 3, "wait", MASTER_PORT=port)
    assert [rank.stdout.readline() for rank in killed] == [f"ready {rank}\n" for rank in range(3)]
    for rank in killed:
        rank.kill()
    again = start_by_torchrun_variables(mark, 3, "report", MASTER_PORT=port)
    outputs = [rank.communicate(timeout=PATIENCE_S) for rank in again]
    assert [rank.returncode for rank in again] == [0, 0, 0], outputs
    for rank in killed:
        rank.communicate(timeout=PATIENCE_S)
    assert_none_left(mark)


def test_torchrun_variables_without_a_token_on_a_network(alone):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "29500")):
        alone.setenv(name, value)
    with pytest.raises(
        InputError,
        match=r"MASTER_ADDR: got 192\.0\.2\.1 and no LANTERNE_TOKEN, expected LANTERNE_TOKEN to be set alike",
    ):
        bootstrap.connect()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "x", "RANK: got 'x', expected a number"),
        ("RANK", "-1", "RANK: got '-1', expected a number"),
        ("RANK", "2", "RANK: got 2, expected less than WORLD_SIZE, 2"),
        ("WORLD_SIZE", "", "WORLD_SIZE: got '', expected a number"),
        ("WORLD_SIZE", "²", "WORLD_SIZE: got '²', expected a number"),
        ("MASTER_PORT", "65536", "MASTER_PORT: got port '65536', expected 1 to 65535"),
        ("MASTER_PORT", "http", "MASTER_PORT: got port 'http'"),
        ("MASTER_ADDR", "no-such-host.invalid", "MASTER_ADDR: got 'no-such-host.invalid', which has no address"),
        ("LANTERNE_TOKEN", "short", "LANTERNE_TOKEN: got 5 characters"),
        ("LANTERNE_STORE", "localhost", "LANTERNE_STORE: got port 'localhost'"),
    ],
)
def test_variables_refused(alone, name, value, message):
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for variable, good in (place | {name: value}).items():
        alone.setenv(variable, good)
    with pytest.raises(InputError, match=message):
        bootstrap.connect(1)


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_half_a_job_is_not_a_rank_alone(alone, missing):
    for variable, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")):
        if variable != missing:
            alone.setenv(variable, value)
    with pytest.raises(InputError, match=f"{missing}: not set beside RANK=0, WORLD_SIZE=2, "):
        bootstrap.connect(1)
    alone.setenv("WORLD_SIZE", "1")
    with bootstrap.connect(1) as group:
        assert group.world_size == 1


def test_a_port_that_is_taken(alone):
    alone.setattr(bootstrap, "PORT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(listener.getsockname()[1]),
        }
        for variable, value in place.items():
            alone.setenv(variable, value)
        with pytest.raises(Unavailable, match=r"cannot listen on localhost port .*: Address already in use"):
            bootstrap.connect(1)


def test_mpiexec(mark, alone):
    process = start(mark, [find_mpiexec(), "-n", "3", *JOB, "report"])
    output, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, errors
    assert output.count('"payloads": ["0", "1", "2"]') == 3
    assert_none_left(mark)


@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_death_under_a_foreign_mpiexec_ends_the_job(mark, alone, how):
    process = start(mark, [find_mpiexec(), "-n", "3", *JOB, "--mpi", how])
    output, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode != 0, output + errors
    assert_none_left(mark)


@pytest.mark.parametrize("rank", ["0", "3"])
def test_worlds_of_one_rank_are_one_error(mark, alone, rank):
    # As under another MPI's mpiexec: its variables promise four ranks, our library sees one.
    process = start(mark, [*JOB, "report"], PMI_SIZE="4", PMI_RANK=rank)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert output == ""
    if rank == "0":
        assert errors.startswith("lanterne: MPI: got a world of 1 ranks, expected 4")
        assert errors.count("\n") == 1
        assert process.returncode == 1  # as any uncaught exception; the command line makes it 3
    else:
        assert (errors, process.returncode) == ("", 3)


def test_host_identity(alone):
    assert bootstrap.host_identity() == bootstrap.host_identity() != ""
    alone.setenv("LANTERNE_HOST_ID", "rack 7")
    assert bootstrap.host_identity() == "rack 7"


@pytest.mark.parametrize("text", ["x", "", "-1", "1.5"])
def test_ranks_here_is_a_number(alone, text):
    alone.setenv("LANTERNE_RANKS_HERE", text)
    with pytest.raises(InputError, match="LANTERNE_RANKS_HERE: got"):
        _ = Group(0, 1).ranks_here


@pytest.mark.parametrize("variable", ["MASTER_ADDR", "LANTERNE_JOIN"])
def test_a_name_that_is_known_late(alone, variable):
    """As a pod's name in a new Service: it is waited for as all else is."""
    alone.setattr(bootstrap, "RETRY_S", 0.0)
    looked_up, look_up = [], socket.getaddrinfo

    def late(host, *args, **kwargs):
        if host == "first.pods":
            looked_up.append(host)
            if len(looked_up) < 4:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up("127.0.0.1" if host == "first.pods" else host, *args, **kwargs)

    alone.setattr(bootstrap.socket, "getaddrinfo", late)
    port = str(free_port())
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in (
        place | {variable: "first.pods" if variable == "MASTER_ADDR" else f"first.pods:{port}"}
    ).items():
        alone.setenv(name, value)
    with pytest.raises(TransportError, match=r"store first.pods:\d+: .*Connection refused"):
        lanterne.init(timeout_s=0.5)


def test_the_address_that_a_rank_shows(alone):
    alone.delenv("LANTERNE_BIND", raising=False)
    assert bootstrap.shown_address("192.0.2.9", several_hosts=False) == "127.0.0.1"
    answers = ["127.0.1.1", "192.0.2.7"]
    alone.setattr(
        bootstrap.socket, "getaddrinfo", lambda *_args, **_kwargs: [(0, 0, 0, "", (answer, 0)) for answer in answers]
    )
    assert bootstrap.shown_address("192.0.2.9", several_hosts=True) == "192.0.2.9"
    assert bootstrap.shown_address("127.0.0.1", several_hosts=True) == "192.0.2.7"
    assert bootstrap.shown_address("", several_hosts=True) == "192.0.2.7"
    del answers[1]
    alone.setattr(bootstrap.socket, "if_nameindex", lambda: [])
    with pytest.raises(Unavailable, match="set LANTERNE_BIND"):
        bootstrap.shown_address("", several_hosts=True)

    def unknown(*_args, **_kwargs):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    alone.setattr(bootstrap.socket, "getaddrinfo", unknown)
    with pytest.raises(Unavailable, match="set LANTERNE_BIND"):
        bootstrap.shown_address("", several_hosts=True)
    alone.setenv("LANTERNE_BIND", "192.0.2.8")
    assert bootstrap.shown_address("192.0.2.9", several_hosts=False) == "192.0.2.8"


def test_the_address_of_an_interface(alone):
    assert bootstrap.address_of("192.0.2.8") == "192.0.2.8"
    assert bootstrap.address_of("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", bootstrap.REMOVED)
def test_a_removed_variable_names_its_replacement(alone, name):
    alone.setenv(name, "1")
    with pytest.raises(InputError) as raised:
        bootstrap.connect(1.0)
    assert str(raised.value) == f"{name}: got '1', but it is no more; expected {bootstrap.REMOVED[name]}"
