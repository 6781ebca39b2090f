"""Which memory a call reads and writes: the user's, or, where that is not contiguous, copies of it."""

from typing import NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.call.sizes import Sizes
from lanterne.errors import InputError
from lanterne.kernels.arrays import HostArray
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.dtypes import Dtype
from lanterne.kernels.reduce import multiply

# The user's, as all that follows sees it.
CallArray: TypeAlias = HostArray | DeviceView


class CallMemory(NamedTuple):
    """What a call reads and writes.

    Attributes:
        source, target: the arrays, contiguous; None where there is none.
        in_place: the parts that both have are the same memory.
        back: the user's array that `target` is to be copied into in the end; None: it is that.
        copies: one of them was made for this call.
    """

    source: CallArray | None
    target: CallArray | None
    in_place: bool
    back: HostArray | None = None
    copies: bool = False


def call_memory(
    collective: str,
    in_array: CallArray | None,
    out_array: CallArray | None,
    sizes: Sizes,
    *,
    separate: bool,
) -> CallMemory:
    """The CallMemory of a call with these arrays, which may be one.

    Args:
        separate: no parts in place: what runs the call cannot.

    Raises:
        InputError: arrays of the wrong size or dtype, an output that cannot be written, or arrays that overlap in part.
    """
    if in_array is not None and in_array.size != sizes.in_count:
        raise InputError(f"{collective}: got in_array of {in_array.size} elements, expected {sizes.in_count}")
    if out_array is not None:
        _check_out(collective, in_array, out_array, sizes.out_count)
    if in_array is out_array is not None and sizes.in_parts == sizes.out_parts == 1:
        source = _contiguous(in_array)
        return CallMemory(source, source, True, *_back(in_array, source))
    if in_array is None or out_array is None:
        source, target = _contiguous(in_array), _room_for(out_array)
        back, copies = _back(out_array, target)
        return CallMemory(source, target, False, back, copies or source is not in_array)
    if overlap(in_array, out_array):
        return _overlapping(collective, in_array, out_array, sizes, separate)
    source, target = _contiguous(in_array), _room_for(out_array)
    if source is in_array and target is out_array:
        return CallMemory(source, target, False)
    return CallMemory(source, target, False, _back(out_array, target)[0], True)


def _back(array: CallArray | None, used: CallArray | None) -> tuple[HostArray | None, bool]:
    """(the user's array where another is used in its place, whether one is)."""
    return (None, False) if used is array or isinstance(array, DeviceView) else (array, True)


def _overlapping(
    collective: str, in_array: CallArray, out_array: CallArray, sizes: Sizes, separate: bool
) -> CallMemory:
    """Of two arrays that share memory."""
    start, other = _address(in_array), _address(out_array)
    if isinstance(in_array, DeviceView) or isinstance(out_array, DeviceView):
        if sizes.in_parts > 1 < sizes.out_parts or not _in_place(in_array, start, other, sizes):
            raise _overlaps(collective)
        return CallMemory(in_array, out_array, True)
    if not in_array.flags.c_contiguous or not out_array.flags.c_contiguous:
        # What is read is read before anything is written.
        target = np.empty(out_array.shape, out_array.dtype)
        return CallMemory(in_array.copy(), target, False, out_array, True)
    if sizes.in_parts > 1 < sizes.out_parts and start == other:
        return CallMemory(in_array.copy(), out_array, False, None, True)
    if not separate and not sizes.in_parts > 1 < sizes.out_parts and _in_place(in_array, start, other, sizes):
        return CallMemory(in_array, out_array, True)
    # MPI leaves the result of a reduce-scatter in place at the start of the buffer.
    if separate or (collective == "reduce_scatter" and start == other):
        return CallMemory(in_array, np.empty(out_array.shape, out_array.dtype), False, out_array, True)
    raise _overlaps(collective)


def _in_place(in_array: CallArray, start: int, other: int, sizes: Sizes) -> bool:
    """Whether this rank's part of both arrays, which begin at `start` and `other`, is the same memory."""
    before_nbytes = sizes.before * in_array.dtype.itemsize
    return start + before_nbytes * (sizes.in_parts > 1) == other + before_nbytes * (sizes.out_parts > 1)


def scaled(memory: CallMemory, factor: float, dtype: Dtype) -> CallMemory:
    """`memory` of host arrays with a copy of its source, times `factor`."""
    source = memory.source
    assert isinstance(source, np.ndarray), "whoever reduces gives an array"
    copy = np.empty(source.shape, source.dtype)
    multiply(copy, source, factor, dtype)
    return memory._replace(source=copy, in_place=False, copies=True)


def _contiguous(array: CallArray | None) -> CallArray | None:
    if array is None or isinstance(array, DeviceView) or array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array)


def _room_for(array: CallArray | None) -> CallArray | None:
    """`array`, or contiguous memory of its shape."""
    if array is None or isinstance(array, DeviceView) or array.flags.c_contiguous:
        return array
    return np.empty(array.shape, array.dtype)


def _check_out(collective: str, in_array: CallArray | None, out_array: CallArray, count: int) -> None:
    if in_array is not None and out_array.dtype is not in_array.dtype and out_array.dtype != in_array.dtype:
        raise InputError(f"{collective}: got out_array of {out_array.dtype}, expected {in_array.dtype} as in_array")
    if out_array.size != count:
        raise InputError(f"{collective}: got out_array of {out_array.size} elements, expected {count}")
    if out_array.readonly if isinstance(out_array, DeviceView) else not out_array.flags.writeable:
        raise InputError(f"{collective}: got a read-only out_array, expected a writable one")


def overlap(in_array: CallArray, out_array: CallArray) -> bool:
    """Whether they share memory."""
    start, other = _address(in_array), _address(out_array)
    return bool(in_array.size) and start < other + out_array.nbytes and other < start + in_array.nbytes


def _overlaps(collective: str) -> InputError:
    return InputError(
        f"{collective}: got arrays that overlap in part, expected separate ones, or in place as its documentation says"
    )


def _address(array: CallArray) -> int:
    return array.address if isinstance(array, DeviceView) else array.ctypes.data
