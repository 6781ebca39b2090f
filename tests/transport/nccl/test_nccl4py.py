"""NVIDIA's own binding, on a stand-in: what waits for others can be ended, and survivors shrink what they have."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from device_ranks import over_nccl, synchronize
from nccl_ranks import HostArray, Job

from lanterne.errors import TransportError, TransportTimeout
from lanterne.transport.base import Send
from lanterne.transport.nccl import over_nccl as over


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
    monkeypatch.setattr(over, "POLICY", replace(over.POLICY, shrink_s=0.3))
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
