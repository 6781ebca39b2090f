"""Matrix products on the CPU or a GPU, and whether they are right: how fast, and if at all, a worker computes.

Paper: GREYHOUND, computation validation; FP8 is left out, since CuPy has no product of it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError, Unavailable
from lanterne.kernels.arrays import import_cupy, on_stream, require_device

# NumPy's float16 product is a loop of its own, a thousand times slower than its float32 one.
DTYPES: dict[str, tuple[str, ...]] = {
    "cpu": ("float32", "float64"),
    "cuda": ("float16", "bfloat16", "float32", "float64"),
}
# cudaDataType_t; CuPy names it from version 14 on.
_CUDA_R_16BF = 14
# Elements are 0, 1 or -1, in this period: all sums stay exact in the accumulators, and no row equals its neighbours.
_PERIOD = 7

# Makes C, and tells the sums of its rows.
Product: TypeAlias = tuple[Callable[[], object], Callable[[], NDArray[np.float64]]]


def product(size: int, dtype: str, device: str = "cpu") -> tuple[Callable[[], object], Callable[[], int]]:
    """C = A B of (size, size) `matrices`: two functions, `multiply()` and `wrong_rows()`, how many rows of C are wrong.

    Args:
        dtype: one of DTYPES[device].
        device: "cpu" (NumPy's BLAS, as many threads as it is given) or "cuda" (CuPy's, on the current device and a
            stream of its own; `multiply` returns when the product is complete).

    Raises:
        InputError: no such device, dtype or size.
        Unavailable: no GPU, or no room on it.

    Cost: 2 size**3 operations; three matrices of memory.
    """
    if device not in DTYPES:
        raise InputError(f"device: got {device!r}, expected {' or '.join(DTYPES)}")
    if dtype not in DTYPES[device]:
        raise InputError(f"gemm on {device}: got dtype {dtype!r}, expected one of {', '.join(DTYPES[device])}")
    if size < 1:
        raise InputError(f"gemm: got size {size}, expected at least 1")
    multiply, row_sums = (_cpu if device == "cpu" else _cuda)(size, dtype)
    return multiply, lambda: count_wrong_rows(row_sums(), _allowed(dtype, size))


def matrices(size: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """A and B, (size, size) int8: whole numbers from -1 to 1 that depend on row and column."""
    row, column = np.ogrid[:size, :size]
    a = (3 * row + 5 * column) % _PERIOD % 3 - 1
    b = (2 * row + 4 * column) % _PERIOD % 3 - 1
    return a.astype(np.int8), b.astype(np.int8)


def count_wrong_rows(sums: NDArray[np.float64], allowed: float = 0.0) -> int:
    """How many of the row sums of C, (size,) float64, differ from A (B 1) by more than `allowed`.

    Every element of C counts in one of them. Row sums are exact in float64, but C itself is rounded in the 16-bit
    formats from 2048 (float16) or 256 (bfloat16) on, so there a row may be off by the rounding of its elements.
    """
    a, b = matrices(len(sums))
    expected = a.astype(np.float64) @ b.sum(axis=1, dtype=np.float64)
    return int((~(np.abs(sums - expected) <= allowed)).sum())


def _allowed(dtype: str, size: int) -> float:
    """What rounding may do to the sum of a row of C: half a unit in the last place of each of its elements."""
    exact_up_to = {"float16": 2048, "bfloat16": 256}.get(dtype)
    return 0.0 if exact_up_to is None or size <= exact_up_to else size * size / exact_up_to / 2


def _cpu(size: int, dtype: str) -> Product:
    a, b = (matrix.astype(dtype) for matrix in matrices(size))
    c = np.empty_like(a)
    return lambda: np.matmul(a, b, out=c), lambda: c.sum(axis=1, dtype=np.float64)


def _cuda(size: int, dtype: str) -> Product:
    require_device()
    cupy = import_cupy()
    try:
        cupy.cuda.cublas  # noqa: B018 (loads the library)
    except ImportError as error:
        raise Unavailable(f"gemm: no cuBLAS: {error}; install nvidia-cublas (CUDA 13) or nvidia-cublas-cu12") from error
    try:
        a, b = (_to_device(cupy, matrix, dtype) for matrix in matrices(size))
        c = cupy.empty_like(a)
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise Unavailable(f"gemm: no room for three matrices of {size} x {size} {dtype}: {error}") from error
    device, stream = cupy.cuda.Device(), cupy.cuda.Stream(non_blocking=True)
    device.synchronize()

    def multiply() -> None:
        # Another thread's current device may be another one.
        with device, on_stream(cupy, stream):
            if dtype == "bfloat16":
                _multiply_bfloat16(cupy, a, b, c, size)
            else:
                cupy.matmul(a, b, out=c)
        stream.synchronize()

    def row_sums() -> NDArray[np.float64]:
        with device:
            values = (c.astype(cupy.uint32) << 16).view(cupy.float32) if dtype == "bfloat16" else c
            return values.sum(axis=1, dtype=cupy.float64).get()

    return multiply, row_sums


def _to_device(cupy: Any, matrix: NDArray[np.int8], dtype: str) -> Any:
    """`matrix` on the device; bfloat16, which CuPy has no dtype for, as uint16."""
    if dtype != "bfloat16":
        return cupy.asarray(matrix.astype(dtype))
    return cupy.asarray((matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))


def _multiply_bfloat16(cupy: Any, a: Any, b: Any, c: Any, size: int) -> None:
    """C = A B by cuBLAS: column-major, so C^T = B^T A^T."""
    cublas, kind = cupy.cuda.cublas, _CUDA_R_16BF
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    cublas.gemmEx(
        cupy.cuda.Device().cublas_handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N, size, size, size, one.ctypes.data,
        b.data.ptr, kind, size, a.data.ptr, kind, size, zero.ctypes.data, c.data.ptr, kind, size,
        cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip
