"""tcp between ranks: the suite of every transport, sealed or not; deaths, sizes that differ, and who chooses it."""

import contextlib
import select
import threading
from types import SimpleNamespace

import conformance
import numpy as np
import pytest
from verdicts import verdict

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport import registry
from lanterne.transport.base import Recv, Send, make_tag
from lanterne.transport.duplex import PACED_NBYTES
from lanterne.transport.job.launchers import MPI_VARIABLES
from lanterne.transport.local import LocalTransport, LocalWorld
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.networks import ENCRYPT
from lanterne.transport.tcp import connections
from lanterne.transport.tcp.over_tcp import TcpTransport


class Job:
    """Threads with a group each; `dead` are the ranks that check_peers knows of."""

    def __init__(self, world_size, hosts=None):
        self.world_size, self.dead = world_size, set()
        self._hosts = tuple(hosts or "h" * world_size)
        self._told, self._barrier = {}, threading.Barrier(world_size, timeout=60)

    def group(self, rank):
        def exchange(name, told, timeout_s=None):
            self._told[name, rank] = told
            self._barrier.wait()
            every = [self._told[name, other] for other in range(self.world_size)]
            self._barrier.wait()
            return every

        def check_peers(peers=None, done=None):
            for peer in self.dead.intersection(peers):
                raise PeerFailed(peer)

        board = lambda *arguments: ("board", *arguments)  # noqa: E731
        return SimpleNamespace(
            rank=rank, world_size=self.world_size, ranks_here=self.world_size, exchange=exchange,
            check_peers=check_peers, open_board=board, store="store", machine=THIS_MACHINE, reached_from="127.0.0.1",
            secret=lambda purpose: purpose.ljust(32),
            hosts=self._hosts,
        )  # fmt: skip

    def run(self, function, make=TcpTransport):
        results = ["did not end"] * self.world_size

        def main(rank):
            with make(self.group(rank), 60.0) as transport:
                results[rank] = verdict(function, transport)

        threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return results


@pytest.mark.parametrize("check", conformance.IN_THREADS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("hosts", ["hhh", "abb"], ids=["one host", "two hosts, sealed"])
def test_the_suite(check, hosts):
    assert Job(3, hosts).run(check) == [None] * 3


@pytest.mark.parametrize("check", conformance.IN_THREADS, ids=lambda check: check.__name__)
def test_the_suite_encrypted(monkeypatch, check):
    monkeypatch.setenv(ENCRYPT, "1")
    assert Job(3, "abb").run(check) == [None] * 3


def test_some_ranks_that_are_to_encrypt_are_named_on_all(monkeypatch):
    by_thread = threading.local()
    monkeypatch.setattr(connections, "is_encrypted", lambda: by_thread.rank == 1)

    def make(group, timeout_s):
        by_thread.rank = group.rank
        with pytest.raises(InputError, match="LANTERNE_ENCRYPT: got 1 on rank 1 and 0 on rank 0, expected the same"):
            TcpTransport(group, timeout_s)
        return contextlib.nullcontext()

    assert Job(2, "ab").run(lambda _nothing: None, make) == [None] * 2


@pytest.mark.parametrize(("trusted", "sealed"), [("00", True), ("01", True), ("11", False)])
def test_ranks_of_different_hosts_seal_what_they_say(monkeypatch, trusted, sealed):
    """Unless all ranks trust the network."""
    by_thread = threading.local()
    monkeypatch.setattr(connections, "is_trusted", lambda: trusted[by_thread.rank] == "1")
    kinds = {}

    def make(group, timeout_s):
        by_thread.rank = group.rank
        transport = TcpTransport(group, timeout_s)
        kinds[group.rank] = transport.peers[1 - group.rank].duplexes[0]._seals is not None
        return transport

    assert Job(2, "ab").run(conformance.check_both_directions, make) == [None] * 2
    assert kinds == dict.fromkeys(range(2), sealed)


def test_large_messages_of_another_size_are_named():
    """One that waits for its grant, too: its receive of less sends none."""

    def exchange(transport):
        region = transport.register(np.zeros(2 * PACED_NBYTES, np.uint8))
        paced = PACED_NBYTES
        for tag, (sent, expected) in enumerate([(2 * paced, 8), (2 * paced, paced)]):
            if transport.rank == 0:
                with pytest.raises(TransportError, match=rf"rank 1 sent {sent} bytes, expected {expected}"):
                    transport.post((Recv(region, 0, expected, 1, tag),)).wait(20.0)
            else:
                request = transport.post((Send(region, 0, sent, 0, tag),))
                with contextlib.suppress(TransportTimeout):
                    request.wait(0.5)

    assert Job(2).run(exchange) == [None] * 2


def test_a_rank_that_waits_is_woken_once_a_full_connection_takes_more():
    nbytes = 64 << 20

    def exchange(transport):
        region = transport.register(np.full(nbytes, transport.rank, np.uint8))
        if transport.rank == 1:
            transport.post((Recv(region, 0, nbytes, 0, 1),)).wait(20.0)
            assert not region.buffer[nbytes - 1]
            return
        request = transport.post((Send(region, 0, nbytes, 1, 1),))
        woken = 0
        while not request.test():
            watched = transport.watch()
            if watched is not None:
                # One descriptor tells of all connections.
                assert len(watched) == 1
                assert select.select(watched, [], [], 20.0)[0], "woken"
                woken += 1
        assert woken

    def make(group, timeout_s):
        group.store = None
        return TcpTransport(group, timeout_s)

    assert Job(2).run(exchange, make) == [None] * 2


def test_a_death_ends_the_wait_for_it():
    job = Job(2)

    def wait(transport):
        if transport.rank == 1:
            job.dead.add(1)
            return
        with pytest.raises(PeerFailed):
            transport.barrier(20.0)

    assert job.run(wait) == [None] * 2


@pytest.mark.parametrize(("installed", "expected"), [((True, True), "ucx"), ((True, False), "tcp")])
def test_jobs_take_it_where_a_rank_lacks_ucx(monkeypatch, installed, expected):
    for variable in MPI_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    by_thread = threading.local()
    monkeypatch.setattr(registry, "has_ucx", lambda: by_thread.has)
    names = {}

    def make(group, timeout_s):
        by_thread.has = installed[group.rank]
        names[group.rank] = registry.host_transport(group, timeout_s)
        return LocalTransport(LocalWorld(group.world_size), group.rank)

    Job(2).run(lambda transport: None, make)
    assert names == {0: expected, 1: expected}


@pytest.mark.parametrize(
    ("variables", "found", "expected"),
    [
        ({}, {"mpi4py", "ucxx", "mpiexec"}, "mpi"),
        ({}, {"mpi4py", "ucxx"}, "ucx"),
        ({}, {"mpi4py"}, "tcp"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, {"mpi4py"}, "mpi"),
        (dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="1"), {"mpi4py", "mpiexec"}, "tcp"),
        (dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="1"), {"mpi4py", "mpiexec", "ucp"}, "ucx"),
    ],
)
def test_the_transport_of_who_names_none(monkeypatch, variables, found, expected):
    def find_mpiexec():
        if "mpiexec" not in found:
            raise Unavailable("no mpiexec")

    for variable in (*MPI_VARIABLES, "RANK", "WORLD_SIZE", "LANTERNE_STORE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(registry, "find_spec", lambda name: name in found or None)
    monkeypatch.setattr("lanterne.transport.job.launch.find_mpiexec", find_mpiexec)
    assert registry.usual_transport() == expected


def test_the_board_and_the_store_are_the_jobs():
    def look(transport):
        assert transport.membership.open_board("key", 0, 2) == ("board", "key", 0, 2)
        assert transport.membership.store == "store"

    assert Job(2).run(look) == [None] * 2


@pytest.mark.parametrize("hosts", ["hh", "ab"], ids=["one host", "two hosts, sealed"])
def test_nothing_of_a_communicator_that_is_over_is_written_or_kept(hosts):
    """A message that has begun to come, one that waits for its receive, one that was to be received."""
    nbytes, old, new = 32 << 20, make_tag(0, 7), make_tag(1, 7)
    began, over = threading.Event(), threading.Barrier(2, timeout=60)

    def exchange(transport):
        big = transport.register(np.full(nbytes, transport.rank + 1, np.uint8))
        small = transport.register(np.full(8, transport.rank + 1, np.uint8))
        peer = transport.peers[1 - transport.rank]
        if transport.rank == 0:
            transport.post((Send(big, 0, nbytes, 1, old), Send(small, 0, 8, 1, old), Send(big, 0, nbytes, 1, old + 1)))
        else:
            transport.post((Recv(big, 0, nbytes, 0, old), Recv(small, 0, 8, 0, old + 2)))
            while peer.duplexes[0]._body is None:
                transport.progress()
            began.set()
        while not began.is_set():
            transport.progress()
        over.wait()
        transport.retire(0, orderly=False)
        if transport.rank == 0:
            big.buffer[:] = bytes(nbytes)  # whoever failed may use its arrays again
        else:
            before = bytes(big.buffer)
        operation = (Send if transport.rank == 0 else Recv)(small, 0, 8, 1 - transport.rank, new)
        transport.post((operation,)).wait(20.0)
        assert bytes(small.buffer) == b"\1" * 8
        if transport.rank == 1:
            assert bytes(big.buffer) == before
        assert not any((peer._receives, peer._early, peer._offers, peer._held, peer._grants))

    assert Job(2, hosts).run(exchange) == [None] * 2
