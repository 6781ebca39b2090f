"""Ranks are taken in: who is in the new group, what it computes, who is refused, what stays when it fails."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lanterne
from lanterne.collectives.auto.predict import Factor
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.schedule.cost import CostModel
from lanterne.errors import InputError, PeerFailed, TransportError, Unavailable
from lanterne.transport.job import bootstrap
from lanterne.transport.rank_group import Group
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.process import StoreProcess
from lanterne.transport.tcp.over_tcp import TcpTransport

TOKEN = "a token of the tests"
MODEL = CostModel(1e-5, 1e-9)


class Job:
    """A job whose ranks are threads, each with connections of its own."""

    def __init__(self, store, pool):
        self.store, self._pool = store, pool
        self.address = f"{store.address[0]}:{store.address[1]}"

    def start(self, rank, size):
        """The communicator of a rank at the start of the job."""
        client = StoreClient(self.store.address, TOKEN, 20)
        group = Group(rank, size, client, timeout_s=20)
        opened = TcpTransport(group, 20)
        comm = Communicator(opened, ranks_here=size, hosts=group.hosts, closes=(opened, group))
        comm.tuning.adopt(MODEL, "test")
        return comm

    def join(self, place=None, timeout_s=20, **options):
        """That of a rank that is taken in."""
        return lanterne.init(join=self.address, place=place, timeout_s=timeout_s, **options)

    def run(self, *functions):
        """What the functions return, each on a thread."""
        return [each.result(60) for each in [self._pool.submit(function) for function in functions]]

    def begin(self, size):
        """The communicators of all ranks."""
        return self.run(*(lambda rank=rank: self.start(rank, size) for rank in range(size)))


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setenv("LANTERNE_TOKEN", TOKEN)
    for name in ("RANK", "LANTERNE_STORE", "LANTERNE_TRANSPORT", "LANTERNE_JOIN"):
        monkeypatch.delenv(name, raising=False)
    with StoreProcess(TOKEN) as store, ThreadPoolExecutor(8) as pool:
        yield Job(store, pool)


def die(comm):
    """What a process that is killed leaves of a rank: nothing."""
    core_of(comm)._closes = ()
    comm.transport.membership.abandon()
    for _, duplex in list(comm.transport._polled.by_fd.values()):
        duplex.close()
    comm.transport.closed = True


def total(comm):
    """The sum of rank + 1."""
    out = np.zeros(3000)
    comm.all_reduce(np.full(3000, comm.rank + 1.0), out)
    assert (out == out[0]).all()
    return out[0]


def grown(comm, **options):
    """`comm`, once somebody has been taken in."""
    while True:
        after = comm.grow(**options)
        if after is not comm:
            return after


def survive(comm):
    with pytest.raises(TransportError):
        total(comm)
    return comm.shrink()


def test_a_rank_that_was_killed_comes_back_in_its_place(job):
    comms = job.begin(3)
    comms[0].deterministic = comms[2].deterministic = True
    die(comms.pop(1))
    comms = job.run(*(lambda comm=comm: survive(comm) for comm in comms))
    assert [comm.ranks for comm in comms] == [(0, 2)] * 2
    old = comms
    comms = job.run(*(lambda comm=comm: grown(comm) for comm in comms), lambda: job.join(place=1))
    assert [comm.rank for comm in comms] == [0, 2, 1]
    for comm in comms:
        assert (comm.world_size, comm.newcomers, comm.epoch) == (3, (1,), 1), comm
        assert comm.tuning.model == MODEL and comm.deterministic, comm
    assert job.run(*(lambda comm=comm: total(comm) for comm in comms)) == [6.0] * 3
    with pytest.raises(TransportError, match="closed"):
        total(old[0])
    # And once more, another one: rank 0.
    die(comms.pop(0))
    comms = job.run(*(lambda comm=comm: survive(comm) for comm in comms))
    comms = job.run(*(lambda comm=comm: grown(comm) for comm in comms), lambda: job.join(place=0))
    assert [(comm.rank, comm.newcomers, comm.epoch) for comm in comms] == [(2, (0,), 2), (1, (0,), 2), (0, (0,), 2)]
    halves = job.run(*(lambda comm=comm: comm.split(comm.rank == 0) for comm in comms))
    assert sorted(job.run(*(lambda comm=comm: total(comm) for comm in halves))) == [1.0, 3.0, 3.0]
    job.run(*(comm.close for comm in comms))


def test_who_comes_back_and_the_others_choose_as_before(job):
    factors = (Factor("all_reduce", "rhd", 1 << 12, 0.01),)
    comms = job.begin(3)
    for comm in comms:
        comm.tuning.adopt(MODEL, "test", factors)
    chosen = comms[0].tuning.choose("all_reduce", 1 << 12)
    die(comms.pop(1))
    comms = job.run(*(lambda comm=comm: survive(comm) for comm in comms))
    comms = job.run(*(lambda comm=comm: grown(comm) for comm in comms), lambda: job.join(place=1))
    for comm in comms:
        assert comm.tuning.factors == factors, comm
        assert comm.tuning.choose("all_reduce", 1 << 12)[:2] == chosen[:2], comm
    job.run(*(comm.close for comm in comms))


def test_nobody_waits_nothing_changes(job):
    comms = job.begin(2)
    assert job.run(*(lambda comm=comm: comm.grow() is comm and total(comm) for comm in comms)) == [3.0] * 2
    job.run(*(comm.close for comm in comms))


def test_a_job_of_one_grows_by_new_ranks_and_the_first_closes_the_last(job):
    (first,) = job.begin(1)

    def until_three():
        comm = first
        while comm.world_size < 3:
            comm = comm.grow()
        return comm

    def join_twice():
        comm = job.join()
        while comm.world_size < 3:
            comm = comm.grow()
        return comm

    comms = job.run(until_three, join_twice, join_twice)
    assert sorted(comm.rank for comm in comms) == [0, 1, 2]
    assert job.run(*(lambda comm=comm: total(comm) for comm in comms)) == [6.0] * 3
    job.run(first.close, *(comm.close for comm in comms[1:]))
    with pytest.raises(TransportError, match="closed"):
        total(comms[0])


def test_of_two_that_claim_one_place_one_is_refused(job):
    comms = job.begin(3)
    die(comms.pop(2))
    comms = job.run(*(lambda comm=comm: survive(comm) for comm in comms))
    refused = threading.Event()

    def join():
        try:
            return job.join(place=2)
        except TransportError as error:
            refused.set()
            return str(error)

    def wait():
        refused.wait(20)
        return grown(comms[0])

    *found, kept, other = job.run(join, join, wait, lambda: grown(comms[1]))
    assert sum(isinstance(each, str) and "got rank 2 twice" in each for each in found) == 1
    comms = [kept, other, *(each for each in found if not isinstance(each, str))]
    assert job.run(*(lambda comm=comm: total(comm) for comm in comms)) == [6.0] * 3
    job.run(*(comm.close for comm in comms))


def test_who_has_another_model_is_refused_by_name(job):
    comms = job.begin(2)
    stop = threading.Event()

    def look(comm):
        while True:
            assert comm.grow(model="gpt, 12 layers") is comm
            flag = np.zeros(1)
            comm.all_reduce(np.array([float(stop.is_set())]), flag)
            if flag[0]:
                return

    def join():
        with pytest.raises(TransportError, match="got model 'gpt, 6 layers', expected 'gpt, 12 layers' as on the oth"):
            job.join(place=5, model="gpt, 6 layers")
        with pytest.raises(TransportError, match="got transport 'ucx', expected 'tcp'"):
            job.join(place=5, model="gpt, 12 layers", transport="ucx")
        with pytest.raises(TransportError, match="rank 1 lives"):
            job.join(place=1, model="gpt, 12 layers", timeout_s=0.5)
        stop.set()

    job.run(join, *(lambda comm=comm: look(comm) for comm in comms))
    job.run(*(comm.close for comm in comms))


@pytest.mark.parametrize("when", ["before its transport", "before the beginning"])
def test_a_newcomer_that_dies_on_its_way_changes_nothing(job, monkeypatch, when):
    comms = job.begin(2)
    started, begin = threading.Event(), Group.begin

    class Killed(Exception):
        pass

    def falls(group, *args):
        if group.rank == 2 and not started.is_set():
            started.set()
            raise Killed
        return begin(group, *args)

    target = (Group, "begin") if when == "before the beginning" else (TcpTransport, "__init__")
    if when == "before the beginning":
        monkeypatch.setattr(Group, "begin", falls)
    else:
        made = TcpTransport.__init__

        def fails(transport, group, timeout_s=None):
            if group.rank == 2 and not started.is_set():
                started.set()
                raise Killed
            made(transport, group, timeout_s)

        monkeypatch.setattr(*target, fails)

    def join():
        with pytest.raises(Killed):
            job.join()
        return job.join()

    after = job.run(*(lambda comm=comm: grown(comm) for comm in comms), join)
    assert started.is_set() and [comm.world_size for comm in after] == [3] * 3
    assert {comm.epoch for comm in after} == {2}
    assert job.run(*(lambda comm=comm: total(comm) for comm in after)) == [6.0] * 3
    job.run(*(comm.close for comm in after))


def test_a_member_that_dies_meanwhile_is_named_and_the_others_shrink_and_grow(job, monkeypatch):
    comms = job.begin(3)
    begin = Group.begin

    def falls(group, *args):
        if group.rank == 1 and group.epoch == 1:
            die(comms[1])
            group.abandon()
            raise ValueError("falls")
        return begin(group, *args)

    monkeypatch.setattr(Group, "begin", falls)

    def go_on(comm):
        while True:
            try:
                after = comm.grow()
                if after is not comm:
                    return after
            except PeerFailed as error:
                assert error.rank == 1
                comm = comm.shrink()

    def fall():
        with pytest.raises(ValueError, match="falls"):
            grown(comms[1])

    first, _, last, new = job.run(lambda: go_on(comms[0]), fall, lambda: go_on(comms[2]), job.join)
    after = [first, last, new]
    assert sorted(comm.rank for comm in after) == [0, 1, 2] and new.rank == 1
    assert job.run(*(lambda comm=comm: total(comm) for comm in after)) == [6.0] * 3
    job.run(*(comm.close for comm in after))


def test_what_cannot_be():
    def run(comm):
        with pytest.raises(Unavailable, match=r"grow: got transport local.*expected tcp or ucx"):
            comm.grow()

    lanterne.spawn(2, run)
    with pytest.raises(TransportError, match="the job's store has ended"):
        lanterne.init(join="127.0.0.1:1", timeout_s=1)


@pytest.mark.parametrize("bad", [{"join": "nowhere"}, {"join": "a:b"}, {"place": "any"}, {"place": -7}], ids=str)
def test_bad_words_of_joining(monkeypatch, bad):
    monkeypatch.setattr(bootstrap, "_resolve", lambda *_: pytest.fail("a name was waited for"))
    with pytest.raises(InputError, match="join"):
        lanterne.init(**({"join": "127.0.0.1:1"} | bad))
