"""Those that live agree on a number, whatever has ended their communicator and whoever dies meanwhile."""

import threading
import time

import numpy as np
import pytest

import lanterne
from lanterne.collectives.communicator import core_of
from lanterne.errors import InputError, PeerFailed, Revoked, TransportError, TransportTimeout


def falls(*_):
    raise ValueError("falls")


@pytest.mark.parametrize(
    ("flags", "agreed"),
    [
        ((1, 1, 1), 1),
        ((1, 0, 1), 0),
        ((True, True, True), 1),
        ((0b1110, 0b0111, 0b1111), 0b0110),
        ((-1, -1, -1), -1),
        ((-1, 2**63 - 1, 2**40 + 1), 2**40 + 1),
        ((-(2**63), -1, -(2**63)), -(2**63)),
    ],
)
def test_it_is_the_bitwise_and_of_all(flags, agreed):
    assert lanterne.spawn(3, lambda comm: comm.agree(flags[comm.rank])) == [agreed] * 3


def test_one_rank_agrees_with_itself():
    assert lanterne.spawn(1, lambda comm: comm.agree(6)) == [6]


@pytest.mark.parametrize("flags", [2**63, -(2**63) - 1, 1.0, "1", None])
def test_flags_that_cannot_be_are_refused_before_anything_is_sent(flags):
    def run(comm):
        with pytest.raises(InputError, match=r"agree: got flags .*, expected -9223372036854775808 to"):
            comm.agree(flags)
        return comm.agree(1)

    assert lanterne.spawn(2, run) == [1, 1]


def test_each_is_an_agreement_of_its_own_and_none_is_kept():
    def run(comm):
        got = [comm.agree(comm.rank + step) for step in range(20)]
        comm.barrier()
        return got, len(comm.transport.world.meetings)

    assert lanterne.spawn(2, run) == [([step & (step + 1) for step in range(20)], 0)] * 2


def test_the_dead_do_not_count_and_a_failed_communicator_agrees():
    results = {}

    def run(comm):
        if comm.rank == 0:
            falls()
        with pytest.raises(TransportError):
            comm.barrier(timeout_s=20)
        results[comm.rank] = comm.agree(0b110 + comm.rank), comm.agree(comm.rank > 1), comm.shrink().ranks

    with pytest.raises(ValueError, match="falls"):
        lanterne.spawn(4, run)
    assert results == dict.fromkeys((1, 2, 3), (0b110 + 1 & 0b110 + 2 & 0b110 + 3, 0, (1, 2, 3)))


def test_who_dies_while_the_others_wait_is_not_waited_for():
    waits, results = threading.Event(), {}

    def run(comm):
        if comm.rank == 2:
            waits.wait(20)
            falls()
        if comm.rank == 1:
            waits.set()
        results[comm.rank] = comm.agree(3)

    with pytest.raises(ValueError, match="falls"):
        lanterne.spawn(3, run)
    assert results == {0: 3, 1: 3}


def test_all_learn_alike_whether_all_have_got_through():
    """As a program uses it: one rank fails, the others have got through, all go on together."""

    def run(comm):
        comm.barrier()
        done = comm.rank != 1
        if not comm.agree(done):
            comm = comm.shrink()
        return comm.world_size, comm.agree(True)

    assert lanterne.spawn(3, run) == [(3, 1)] * 3


def test_whoever_does_not_come_is_left_out_and_learns_it():
    over = threading.Event()

    def run(comm):
        if comm.rank == 1:
            over.wait(20)
            with pytest.raises(PeerFailed, match="rank 1 failed: it did not come when the others went on"):
                comm.agree(0)
            return None
        agreed = comm.agree(7, timeout_s=0.3)
        over.set()
        return agreed

    assert lanterne.spawn(2, run) == [7, None]


def test_who_waits_in_a_call_in_vain_comes_in_time():
    """Rank 2 has got through what 0 and 1 wait in: it never got what 1 needs."""

    def run(comm):
        comm.timeout_s = 0.5
        if comm.rank < 2:
            with pytest.raises(TransportTimeout):
                comm.recv(np.empty(1), 1 - comm.rank)
        return comm.agree(comm.rank == 2)

    assert lanterne.spawn(3, run) == [0, 0, 0]


def test_a_revoked_communicator_agrees():
    def run(comm):
        if comm.rank == 1:
            comm.revoke("a part is missing")
        with pytest.raises(Revoked):
            comm.barrier(timeout_s=20)
        return comm.agree(comm.rank + 4)

    assert lanterne.spawn(3, run) == [4] * 3


@pytest.mark.parametrize("soon", [True, False], ids=["they wait", "they come later"])
def test_where_one_shrinks_instead_the_others_are_told_and_do_so_too(soon):
    goes = threading.Event()

    def run(comm):
        if comm.rank == 0:
            if soon:
                time.sleep(0.2)
            else:
                goes.set()
            return comm.shrink(timeout_s=20).ranks
        if not soon:
            goes.wait(20)
            time.sleep(0.2)
        with pytest.raises(Revoked, match="another rank shrinks it"):
            comm.agree(1, timeout_s=20)
        with pytest.raises(Revoked):
            comm.barrier()
        return comm.shrink(timeout_s=20).ranks

    assert lanterne.spawn(3, run) == [(0, 1, 2)] * 3


def test_groups_agree_by_themselves():
    def run(comm):
        half = comm.split(comm.rank % 2)
        return half.agree(comm.rank + 4), comm.agree(comm.rank + 4)

    assert lanterne.spawn(4, run) == [(4 & 6, 4), (5 & 7, 4)] * 2


def test_one_that_has_a_successor_or_is_closed_says_so():
    def run(comm):
        half = comm.split(0)
        half.close()
        shrunk = comm.shrink()
        for verb in (comm.shrink, lambda: comm.agree(1)):
            with pytest.raises(InputError, match="shrunk before, expected the one that shrink returned"):
                verb()
        for verb in (half.shrink, lambda: half.agree(1)):
            with pytest.raises(TransportError, match="closed"):
                verb()
        return shrunk.agree(1)

    assert lanterne.spawn(2, run) == [1, 1]


def test_a_failed_one_that_is_closed_says_what_ended_it():
    def run(comm):
        core_of(comm).revoke("over")
        comm.close()
        with pytest.raises(Revoked, match="over"):
            comm.agree(1)

    lanterne.spawn(2, run)
