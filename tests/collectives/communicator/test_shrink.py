"""Survivors go on: who is in the new group, that all agree, that nothing of the old one reaches it."""

import threading
import time

import numpy as np
import pytest

import lanterne
from lanterne.collectives.call.ids import OPEN
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.core import CommunicatorCore
from lanterne.errors import InputError, PeerFailed, Revoked, TransportError, TransportTimeout, Unavailable
from lanterne.transport.base import Capabilities
from lanterne.transport.local import LocalWorld
from lanterne.transport.store.connection import StoreLost


def total(comm):
    """The sum of what the members give, each its transport rank + 1."""
    out = np.zeros(100)
    comm.all_reduce(np.full(100, comm.transport.rank + 1.0), out)
    assert (out == out[0]).all()
    return out[0]


def go_on(comm, dead):
    """What a rank that lives gets: the group, its own place, a sum; the rank in `dead` raises instead."""
    for rank in dead:
        if comm.transport.rank == rank:
            raise ValueError("falls")
        with pytest.raises(TransportError):
            total(comm)
        comm = comm.shrink()
    return comm.ranks, comm.rank, total(comm)


@pytest.mark.parametrize(("size", "dead"), [(3, (1,)), (4, (0,)), (5, (4, 0)), (5, (2, 1, 0))])
def test_survivors_of_one_death_after_another_go_on_in_order(size, dead):
    results = {}

    def run(comm):
        results[comm.rank] = go_on(comm, dead)

    with pytest.raises(ValueError, match="falls"):
        lanterne.spawn(size, run)
    alive = tuple(rank for rank in range(size) if rank not in dead)
    assert results == {rank: (alive, alive.index(rank), sum(alive) + len(alive)) for rank in alive}


def test_a_healthy_communicator_shrinks_to_the_same_group():
    def run(comm):
        shrunk = comm.shrink()
        with pytest.raises(Revoked):
            total(comm)
        with pytest.raises(InputError, match="shrunk before"):
            comm.shrink()
        return shrunk.ranks, shrunk.communicator_id != comm.communicator_id, total(shrunk)

    assert lanterne.spawn(3, run) == [((0, 1, 2), True, 6.0)] * 3


def test_whoever_does_not_come_is_left_out_and_learns_it():
    over = threading.Event()

    def run(comm):
        if comm.rank == 2:
            over.wait(30)
            with pytest.raises(PeerFailed, match="rank 2 failed: it did not come when the others went on"):
                comm.shrink()
            return None
        with pytest.raises(TransportTimeout):
            comm.barrier(timeout_s=0.3)
        shrunk = comm.shrink(timeout_s=1.0)
        over.set()
        return shrunk.ranks, total(shrunk)

    assert lanterne.spawn(3, run) == [((0, 1), 3.0), ((0, 1), 3.0), None]


def test_revoke_ends_what_the_others_wait_for_and_says_why():
    def run(comm):
        if comm.rank == 1:
            comm.revoke("the loss is not a number")
        with pytest.raises(Revoked, match="rank 1 has ended it: the loss is not a number"):
            comm.barrier(timeout_s=20)
        return comm.shrink().world_size

    assert lanterne.spawn(3, run) == [3] * 3


def test_a_group_shrinks_without_the_others():
    def run(comm):
        half = comm.split(comm.rank % 2)
        if comm.rank % 2:
            half = half.shrink()
        return half.ranks, total(half), total(comm)

    assert lanterne.spawn(4, run) == [((0, 2), 4.0, 10.0), ((1, 3), 6.0, 10.0)] * 2


def test_messages_of_the_old_group_do_not_reach_the_new_one():
    def run(comm):
        peer = 1 - comm.rank
        old, new = np.zeros(50), np.zeros(50)
        request = comm.start_send(np.full(50, 7.0), peer) if comm.rank == 0 else comm.start_recv(old, peer, tag=5)
        shrunk = comm.shrink()
        with pytest.raises(Revoked):
            request.wait()
        if comm.rank == 0:
            shrunk.send(np.full(50, 9.0), peer)
        else:
            shrunk.recv(new, peer)
        return old[0], new[0]

    assert lanterne.spawn(2, run) == [(0.0, 0.0), (0.0, 9.0)]


def test_the_id_of_a_failed_communicator_is_never_used_again():
    def run(comm):
        ids = [comm.communicator_id]
        for _ in range(5):
            comm = comm.shrink()
            ids.append(comm.communicator_id)
        return ids, core_of(comm).ids.used

    ((ids, used), _) = lanterne.spawn(2, run)
    assert len(set(ids)) == 6 and all(used[each] == OPEN for each in ids[:-1])


def test_closing_the_first_closes_what_came_of_it():
    def run(comm):
        shrunk = comm.shrink()
        comm.close()
        with pytest.raises(TransportError, match="closed"):
            total(shrunk)

    lanterne.spawn(2, run)


@pytest.mark.parametrize("verb", [Communicator.shrink, lambda comm: comm.agree(1)])
def test_a_transport_that_cannot_shrink_is_refused(verb):
    transport = LocalWorld(1).transport(0)
    transport.capabilities = Capabilities()
    refused = "shrink, agree: got transport local, where no rank outlives another; expected tcp or ucx"
    with Communicator(transport) as comm, pytest.raises(Unavailable, match=refused):
        verb(comm)


def test_who_dies_while_the_new_group_is_made_is_left_out_too(monkeypatch):
    made, results = CommunicatorCore.share_memory, {}

    def share_memory(core):
        if core.world_size == 4 and core.transport.rank == 3:
            raise ValueError("falls")
        core.call("all_reduce", np.zeros(4), np.zeros(4), "sum")
        made(core)

    def run(comm):
        if comm.rank == 0:
            raise ValueError("falls")
        with pytest.raises(TransportError):
            total(comm)
        shrunk = comm.shrink()
        results[comm.rank] = shrunk.ranks, total(shrunk)

    monkeypatch.setattr(CommunicatorCore, "share_memory", share_memory)
    with pytest.raises(ValueError, match="falls"):
        lanterne.spawn(5, run)
    assert results == dict.fromkeys((1, 2, 4), ((1, 2, 4), 10.0))


def test_a_group_that_shrinks_knows_its_hosts():
    def run(comm):
        core_of(comm).hosts = tuple("aabb")
        return comm.shrink().hosts

    assert lanterne.spawn(4, run) == [tuple("aabb")] * 4


def test_late_ones_are_waited_for():
    def run(comm):
        if comm.rank:
            time.sleep(0.2 * comm.rank)
        return comm.shrink().ranks

    assert lanterne.spawn(3, run) == [(0, 1, 2)] * 3


def test_who_has_lost_the_store_blames_nobody():
    heard = threading.Event()

    def run(comm):
        if comm.rank == 0:
            core_of(comm).fail(StoreLost("store 10.0.0.1:4444: connection lost"))
            return heard.wait(20)
        with pytest.raises(TransportError, match="connection lost") as caught:
            comm.barrier(timeout_s=20)
        heard.set()
        return type(caught.value)

    assert lanterne.spawn(2, run) == [True, TransportError]
