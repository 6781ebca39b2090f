"""Loops in Python become one C function that stands alone."""

import ctypes
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from lanterne.kernels.cpu.from_python import ir_of, source_digest, text_of
from lanterne.kernels.cpu.jit import compile_ir

Numbers = NDArray[np.float64]
Ints = NDArray[np.int64]
LEAST = 0.5


def doubled(value: float) -> float:
    return 2 * value


def larger(value: float) -> float:
    return max(doubled(value), LEAST)


def scale(size: int, times: float, counts: Ints, out: Numbers) -> None:
    for index in range(size):
        if counts[index] > 1:
            out[index] = larger(times * out[index])
        else:
            out[index] = 1 / counts[index]


def test_a_kernel_with_what_it_calls():
    ir = ir_of(scale, (doubled, larger), Numbers)
    function = compile_ir(ir, [ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p])
    counts, out = np.array([2, 1, 2, 0]), np.array([1.0, 9.0, 0.01, 9.0])
    function(len(out), 3.0, counts.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out, [6.0, 1.0, 0.5, np.inf])
    expected = np.array([1.0, 9.0, 0.01])
    scale(3, 3.0, counts, expected)
    np.testing.assert_array_equal(out[:3], expected)


def test_its_text_says_nothing_else():
    ir = ir_of(scale, (doubled, larger), Numbers)
    assert ir.startswith("define i32 @kernel(i64 %arg.size, double %arg.times, ptr %arg.counts, ptr %arg.out)")
    assert not re.search(r"^(?:@|declare (?!.*@llvm))|attributes|target|retptr|excinfo|<\d+ x", ir, re.MULTILINE)


def test_numba_that_reads_its_environment_anew_makes_the_same(monkeypatch):
    """As it does once a variable of its has changed: it then made vectors of this processor."""
    before = ir_of(scale, (doubled, larger), Numbers)
    monkeypatch.setenv("NUMBA_DEVELOPER_MODE", "0")
    assert ir_of(scale, (doubled, larger), Numbers) == before


def test_what_was_set_of_numba_stays():
    from numba.core import config

    before = config.OPT
    ir_of(scale, (doubled, larger), Numbers)
    assert before == config.OPT
    with pytest.raises(Exception, match="larger"):
        ir_of(scale, (), Numbers)
    assert before == config.OPT


def test_a_text_says_of_what_it_is():
    made, source, ir = text_of(scale, (doubled, larger), Numbers).split("\n", 2)
    assert made.startswith("; numba ")
    assert source == f"; scale, sha256 {source_digest((scale,))}"
    assert ir == ir_of(scale, (doubled, larger), Numbers)
    assert source_digest((scale, ir_of)) != source_digest((scale,))
