"""What `auto` over nccl goes by is measured on the device: with its memory, to the end of what is queued."""

import time
from types import SimpleNamespace

import pytest
from device_ranks import over_nccl
from nccl_ranks import Job

from lanterne.collectives import jobs
from lanterne.collectives.auto import learn, trials
from lanterne.collectives.auto.trials import finish, trial_array
from lanterne.collectives.auto.tuning import Tuning
from lanterne.transport.nccl.binding import SHARED_GPU_VARIABLE


def test_a_model_of_device_calls(monkeypatch):
    monkeypatch.setenv("LANTERNE_CACHE", "off")
    monkeypatch.delenv("LANTERNE_TRIALS", raising=False)
    monkeypatch.setattr(learn, "MESSAGE_NBYTES", (4096, 65536))
    monkeypatch.setattr(trials, "TRIED_NBYTES", (4096,))
    monkeypatch.setattr(trials, "TRIALS", 2)

    def program(comm):
        made = []
        monkeypatch.setattr(comm.transport.runtime, "empty", counted(made, comm.transport.runtime.empty))
        comm.tuning.learn()
        assert len(made) >= 8
        return comm.tuning.model, comm.tuning.factors, comm.tuning.source

    first, *others = over_nccl(3, program)
    assert isinstance(first, tuple), first
    model, factors, source = first
    assert all(other == first for other in others)
    assert source == "measured" and model.alpha_s > 0 and {row.nbytes for row in factors} == {4096}


def counted(made, function):
    return lambda *arguments: made.append(arguments) or function(*arguments)


def test_the_time_of_a_call_ends_when_its_stream_has():
    def program(comm):
        x = trial_array(comm, 100)
        comm.transport.runtime.default.put(lambda: time.sleep(0.1))
        started = time.monotonic()
        comm.all_reduce(x, x, algorithm="ring")
        queued_s = time.monotonic() - started
        finish(comm)
        return queued_s < 0.1 <= time.monotonic() - started

    assert over_nccl(1, program) == [True]


@pytest.mark.parametrize("shares", [False, True])
def test_ranks_that_share_a_gpu_measure_nothing(monkeypatch, shares):
    monkeypatch.setenv(SHARED_GPU_VARIABLE, str(int(shares)))
    job, learned = Job(2, devices=[0, 0] if shares else None), []

    def rank_main(transport):
        assert transport.shares_devices is shares
        group = SimpleNamespace(world_size=2, ranks_here=2, hosts=("a", "a"), close=lambda: None)
        monkeypatch.setattr(Tuning, "learn", lambda tuning, **_: learned.append(tuning))
        with jobs.open_communicator(transport, group) as comm:
            return comm.tuning.source

    results = job.run(rank_main, close=False)
    assert results == ["assumed" if shares else "none"] * 2
    assert len(learned) == (0 if shares else 2)
