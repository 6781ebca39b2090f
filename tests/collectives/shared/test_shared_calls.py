"""Calls through shared memory between threads: results, queues, and who is named when a rank does not come."""

import time

import numpy as np
import pytest

from lanterne.collectives.communicator import core_of
from lanterne.collectives.jobs import spawn
from lanterne.collectives.late import calls as late_calls
from lanterne.collectives.shared.shared_calls import SharedPlans
from lanterne.collectives.shared.shared_memory import LAYOUT, SharedMemory, nbytes_for
from lanterne.errors import InputError, PeerFailed, TransportTimeout
from lanterne.kernels.cpu.meet import PIECES_AT_ONCE
from lanterne.transport.local import LocalWorld
from lanterne.transport.shaped import Link, ShapedTransport


def shared_spawn(n, function, *args, **options):
    """As spawn, of ranks that share memory."""
    view = memoryview(bytearray(nbytes_for(n)))

    def run(comm, *rest):
        core = core_of(comm)
        core._shared = SharedPlans(core, SharedMemory(view, n, comm.rank, True))
        core.shares_memory = True
        return function(comm, *rest)

    return spawn(n, run, *args, **options)


# More than one piece for each rank, and more pieces than slots.
LARGE = LAYOUT.slot_nbytes // 4 * (LAYOUT.slots + 1) + 5


def results(comm, count):
    n, me = comm.world_size, comm.rank
    inputs = [np.arange(count * n, dtype=np.float32) % 97 + rank for rank in range(n)]
    total = np.sum(inputs, axis=0)
    mine, out = inputs[me].copy(), np.empty(count * n, np.float32)
    for number in range(LAYOUT.slots + 2 if n < 9 else 1):
        comm.all_reduce(mine, out, algorithm="shared")
        assert (out == total).all(), number
        comm.reduce(mine, out, root=number % n, op="mean", algorithm="shared")
        assert me != number % n or np.allclose(out, total / n), number
        comm.reduce_scatter(mine, out[:count], algorithm="shared")
        assert (out[:count] == total.reshape(n, -1)[me]).all(), number
        comm.all_gather(mine[:count], out, algorithm="shared")
        assert (out == np.concatenate([x[:count] for x in inputs])).all(), number
        comm.all_to_all(mine, out, algorithm="shared")
        assert (out == np.concatenate([x.reshape(n, -1)[me] for x in inputs])).all(), number
        out[:] = mine
        comm.broadcast(out, root=number % n, algorithm="shared")
        assert (out == inputs[number % n]).all(), number
        comm.all_reduce(out, out, "max", algorithm="shared")
        assert (out == inputs[number % n]).all(), number
        out[me * count : (me + 1) * count] = mine[:count]
        comm.all_gather(out[me * count : (me + 1) * count], out, algorithm="shared")
        assert (out == np.concatenate([x[:count] for x in inputs])).all(), number
        out[:] = mine
        comm.reduce_scatter(out, out[me * count : (me + 1) * count], algorithm="shared")
        mine[me * count : (me + 1) * count] = total[me * count : (me + 1) * count]
        assert (out == mine).all(), number
        mine[:] = inputs[me]
        comm.barrier(algorithm="shared")


@pytest.mark.parametrize(("n", "count"), [(2, 1), (3, 0), (3, 50), (2, LARGE), (17, 3)])
def test_every_collective(n, count):
    shared_spawn(n, results, count)


def long_doubles(comm):
    x, out = np.full(3, comm.rank + 1, np.longdouble), np.zeros(3, np.longdouble)
    for op, expected in (("sum", 3), ("prod", 2), ("mean", 1.5)):
        comm.all_reduce(x, out, op, algorithm="shared")
        assert (out == expected).all(), (op, expected)
    both = np.full(2, 1j * (comm.rank + 1))
    comm.all_reduce(both, both, "mean", algorithm="shared")
    assert (both == 1.5j).all()


def test_elements_that_are_no_vectors():
    shared_spawn(2, long_doubles)


def many_pieces(comm):
    """More than the compiled loop takes at once."""
    x = np.arange((PIECES_AT_ONCE + 2) * LAYOUT.slot_nbytes // 8) * (1 - comm.rank)
    comm.broadcast(x, algorithm="shared")
    assert (x == np.arange(x.size)).all()


def test_a_long_call():
    shared_spawn(2, many_pieces)


def queued(comm):
    """Started calls, by way of memory and of messages, end in order; a bound one is the same call."""
    x, outs = np.full(3, comm.rank + 1.0), [np.zeros(3) for _ in range(12)]
    bound = comm.bind("all_reduce", x, outs[0])
    requests = [bound.start()]
    for number, out in enumerate(outs[1:], 1):
        algorithm = "ring" if number % 3 == 0 else "auto"
        requests.append(comm.start_all_reduce(x, out, algorithm=algorithm))
    for request in reversed(requests):
        request.wait()
    assert all((out == 6).all() for out in outs)
    for number in range(20):
        x[:] = number + comm.rank
        bound() if comm.rank else comm.all_reduce(x, outs[0])
        assert (outs[0] == 3 * number + 3).all(), number


def test_a_queue():
    shared_spawn(3, queued)


def runs_ahead(comm):
    """The root of a broadcast waits for nobody, until there is no room."""
    x = np.zeros(1)
    if comm.rank == 0:
        for number in range(LAYOUT.slots):
            x[:] = number
            comm.broadcast(x, algorithm="shared")
    comm.barrier(algorithm="dissemination") if comm.rank == 0 else None
    if comm.rank:
        for number in range(LAYOUT.slots):
            comm.broadcast(x, algorithm="shared")
            assert x == number, number
        comm.barrier(algorithm="dissemination")


def test_a_root_runs_ahead():
    shared_spawn(3, runs_ahead)


def short(comm):
    x = np.ones(1)
    for _ in range(10):
        comm.all_reduce(x, x)
    comm.arrivals()
    comm.barrier(algorithm="dissemination")
    return comm.arrivals().calls


def test_one_of_many_short_calls_tells_who_came_last(monkeypatch):
    monkeypatch.setattr(late_calls, "SHORT_CALLS", 4)
    monkeypatch.setattr(late_calls, "SHORT_STRIDE", 3)
    # Those of 1 to 4, 6 and 9.
    assert shared_spawn(3, short) == [6, 6, 6]


def absent(comm):
    x = np.ones(2)
    comm.all_reduce(x, x)
    if comm.rank == 1:
        time.sleep(0.6)
        return
    with pytest.raises(TransportTimeout) as caught:
        comm.all_reduce(x, x, timeout_s=0.3)
    assert caught.value.peers == (1,)


def test_who_does_not_come_is_named():
    shared_spawn(3, absent)


def disagrees(comm):
    x = np.ones(2)
    with pytest.raises(InputError, match=r"rank 0 got .*op=max.*rank 1 got .*op=sum"):
        comm.all_reduce(x, x, "sum" if comm.rank else "max")


def test_ranks_that_disagree_are_told():
    shared_spawn(2, disagrees)


def dies(comm):
    x = np.ones(2)
    comm.all_reduce(x, x)
    if comm.rank == 1:
        raise RuntimeError("the end of rank 1")
    with pytest.raises(PeerFailed) as caught:
        comm.all_reduce(x, x)
    assert caught.value.rank == 1


def test_a_death_is_named():
    with pytest.raises(RuntimeError, match="the end of rank 1"):
        shared_spawn(3, dies)


def refused(comm):
    with pytest.raises(InputError, match="got ranks that share no memory"):
        comm.all_reduce(np.ones(1), np.ones(1), algorithm="shared")
    return comm.algorithms("all_reduce"), core_of(comm).shares_memory


def test_threads_of_spawn_share_none():
    names, shares = spawn(2, refused)[0]
    assert "shared" not in names
    assert not shares


def test_the_same_bits_of_what_has_no_order():
    """NaNs and signed zeros: the folds are canonical, and so are they here."""

    def zeros(comm):
        x = np.array([[-0.0, np.nan, 1.0], [0.0, 1.0, -np.nan], [0.0, 2.0, 3.0]])[comm.rank]
        out = np.empty(3)
        bits = []
        for op in ("sum", "min", "max"):
            comm.all_reduce(x, out, op)
            bits.append(out.tobytes())
        return bits

    first, *others = shared_spawn(3, zeros)
    assert all(other == first for other in others)


def test_a_wrapped_transport_shares_nothing():
    inner = LocalWorld(2).transport(0)
    inner.shares_memory = True
    assert not ShapedTransport(inner, Link(bandwidth_bytes_per_s=1e9)).shares_memory
