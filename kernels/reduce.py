"""Reductions: out = in0 op in1 op ..., in one pass over memory, in that order, with canonical results.

Whoever combines the same values gets the same bits, whichever operand comes first and on whichever device: NaN results
are one NaN per dtype, -0 < +0 in min and max, NaN wins in min and max, 16-bit floats are combined in float32 and
rounded once per call, integers wrap around as in NumPy; of bools + is or and * is and.

`mean` is `sum` in every partial reduction; whoever holds the complete sum calls `divide(out, world_size)`, once per
element.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from lanterne.errors import InputError
from lanterne.kernels.arrays import Array, HostArray, address_of, host_array, is_device_array, told_dtype
from lanterne.kernels.cpu.jit import divide_function, fold_function, multiply_function
from lanterne.kernels.dtypes import Dtype, check_op, dtype_of, find_dtype, kernel_op


def reduce(op: str, out: Array, *inputs: Array, dtype: object = None) -> None:
    """out = out op inputs[0] op inputs[1] op ...

    Args:
        op: of dtypes.OPS ("mean" sums; see `divide`), or of integers and bools also of BITWISE_OPS and LOGICAL_OPS.
        out: C-contiguous array of any shape, host or device, at any byte address; changed in place.
        inputs: arrays like `out`; none of them may overlap it.
        dtype: name of the element type where the arrays cannot say it: "bfloat16" for uint16 arrays.

    Raises:
        InputError: unknown op or dtype, an op that the dtype does not have, arrays that differ in dtype, shape or
            device, that are not contiguous or overlap, or a read-only `out`.

    Cost: reads each array once, writes `out` once; 2 us of call overhead for small arrays.
    """
    if is_device_array(out):
        _cuda().reduce(op, out, *inputs, dtype=dtype)
    else:
        _fold_host(op, out, inputs, dtype, in_place=True)


def fold(op: str, out: Array, *inputs: Array, dtype: object = None) -> None:
    """out = inputs[0] op inputs[1] op ...; what `out` held before is not read, unless it is itself one of the inputs.

    Arguments and errors as for `reduce`, but there is at least one input. A received message can so be combined with a
    local array into a third, without a first copy.
    """
    if is_device_array(out):
        _cuda().fold(op, out, *inputs, dtype=dtype)
    elif not inputs:
        raise InputError("fold: got no input, expected at least one")
    else:
        _fold_host(op, out, inputs, dtype, in_place=False)


def _fold_host(op: str, given_out: Array, inputs: Sequence[Array], dtype: object, *, in_place: bool) -> None:
    out, element = _check_out(given_out, dtype)
    kernel = prepare(op, element, len(inputs) + in_place)
    start = address_of(out)
    stop = start + out.nbytes
    addresses = [start] if in_place else []
    for i, given in enumerate(inputs):
        if type(given) is np.ndarray and given.flags.c_contiguous:
            array: HostArray = given
        else:
            array = host_array(given, f"input {i}")
        if array.shape != out.shape:
            raise InputError(f"input {i}: got shape {array.shape}, expected that of the output, {out.shape}")
        if array.dtype is not out.dtype and dtype_of(array, dtype, f"input {i}") is not element:
            raise InputError(f"input {i}: got dtype {array.dtype.name}, expected that of the output, {element.name}")
        address = address_of(array)
        if address != start and address < stop and start < address + array.nbytes:
            raise InputError(f"input {i}: overlaps the output by part; expected separate memory or the same array")
        addresses.append(address)
    kernel(out.size, start, *addresses)


def multiply(out: Array, array: Array, factor: float, dtype: object = None) -> None:
    """out = array * factor, rounded once; the factor of integers is one.

    Args:
        out, array: as for `fold`; one array, or two that do not overlap.

    Raises:
        InputError: as `fold`; bools; complex factors.
    """
    if is_device_array(out):
        _cuda().multiply(out, array, factor_of(factor, dtype_of(out, dtype, "out")), dtype=dtype)
        return
    target, element = _check_out(out, dtype)
    source = host_array(array, "array")
    number = factor_of(factor, element)
    if source.shape != target.shape or dtype_of(source, element, "array") is not element:
        raise InputError(f"multiply: got {source.dtype}{source.shape}, expected {target.dtype}{target.shape}")
    if element.kind in ("float", "complex"):
        multiply_function(element)(target.size, address_of(target), address_of(source), number)
    else:
        np.multiply(source, np.int64(number).astype(target.dtype), out=target)


def factor_of(factor: object, dtype: Dtype) -> float:
    """What `factor` of elements of `dtype` is to kernels: a float; of integers the one of 64 bits with a sign.

    Raises:
        InputError: elements of bools; no number, or none that the dtype has.
    """
    if dtype.kind == "bool":
        raise InputError("multiply: got bool, expected numbers")
    given: Any = factor
    try:
        if dtype.kind in ("float", "complex"):
            return float(given)
        return int(np.dtype(dtype.name).type(operator.index(given)).astype(np.int64))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"multiply: got a factor {factor!r}, expected a number of {dtype.name}") from None


def divide(out: Array, divisor: float, dtype: object = None) -> None:
    """out = out / divisor, rounded once: the step that ends a mean.

    Args:
        out: as for `reduce`, of a floating dtype.
        divisor: number, not 0.

    Raises:
        InputError: as `reduce`; a dtype of integers; a divisor of 0.
    """
    if is_device_array(out):
        _cuda().divide(out, divisor, dtype=dtype)
        return
    array, element = _check_out(out, dtype)
    check_op("mean", element)
    if divisor == 0:
        raise InputError("divide: got a divisor of 0")
    address = address_of(array)
    divide_function(element)(array.size, address, address, divisor)


@functools.cache
def prepare(op: str, dtype: object, num_inputs: int) -> Callable[..., None]:
    """Compile the kernel of `fold` for `num_inputs` inputs (`reduce` has one more: its output) and return it.

    An executor calls this before it posts its first message, since a rank that compiles is a late rank. The kernel is a
    function `(count, out_address, in0_address, in1_address, ...)` of ints on host memory. It checks nothing, releases
    the GIL, and costs under a microsecond to call.

    Args:
        op: as for `reduce`.
        dtype: name of a dtype, or a Dtype.
        num_inputs: int, at least 1.

    Raises:
        InputError: unknown op or dtype, or an op that the dtype does not have.
        Unavailable: float16 on an x86 CPU without F16C.

    Cost: 4 ms for few inputs, 90 ms for 64; nothing the second time.
    """
    element = find_dtype(dtype)
    op = kernel_op(op, element)
    if num_inputs < 1:
        raise InputError(f"prepare: got {num_inputs} inputs, expected at least 1")
    return fold_function(op, element, num_inputs)


def _check_out(given: Array, dtype: object) -> tuple[HostArray, Dtype]:
    out = host_array(given, "out")
    if not out.flags.writeable:
        raise InputError("out: got a read-only array, expected a writable one")
    return out, dtype_of(out, told_dtype(given) if dtype is None else dtype, "out")


def _cuda() -> ModuleType:
    from lanterne.kernels.cuda import reduce_on_device as cuda_reduce

    return cuda_reduce
