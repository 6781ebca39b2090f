"""Reductions on CUDA devices: the checks and the launches of the kernels of source.py (CUDA C) and numba_kernels.py.

Both implementations give the bits of the CPU's. LANTERNE_CUDA_KERNELS=numba chooses Numba's for the whole process, the
argument `implementation` for one call. Everything is ordered on a stream and returns before the device is done.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lanterne.errors import InputError, one_of
from lanterne.kernels.arrays import Array, Stream, device_array, import_cupy, require_device
from lanterne.kernels.cuda.compile import raw_kernel
from lanterne.kernels.cuda.source import (
    OPTIONS,
    THREADS_PER_BLOCK,
    VECTOR_NBYTES,
    divide_source,
    fold_source,
    multiply_source,
)
from lanterne.kernels.dtypes import LONG, Dtype, check_op, component_of, dtype_of, find_dtype, kernel_op

IMPLEMENTATIONS = ("cuda-c", "numba")
# Numba's kernels write out each lane of each input: of 32 inputs its compiler takes half a minute to several.
MOST_NUMBA_INPUTS = 8
# Four times what a multiprocessor holds at best: kernels of many inputs need more registers, so that only 4 to 6 blocks
# of 8 run at once, and with 8 the rest would run alone at the end. Of more, whoever is done takes the next.
BLOCKS_PER_MULTIPROCESSOR = 4 * 2048 // THREADS_PER_BLOCK


def reduce(
    op: str, out: Array, *inputs: Array, dtype: object = None, implementation: str | None = None, stream: Stream = None
) -> None:
    """out = out op inputs[0] op ... on the device of `out`; see `lanterne.kernels.reduce.reduce`.

    Args:
        implementation: "cuda-c", or "numba" (of up to MOST_NUMBA_INPUTS, others are CUDA C's); None for
            LANTERNE_CUDA_KERNELS, else "cuda-c".
        stream: a CuPy stream; None for the current one.

    Raises:
        InputError: as for host arrays; arrays on different devices, or not at a multiple of their element's size.
        Unavailable: no CuPy, driver or device; no Numba CUDA for "numba"; a CUDA that does not go with the driver.
    """
    _run(op, out, inputs, dtype, implementation, stream, in_place=True)


def fold(
    op: str, out: Array, *inputs: Array, dtype: object = None, implementation: str | None = None, stream: Stream = None
) -> None:
    """out = inputs[0] op inputs[1] op ... on the device of `out`; arguments and errors as for `reduce`."""
    if not inputs:
        raise InputError("fold: got no input, expected at least one")
    _run(op, out, inputs, dtype, implementation, stream, in_place=False)


def _run(
    op: str,
    out: Array,
    inputs: Sequence[Array],
    dtype: object,
    implementation: str | None,
    stream: Stream,
    *,
    in_place: bool,
) -> None:
    arrays, element = adopt_all(out, inputs, dtype)
    addresses = [array.data.ptr for array in arrays]
    if in_place:
        addresses.insert(0, addresses[0])
    with arrays[0].device:
        kernel = prepare(op, element, len(addresses) - 1, implementation)
        kernel(arrays[0].size, *addresses, stream=stream)


def divide(out: Array, divisor: float, dtype: object = None, stream: Stream = None) -> None:
    """out = out / divisor, rounded once, on the device of `out`; see `lanterne.kernels.reduce.divide`."""
    (array,), element = adopt_all(out, (), dtype)
    check_op("mean", element)
    if divisor == 0:
        raise InputError("divide: got a divisor of 0")
    with array.device:
        kernel = prepare_divide(element)
        kernel(array.size, array.data.ptr, array.data.ptr, float(divisor), stream=stream)


def multiply(out: Array, array: Array, factor: float, dtype: object = None, stream: Stream = None) -> None:
    """out = array * factor, rounded once, on the device of `out`; `factor` of `reduce.factor_of`."""
    (target, source), element = adopt_all(out, (array,), dtype)
    with target.device:
        kernel = prepare_multiply(element)
        kernel(target.size, target.data.ptr, source.data.ptr, factor, stream=stream)


def prepare_divide(dtype: object) -> "Kernel":
    """The kernel of `divide`, compiled for the device: `(count, out_address, in_address, divisor, stream=None)`."""
    return _kernel_with_number("divide", find_dtype(dtype), import_cupy().cuda.Device().id)


def prepare_multiply(dtype: object) -> "Kernel":
    """As prepare_divide, of `multiply`; the factor is a float, or of integers one of 64 bits with a sign."""
    return _kernel_with_number("multiply", find_dtype(dtype), import_cupy().cuda.Device().id)


def prepare(op: str, dtype: object, num_inputs: int, implementation: str | None = None) -> "Kernel":
    """Compile the kernel of `fold` for the current device and return it; see `lanterne.kernels.reduce.prepare`.

    The kernel is a function `(count, out_address, in0_address, ..., stream=None)` of device addresses (or addresses of
    pinned host memory, so that a message received into it is reduced without a copy to the device before). It has to be
    called with the device current on which it was prepared. A first call inside a CUDA graph capture would compile;
    prepare before.

    Cost: 0.1 s with CUDA C, 0.3 s and more with Numba; CuPy caches its part on disk.
    """
    require_device()
    return _fold_kernel(
        op, find_dtype(dtype), num_inputs, implementation_of(implementation), import_cupy().cuda.Device().id
    )


def implementation_of(name: str | None = None) -> str:
    """The implementation called `name`, or the process's own.

    Raises:
        InputError: no such implementation.
    """
    name = name or os.environ.get("LANTERNE_CUDA_KERNELS") or IMPLEMENTATIONS[0]
    if name not in IMPLEMENTATIONS:
        raise InputError(f"implementation: {one_of(name, IMPLEMENTATIONS)}")
    return name


def adopt_all(out: Array, inputs: Sequence[Array], dtype: object) -> tuple[list[Any], Dtype]:
    """([out, *inputs] as CuPy arrays, their Dtype), checked.

    Raises:
        InputError: see `reduce`.
    """
    arrays = [device_array(out, "out"), *(device_array(array, f"input {i}") for i, array in enumerate(inputs))]
    element = dtype_of(arrays[0], dtype, "out")
    check_arrays(arrays, element, dtype)
    return arrays, element


def check_arrays(arrays: Sequence[Any], element: Dtype, dtype: object) -> None:
    """Raise unless `arrays`, the output first, can be reduced together as elements of the Dtype `element`."""
    out = arrays[0]
    start, stop = out.data.ptr, out.data.ptr + out.nbytes
    for i, array in enumerate(arrays):
        name = f"input {i - 1}" if i else "out"
        address = array.data.ptr
        if address % element.nbytes:
            raise InputError(
                f"{name}: got address {address:#x}, expected a multiple of {element.nbytes} for {element.name}"
            )
        if array.device.id != out.device.id:
            raise InputError(
                f"{name}: got an array on device {array.device.id}, expected device {out.device.id} like the output"
            )
        if array.shape != out.shape:
            raise InputError(f"{name}: got shape {array.shape}, expected that of the output, {out.shape}")
        if dtype_of(array, dtype, name) is not element:
            raise InputError(f"{name}: got dtype {array.dtype.name}, expected that of the output, {element.name}")
        if address != start and address < stop and start < address + array.nbytes:
            raise InputError(f"{name}: overlaps the output by part; expected separate memory or the same array")


def head_count(addresses: Sequence[int], element_nbytes: int, count: int) -> int:
    """Elements before the first 16-byte boundary that all `addresses` share; `count` where they share none."""
    offset = addresses[0] % VECTOR_NBYTES
    # Complex numbers need but the alignment of their parts.
    if offset % element_nbytes or any(address % VECTOR_NBYTES != offset for address in addresses):
        return count
    return min(count, -offset % VECTOR_NBYTES // element_nbytes)


def num_blocks(count: int, head: int, element_nbytes: int, num_multiprocessors: int) -> int:
    """Blocks to launch: a thread for each vector or single element, up to BLOCKS_PER_MULTIPROCESSOR."""
    width = VECTOR_NBYTES // element_nbytes
    vectors = (count - head) // width
    threads = max(vectors, count - vectors * width, 1)
    return min(-(-threads // THREADS_PER_BLOCK), num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR)


class Kernel:
    """A compiled kernel on one device: `(count, out_address, *in_addresses, [divisor,] stream=None)` launches it."""

    def __init__(
        self,
        element_nbytes: int,
        num_arrays: int,
        num_multiprocessors: int,
        launch: Callable[..., None],
        each: int = 1,
    ):
        """`launch(num_blocks, count, head, arguments, stream)` starts it; `num_arrays` arguments are addresses.

        `each`: elements that are one of `count`, two of a complex number.
        """
        self.element_nbytes = element_nbytes
        self.num_arrays = num_arrays
        self.num_multiprocessors = num_multiprocessors
        self.launch = launch
        self.each = each

    def of_pairs(self) -> "Kernel":
        """The same for complex numbers, of two elements each."""
        return Kernel(self.element_nbytes, self.num_arrays, self.num_multiprocessors, self.launch, 2)

    def __call__(self, count: int, *arguments: Any, stream: Stream = None) -> None:
        count *= self.each
        if count == 0:
            return
        head = head_count(arguments[: self.num_arrays], self.element_nbytes, count)
        blocks = num_blocks(count, head, self.element_nbytes, self.num_multiprocessors)
        self.launch(blocks, count, head, arguments, stream)


@functools.cache
def _fold_kernel(op: str, element: Dtype, num_inputs: int, implementation: str, device_id: int) -> Kernel:
    op = kernel_op(op, element)
    if element.name in LONG:
        raise InputError(f"dtype: got {element.name} on a device, expected one that devices have")
    if num_inputs < 1:
        raise InputError(f"prepare: got {num_inputs} inputs, expected at least 1")
    if element.kind == "complex":
        if op == "sum":
            return _fold_kernel(op, component_of(element), num_inputs, implementation, device_id).of_pairs()
        # Numba's kernels have no pairs.
        implementation = "cuda-c"
    if implementation == "numba" and num_inputs <= MOST_NUMBA_INPUTS:
        from lanterne.kernels.cuda.numba_kernels import fold_launcher

        launch = fold_launcher(op, element, num_inputs, device_id)
    else:
        launch = _raw_launcher(fold_source(op, element, num_inputs), "fold", _in_a_structure)
    _load(launch, *[0] * (num_inputs + 1))
    return Kernel(element.nbytes, num_inputs + 1, _num_multiprocessors(device_id), launch)


@functools.cache
def _kernel_with_number(name: str, element: Dtype, device_id: int) -> Kernel:
    if element.kind == "complex":
        return _kernel_with_number(name, component_of(element), device_id).of_pairs()
    source = {"divide": divide_source, "multiply": multiply_source}[name]
    launch = _raw_launcher(source(element), name)
    _load(launch, 0, 0, 1.0 if element.kind == "float" else 1)
    return Kernel(element.nbytes, 2, _num_multiprocessors(device_id), launch)


def _load(launch: Callable[..., None], *arguments: float) -> None:
    """Launch a kernel with nothing to do.

    A device loads a kernel at its first launch and may wait for all streams then: for ever, if one of them waits for a
    peer that waits for this rank.
    """
    launch(1, 0, 0, arguments, import_cupy().cuda.Stream(non_blocking=True))


def _num_multiprocessors(device_id: int) -> int:
    return int(import_cupy().cuda.Device(device_id).attributes["MultiProcessorCount"])


def _raw_launcher(
    source: str, name: str, parameters: Callable[[tuple[object, ...]], tuple[object, ...]] = lambda arguments: arguments
) -> Callable[..., None]:
    """`parameters` makes the kernel's own of a call's arguments."""
    kernel = raw_kernel(source, name, OPTIONS)

    def launch(blocks: int, count: int, head: int, arguments: tuple[object, ...], stream: Stream) -> None:
        kernel((blocks,), (THREADS_PER_BLOCK,), (count, head, *parameters(arguments)), stream=stream)

    return launch


def _in_a_structure(addresses: tuple[object, ...]) -> tuple[object, ...]:
    """(out, one value that holds all input addresses): the parameters of fold_source's kernel."""
    inputs = np.array(addresses[1:], np.uint64)
    return addresses[0], inputs.view(f"V{inputs.nbytes}")
