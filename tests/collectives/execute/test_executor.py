"""Algorithm x transport x dtype x size x ranks: the executor on real transports, exact, bit-identical, accurate."""

import functools
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_calls import random_calls

import lanterne
from lanterne.collectives.algorithms.catalogue import algorithms_for
from lanterne.collectives.auto import pacing
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import spawn
from lanterne.errors import InputError, TransportError
from lanterne.kernels.reduce import divide
from lanterne.transport.base import Capabilities
from lanterne.transport.local import LocalWorld
from lanterne.transport.shaped import Link, ShapedTransport

SIZES = {"0B": 0, "8B": 8, "1000B": 1000, "1MiB": 1 << 20}
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint64"]
ALL_REDUCE = [line.name for line in algorithms_for("all_reduce")]
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}


def on_shaped(comm, function, *args):
    """Run `function` over emulated links, on a communicator of its own."""
    shaped = ShapedTransport(comm.transport, Link(20e-6, 2e9))
    return function(Communicator(shaped, communicator_id=7), *args)


def spawn_on(transport, n, function, *args):
    return spawn(n, function, *args) if transport == "local" else spawn(n, on_shaped, function, *args)


def cases():
    """Every algorithm in a few sizes and ranks; every dtype on one algorithm."""
    for name in ALL_REDUCE:
        line = next(line for line in algorithms_for("all_reduce") if line.name == name)
        for n in (1, 2, 3, 8):
            if not line.refuses(n):
                for size in ("8B", "1000B"):
                    yield name, "local", "float32", size, n
        yield name, "local", "float32", "1MiB", 4
        yield name, "shaped", "float32", "1000B", 4
    for dtype in DTYPES:
        for size in SIZES:
            yield "ring", "local", dtype, size, 3
    yield "ring", "local", "float16", "1MiB", 4


def to_float(array, dtype):
    """The values of `array`, whose uint16 are bfloat16 where that is the dtype."""
    if dtype != "bfloat16":
        return array.astype(np.float64)
    return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def random_array(rank, count, dtype):
    rng = np.random.default_rng([rank, count])
    if dtype == "bfloat16":
        return (rng.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.startswith("float"):
        return rng.standard_normal(count).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, count, dtype=dtype)


def all_reduce(comm, algorithm, dtype, count, op="sum", **options):
    array = random_array(comm.rank, count, dtype)
    out = np.zeros_like(array)
    comm.all_reduce(array, out, op, algorithm=algorithm, dtype=dtype, **options)
    in_place = array.copy()
    comm.all_reduce(in_place, in_place, op, algorithm=algorithm, dtype=dtype, **options)
    assert in_place.tobytes() == out.tobytes()
    return out


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{'-'.join(map(str, case[:4]))}-p{case[4]}")
def test_all_reduce(case):
    algorithm, transport, dtype, size, n = case
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    count = SIZES[size] // itemsize
    results = spawn_on(transport, n, all_reduce, algorithm, dtype, count)
    inputs = [random_array(rank, count, dtype) for rank in range(n)]
    assert len({result.tobytes() for result in results}) == 1
    if dtype in EPSILON:
        values = np.array([to_float(array, dtype) for array in inputs]).reshape(n, count)
        # Each of the n - 1 additions rounds by at most half an epsilon of a partial sum.
        tolerance = (n - 1) * EPSILON[dtype] * np.abs(values).sum(axis=0)
        assert (np.abs(to_float(results[0], dtype) - values.sum(axis=0)) <= tolerance).all()
    else:
        np.testing.assert_array_equal(results[0], functools.reduce(np.add, inputs))


@pytest.mark.parametrize(
    ("algorithm", "n"),
    [*product(["ring", "recursive_doubling", "tree"], [33]), ("allpairs", 16)],
)
def test_many_ranks(algorithm, n):
    results = spawn(n, all_reduce, algorithm, "int64", 100)
    total = functools.reduce(np.add, [random_array(rank, 100, "int64") for rank in range(n)])
    np.testing.assert_array_equal(results, [total] * n)


@pytest.mark.parametrize(
    ("algorithm", "n"),
    [*((name, 8) for name in ALL_REDUCE), ("recursive_doubling", 32)],
)
def test_float32_error_is_near_that_of_pairwise_summation(algorithm, n):
    count = 100_000 if n == 8 else 20_000
    inputs = np.array([random_array(rank, count, "float32") for rank in range(n)])
    exact = inputs.astype(np.float64).sum(axis=0)
    pairwise = np.abs(np.add.reduce(np.ascontiguousarray(inputs.T), axis=1) - exact).max()
    result = spawn(n, all_reduce, algorithm, "float32", count)[0]
    assert np.abs(result - exact).max() <= 4 * pairwise


@pytest.mark.parametrize("algorithm", ALL_REDUCE)
def test_runs_give_the_same_bits(algorithm):
    runs = {spawn(4, all_reduce, algorithm, "float32", 5000)[0].tobytes() for _ in range(3)}
    assert len(runs) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("algorithm", ["ring", "rhd", "recursive_doubling", "tree"])
def test_mean_is_the_sum_divided(algorithm, dtype):
    """Bit for bit: the division rounds once, on whoever completed the sum."""
    sums = spawn(4, all_reduce, algorithm, dtype, 999)
    means = spawn(4, all_reduce, algorithm, dtype, 999, "mean")
    expected = sums[0].copy()
    divide(expected, 4, dtype=dtype)
    assert all(mean.tobytes() == expected.tobytes() for mean in means)


def with_late_rank(comm, algorithm, late_rank):
    if comm.rank == late_rank:
        time.sleep(0.05)
    return all_reduce(comm, algorithm, "int64", 5000, late_rank=late_rank)


@pytest.mark.parametrize("late_rank", [0, 3])
@pytest.mark.parametrize("algorithm", [line.name for line in algorithms_for("all_reduce") if line.late])
def test_late_ranks_join(algorithm, late_rank):
    total = functools.reduce(np.add, [random_array(rank, 5000, "int64") for rank in range(4)])
    np.testing.assert_array_equal(spawn(4, with_late_rank, algorithm, late_rank), [total] * 4)


def test_segments_and_credits_can_be_chosen():
    total = functools.reduce(np.add, [random_array(rank, 3001, "int64") for rank in range(3)])
    options = {"segment_nbytes": 512, "credits": 2}
    results = spawn(3, lambda comm: all_reduce(comm, "ring", "int64", 3001, **options))
    np.testing.assert_array_equal(results, [total] * 3)


def any_collective(comm, collective, algorithm, count, op, root):
    """Run it, check the result and that the input is as it was; returns nothing."""
    n, me = comm.world_size, comm.rank
    combine = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    larger = n * count if collective in ("reduce_scatter", "all_to_all") else count
    inputs = [random_array(rank, larger, "int32") for rank in range(n)]
    mine = inputs[me].copy()
    total, part = functools.reduce(combine, inputs), slice(me * count, (me + 1) * count)
    if collective == "broadcast":
        comm.broadcast(mine, root, algorithm=algorithm)
        np.testing.assert_array_equal(mine, inputs[root])
        return
    out = np.full({"all_gather": n * count, "all_to_all": n * count}.get(collective, count), -1, np.int32)
    if collective == "all_gather":
        comm.all_gather(mine, out, algorithm=algorithm)
        expected = np.concatenate(inputs)
    elif collective == "all_to_all":
        comm.all_to_all(mine, out, algorithm=algorithm)
        expected = np.concatenate([array[part] for array in inputs])
    elif collective == "reduce_scatter":
        comm.reduce_scatter(mine, out, op, algorithm=algorithm)
        expected = total[part]
    else:
        comm.reduce(mine, out, root, op, algorithm=algorithm)
        expected = total if me == root else np.full(count, -1)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(mine, inputs[me])


OTHERS = ["reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(collective, line.name) for collective in OTHERS for line in algorithms_for(collective)],
)
@settings(max_examples=10, deadline=None)
@given(
    n=st.sampled_from([1, 2, 3, 4, 6, 8]),
    count=st.integers(0, 3000),
    op=st.sampled_from(["sum", "prod", "min", "max"]),
    data=st.data(),
)
def test_other_collectives(collective, algorithm, n, count, op, data):
    line = next(line for line in algorithms_for(collective) if line.name == algorithm)
    if line.refuses(n):
        with pytest.raises(InputError, match=algorithm):
            spawn(n, any_collective, collective, algorithm, count, op, 0)
        return
    spawn(n, any_collective, collective, algorithm, count, op, data.draw(st.integers(0, n - 1)))


@pytest.mark.parametrize(("n", "seed"), [(2, 0), (3, 1), (4, 2), (5, 3)])
def test_random_calls(n, seed):
    spawn(n, random_calls, 60, seed)


def in_place(comm, count):
    n, me = comm.world_size, comm.rank
    inputs = [random_array(rank, n * count, "int32") for rank in range(n)]
    part = slice(me * count, (me + 1) * count)
    array = inputs[me].copy()
    comm.reduce_scatter(array, array[part])
    expected = inputs[me].copy()
    expected[part] = sum(inputs)[part]
    np.testing.assert_array_equal(array, expected)
    array = np.full(n * count, -1, np.int32)
    array[part] = inputs[me][part]
    comm.all_gather(array[part], array)
    np.testing.assert_array_equal(
        array, np.concatenate([inputs[rank][rank * count : (rank + 1) * count] for rank in range(n)])
    )
    array = inputs[me].copy()
    comm.all_to_all(array, array)
    np.testing.assert_array_equal(array, np.concatenate([inputs[rank][part] for rank in range(n)]))


@pytest.mark.parametrize("count", [1, 1000])
def test_in_place_parts(count):
    spawn(4, in_place, count)


def many_segments(comm):
    """One segment is 64 bytes: hundreds in flight."""
    return all_reduce(comm, "ring", "int64", 3001)


def test_many_segments(monkeypatch):
    monkeypatch.setattr(pacing, "SEGMENT_NBYTES", 64)
    total = functools.reduce(np.add, [random_array(rank, 3001, "int64") for rank in range(3)])
    np.testing.assert_array_equal(spawn(3, many_segments), [total] * 3)


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [
        (Capabilities(host_memory=False), "cannot send host memory"),
        (Capabilities(max_message_nbytes=10), "got a message of 16 bytes"),
    ],
)
def test_capabilities_are_checked_before_the_first_byte(capabilities, message):
    transport = LocalWorld(2).transport(0)
    transport.capabilities = capabilities
    with pytest.raises(TransportError, match=message):
        Communicator(transport).start_all_reduce(np.zeros(4), np.zeros(4), algorithm="ring")
    sent = [key for key in transport.world.unmatched if key[2] & 0xFF >= 64]
    assert sent == []


def test_public_names():
    assert lanterne.spawn is spawn and lanterne.Communicator is Communicator
