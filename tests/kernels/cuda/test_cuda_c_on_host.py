"""The logic of the CUDA C kernels, run on the host: the same text, compiled as C++, one thread after the other."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

from evaluation.gpu.occupancy import OPS
from lanterne.kernels.cuda.reduce_on_device import head_count
from lanterne.kernels.cuda.source import divide_source, fold_source, multiply_source
from lanterne.kernels.dtypes import COMPLEX, DTYPES, find_dtype, has_op, kernel_op
from lanterne.kernels.reduce import divide, factor_of, multiply, prepare

# Of bools only what they are reduced by, and of complex numbers what is not of their parts.
ALL_CASES = [
    *((name, op) for name, dtype in DTYPES.items() for op in OPS if has_op(op, dtype) and kernel_op(op, dtype) == op),
    *((name, "prod") for name in COMPLEX),
]
# Bits and truth values are the same text for all integers.
OF_BITS = ("int8", "uint64", "bool")
CASES = [(name, op) for name, op in ALL_CASES if name in OF_BITS or op in OPS[:4]]
SUMMED = [name for name, op in CASES if op == "sum"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
NUMBERS = [name for name, dtype in DTYPES.items() if dtype.kind != "bool"]
NUM_INPUTS = 3
# One group, one with a rest, and groups in a loop without one and with one.
MANY_INPUTS = (1, 8, 9, 13, 16, 20, 31, 32)
UP_TO_32 = range(1, 33)
PRELUDE = """
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct Dim { int x; };
static Dim blockIdx, threadIdx, blockDim = {3}, gridDim = {2};
template <class To, class From> To bits_as(From from) { To to; memcpy(&to, &from, sizeof to); return to; }
static float __uint_as_float(unsigned int x) { return bits_as<float>(x); }
static unsigned int __float_as_uint(float x) { return bits_as<unsigned int>(x); }
static int __float_as_int(float x) { return bits_as<int>(x); }
static double __longlong_as_double(long long x) { return bits_as<double>(x); }
static long long __double_as_longlong(double x) { return bits_as<long long>(x); }
static float from_half(unsigned short x) { return (float)bits_as<_Float16>(x); }
static unsigned short to_half(float x) { return bits_as<unsigned short>((_Float16)x); }
"""
ARITHMETIC = re.compile(r'asm\("(\w+)\.rn\.f32 %0, %1, %2;" : "=f"\(found\) : "f"\(a\), "f"\(b\)\);')
SYMBOLS = {"add": "+", "mul": "*", "div": "/"}
LAUNCH = """
for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
"""


def as_cpp(name, source, call):
    """`source` in a namespace of its own, with a C function `name` that runs every thread of a launch."""
    source = source.replace('asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));', "value = from_half(bits);")
    source = source.replace('asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));', "bits = to_half(value);")
    source = ARITHMETIC.sub(lambda found: f"found = a {SYMBOLS[found[1]]} b;", source)
    assert "asm(" not in source
    source = source.replace('extern "C" __global__', "static")
    function = (
        f'extern "C" void {name}(long long count, long long head, void** p, double number) {{ {LAUNCH} {call}; }}'
    )
    return f"namespace {name}_space {{ {source} {function} }}\n"


def fold_text(function, name, op, num_inputs):
    pointers = ", ".join(f"(const Bits*)p[{i + 1}]" for i in range(num_inputs))
    call = f"fold(count, head, (Bits*)p[0], Inputs{{{{{pointers}}}}})"
    return "#undef COMBINED\n" + as_cpp(function, fold_source(op, find_dtype(name), num_inputs), call)


def compiled(folder, texts):
    """The functions of as_cpp, as a library."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here to run CUDA C on the host")
    (folder / "kernels.cpp").write_text(PRELUDE + "".join(texts))
    command = [compiler, "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-std=c++17"]
    subprocess.run([*command, folder / "kernels.cpp", "-o", folder / "kernels.so"], check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    texts = [fold_text(f"{op}_{name}", name, op, NUM_INPUTS) for name, op in CASES]
    texts += [fold_text(f"sum_{name}_{count}", name, "sum", count) for name in SUMMED for count in MANY_INPUTS]
    for kernel, source, names in (("divide", divide_source, FLOATS), ("multiply", multiply_source, NUMBERS)):
        for name in names:
            call = f"{kernel}(count, head, (Bits*)p[0], (const Bits*)p[1], number)"
            texts.append(as_cpp(f"{kernel}_{name}", source(DTYPES[name]), call))
    return compiled(tmp_path_factory.mktemp("cuda_c"), texts)


@pytest.fixture(scope="module")
def swept(request, tmp_path_factory):
    """(dtype, op, the library of its folds of 1 to 32 inputs)."""
    name, op = request.param
    texts = [fold_text(f"{op}_{name}_{count}", name, op, count) for count in UP_TO_32]
    return name, op, compiled(tmp_path_factory.mktemp("cuda_c"), texts)


def random_bits(dtype, count, seed):
    """Bit patterns of elements, half of them zeros, ones or all bits set, in memory aligned to 64 bytes."""
    rng = np.random.default_rng(seed)
    memory = np.zeros(count * dtype.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    bits = memory[start : start + count * dtype.nbytes].view(f"u{min(dtype.nbytes, 8)}")
    bits.view(np.uint8)[:] = rng.integers(0, 256, count * dtype.nbytes, np.uint8)
    width = 8 * bits.itemsize
    special = np.array([0, 1, 1 << (width - 1), (1 << width) - 1], bits.dtype)
    chosen = rng.random(bits.size) < 0.5
    bits[chosen] = special[rng.integers(0, 4, bits.size)][chosen]
    if dtype.kind == "bool":
        bits &= 1
    return bits


def launch(library, name, count, head, arrays, number=1.0):
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    getattr(library, name)(ctypes.c_longlong(count), ctypes.c_longlong(head), pointers, ctypes.c_double(number))


@pytest.mark.parametrize("shifts", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize(("name", "op"), CASES)
def test_fold_gives_the_bits_of_the_cpu(library, name, op, shifts):
    dtype = find_dtype(name)
    for count in (0, 1, 5, 203):
        # A complex number may lie where a float may.
        arrays = [random_bits(dtype, count + shift, i)[shift:] for i, shift in enumerate(shifts)]
        arrays = [array[: count * dtype.nbytes // array.itemsize] for array in arrays]
        head = head_count([array.ctypes.data for array in arrays], dtype.nbytes, count)
        expected = np.zeros_like(arrays[0])
        prepare(op, dtype, NUM_INPUTS)(count, expected.ctypes.data, *(array.ctypes.data for array in arrays[1:]))
        launch(library, f"{op}_{name}", count, head, arrays)
        np.testing.assert_array_equal(arrays[0], expected, err_msg=f"{count} elements")


def check_many(library, name, op, shifts):
    """The bits of the kernel `op`_`name`_K of an output and K inputs, each shifted by so many elements."""
    dtype, num_inputs = find_dtype(name), len(shifts) - 1
    arrays = [random_bits(dtype, 203 + shift, i)[shift:] for i, shift in enumerate(shifts)]
    arrays = [array[: 203 * dtype.nbytes // array.itemsize] for array in arrays]
    head = head_count([array.ctypes.data for array in arrays], dtype.nbytes, 203)
    expected = np.zeros_like(arrays[0])
    prepare(op, dtype, num_inputs)(203, expected.ctypes.data, *(array.ctypes.data for array in arrays[1:]))
    launch(library, f"{op}_{name}_{num_inputs}", 203, head, arrays)
    np.testing.assert_array_equal(arrays[0], expected)


@pytest.mark.parametrize("are_aligned", [True, False])
@pytest.mark.parametrize("num_inputs", MANY_INPUTS)
@pytest.mark.parametrize("name", SUMMED)
def test_folds_of_many_inputs_give_the_bits_of_the_cpu(library, name, num_inputs, are_aligned):
    check_many(library, name, "sum", [0] * (num_inputs + 1) if are_aligned else range(num_inputs + 1))


@pytest.mark.slow
@pytest.mark.parametrize("are_aligned", [True, False])
@pytest.mark.parametrize("num_inputs", UP_TO_32)
@pytest.mark.parametrize("swept", ALL_CASES, indirect=True, ids="-".join)
def test_all_folds_of_1_to_32_inputs_give_the_bits_of_the_cpu(swept, num_inputs, are_aligned):
    name, op, library = swept
    check_many(library, name, op, [0] * (num_inputs + 1) if are_aligned else range(num_inputs + 1))


@pytest.mark.parametrize("name", FLOATS)
def test_divide_gives_the_bits_of_the_cpu(library, name):
    dtype = DTYPES[name]
    bits = random_bits(dtype, 203, 7)
    expected = bits.copy()
    divide(expected if name == "bfloat16" else expected.view(name), 3, dtype=name)
    launch(library, f"divide_{name}", bits.size, 0, [bits, bits], 3.0)
    np.testing.assert_array_equal(bits, expected)


@pytest.mark.parametrize("name", NUMBERS)
def test_multiply_gives_the_bits_of_the_cpu(library, name):
    dtype, factor = DTYPES[name], 0.3 if name in FLOATS else 3
    bits = random_bits(dtype, 203, 8)
    expected = bits.copy() if name == "bfloat16" else bits.copy().view(name)
    multiply(expected, expected, factor, dtype=name)
    launch(library, f"multiply_{name}", bits.size, 0, [bits, bits], factor_of(factor, dtype))
    np.testing.assert_array_equal(bits, expected.view(bits.dtype))


def test_factors_of_integers_wrap_as_their_products_do():
    assert factor_of(2**64 - 1, DTYPES["uint64"]) == -1
    assert factor_of(-3, DTYPES["int8"]) == -3
