"""What is UCX's own: tags, settings, shared memory and dead peers at once, orderly ends. The rest: test_conformance."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.errors import TransportError, Unavailable
from lanterne.transport.base import PostedOperation, Recv, Region, Request, Send, make_tag
from lanterne.transport.membership import Membership
from lanterne.transport.ucx.numbered_tags import ucx_tag
from lanterne.transport.ucx.over_ucx import UcxTransport
from lanterne.transport.ucx.worker import load_ucxx, receiver_paced_nbytes, settings

ONE_HOST = "posix,cma,xpmem,knem,self,cuda_copy,cuda_ipc"
RANK_PROGRAM = Path(__file__).with_name("ucx_rank.py")
tags = st.builds(make_tag, st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1))
parts = st.tuples(st.binary(min_size=32, max_size=32), st.integers(0, 2**15), st.integers(0, 2**15), tags)


@given(parts, parts)
def test_tags_differ_where_their_parts_do(one, other):
    assert 0 <= ucx_tag(*one) < 2**64
    assert (ucx_tag(*one) == ucx_tag(*other)) == (one == other)


def test_direction_and_secret_are_in_a_tag():
    mine = ucx_tag(bytes(32), 1, 2, make_tag(3, 4))
    assert len({mine, ucx_tag(bytes(32), 2, 1, make_tag(3, 4)), ucx_tag(b"x" * 32, 1, 2, make_tag(3, 4))}) == 3


@pytest.mark.parametrize(
    ("hosts", "rank", "expected"),
    [
        (("a", "a"), 0, {"TLS": ONE_HOST, "KEEPALIVE_INTERVAL": "500ms"}),
        (("a", "b"), 1, {"TLS": "^sm", "KEEPALIVE_INTERVAL": "inf"}),
        (("a", "a", "b"), 0, {"KEEPALIVE_INTERVAL": "inf"}),
        (("a", "a", "b"), 2, {"TLS": "^sm", "KEEPALIVE_INTERVAL": "inf"}),
    ],
)
def test_settings_depend_on_who_shares_a_host(hosts, rank, expected):
    chosen = settings(hosts, rank, {})
    assert {name: chosen.get(name) for name in ("TLS", "KEEPALIVE_INTERVAL")} == {"TLS": None, **expected}
    assert "NET_DEVICES" not in chosen
    assert chosen["POSIX_ERROR_HANDLING"] == chosen["SYSV_ERROR_HANDLING"] == chosen["CMA_MEMORY_INVALIDATE"] == "y"


def test_tcp_between_hosts_takes_the_interface_by_which_they_meet():
    assert settings(("a", "b"), 1, {}, interface="lan0")["NET_DEVICES"] == "lan0"
    assert "NET_DEVICES" not in settings(("a", "b"), 1, {"UCX_NET_DEVICES": "eth7"}, interface="lan0")
    assert "NET_DEVICES" not in settings(("a", "b"), 1, {}, interface="lan0", rdma=True)
    assert "NET_DEVICES" not in settings(("a", "a"), 1, {}, interface="lan0")


def test_no_tcp_beside_rdma():
    assert settings(("a", "b"), 1, {}, rdma=True)["TLS"] == "^tcp,sm"
    assert settings(("a", "a", "b"), 0, {}, rdma=True)["TLS"] == "^tcp"


def test_little_shared_memory():
    for own in ("^posix", "^tcp,posix"):
        assert settings(("a", "a"), 0, {"UCX_TLS": own})["TLS"] == ONE_HOST.replace("posix", "sysv"), own
    assert settings(("a", "a"), 0, {"UCX_TLS": "^tcp"})["TLS"] == ONE_HOST
    assert "TLS" not in settings(("a", "a"), 0, {"UCX_TLS": "posix,self"})
    assert "TLS" not in settings(("a", "b"), 0, {"UCX_TLS": "^posix"})


LISTENS = r"""
import os, lanterne
with lanterne.init("ucx") as comm:
    comm.barrier()
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    lines = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/net/{kind}").readlines()[1:]]
    at = [words[1] for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in mine]
    os.write(1, f"listens {at}\n".encode())
    comm.barrier()
"""
LAUNCH = "import sys; from lanterne.transport.job.launch import launch; "
LAUNCH += "sys.exit(launch([sys.executable, '-c', sys.argv[1]], 2, 'direct', 60))"


def test_on_one_host_no_port_is_open():
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCH, LISTENS],
        env=os.environ | {"LANTERNE_TRIALS": "off"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "listens []\n" * 2), ended.stderr


def test_the_user_s_variables_win():
    chosen = settings(("a", "a"), 0, {"UCX_NET_DEVICES": "eth7", "UCX_TCP_KEEPCNT": "9"})
    assert "NET_DEVICES" not in chosen and "TCP_KEEPCNT" not in chosen and "TCP_KEEPIDLE" in chosen


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 8192),
        ({"UCX_RNDV_THRESH": "65536"}, 65536),
        ({"UCX_RNDV_THRESH": "auto"}, None),
        ({"UCX_RNDV_THRESH": "inf"}, None),
        ({"UCX_RNDV_SCHEME": "get_zcopy"}, None),
        ({"UCX_RNDV_SCHEME": "am", "UCX_RNDV_THRESH": "4096"}, 4096),
    ],
)
def test_pacing_follows_the_environment(environment, expected):
    assert receiver_paced_nbytes(environment) == expected


class Reset(Exception):
    """What UCX says where a path has failed."""


@pytest.mark.parametrize(("verb", "said"), [(Send, "send to"), (Recv, "receive from")])
def test_whose_path_has_failed_does_not_say_which_rank_has(verb, said):
    """Else this rank would tell all others that it has failed itself, where the notice of the death comes later."""

    def fails():
        raise Reset("connection reset")

    transport = UcxTransport.__new__(UcxTransport)
    ucxx = SimpleNamespace(UCXError=Reset)
    vars(transport).update(rank=0, closed=False, _peers={}, _under_way={}, unreachable=set(), _ucxx=ucxx)
    transport.membership = Membership()
    started = SimpleNamespace(completed=True, check_error=fails)
    request = Request(transport, [PostedOperation(verb(Region(bytearray(8)), 0, 8, 1, 0), started)])
    with pytest.raises(TransportError, match=f"ucx rank 0: {said} rank 1 of 8 bytes failed: connection r") as raised:
        request.test()
    assert raised.value.rank_unknown
    transport.closed = True


def test_missing_ucxx_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ucxx", None)
    with pytest.raises(Unavailable, match=r"ucxx.*pip install ucxx-cu13==0\.52"):
        load_ucxx()


@pytest.fixture
def needs_ucxx():
    if importlib.util.find_spec("ucxx") is None:
        if "ucx" in os.environ.get("LANTERNE_REQUIRE", "").split(","):
            pytest.fail("LANTERNE_REQUIRE names ucx, but ucxx is not installed")
        pytest.skip("ucxx is not installed")


def test_another_version_of_ucxx_is_refused(needs_ucxx, monkeypatch):
    import ucxx

    monkeypatch.setattr(ucxx, "__version__", "0.53.1")
    with pytest.raises(Unavailable, match=r"got ucxx 0\.53\.1, expected 0\.52"):
        load_ucxx()


def test_only_the_core_of_ucxx_is_loaded_and_all_of_it_can_be_later(needs_ucxx):
    program = """if True:
        import os, sys
        from lanterne.transport.ucx.worker import GPU_DRIVERS, UCXX_SETS, load_ucxx
        core, array = load_ucxx()
        assert load_ucxx() == (core, array)
        if not any(map(os.path.exists, GPU_DRIVERS)):
            assert not {"ucxx", "ucxx.core", "pynvml"} & set(sys.modules)
        ours = {name: os.environ.pop(name) for name in UCXX_SETS}
        import ucxx
        import ucxx._lib.arr as arr
        assert ours == {name: os.environ[name] for name in UCXX_SETS}, ours
        assert ucxx.libucxx is core and arr.Array is array
        assert load_ucxx() == (core, array)
    """
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def run_ranks(scenario, world_size, apart, variables=()):
    """Run a scenario; [(exit code, output)] by rank. `apart`: each rank believes that it has a host of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(world_size):
        environment = os.environ | job | dict(variables) | {"RANK": str(rank)}
        if apart:
            environment["LANTERNE_HOST_ID"] = f"host {rank}"
        command = [sys.executable, str(RANK_PROGRAM), scenario]
        ranks.append(
            subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    give_up = time.monotonic() + 150
    try:
        # All are reaped as they end: UCX takes a zombie for a process that lives.
        while None in [rank.poll() for rank in ranks] and time.monotonic() < give_up:
            time.sleep(0.01)
        return [(rank.poll(), rank.stdout.read() if rank.poll() is not None else "still running") for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()


def check_ended_well(results):
    for code, output in results:
        assert code == 0, output


HOSTS = pytest.mark.parametrize("apart", [False, True], ids=["one-host", "own-hosts"])


@pytest.mark.parametrize(
    ("scenario", "apart"),
    [("paced_then_last_words", False), ("paced_then_last_words", True), ("never_closes", True)],
)
def test_two_ranks(needs_ucxx, scenario, apart):
    check_ended_well(run_ranks(scenario, 2, apart))


def test_shared_memory_alone_carries_messages_and_tells_of_deaths(needs_ucxx):
    """Both at once, as UCX's defaults do not have it: without connections to fall back to."""
    survivor, victim = run_ranks("death_both", 2, False, {"UCX_TLS": "sm,self"}.items())
    assert victim[0] == -9, victim[1]
    check_ended_well([survivor])
    assert survivor[1].rstrip().endswith("PeerFailed 1 PeerFailed 1"), survivor[1]


@pytest.mark.parametrize(("scenario", "apart"), [("paced", False), ("death_both", True)])
def test_over_the_ucx_that_mpi_has_loaded(needs_ucxx, scenario, apart):
    results = run_ranks(scenario, 2, apart, {"LOAD_MPI_FIRST": "1"}.items())
    check_ended_well(results if scenario == "paced" else results[:1])
    assert scenario == "paced" or "PeerFailed 1 PeerFailed 1" in results[0][1]


@pytest.mark.parametrize("scenario", ["alone", "refused"])
def test_one_rank(needs_ucxx, scenario):
    check_ended_well(run_ranks(scenario, 1, False))


def test_silence_is_a_timeout_that_names_the_rank(needs_ucxx):
    results = run_ranks("silence", 2, False)
    check_ended_well(results)
    assert results[0][1].split("\n")[:2] == ["TransportTimeout (1,)"] * 2


@HOSTS
@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["death_receiving", "death_sending", "death_both"])
def test_survivors_name_the_rank_that_was_killed(needs_ucxx, scenario, apart):
    *survivors, victim = run_ranks(scenario, 3, apart)
    assert victim[0] == -9, victim[1]
    check_ended_well(survivors)
    for _, output in survivors:
        assert output.rstrip().endswith("PeerFailed 2 PeerFailed 2"), output


@HOSTS
def test_a_death_fails_the_barrier_of_all(needs_ucxx, apart):
    *survivors, victim = run_ranks("death_in_barrier", 3, apart)
    assert victim[0] == -9, victim[1]
    check_ended_well(survivors)
    for _, output in survivors:
        assert "PeerFailed 2" in output, output


@HOSTS
def test_a_peer_that_died_before_the_first_message(needs_ucxx, apart):
    survivor, victim = run_ranks("death_before_use", 2, apart)
    assert victim[0] == -9, victim[1]
    check_ended_well([survivor])
    # UCX may take an eager message for a peer whose memory is still there.
    assert survivor[1].rstrip().endswith("PeerFailed 1 PeerFailed 1"), survivor[1]


def test_a_peer_that_left_before_the_first_message(needs_ucxx):
    results = run_ranks("left_before_use", 2, True)
    check_ended_well(results)
    assert results[0][1].rstrip().endswith("PeerFailed 1 PeerFailed 1"), results[0][1]


def test_an_exception_is_a_death(needs_ucxx):
    survivor, broken = run_ranks("raises", 2, False)
    assert broken[0] == 1 and "a bug in the last rank" in broken[1]
    check_ended_well([survivor])
    assert "PeerFailed 1" in survivor[1]


def test_settings_that_ucx_refuses_are_named(needs_ucxx):
    ((code, output),) = run_ranks("alone", 1, False, {"UCX_TLS": "no_such_transport"}.items())
    assert code == 1
    assert "InputError: ucx: cannot start with" in output and "UCX_TLS=no_such_transport" in output
