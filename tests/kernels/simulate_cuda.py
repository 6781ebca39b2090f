"""Runs the Numba CUDA kernels in Numba's simulator and compares them, bit by bit, with the CPU kernels.

Started by test_cuda_kernels.py in a process of its own, with NUMBA_ENABLE_CUDASIM=1: simulator and compiler exclude
each other. Prints the number of cases; exits 1 at the first difference.
"""

import sys

import numpy as np
from numba import cuda

from lanterne.kernels.cuda.lanes import SIMULATED, storage_of
from lanterne.kernels.cuda.numba_kernels import fold_function
from lanterne.kernels.dtypes import DTYPES
from lanterne.kernels.reduce import prepare


def inputs_of(dtype, num_inputs, count):
    """Random bit patterns, so NaNs, infinities, subnormals and both zeros come up; bools are 0 or 1."""
    rng = np.random.default_rng(count)
    nbytes = rng.integers(0, 256, (num_inputs, count * dtype.nbytes), np.uint8)
    bits = nbytes.view(f"u{dtype.nbytes}")
    special = np.array([0, 1, 1 << (8 * dtype.nbytes - 1), (1 << 8 * dtype.nbytes) - 1], bits.dtype)
    if dtype.kind == "bool":
        return [row & 1 for row in bits]
    return [np.where(rng.random(count) < 0.4, special[rng.integers(0, 4, count)], row) for row in bits]


def check(op, dtype, num_inputs, count, head):
    storage = storage_of(dtype)
    arrays = [bits.view(storage) for bits in inputs_of(dtype, num_inputs, count)]
    expected, out = np.zeros(count, storage), np.zeros(count, storage)
    prepare(op, dtype, num_inputs)(count, expected.ctypes.data, *(array.ctypes.data for array in arrays))
    with np.errstate(all="ignore"):
        cuda.jit(fold_function(op, dtype, num_inputs))[2, 3](count, head, out, *arrays)
    if (out.view(f"u{dtype.nbytes}") != expected.view(f"u{dtype.nbytes}")).any():
        print(f"{op} {dtype.name} k={num_inputs} count={count} head={head}: got {out}, expected {expected}")
        sys.exit(1)


def main():
    if not SIMULATED:
        sys.exit("NUMBA_ENABLE_CUDASIM=1 is not set")
    num_cases = 0
    for dtype in DTYPES.values():
        for op in ("min", "max") if dtype.kind == "bool" else ("sum", "prod", "min", "max"):
            width = 16 // dtype.nbytes
            # Vectors alone; a head and a tail; no common alignment; a single element.
            for num_inputs, count, head in (
                (2, 4 * width, 0),
                (3, 5 * width + 3, min(1, width - 1)),
                (2, 7, 7),
                (1, 1, 0),
            ):
                check(op, dtype, num_inputs, count, head)
                num_cases += 1
    print(num_cases)


if __name__ == "__main__":
    main()
