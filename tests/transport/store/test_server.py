import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import MARK, assert_none_left, free_port, marked, new_mark, wait_until

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport import wire
from lanterne.transport.door import MAX_STRANGERS
from lanterne.transport.job.bootstrap import Group
from lanterne.transport.machine import Machine
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.process import StoreProcess

TOKEN = "a token of the tests"


@pytest.fixture
def store():
    with StoreProcess(TOKEN) as process:
        yield process


@pytest.fixture
def client(store):
    client = StoreClient(store.address, TOKEN)
    yield client
    client.close()


def assert_serves(store):
    client = StoreClient(store.address, TOKEN, 30)
    client.set("alive", b"yes")
    assert client.get("alive", 30) == b"yes"
    client.close()


@pytest.fixture
def groups(store):
    """A function that makes the Groups of a job of n ranks, all in this process."""
    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:

        def make(world_size):
            clients = [stack.enter_context(closing(StoreClient(store.address, TOKEN))) for _ in range(world_size)]
            return list(pool.map(lambda rank: Group(rank, world_size, clients[rank]), range(world_size)))

        make.pool = pool
        yield make


def test_values(client):
    client.set("ä key", b"")
    assert client.get("ä key") == b""
    client.set("ä key", b"\0\xff")
    assert client.get("ä key") == b"\0\xff"
    assert client.delete("ä key") is True
    assert client.delete("ä key") is False


def test_add(client):
    assert [client.add("n", delta) for delta in (5, -7, 0)] == [5, -2, -2]
    assert client.get("n") == b"-2"
    client.set("word", b"x")
    with pytest.raises(TransportError, match="its value is no number"):
        client.add("word")
    client.set("most", b"%d" % (2**63 - 1))
    with pytest.raises(TransportError, match="does not fit 64 bits"):
        client.add("most")
    assert client.add("n") == -1  # the connection lives on


def test_large_values(client):
    value = os.urandom(8 << 20)
    client.set("large", value)
    assert client.get("large") == value
    with pytest.raises(InputError, match="expected at most"):
        client.set("too large", bytes(wire.MAX_BODY_NBYTES))
    assert client.get("large") == value


@pytest.mark.parametrize("key", ["", "k" * 513])
def test_keys_refused(client, key):
    with pytest.raises(InputError, match="expected 1 to 512"):
        client.get(key)


def test_get_waits_for_another_client(store, client):
    other = StoreClient(store.address, TOKEN)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, ["one", "two"], 30)
        client.set("two", b"2")
        assert not waiting.done()
        client.add("one", 1)
        waiting.result(30)
    other.close()


def test_a_timeout_names_key_and_store_and_a_late_answer_harms_nothing(store, client):
    with pytest.raises(
        TransportTimeout, match=rf"store 127.0.0.1:{store.address[1]}: no answer to get 'late' within 0.05 s"
    ):
        client.get("late", 0.05)
    client.set("other", b"2")
    with pytest.raises(TransportTimeout):
        client.get("never", 0.05)
    setter = StoreClient(store.address, TOKEN)
    setter.set("late", b"1")
    setter.set("never", b"1")
    assert client.get("other") == b"2"
    setter.close()


def test_add_is_atomic(store):
    def count(_):
        client = StoreClient(store.address, TOKEN)
        sums = [client.add("hits") for _ in range(50)]
        client.close()
        return sums

    with ThreadPoolExecutor(4) as pool:
        sums = chain(*pool.map(count, range(4)))
    assert sorted(sums) == list(range(1, 201))


def test_strangers_are_refused(store):
    with pytest.raises(TransportError, match=r"refuses our job token.*LANTERNE_TOKEN"):
        StoreClient(store.address, "another job's token")
    for said in (b"", b"half", b"x" * wire.ANSWER_NBYTES):
        with socket.create_connection(store.address, 5) as sock:
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    with closing(StoreClient(store.address, TOKEN)) as client:
        assert client.refused() == "the store refused 4 connections (wrong secret 2, hung up 2)"
    assert_serves(store)


def test_a_false_store_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            sock, _ = listener.accept()
            sock.sendall(wire.make_challenge()[0])
            answer = sock.recv(wire.ANSWER_NBYTES, socket.MSG_WAITALL)
            sock.sendall(wire.ACCEPTED + answer[wire.CHALLENGE_NBYTES :])  # the client's own proof, sent back
            sock.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(TransportError, match="does not know the job token"):
            StoreClient(listener.getsockname(), TOKEN)
        thread.join()


def test_what_is_no_store_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet():
            sock, _ = listener.accept()
            sock.sendall(b"220 mail.example.org ESMTP, one two three four five six seven")
            sock.close()

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(TransportError, match="not a lanterne store"):
            StoreClient(listener.getsockname(), TOKEN)
        thread.join()


def test_no_store(store):
    address = store.address
    store.close()
    with pytest.raises(TransportError, match="the job's store has ended"):
        StoreClient(address, TOKEN)
    with pytest.raises(TransportTimeout, match=r"no connection within 0\.2 s"):
        StoreClient(address, TOKEN, 0.2, early=True)


def test_a_store_that_comes_late_is_waited_for():
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(StoreClient, ("127.0.0.1", port), TOKEN, 30, early=True)
        time.sleep(0.2)
        with StoreProcess(TOKEN, port=port):
            waiting.result(30).close()


GARBAGE = {
    "zeros": bytes(1 << 16),
    "noise": os.urandom(1 << 16),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    "magic": wire.MAGIC * 64,
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n" * 20,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_from_a_stranger(store, garbage):
    with socket.create_connection(store.address) as sock:
        assert hung_up_on(sock, garbage)
    assert_serves(store)


@pytest.mark.parametrize(
    "garbage",
    [
        wire.HEADER.pack(2**32 - 1, wire.Kind.SET, 1),
        wire.HEADER.pack(0, 999, 1),
        wire.HEADER.pack(12, wire.Kind.SET, 1) + struct.pack("<I", 2**31) + bytes(8),
        wire.pack_frame(wire.Kind.JOIN, 1, [b"no number"]),
        wire.pack_frame(wire.Kind.DIED_NOTICE, 1, [0, b"forged"]),
    ],
    ids=["length", "kind", "field", "types", "notice"],
)
def test_garbage_from_a_client(store, client, garbage):
    client.set("kept", b"1")
    bad = StoreClient(store.address, TOKEN)
    assert hung_up_on(bad.connection.sock, garbage)
    bad.close()
    assert client.get("kept") == b"1"


FRAMES = st.lists(
    st.tuples(
        st.sampled_from(wire.Kind) | st.integers(0, 2**16 - 1),
        st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=20), max_size=4),
    ),
    max_size=6,
)


@given(FRAMES, st.binary(max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_frame_of_a_client_ends_the_store(store, frames, garbage):
    with closing(StoreClient(store.address, TOKEN)) as client:
        stream = b"".join(wire.pack_frame(kind, number, fields) for number, (kind, fields) in enumerate(frames))
        client.connection.sock.setblocking(True)
        with suppress(ConnectionResetError, BrokenPipeError):
            client.connection.sock.sendall(stream + garbage)
    assert_serves(store)


def hung_up_on(sock, garbage):
    """Whether the other side ends the connection because of `garbage`."""
    sock.settimeout(30)
    try:
        sock.sendall(garbage)
        while sock.recv(4096):
            pass
    except (ConnectionResetError, BrokenPipeError):
        pass
    except TimeoutError:
        return False
    return True


def test_a_scan_and_half_open_connections_while_a_job_runs(store, groups):
    ranks = groups(2)
    idle = [socket.create_connection(store.address) for _ in range(2 * MAX_STRANGERS)]
    for _ in range(200):
        socket.create_connection(store.address).close()
    slow = socket.create_connection(store.address)
    slow.sendall(b"l")
    barriers = [groups.pool.submit(rank.barrier, "during the scan", 60) for rank in ranks]
    for barrier in barriers:
        barrier.result(60)
    assert_serves(store)
    # The oldest made room for the newer ones, and the rest must prove themselves or go.
    for sock in (*idle, slow):
        assert hung_up_on(sock, b""), sock
        sock.close()


def test_it_listens_on_the_address_asked_for_only(store):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.address[1]))
    with pytest.raises(
        Unavailable, match=f"cannot listen on 127.0.0.1 port {store.address[1]}: Address already in use"
    ):
        StoreProcess(TOKEN, port=store.address[1])
    with pytest.raises(Unavailable, match=r"cannot listen on 192\.0\.2\.1"):
        StoreProcess(TOKEN, bind="192.0.2.1")


def test_the_token_is_on_no_command_line(store):
    assert TOKEN.encode() not in Path(f"/proc/{store.pid}/cmdline").read_bytes()


@pytest.mark.parametrize("until", ["owner", "members"])
def test_it_ends_without_a_word_where_its_owner_was_interrupted_before_it_listened(until):
    command = [sys.executable, "-m", "lanterne.transport.store.server", "--until", until]
    store = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    store.stdout.close()
    assert (store.communicate(timeout=30)[1], store.returncode) == ("", 1)


@pytest.mark.parametrize("until", ["owner", "members"])
def test_it_ends_after_its_owner_or_its_clients(until):
    mark = new_mark()
    code = (
        "import sys, os; from lanterne.transport.store.process import StoreProcess\n"
        "p = StoreProcess(sys.argv[1], until=sys.argv[2]); print(p.address[1], flush=True)\n"
        "sys.stdin.read(); os.kill(os.getpid(), 9)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, TOKEN, until],
        env=os.environ | {MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    client = StoreClient(("127.0.0.1", int(owner.stdout.readline())), TOKEN)
    owner.stdin.close()
    owner.wait(30)
    owner.stdout.close()
    if until == "owner":
        assert_none_left(mark)
        with pytest.raises(TransportError, match="connection lost"):
            client.get("x", 5)
        client.close()
    else:
        client.set("still", b"there")
        assert marked(mark)
        client.close()
        assert_none_left(mark)


def test_exchange_gives_every_rank_all_payloads_by_rank(groups):
    ranks = groups(5)
    for name in ("a", "a", "b"):
        calls = [groups.pool.submit(rank.exchange, name, bytes([rank.rank]) * rank.rank) for rank in reversed(ranks)]
        assert all(call.result(30) == [bytes([rank]) * rank for rank in range(5)] for call in calls), name
    assert all(rank.hosts == (rank.host,) * 5 for rank in ranks)


def test_a_rank_that_does_not_come_is_named(groups):
    ranks = groups(3)
    with pytest.raises(TransportTimeout, match=r"exchange 'x' within 0\.1 s: rank 0 waits for rank 1, 2") as caught:
        ranks[0].exchange("x", b"", 0.1)
    assert caught.value.peers == (1, 2)


def test_payloads_too_large_for_all_are_refused(groups):
    ranks = groups(2)
    with pytest.raises(TransportError, match="bytes from each rank, expected at most"):
        ranks[0].exchange("x", bytes(wire.MAX_BODY_NBYTES // 2))


def test_a_lost_connection_is_a_death_and_told_to_all(groups):
    ranks = groups(4)
    waiting = groups.pool.submit(ranks[0].exchange, "x", b"", 60)
    ranks[3].store.close()
    with pytest.raises(PeerFailed, match="rank 3 failed: its connection ended without goodbye"):
        waiting.result(30)
    for rank in ranks[1:3]:
        assert wait_until(lambda rank=rank: failure_of(rank, [0, 3]) == 3), rank
        assert failure_of(rank, [0, 1, 2]) is None, rank
        assert list(rank.failed()) == [3], rank
        with pytest.raises(PeerFailed, match="rank 3"):
            rank.barrier()


def failure_of(group, peers):
    try:
        group.check_peers(peers)
    except PeerFailed as error:
        return error.rank
    return None


def test_goodbye_is_no_death_but_nobody_waits_for_who_has_left(groups):
    ranks = groups(3)
    waiting = groups.pool.submit(ranks[0].exchange, "x", b"", 60)
    ranks[2].leave()
    ranks[2].leave()
    with pytest.raises(PeerFailed, match="rank 2 failed: it has left the job"):
        waiting.result(30)
    assert failure_of(ranks[0], None) is None
    ranks[1].store.close()
    assert wait_until(lambda: failure_of(ranks[0], None) == 1)
    assert ranks[0].failed().keys() == {1}


def test_a_lost_store_is_noticed(store, groups):
    ranks = groups(2)
    store.close()
    with pytest.raises(TransportError, match="connection lost"):
        wait_until(lambda: ranks[0].check_peers([1]))
    ranks[0].leave()


def test_the_same_rank_or_another_world_is_refused(store, groups):
    groups(2)
    for rank, world_size, message in (
        (1, 2, "got rank 1 twice"),
        (2, 2, "got rank 2, expected 0 to 1"),
        (0, 3, "got a world of 3 ranks, expected 2"),
    ):
        with closing(StoreClient(store.address, TOKEN)) as client, pytest.raises(TransportError, match=message):
            Group(rank, world_size, client)


@pytest.mark.parametrize(
    "request_", [(wire.Kind.LEAVE, []), (wire.Kind.GATHER, [b"x", b""]), (wire.Kind.ENDED, [0, 1, b"forged"])]
)
def test_only_members_and_guards_may_speak_as_such(client, request_):
    with pytest.raises(TransportError, match="from a client that"):
        client.call(*request_)


def end_together(groups, ranks, willing):
    votes = [groups.pool.submit(rank.end_together, vote) for rank, vote in zip(ranks, willing, strict=True)]
    return [vote.result(30) for vote in votes]


@pytest.mark.parametrize("willing", [(True, True, True), (True, False, True), (False, False, False)])
@pytest.mark.parametrize("left", [False, True])
def test_ranks_end_together_if_all_are_willing(groups, willing, left):
    ranks = groups(3)
    for rank in ranks:
        rank.ends_together = True
        if left:
            rank.leave()
    assert end_together(groups, ranks, willing) == [all(willing)] * 3


def test_who_dies_after_its_goodbye_does_not_end_together_with_the_others(groups):
    ranks = groups(3)
    for rank in ranks:
        rank.ends_together = True
    ranks[1].leave()
    waiting = [groups.pool.submit(ranks[rank].end_together, True) for rank in (0, 2)]
    ranks[1].store.close()
    assert [vote.result(30) for vote in waiting] == [False, False]


@pytest.mark.parametrize("token", ["", "short"])
def test_a_store_without_a_token_says_so(token):
    command = [sys.executable, "-m", "lanterne.transport.store.server"]
    result = subprocess.run(
        command,
        env=os.environ | {"LANTERNE_TOKEN": token},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout.startswith("error LANTERNE_TOKEN: got ")
    assert result.stderr == ""


def test_a_host_without_its_loopback_interface_is_told_at_once(monkeypatch):
    def unreachable(_address, _limit_s):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    machine = Machine()
    monkeypatch.setattr(machine, "connect", unreachable)
    with pytest.raises(TransportError, match=r"127.0.0.1:9: Network is unreachable; expected the loopback .* to be up"):
        StoreClient(("127.0.0.1", 9), TOKEN, 30, machine=machine)
