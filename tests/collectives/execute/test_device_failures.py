"""Device arrays through the Communicator, on stand-ins: ranks that fail, hang, have no room or disagree, are named."""

import time

import numpy as np
import pytest
from device_ranks import PATHS, over_nccl, synchronize
from nccl_ranks import HostArray, Job

from lanterne.collectives.communicator import core_of
from lanterne.collectives.execute import communicator_base
from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport.nccl.channel import MAX_QUEUED
from lanterne.transport.rank_group import LEFT_GRACE_S


def connected(comm):
    """An array on the device after a first all_reduce of it, which has made connections."""
    x = HostArray(np.ones(100, np.float32))
    comm.all_reduce(x, x, algorithm="ring")
    synchronize(comm)
    return x


def test_a_missing_rank_is_named():
    def program(comm):
        x = connected(comm)
        if comm.rank == 2:
            time.sleep(1.5)
            return None
        comm.all_reduce(x, x, algorithm="ring")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            comm.all_reduce(x, x, algorithm="ring")
            time.sleep(0.05)
        return "went on"

    results = over_nccl(3, program, timeout_s=0.5)
    assert all(isinstance(error, (TransportTimeout, PeerFailed)) for error in results[:2]), results


@pytest.mark.parametrize("how", ["died", "told", "unknown"])
def test_who_failed_is_found_where_nccl_only_says_that_somebody_did(monkeypatch, how):
    """NCCL sees that a connection is gone before the launcher has told whose process is."""
    monkeypatch.setattr(communicator_base, "DEATH_S", 0.3)
    died_s = []

    def check(peers):
        if how == "died" and time.monotonic() > died_s[0] + 0.1:
            raise PeerFailed(1, "it was killed")

    def program(comm):
        x = connected(comm)
        comm.barrier()
        if comm.rank == 0:
            died_s.append(time.monotonic())
            comm.transport.check_peers = check
            comm.transport.channel._communicator.error = "NCCL_ERROR_REMOTE_ERROR"
            while True:
                comm.all_reduce(x, x, algorithm="ring")
                time.sleep(0.01)
        if how == "told":
            core_of(comm).fail(TransportTimeout("nccl rank 1: no message from or to rank 2", (2,)))
        time.sleep(1.0)

    error = over_nccl(2, program)[0]
    kinds = {"died": PeerFailed, "told": TransportTimeout, "unknown": TransportError}
    texts = {"died": "rank 1 failed: it was killed", "told": "rank 1: no message from or to rank 2"}
    assert type(error) is kinds[how] and texts.get(how, "nccl rank 0: NCCL_ERROR_REMOTE_ERROR") in str(error), error
    # Also of an error that takes the place of NCCL's.
    assert "rank's device: " in error.arrays and error.__notes__ == [error.arrays], error


def test_who_keeps_an_earlier_call_waiting_is_named():
    """A stream that has not reached a call, since the call before it waits for a rank, is not at fault."""

    def program(comm):
        x = HostArray(np.ones(100, np.float32))
        comm.all_reduce(x, x, algorithm="ring")
        synchronize(comm)
        comm.barrier()
        if comm.rank == 0:
            comm.start_all_reduce(x, x, algorithm="ring")
            with pytest.raises(TransportTimeout, match=r"no message from or to rank 1 within 0\.4 s"):
                comm.start_all_reduce(x, x, algorithm="ring").wait(0.4)

    assert over_nccl(2, program) == [None] * 2


def test_calls_are_queued_as_long_as_streams_have_room():
    """A rank that queues call after call hears of one that does not come: CUDA does not get to keep it waiting."""

    def program(comm):
        x = connected(comm)
        comm.barrier()
        queued = 0
        if comm.rank == 0:
            with pytest.raises(TransportTimeout, match=r"no message from or to rank 1 within 0\.5 s"):
                for queued in range(10 * MAX_QUEUED):  # noqa: B007 (counted until it raises)
                    comm.all_reduce(x, x, algorithm="ring")
        return queued

    queued, _ = over_nccl(2, program, timeout_s=0.5)
    # Two groups and the call itself count one each.
    assert MAX_QUEUED // 3 <= queued <= MAX_QUEUED // 3 + 1


# The watch is to have seen that the first call is done.
@pytest.mark.timing
def test_the_error_says_on_every_rank_which_arrays_are_whole():
    """Rank 1's device fails before its part of the second call: the first is whole, the others' second is not."""

    def program(comm):
        x, runtime = connected(comm), comm.transport.runtime
        total, other = HostArray(np.zeros(100, np.float32)), HostArray(np.zeros(100, np.float32))
        comm.all_reduce(x, total, algorithm="ring")
        synchronize(comm)
        comm.barrier()
        if comm.rank == 1:

            def refuse(*arguments):
                raise TransportError("device 1: 700")

            runtime.as_stream = refuse
        with pytest.raises(TransportError) as caught:
            comm.all_reduce(x, other, algorithm="ring")
            comm.barrier()
        assert (total.values == 9).all()
        return caught.value

    errors = over_nccl(3, program)
    assert all(isinstance(error, TransportError) for error in errors), errors
    assert [error.__notes__ == [error.arrays] for error in errors] == [True] * 3
    assert errors[1].arrays == "no call was under way on this rank's device: its arrays are whole"
    for error in (errors[0], errors[2]):
        assert str(error) == "rank 1 failed: device 1: 700", error
        assert "under way on this rank's device: all_reduce(" in error.arrays and "undefined" in error.arrays, error


@pytest.mark.timing
@pytest.mark.parametrize("path", PATHS)
def test_who_has_a_failed_device_is_named_to_the_others(path):
    """Also where the device refuses before anything of the call is sent."""

    def program(comm):
        x, runtime = HostArray(np.ones(100, np.float32)), comm.transport.runtime
        comm.all_reduce(x, x, algorithm="ring")
        synchronize(comm)
        comm.barrier()
        if comm.rank == 1:

            def refuse(*arguments):
                raise TransportError("device 1: 700")

            runtime.as_stream = refuse
        while True:
            comm.all_reduce(x, x, algorithm="ring")
            time.sleep(0.01)

    first, second, third = PATHS[path](3, program)
    assert type(second) is TransportError and str(second) == "device 1: 700", second
    for error in (first, third):
        assert isinstance(error, PeerFailed) and str(error) == "rank 1 failed: device 1: 700", error


@pytest.mark.parametrize("path", PATHS)
def test_who_comes_after_a_failed_device_has_left_learns_why(path):
    """The late rank finds a transport that is closed, and beside it what that rank told before.

    One that waits for its own stream, outside of any call, is let go as soon as the failure is told.
    """

    def program(comm):
        x, runtime = HostArray(np.ones(100, np.float32)), comm.transport.runtime
        comm.all_reduce(x, x, algorithm="ring")
        synchronize(comm)
        comm.barrier()
        if comm.rank == 1:

            def refuse(*arguments):
                raise TransportError("device 1: 700")

            runtime.as_stream = refuse
        elif comm.rank == 2:
            time.sleep(LEFT_GRACE_S + 0.5)
        comm.all_reduce(x, x, algorithm="ring")
        synchronize(comm)
        comm.all_reduce(x, x, algorithm="ring")

    waiting, _, late = PATHS[path](3, program)
    for error in (waiting, late):
        assert isinstance(error, PeerFailed) and str(error) == "rank 1 failed: device 1: 700", error


@pytest.mark.parametrize("call", ["a wait", "close"])
def test_what_was_queued_and_failed_is_raised_at_the_latest_by_close(call):
    """The call itself returned once it was queued; who only looks at the output must not take it for a result."""

    def program(comm):
        x = connected(comm)
        comm.barrier()
        if comm.rank == 2:
            time.sleep(1.5)
            return
        comm.transport.timeout_s = 0.4
        request = comm.start_all_reduce(x, x, algorithm="ring")
        if call == "a wait":
            with pytest.raises(TransportTimeout):
                request.wait(0.4)
        comm.close()

    results = over_nccl(3, program)
    expected = type(None) if call == "a wait" else TransportTimeout
    assert [type(result) for result in results] == [expected, expected, type(None)], results
    if call == "close":
        assert "nccl rank 0: no message from or to rank 1, 2 within 0.4 s" in str(results[0])


@pytest.mark.parametrize("path", PATHS)
def test_a_hanging_stream_is_named(path):
    def program(comm):
        runtime = comm.transport.runtime
        x = connected(comm)
        if comm.rank == 1:
            runtime.default.put(lambda: runtime.closing.wait(3))
        comm.start_all_reduce(x, x, algorithm="ring").wait(0.4 if comm.rank == 1 else 5.0)

    results = PATHS[path](2, program)
    assert isinstance(results[1], TransportTimeout), results
    assert "rank 1: its own stream has not reached all_reduce(algorithm=ring" in str(results[1])
    assert isinstance(results[0], TransportError), results


def test_no_room_for_scratch_is_named():
    job = Job(2)
    for runtime in job.runtimes:
        runtime.free_nbytes = 1000

    def program(comm):
        x = HostArray(np.zeros(100_000, np.float32))
        comm.all_reduce(x, x, algorithm="ring")

    for error in over_nccl(2, program, job=job):
        assert isinstance(error, (Unavailable, TransportError)), error
        assert "device 0 has no room for" in str(error), error


@pytest.mark.parametrize("path", PATHS)
def test_ranks_that_disagree(path):
    def program(comm):
        x = HostArray(np.zeros(8 + comm.rank, np.float32))
        comm.all_reduce(x, x, algorithm="ring")

    for error in PATHS[path](2, program):
        assert isinstance(error, InputError), error
        assert "rank 0 got all_reduce(algorithm=ring, op=sum, dtype=float32, count=8" in str(error), error
