"""Device memory of whatever library, as address, size and type: CuPy, Numba, torch, and all who speak the protocols.

An array is asked through `__cuda_array_interface__`; who has only DLPack, through CuPy. Nothing is copied.
"""

import ctypes
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lanterne.errors import InputError
from lanterne.kernels.arrays import Stream, import_cupy, is_device_array

_LEGACY_STREAM = 1  # cudaStreamLegacy
# DLPack's DLTensor begins with an address, two numbers of the device and that of axes; then code and bits of its type.
_TYPE_AT = 8 + 2 * 4 + 4
_UINT, _BFLOAT = 1, 4


@dataclass(frozen=True)
class DeviceView:
    """A C-contiguous array in device memory.

    Attributes: `address`; `size` in elements; `dtype`, NumPy's of the storage; `element`, "bfloat16" where that is
    stored as uint16, else None; `readonly`; `stream`, the address of the stream that made the data, None if the array
    does not tell; `owner`, which keeps the memory alive.
    """

    address: int
    size: int
    dtype: np.dtype[Any]
    element: str | None = None
    readonly: bool = False
    stream: int | None = None
    owner: object = None

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": self.dtype.str,
            "data": (self.address, self.readonly),
            "strides": None,
            "version": 3,
        }


def view_device(x: Any, what: str = "array") -> DeviceView:
    """The DeviceView of the device array `x`.

    Raises:
        InputError: not a device array, not C-contiguous, or of an element type that NumPy does not have.
        Unavailable: an array with DLPack alone, and no CuPy here.
    """
    if type(x) is DeviceView:
        return x
    if not is_device_array(x):
        raise InputError(f"{what}: got {type(x).__name__} on the host, expected device memory like the others")
    interface = getattr(x, "__cuda_array_interface__", None)
    is_bfloat16 = _is_bfloat16(getattr(x, "dtype", None))
    if interface is None and is_bfloat16:
        return replace(view_device(import_cupy().from_dlpack(_Bfloat16Bits(x)), what), element="bfloat16")
    if interface is None:
        return view_device(import_cupy().from_dlpack(x), what)
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    dtype = np.dtype(np.uint16) if is_bfloat16 else np.dtype(interface["typestr"])
    if dtype.kind == "V" or dtype.hasobject:
        raise InputError(f"{what}: got elements {interface['typestr']}, expected numbers")
    if strides is not None and not _is_contiguous(shape, strides, dtype.itemsize):
        raise InputError(f"{what}: got a non-contiguous array of shape {shape}, expected a C-contiguous one")
    address, readonly = interface["data"]
    size = math.prod(shape)
    stream = interface.get("stream") or _untold_stream(x)
    return DeviceView(address or 0, size, dtype, "bfloat16" if is_bfloat16 else None, readonly, stream, x)


@functools.cache
def _is_bfloat16(dtype: object) -> bool:
    return str(dtype) in ("bfloat16", "torch.bfloat16")


class _Bfloat16Bits:
    """An array of bfloat16 with DLPack alone as one of uint16: CuPy by itself knows no bfloat16."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        place: tuple[int, int] = self._x.__dlpack_device__()
        return place

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> object:
        capsule = self._x.__dlpack__(stream=stream)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        # Who takes the capsule owns what it points to.
        code = ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + _TYPE_AT)
        if code.value == _BFLOAT:
            code.value = _UINT
        return capsule


def stream_address(stream: Stream) -> int:
    """The address of a CUDA stream: an int, CuPy's, torch's, Numba's, or one that speaks `__cuda_stream__`.

    Raises:
        InputError: no stream.
    """
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("ptr", "cuda_stream", "handle"):
        found = getattr(stream, name, None)
        if found is not None:
            return int(getattr(found, "value", found) or 0)
    raise InputError(f"stream: got {type(stream).__name__}, expected a CUDA stream or its address")


def _is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 0:
            return True
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _untold_stream(x: Any) -> int | None:
    """The stream of an array of a library that does not name it; None if that is not known.

    torch's is the thread's current one. Numba's is the default one, on which its copies from the host may be under way
    still when they return.
    """
    library = type(x).__module__.partition(".")[0]
    if library == "torch":
        stream: int = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
        return stream
    return _LEGACY_STREAM if library in ("numba", "numba_cuda") else None
