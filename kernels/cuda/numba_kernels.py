"""The device reductions as Numba CUDA kernels: the same loops, the same bits as the CUDA C of source.py.

One function is written per (op, dtype, number of inputs). The element accesses come from lanes.py, whose
instructions give 16-byte loads and stores; in Numba's simulator (NUMBA_ENABLE_CUDASIM=1) NumPy does the same.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from lanterne.errors import Unavailable
from lanterne.kernels.arrays import Stream, import_cupy
from lanterne.kernels.cuda.lanes import SIMULATED, lanes_of, storage_of
from lanterne.kernels.cuda.source import THREADS_PER_BLOCK, VECTOR_NBYTES
from lanterne.kernels.dtypes import Dtype

_COMBINE = {
    **{"sum": "a + b", "prod": "a * b", "min": "min(a, b)", "max": "max(a, b)"},
    **{"band": "a & b", "bor": "a | b", "bxor": "a ^ b"},
    **{"land": "1 if a and b else 0", "lor": "1 if a or b else 0", "lxor": "1 if (a == 0) != (b == 0) else 0"},
}
# NaN first; of two zeros the negative one is the smaller.
_FLOAT_ORDER = {
    "min": "a if a != a or (b == b and (a < b or (a == b and copysign(1.0, a) < 0.0))) else b",
    "max": "a if a != a or (b == b and (a > b or (a == b and copysign(1.0, a) > 0.0))) else b",
}


@functools.cache
def load_numba_cuda() -> Any:
    """The module numba.cuda, complete.

    Raises:
        Unavailable: Numba CUDA is not installed, or does not go with this NumPy.
    """
    # Up to numba-cuda 0.30 it looks a name up, when it loads, that NumPy 2.5 has dropped.
    missing = not hasattr(np, "row_stack")
    if missing:
        np.row_stack = np.vstack
    try:
        from numba import cuda

        if not SIMULATED:
            for module in ("extending", "types", "cudaimpl", "np.arrayobj"):
                import_module(f"numba.cuda.{module}")
    except (ImportError, AttributeError) as error:
        raise Unavailable(
            f"Numba CUDA: {error}; install lanterne[cuda12] or lanterne[cuda13], or use cuda-c"
        ) from error
    finally:
        if missing:
            del np.row_stack
    return cuda


@functools.cache
def fold_function(op: str, dtype: Dtype, num_inputs: int) -> Callable[..., None]:
    """The Python function `fold(count, head, out, in0, in1, ...)` to be compiled by `numba.cuda.jit`; see fold_source.

    Args:
        op: "sum", "prod", "min", "max", or of integers "band", "bor", "bxor", "land", "lor", "lxor".
        dtype: a Dtype.
        num_inputs: int, at least 1.
    """
    cuda = load_numba_cuda()
    namespace: dict[str, Any] = {"cuda": cuda, "copysign": math.copysign, **lanes_of(dtype)._asdict()}
    exec(_source(op, dtype, num_inputs), namespace)
    namespace["combine"] = cuda.jit(device=True, inline="always")(namespace["combine"])
    fold: Callable[..., None] = namespace["fold"]
    return fold


def fold_signature(dtype: Dtype, num_inputs: int) -> tuple[Any, ...]:
    """The Numba types of the arguments of `fold_function`."""
    types: Any = import_module("numba.cuda.types")
    array = types.Array(getattr(types, storage_of(dtype).name), 1, "C")
    return (types.int64, types.int64, *[array] * (num_inputs + 1))


def fold_launcher(op: str, dtype: Dtype, num_inputs: int, device_id: int) -> Callable[..., None]:
    """Compile `fold_function` for a device and return `launch(num_blocks, count, head, addresses, stream)`.

    Raises:
        Unavailable: Numba CUDA is not installed, or lacks something to compile with, such as NVVM.
    """
    cuda = load_numba_cuda()
    try:
        with cuda.gpus[device_id]:
            kernel = cuda.jit(fold_signature(dtype, num_inputs))(fold_function(op, dtype, num_inputs))
    except Exception as error:
        # The kernel is known to compile, so it is the installation.
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise Unavailable(f"Numba CUDA cannot compile ({text}); install lanterne[cuda12] or [cuda13]") from error
    typestr = storage_of(dtype).str
    # Small arrays have small grids. Numba begins the message with a terminal's escape for bold.
    warnings.filterwarnings("ignore", message=".*Grid size .* will likely result in GPU under-utilization")

    def launch(blocks: int, count: int, head: int, addresses: Sequence[int], stream: Stream) -> None:
        # All of it: in a thread without a context Numba would make device 0's the thread's own.
        with cuda.gpus[device_id]:
            arrays = [cuda.as_cuda_array(NumbaView(address, count, typestr), sync=False) for address in addresses]
            kernel[blocks, THREADS_PER_BLOCK, _numba_stream(stream)](count, head, *arrays)

    return launch


def _numba_stream(stream: Stream) -> Any:
    from numba import cuda

    return cuda.external_stream((stream or import_cupy().cuda.get_current_stream()).ptr)


class NumbaView:
    """`count` elements at a device address, as any library sees them."""

    def __init__(self, address: int, count: int, typestr: str):
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (count,),
            "strides": None,
            "typestr": typestr,
            "version": 3,
        }


def _source(op: str, dtype: Dtype, num_inputs: int) -> str:
    width = VECTOR_NBYTES // dtype.nbytes
    names = [f"in{i}" for i in range(num_inputs)]
    body = []
    for i, name in enumerate(names):
        body.append(f"        v{i} = load_vector({name}, at)")
        if i:
            lanes = ", ".join(f"combine(s{i - 1}[{lane}], v{i}[{lane}])" for lane in range(width))
            body.append(f"        s{i} = ({lanes},)")
        else:
            body.append("        s0 = v0")
    one = ["        x0 = load_one(in0, at)"]
    one += [f"        x{i} = combine(x{i - 1}, load_one({name}, at))" for i, name in enumerate(names) if i]
    return "\n".join(
        [
            "def combine(a, b):",
            f"    return {(_FLOAT_ORDER if dtype.kind == 'float' else {}).get(op, _COMBINE[op])}",
            f"def fold(count, head, out, {', '.join(names)}):",
            f"    vectors = (count - head) // {width}",
            "    for i in range(cuda.grid(1), vectors, cuda.gridsize(1)):",
            f"        at = head + i * {width}",
            *body,
            f"        store_vector(out, at, s{num_inputs - 1})",
            f"    tail = head + vectors * {width}",
            "    for i in range(cuda.grid(1), head + count - tail, cuda.gridsize(1)):",
            "        at = i if i < head else tail + i - head",
            *one,
            f"        store_one(out, at, x{num_inputs - 1})",
        ]
    )
