"""Calls that are bound to their arrays: the same as the methods', again and again."""

import numpy as np
import pytest

from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.cost import CostModel
from lanterne.errors import InputError, TransportError

COUNT = 12
# Input, output, and what comes out of the ranks' inputs, of n ranks.
CASES = {
    "all_reduce": (COUNT, COUNT, lambda inputs, me: sum(inputs)),
    "reduce_scatter": (COUNT, COUNT // 3, lambda inputs, me: sum(inputs).reshape(3, -1)[me]),
    "all_gather": (COUNT, 3 * COUNT, lambda inputs, me: np.concatenate(inputs)),
    "all_to_all": (COUNT, COUNT, lambda inputs, me: np.concatenate([x.reshape(3, -1)[me] for x in inputs])),
    "reduce": (COUNT, COUNT, lambda inputs, me: sum(inputs) if me == 0 else None),
}


def repeated(comm, collective):
    """Bound on the even ranks, the method on the others: ranks may mix the two."""
    count, out_count, expected = CASES[collective]
    x, y = np.empty(count, np.int64), np.empty(out_count, np.int64)
    bound = comm.bind(collective, x, y)
    for number in range(4):
        inputs = [np.arange(count) + 100 * rank + number for rank in range(3)]
        x[:] = inputs[comm.rank]
        y[:] = -1
        if comm.rank == 1:
            getattr(comm, collective)(x, y)
        elif number % 2:
            bound.start().wait()
        else:
            bound()
        wanted = expected(inputs, comm.rank)
        assert wanted is None or (y == wanted).all(), number


@pytest.mark.parametrize("collective", CASES)
def test_repeated(collective):
    spawn(3, repeated, collective)


def rooted(comm):
    x = np.full(5, comm.rank)
    call = comm.bind("broadcast", x, root=2)
    for number in range(3):
        x[:] = comm.rank + number
        call()
        assert (x == 2 + number).all(), number
    comm.bind("barrier", np.empty(0, np.uint8), np.empty(0, np.uint8))()


def test_broadcast_and_barrier():
    spawn(3, rooted)


def asks_anew(comm):
    """By another model, as by the first, late ranks are found out."""
    x, y = np.ones(1 << 16, np.float32), np.empty(1 << 16, np.float32)
    call = comm.bind("all_reduce", x, y)
    calls = []
    for model in (CostModel(1e-4, 1 / 5e6), CostModel(1e-4, 1 / 6e6)):
        comm.tuning.adopt(model, "test")
        for _ in range(3):
            call()
            assert (y == 4).all(), model
        comm.barrier()
        calls.append(comm.arrivals().calls)
    return calls


def test_late_ranks_are_found_out():
    assert all(3 <= first < second for first, second in spawn(4, asks_anew))


def refused(comm):
    x = np.ones(4)
    for words in (("all_reduce", x, np.ones(5)), ("nothing", x, x), ("all_reduce", x, None), ("all_reduce", x, x[:2])):
        with pytest.raises(InputError):
            comm.bind(*words)
    call = comm.bind("all_reduce", x, x)
    comm.close()
    with pytest.raises(TransportError, match="closed"):
        call()


def test_what_cannot_be():
    spawn(1, refused)
