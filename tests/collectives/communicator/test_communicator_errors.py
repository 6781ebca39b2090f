"""Every way in which a call of a Communicator can go wrong: what is refused, ranks that disagree, ranks that fail."""

import signal
import threading
import time
from typing import ClassVar

import numpy as np
import pytest
from device_ranks import has_gpu
from outcomes import frozen, outcome, outcomes, sum_of_ranks

import lanterne
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.execute import background
from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport.local import LocalWorld

TIMEOUT_S = 0.3


# -- bad input: refused before anything is sent, and the communicator lives on


OVERLAPPING = np.zeros(4)
BAD = {
    "op": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), "median"), "(did you mean 'mean'?), expected one of sum"),
    "mean of int": (lambda c: c.all_reduce(np.zeros(2, int), np.zeros(2, int), "mean"), "mean of int64"),
    "dtype": (lambda c: c.all_reduce(np.zeros(2, "U3"), np.zeros(2, "U3")), "<U3"),
    "dtypes differ": (
        lambda c: c.all_reduce(np.zeros(2), np.zeros(2, "f4")),
        "got out_array of float32, expected float64",
    ),
    "sizes differ": (lambda c: c.all_reduce(np.zeros(2), np.zeros(3)), "got out_array of 3 elements, expected 2"),
    "read-only": (lambda c: c.all_reduce(np.zeros(2), frozen(np.zeros(2))), "read-only out_array"),
    "overlap": (lambda c: c.all_reduce(OVERLAPPING[:3], OVERLAPPING[1:]), "overlap in part"),
    "no array": (lambda c: c.all_reduce(3.0, np.zeros(2)), "got float, expected an array"),
    "objects": (lambda c: c.broadcast(np.array([None])), "got dtype object"),
    "algorithm": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), algorithm="magic"), "got 'magic' for all_reduce"),
    "native": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), algorithm="native"), "got 'native' over local"),
    "chunks": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), algorithm="ring", num_chunks=3), "got 3 chunks"),
    "credits": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), credits=0), "got credits 0, expected 1 or more"),
    "root": (lambda c: c.broadcast(np.zeros(2), root=2), "got root 2, expected 0 to 1"),
    "not a multiple": (
        lambda c: c.reduce_scatter(np.zeros(3), np.zeros(1)),
        "got in_array of 3 elements, expected a multiple of 2",
    ),
    "all_gather": (lambda c: c.all_gather(np.zeros(3), np.zeros(5)), "got out_array of 5 elements, expected 6"),
    "stream": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), stream=object()), "got a stream with host arrays"),
    "root of text": (lambda c: c.broadcast(np.zeros(2), root="a"), "got root 'a', expected 0 to 1"),
    "root of half": (lambda c: c.broadcast(np.zeros(2), root=0.5), "got root 0.5, expected 0 to 1"),
    "timeout": (
        lambda c: c.all_reduce(np.zeros(2), np.zeros(2), timeout_s="a"),
        "timeout_s: got 'a', expected seconds",
    ),
    "no timeout": (lambda c: c.barrier(timeout_s=float("nan")), "timeout_s: got nan, expected seconds"),
    "late rank": (
        lambda c: c.all_reduce(np.zeros(2), np.zeros(2), late_rank=[]),
        "got late_rank [], expected 0 or more",
    ),
    "chunks of text": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), num_chunks="a"), "got num_chunks 'a'"),
    "segments of text": (
        lambda c: c.all_reduce(np.zeros(2), np.zeros(2), segment_nbytes="64K"),
        "segment_nbytes '64K'",
    ),
    "algorithms": (lambda c: c.all_reduce(np.zeros(2), np.zeros(2), algorithm=["ring"]), "expected a name"),
    "color": (lambda c: c.split("a"), "split: got color 'a'"),
    "key": (lambda c: c.split(0, 2**70), "split: got key 1180591620717411303424"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    call, text = BAD[name]

    def run(comm):
        with pytest.raises(InputError) as caught:
            call(comm)
        return str(caught.value), sum_of_ranks(comm)

    for message, after in lanterne.spawn(2, run, timeout_s=20.0):
        assert text in message and "\n" not in message, (message, after)
        assert after == [1.0] * 3, (message, after)


OPTIONS_THAT_ARE_NONE = {
    "misspelt": lambda c: c.all_reduce(np.zeros(2), np.zeros(2), algoritm="ring"),
    "of another collective": lambda c: c.all_gather(np.zeros(2), np.zeros(4), root=0),
    "of the blocking form": lambda c: c.start_all_reduce(np.zeros(2), np.zeros(2), timeout_s=1.0),
}


@pytest.mark.parametrize("name", OPTIONS_THAT_ARE_NONE)
def test_an_option_that_is_none_is_refused(name):
    def run(comm):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            OPTIONS_THAT_ARE_NONE[name](comm)
        return sum_of_ranks(comm)

    assert lanterne.spawn(2, run, timeout_s=20.0) == [[1.0] * 3] * 2


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here: tests/gpu has the device arrays")
def test_device_arrays_without_a_gpu():
    class DeviceArray:
        __cuda_array_interface__: ClassVar = {"data": (0, False), "shape": (1,), "typestr": "<f4", "version": 3}

    with lanterne.init() as comm, pytest.raises(Unavailable, match=r"CuPy|CUDA"):
        comm.all_reduce(DeviceArray(), DeviceArray())


# -- ranks that disagree


def different(comm, call, other):
    """Rank 1 calls something else; afterwards the communicator is closed."""
    error = outcome(comm, other if comm.rank == 1 else call)
    again = outcome(comm, sum_of_ranks)
    assert type(again) is type(error) and str(again) == str(error)
    return error


DISAGREEMENTS = {
    "dtype": lambda c: c.all_reduce(np.zeros(8, "f4"), np.zeros(8, "f4")),
    "count": lambda c: c.all_reduce(np.zeros(9), np.zeros(9)),
    "op": lambda c: c.all_reduce(np.zeros(8), np.zeros(8), "max"),
    "algorithm": lambda c: c.all_reduce(np.zeros(8), np.zeros(8), algorithm="ring"),
    "collective": lambda c: c.broadcast(np.zeros(8)),
}


@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree_all_raise(name, known):
    """Also where each rank has made its call before, together with the others, so that no agreement is due."""

    def call(comm):
        comm.all_reduce(np.zeros(8), np.zeros(8), algorithm="recursive_doubling")

    def run(comm):
        if known:
            call(comm)
            DISAGREEMENTS[name](comm)
        return different(comm, call, DISAGREEMENTS[name])

    errors = lanterne.spawn(4, run, timeout_s=20.0)
    for error in errors:
        assert isinstance(error, InputError), error
        assert "rank 1 got " in str(error) and "expected the same on every rank" in str(error), error


THROUGH_AT_ONCE = {
    "broadcast": (0, lambda c: c.broadcast(np.zeros(2))),
    "scatter": (0, lambda c: c.scatter(np.zeros(6), np.zeros(2))),
    "reduce": (1, lambda c: c.reduce(np.zeros(2), np.zeros(2))),
    "gather": (1, lambda c: c.gather(np.zeros(2), np.zeros(6))),
}


@pytest.mark.parametrize("name", THROUGH_AT_ONCE)
def test_a_rank_that_is_through_and_computes_still_says_what_it_called(monkeypatch, name):
    """Over local; communicator_job.py has the same between processes."""
    monkeypatch.setattr(background, "READ_EVERY_S", 0.1)
    leaver, call = THROUGH_AT_ONCE[name]
    all_are_through = threading.Barrier(3)

    def run(comm):
        # No agreement is due any more.
        call(comm)
        sum_of_ranks(comm)
        try:
            return outcome(comm, call if comm.rank == leaver else sum_of_ranks)
        finally:
            all_are_through.wait(20)

    errors = lanterne.spawn(3, run, timeout_s=10.0)
    # On a busy machine it may be told before it is through.
    del errors[leaver]
    for error in errors:
        assert isinstance(error, InputError), error
        assert f"rank {leaver} got {name}(" in str(error) and "got all_reduce(" in str(error), error


def test_different_roots_disagree():
    errors = outcomes(3, lambda comm: comm.broadcast(np.zeros(4), root=comm.rank % 2))
    assert all(isinstance(error, InputError) and "root=0" in str(error) and "root=1" in str(error) for error in errors)


@pytest.mark.parametrize(
    "dtypes", [(">f8", "<f8"), ([("a", "f8"), ("b", "i8")], [("b", "i8"), ("a", "f8")])], ids=["byte order", "fields"]
)
def test_different_layouts_of_an_element_disagree(dtypes):
    errors = outcomes(2, lambda comm: comm.all_gather(np.zeros(2, dtypes[comm.rank]), np.zeros(4, dtypes[comm.rank])))
    assert all(isinstance(error, InputError) and "expected the same on every rank" in str(error) for error in errors)


def test_in_place_may_differ_between_ranks():
    def run(comm):
        array = np.ones(10)
        out = array if comm.rank == 0 else np.empty(10)
        comm.all_reduce(array, out)
        return out[3]

    assert lanterne.spawn(3, run) == [3.0] * 3


# -- ranks that fail


@pytest.mark.timing
@pytest.mark.parametrize("algorithm", ["ring", "rhd", "tree"])
def test_a_rank_that_never_calls_is_named_by_all_others(algorithm):
    given_up = threading.Barrier(4)

    def run(comm):
        if comm.rank == 2:
            given_up.wait(30)
            return None
        try:
            comm.all_reduce(np.ones(1000), np.ones(1000), algorithm=algorithm, timeout_s=TIMEOUT_S)
        except TransportTimeout as error:
            return error
        finally:
            given_up.wait(30)

    errors = lanterne.spawn(4, run)
    for rank in (0, 1, 3):
        assert errors[rank].peers == (2,), errors[rank]


@pytest.mark.timing
def test_whoever_is_told_of_a_timeout_gets_all_ranks_that_were_absent():
    given_up = threading.Barrier(5)

    def run(comm):
        if comm.rank in (2, 3):
            given_up.wait(30)
            return None
        try:
            comm.all_reduce(np.ones(10), np.ones(10), timeout_s=TIMEOUT_S if comm.rank == 0 else 20.0)
        except TransportTimeout as error:
            return error.peers, error.told
        finally:
            given_up.wait(30)

    errors = lanterne.spawn(5, run)
    assert errors == [((2, 3), False), ((2, 3), True), None, None, ((2, 3), True)]


@pytest.mark.timing
def test_the_late_one_learns_that_the_others_have_given_up():
    def run(comm):
        if comm.rank == 1:
            time.sleep(0.6)
        try:
            comm.all_reduce(np.ones(10), np.ones(10), timeout_s=0.3 if comm.rank != 1 else 10.0)
        except TransportTimeout as error:
            time.sleep(0.6)
            return error.peers

    assert lanterne.spawn(3, run) == [(1,)] * 3


def test_a_timeout_closes_the_communicator_but_not_the_transport():
    def run(comm):
        group = comm.split(0)
        if comm.rank == 0:
            error = outcome(group, lambda group: group.barrier(timeout_s=0.3))
            assert outcome(group, sum_of_ranks) is error
        comm.barrier()
        return sum_of_ranks(comm)

    assert lanterne.spawn(2, run, timeout_s=20.0) == [[1.0] * 3] * 2


class Enough(Exception):
    """What a signal's handler raises."""


@pytest.fixture
def left():
    """Calls a function that waits, which a signal's handler leaves."""

    def leave(*_):
        raise Enough

    def call(function):
        # Not an alarm, which is pytest-timeout's.
        threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1)).start()
        with pytest.raises(Enough):
            function()

    before = signal.signal(signal.SIGUSR1, leave)
    yield call
    signal.signal(signal.SIGUSR1, before)


LEFT = {
    "recv": lambda c: c.recv(np.zeros(1), 1),
    "send_recv": lambda c: c.send_recv(np.zeros(1), np.zeros(1), 1),
    "mailbox's recv": lambda c: c.mailbox().recv(np.zeros(1)),
    "all_reduce": lambda c: c.all_reduce(np.zeros(1), np.zeros(1)),
    "barrier": lambda c: c.barrier(),
    "bound": lambda c: c.bind("all_reduce", np.zeros(1), np.zeros(1))(),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_call_that_a_signal_has_left_ends_the_communicator(left, name):
    """Its message, or its part of a sum, would be matched with the next call's."""
    world = LocalWorld(2)
    comms = [Communicator(world.transport(rank, TIMEOUT_S)) for rank in range(2)]
    left(lambda: LEFT[name](comms[0]))
    with pytest.raises(TransportError, match="was left by Enough before its end"):
        comms[0].recv(np.zeros(1), 1, timeout_s=0.1)
    with pytest.raises(PeerFailed, match="was left by Enough before its end"):
        comms[1].recv(np.zeros(1), 0, tag=1)


def test_a_request_whose_wait_a_signal_has_left_can_be_waited_for_again(left):
    world = LocalWorld(2)
    comms = [Communicator(world.transport(rank, 20.0)) for rank in range(2)]
    first, second = np.zeros(1), np.zeros(1)
    request = comms[0].start_recv(first, 1)
    left(request.wait)
    sends = [comms[1].start_send(np.full(1, value), 0) for value in (1.0, 2.0)]
    request.wait()
    comms[0].recv(second, 1)
    assert (first[0], second[0]) == (1.0, 2.0) and all(send.test() for send in sends)


def test_a_rank_that_is_only_slow_disturbs_nobody():
    """Long enough for reports to go out, in several calls, also while it reads none."""

    def run(comm):
        for call in range(3):
            if comm.rank == 1:
                time.sleep(0.35)
            assert sum_of_ranks(comm) == [3.0] * 3, call
        return True

    assert lanterne.spawn(3, run, timeout_s=20.0) == [True] * 3


def test_reports_do_not_pile_up():
    """A rank that is late in every call finds few unread reports."""
    world = LocalWorld(2)

    def run(comm):
        for _ in range(8):
            if comm.rank == 1:
                time.sleep(0.2)
            sum_of_ranks(comm)

    comms = [Communicator(world.transport(rank, 20.0)) for rank in range(2)]
    threads = [threading.Thread(target=run, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unread = sum(len(queue) for (source, _, tag), queue in world.unmatched.items() if tag == 0 and source == 0)
    assert unread <= 6


def test_one_spare_rail_is_no_sequence_of_letters():
    with pytest.raises(InputError, match="spare rails: got 'eth0', expected a tuple"):
        lanterne.init(spare_rails="eth0")
