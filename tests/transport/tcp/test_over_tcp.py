"""Plain TCP between ranks, as nccl's host transport: the suite of every transport, deaths, and who chooses it."""

import threading
from types import SimpleNamespace

import conformance
import pytest
from verdicts import verdict

from lanterne.errors import PeerFailed, Unavailable
from lanterne.transport import registry
from lanterne.transport.job.launchers import MPI_VARIABLES
from lanterne.transport.local import LocalTransport, LocalWorld
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.tcp.over_tcp import TcpTransport

CHECKS = [check for check in conformance.ORDERLY if check is not conformance.check_large]


class Job:
    """Threads with a group each; `dead` are the ranks that check_peers knows of."""

    def __init__(self, world_size):
        self.world_size, self.dead = world_size, set()
        self._told, self._barrier = {}, threading.Barrier(world_size, timeout=60)

    def group(self, rank):
        def exchange(name, told, timeout_s=None):
            self._told[name, rank] = told
            self._barrier.wait()
            every = [self._told[name, other] for other in range(self.world_size)]
            self._barrier.wait()
            return every

        def check_peers(peers=None):
            for peer in self.dead.intersection(peers):
                raise PeerFailed(peer)

        board = lambda *arguments: ("board", *arguments)  # noqa: E731
        return SimpleNamespace(
            rank=rank, world_size=self.world_size, ranks_here=self.world_size, exchange=exchange,
            check_peers=check_peers, open_board=board, store="store", machine=THIS_MACHINE,
            secret=lambda purpose: purpose.ljust(32),
            hosts=("here",) * self.world_size,
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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_suite(check):
    assert Job(3).run(check) == [None] * 3


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
        assert transport.open_board("key", 0, 2) == ("board", "key", 0, 2)
        assert transport.store == "store"

    assert Job(2).run(look) == [None] * 2
