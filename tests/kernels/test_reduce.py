"""Reductions on the CPU against oracles that do one operation at a time."""

import importlib.util
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.kernels.dtypes import DTYPES, OPS
from lanterne.kernels.reduce import divide, fold, prepare, reduce

_spec = importlib.util.spec_from_file_location("kernels_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

INTS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint")]
# Around the widest vector (256 elements for int8), so that each loop runs alone and after the other.
SIZES = [0, 1, 3, 15, 16, 17, 255, 257, 1000]
STEP = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def random_bits(dtype, count, seed):
    """Every second value is special, the others any bit pattern."""
    rng = np.random.default_rng(seed)
    bits = oracle.BITS[dtype]
    values = rng.integers(0, np.iinfo(bits).max, count, bits, endpoint=True)
    special = oracle.special_bits(dtype)
    return np.where(rng.random(count) < 0.5, special[rng.integers(0, len(special), count)], values)


def as_floats(bits, dtype):
    """`bits` as the array a user would pass."""
    return bits if dtype == "bfloat16" else bits.view(dtype)


@pytest.mark.parametrize("num_inputs", [1, 2, 7])
@pytest.mark.parametrize("op", STEP)
@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("count", SIZES)
def test_integers_are_exact(op, dtype, num_inputs, count):
    rng = np.random.default_rng(count)
    info = np.iinfo(dtype)
    arrays = [rng.integers(info.min, info.max, count, dtype, endpoint=True) for _ in range(num_inputs + 1)]
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected = STEP[op](expected, array)
    before = [array.copy() for array in arrays[1:]]
    reduce(op, *arrays)
    np.testing.assert_array_equal(arrays[0], expected)
    np.testing.assert_array_equal(arrays[1:], before)


@pytest.mark.parametrize("num_inputs", [1, 2, 7])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", oracle.FLOATS)
@pytest.mark.parametrize("count", SIZES)
def test_floats_are_exact_to_the_bit(op, dtype, num_inputs, count):
    arrays = [random_bits(dtype, count, seed) for seed in range(num_inputs + 1)]
    expected = oracle.fold_bits(op, dtype, arrays)
    reduce(op, *(as_floats(array, dtype) for array in arrays), dtype=dtype)
    np.testing.assert_array_equal(arrays[0], expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", oracle.FLOATS)
def test_all_pairs_of_special_values_commute(op, dtype):
    special = oracle.special_bits(dtype)
    left, right = (grid.ravel().copy() for grid in np.meshgrid(special, special))
    there, back = np.empty_like(left), np.empty_like(left)
    fold(op, as_floats(there, dtype), as_floats(left, dtype), as_floats(right, dtype), dtype=dtype)
    fold(op, as_floats(back, dtype), as_floats(right, dtype), as_floats(left, dtype), dtype=dtype)
    np.testing.assert_array_equal(there, back)
    np.testing.assert_array_equal(there, oracle.fold_bits(op, dtype, [left, right]))
    nans = np.isnan(oracle.widen(there, dtype))
    assert nans.any()
    assert set(there[nans]) == {oracle.NAN[dtype]}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_pattern_survives_widening_and_rounding(dtype):
    every = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty_like(every)
    fold("sum", as_floats(out, dtype), as_floats(every, dtype), dtype=dtype)
    nans = np.isnan(oracle.widen(every, dtype))
    np.testing.assert_array_equal(out, np.where(nans, oracle.NAN[dtype], every))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_round_once(dtype):
    # One, then many halves of its last place: rounding after each addition would drop them all.
    one, half_ulp = np.float32(1), np.float32(2.0 ** (-11 if dtype == "float16" else -8))
    inputs = [oracle.narrow(np.full(100, value, np.float32), dtype) for value in (one, *[half_ulp] * 8)]
    reduce("sum", *(as_floats(bits, dtype) for bits in inputs), dtype=dtype)
    np.testing.assert_array_equal(oracle.widen(inputs[0], dtype), one + 8 * half_ulp)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_stay_near_float64(data):
    dtype = data.draw(st.sampled_from(oracle.FLOATS))
    count = data.draw(st.integers(0, 300))
    num_inputs = data.draw(st.integers(1, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = [rng.standard_normal(count).astype(np.float32) for _ in range(num_inputs)]
    arrays = [oracle.narrow(value if dtype != "float64" else value.astype(np.float64), dtype) for value in values]
    exact = [oracle.widen(array, dtype).astype(np.float64) for array in arrays]
    out = np.empty(count, oracle.BITS[dtype])
    fold("sum", as_floats(out, dtype), *(as_floats(array, dtype) for array in arrays), dtype=dtype)
    unit = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}[dtype]
    roundings = 1 + num_inputs * 2**-13 if dtype in ("float16", "bfloat16") else num_inputs
    bound = 1.01 * roundings * unit * np.sum(np.abs(exact), axis=0) + 2.0**-24
    error = np.abs(oracle.widen(out, dtype).astype(np.float64) - np.sum(exact, axis=0))
    assert (error <= (bound if dtype != "float64" else bound - 2.0**-24 + 2.0**-50)).all()


@pytest.mark.parametrize("shift", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", "int64"])
def test_unaligned_addresses(dtype, shift):
    count = 301
    nbytes = count * DTYPES[dtype].nbytes
    rng = np.random.default_rng(shift)
    values = rng.integers(-9, 9, (3, count)).astype(dtype)
    memories = [bytearray(shift + i) + bytearray(values[i].tobytes()) + bytearray(8) for i in range(3)]
    arrays = [np.frombuffer(memory, dtype, count, shift + i) for i, memory in enumerate(memories)]
    reduce("sum", *arrays)
    np.testing.assert_array_equal(arrays[0], values.sum(axis=0).astype(dtype))
    assert memories[0][:shift] == bytes(shift)
    assert memories[0][shift + nbytes :] == bytes(8)


def test_fold_ignores_what_out_held():
    out = np.full(100, np.nan, np.float32)
    fold("max", out, np.ones(100, np.float32), np.zeros(100, np.float32))
    assert (out == 1).all()


@pytest.mark.parametrize("position", [0, 1, 2])
def test_out_may_be_any_input(position):
    arrays = [np.arange(1000, dtype=np.int32) * (i + 1) for i in range(3)]
    expected = sum(arrays)
    fold("sum", arrays[position], *arrays)
    np.testing.assert_array_equal(arrays[position], expected)


def test_one_array_may_be_several_inputs():
    out, x = np.ones(100, np.float64), np.full(100, 2.0)
    reduce("sum", out, x, x, x)
    assert (out == 7).all()


@pytest.mark.parametrize("op", ["min", "max"])
def test_bool_is_and_or(op):
    out, x = np.array([False, False, True, True]), np.array([False, True, False, True])
    reduce(op, out, x)
    assert out.tolist() == ([False, False, False, True] if op == "min" else [False, True, True, True])


def test_many_inputs():
    arrays = [np.full(1000, i, np.int64) for i in range(65)]
    reduce("sum", *arrays)
    assert (arrays[0] == 65 * 64 // 2).all()


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("dtype", oracle.FLOATS)
def test_divide_rounds_once(dtype, num_ranks):
    bits = random_bits(dtype, 500, num_ranks)
    values = oracle.widen(bits, dtype)
    with np.errstate(all="ignore"):
        expected = oracle.narrow(values / values.dtype.type(num_ranks), dtype)
    divide(as_floats(bits, dtype), num_ranks, dtype=dtype)
    np.testing.assert_array_equal(bits, expected)


def test_mean_in_two_partial_reductions():
    a, b, c, d = (np.full(10, value, np.float32) for value in (1, 2, 3, 6))
    reduce("mean", a, b)
    reduce("mean", c, d)
    reduce("mean", a, c)
    divide(a, 4)
    assert (a == 3).all()


def test_any_shape_and_scalars():
    x, y = np.ones((3, 4, 5), np.float32), np.ones((3, 4, 5), np.float32)
    reduce("sum", x, y)
    assert (x == 2).all()
    out = np.array(1.5)
    reduce("sum", out, np.array(2.0))
    assert out == 3.5


def test_memoryviews_and_read_only_inputs():
    memory = bytearray(b"\x01\x02\x03")
    reduce("sum", memory, b"\x01\x01\x01")
    assert memory == b"\x02\x03\x04"


def test_ml_dtypes_arrays_are_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is no dependency of ours")
    x = np.ones(100, ml_dtypes.bfloat16)
    reduce("sum", x, x.copy())
    assert (x == 2).all()


def test_mean_and_sum_share_their_kernels():
    assert prepare("sum", "bfloat16", 2) is prepare("mean", "bfloat16", 2)


def test_prepared_kernels_take_addresses():
    kernel = prepare("sum", "float32", 3)
    a, b, out = np.ones(77, np.float32), np.full(77, 2, np.float32), np.empty(77, np.float32)
    kernel(77, out.ctypes.data, a.ctypes.data, b.ctypes.data, b.ctypes.data)
    assert (out == 5).all()
    assert prepare("sum", np.dtype("float32"), 3) is kernel


def test_kernels_release_the_gil():
    kernel = prepare("sum", "float32", 9)
    x = np.zeros(1 << 24, np.float32)
    started, done, ticks = threading.Event(), threading.Event(), 0

    def work():
        started.set()
        kernel(x.size, *[x.ctypes.data] * 10)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    while not done.is_set():
        ticks += 1
        time.sleep(0)
    thread.join()
    # Were the GIL held, this thread would look a few times before the kernel, and then not again until its end.
    assert ticks > 100


def test_threads_compile_and_run_together():
    results = [None] * 8

    def work(i):
        out = np.zeros(1000, np.uint8)
        reduce("sum", out, *[np.ones(1000, np.uint8)] * (20 + i % 2))
        results[i] = set(out.tolist())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [{20 + i % 2} for i in range(8)]


X = np.zeros(8, np.float32)
LOCKED = np.zeros(8, np.float32)
LOCKED.flags.writeable = False
BAD = {
    "op": (lambda: reduce("average", X, X.copy()), "op: got 'average'.*expected one of sum, prod"),
    "dtype": (lambda: reduce("sum", X, X.astype(np.float64)), "input 0: got dtype float64.*output, float32"),
    "dtype of the second": (lambda: reduce("sum", X, X.copy(), X.astype("i4")), "input 1: got dtype int32"),
    "unknown dtype": (
        lambda: reduce("sum", X.astype("M8[s]"), X.astype("M8[s]")),
        r"dtype: got dtype\('<M8\[s\]'\), expected one of",
    ),
    "named dtype": (lambda: reduce("sum", X, X.copy(), dtype="bfloat16"), "out: got dtype float32, expected bfloat16"),
    "shape": (
        lambda: reduce("sum", X, X[:4].copy()),
        r"input 0: got shape \(4,\), expected that of the output, \(8,\)",
    ),
    "strided out": (lambda: reduce("sum", X[::2], X[:4].copy()), "out: got a non-contiguous array"),
    "strided input": (lambda: reduce("sum", X[:4].copy(), X[::2]), "input 0: got a non-contiguous array"),
    "read-only": (lambda: reduce("sum", LOCKED, X), "out: got a read-only array, expected a writable one"),
    "overlap": (lambda: reduce("sum", X[:4], X[1:5]), "input 0: overlaps the output"),
    "no array": (lambda: reduce("sum", X, [1.0] * 8), "input 0: got list, expected an array"),
    "no inputs": (lambda: fold("sum", X), "got no input"),
    "mean of ints": (lambda: reduce("mean", X.astype("i4"), X.astype("i4")), "got mean of int32, expected one of"),
    "least complex number": (lambda: reduce("min", X * 1j, X * 1j), "got min of complex64"),
    "divide ints": (lambda: divide(np.ones(3, np.int8), 2), "got mean of int8"),
    "divide by zero": (lambda: divide(X, 0), "got a divisor of 0"),
    "prepare no inputs": (lambda: prepare("sum", "int8", 0), "got 0 inputs, expected at least 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, message = BAD[case]
    with pytest.raises(InputError, match=message):
        call()
