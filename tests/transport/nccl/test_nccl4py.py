"""NVIDIA's own binding, on a stand-in: what waits for others can be ended, and survivors shrink what they have."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from device_ranks import over_nccl, synchronize
from nccl_ranks import HostArray, HostRuntime, Job

from lanterne.errors import TransportError, TransportTimeout
from lanterne.transport.base import Recv, Send
from lanterne.transport.local import LocalWorld
from lanterne.transport.nccl import over_nccl as over
from lanterne.transport.nccl.over_nccl import NcclTransport


@pytest.fixture(autouse=True)
def by_nccl4py(monkeypatch):
    monkeypatch.setattr(Job, "binding", "nccl4py")


def threads_that_ask():
    return [thread for thread in threading.enumerate() if thread.name.startswith("lanterne-nccl rank")]


def test_nobody_is_left_behind_in_a_start_up_that_hangs():
    job = Job(2, timeout_s=0.2)
    job.nccl.hangs.add("init")
    assert all(isinstance(error, TransportTimeout) for error in job.run(lambda transport: None))
    deadline_s = time.monotonic() + 20
    while threads_that_ask() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not threads_that_ask()
    assert sorted(job.libraries[0].core.log) == [("abort", 0), ("abort", 1)]


def test_a_first_message_that_nobody_answers_ends_with_the_abort():
    """CuPy's call would stay in NCCL."""

    def program(transport):
        if transport.rank == 0:
            region = transport.register(HostArray(np.zeros(8, np.uint8)))
            transport.timeout_s = 0.2
            with pytest.raises(TransportTimeout, match="from or to rank 1"):
                transport.channel.post((Send(region, 0, 8, 1),))
            assert transport.channel.is_revoked
        transport.host.barrier(20.0)

    job = Job(2)
    assert job.run(program) == [None] * 2
    assert {("revoke", 0), ("abort", 0), ("destroy", 1)} <= set(job.libraries[0].core.log)


def test_calls_of_all_kinds():
    def program(comm):
        x, out = HostArray(np.arange(1000.0) + comm.rank), HostArray(np.zeros(1000))
        found = []
        for algorithm in ("ring", "native", "auto"):
            comm.all_reduce(x, out, algorithm=algorithm)
            synchronize(comm)
            found.append(out.values.copy())
        with comm.split(0, comm.rank) as again:
            again.all_reduce(x, out)
            synchronize(again)
            found.append(out.values.copy())
        return all((values == 3 * np.arange(1000.0) + 3).all() for values in found)

    assert over_nccl(3, program) == [True] * 3


@pytest.mark.parametrize("refuses", [False, True])
def test_survivors_shrink_the_communicator_that_they_have(monkeypatch, refuses):
    """Where NCCL refuses that on one rank, all make one as ever."""
    monkeypatch.setattr(over, "REMAKE_S", 0.3)
    job = Job(3)
    core = job.libraries[0].core

    def program(comm):
        x, out = HostArray(np.full(100, comm.rank + 1.0)), HostArray(np.zeros(100))
        comm.all_reduce(x, out, algorithm="ring")
        synchronize(comm)
        if comm.rank == 1:
            comm.revoke("falls")
            return "fell"
        with pytest.raises(TransportError):
            comm.all_reduce(x, out, algorithm="ring")
            comm.barrier()
        if refuses and comm.rank == 2:
            made = comm.transport.channel._communicator._made

            def refuse(*arguments):
                raise RuntimeError("ncclInvalidUsage")

            made.shrink = refuse
        smaller = comm.shrink(timeout_s=2.0)
        smaller.all_reduce(x, out, algorithm="ring")
        synchronize(smaller)
        return smaller.ranks, out.values[0]

    results = over_nccl(3, program, job=job)
    assert results == [((0, 2), 4.0), "fell", ((0, 2), 4.0)], results
    shrunk = {rank for what, rank in core.log if what == "shrink"}
    assert shrunk == ({0} if refuses else {0, 2})


def next_epoch(job, befores, size):
    """The transports of the next epoch, of `size` ranks: those `befores`, by their new ranks, and newcomers."""
    world, made = LocalWorld(size), [None] * size

    def open_one(rank):
        newcomers = tuple(rank for rank in range(size) if rank not in befores)
        group = SimpleNamespace(rank=rank, world_size=size, host="host", hosts=("host",) * size, newcomers=newcomers)
        before = befores.get(rank)
        runtime = job.nccl.adopt(HostRuntime(10 + rank)) if before is None else before.runtime
        try:
            made[rank] = NcclTransport(
                group, 20.0, host=world.transport(rank, 20.0), runtime=runtime, library=job.libraries[0], before=before
            )
        except Exception as error:
            made[rank] = error

    run_all(open_one, range(size))
    return made


def run_all(function, items):
    threads = [threading.Thread(target=function, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def around(transports):
    """What each rank got from the one before it, around the ring, as a number of that one."""
    got = [None] * len(transports)

    def exchange(rank):
        transport, n = transports[rank], len(transports)
        out, into = HostArray(np.full(64, rank, np.uint8)), HostArray(np.full(64, 99, np.uint8))
        incoming, outgoing = transport.register(into), transport.register(out)
        ops = Recv(incoming, 0, 64, (rank - 1) % n), Send(outgoing, 0, 64, (rank + 1) % n)
        transport.post(ops).wait(20.0)
        got[rank] = sorted(set(into.values.tolist()))

    run_all(exchange, range(len(transports)))
    return got


@pytest.mark.parametrize("refuses", [False, True])
def test_a_job_that_grows_has_nccl_grow_what_it_has(refuses, monkeypatch):
    """Newcomers stand between the others in the job, and behind them in NCCL; then it shrinks, in that order."""
    job = Job(2)
    core = job.libraries[0].core
    olds = [None, None]
    run_all(lambda rank: olds.__setitem__(rank, job.transport(rank)), range(2))
    assert around(olds) == [[1], [0]]
    if refuses:
        monkeypatch.setattr(over, "REMAKE_S", 0.3)
        olds[1].channel._communicator._made.grow = lambda *arguments: None
    news = next_epoch(job, {1: olds[0], 3: olds[1]}, 4)
    assert around(news) == [[3], [0], [1], [2]], news
    order = (0, 1, 2, 3) if refuses else (1, 3, 0, 2)
    assert {transport.channel.order for transport in news} == {order}
    assert news[0].channel.ranks == (0, 1, 2, 3)
    assert sorted(one for one in core.log if one[0] == "come in") == [("come in", 2), ("come in", 3)]
    assert ("grow", 0) in core.log
    # What there was goes on until it is closed, but where NCCL has failed amid it.
    if refuses:
        assert all(old.channel.failure is not None for old in olds)
    else:
        assert around(olds) == [[1], [0]]

    for transport in news:
        transport.channel.fail(TransportError("falls"), raised=False)
    smaller = [None] * 4
    run_all(lambda rank: smaller.__setitem__(rank, news[rank].open_channel((0, 2, 3), 77)), (0, 2, 3))
    assert {each.order for each in smaller if each} == {(0, 2, 3) if refuses else (3, 0, 2)}
    assert {rank for what, rank in core.log if what == "shrink"} == ({0, 2, 3} if refuses else {1, 2, 3})
    run_all(lambda transport: transport.close(), [*news, *olds])


@pytest.mark.parametrize("binding", ["cupy", "too old"])
def test_where_nccl_cannot_grow_all_make_one_as_ever(binding, monkeypatch):
    monkeypatch.setattr(Job, "binding", "cupy" if binding == "cupy" else "nccl4py")
    job = Job(2)
    olds = [None, None]
    run_all(lambda rank: olds.__setitem__(rank, job.transport(rank)), range(2))
    if binding == "too old":
        olds[0].channel._communicator._made.get_unique_id = None
    news = next_epoch(job, {0: olds[0], 2: olds[1]}, 3)
    assert around(news) == [[2], [0], [1]], news
    assert news[0].channel.order == (0, 1, 2)
    run_all(lambda transport: transport.close(), [*news, *olds])
