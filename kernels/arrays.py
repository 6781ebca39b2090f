"""Which library an array belongs to: NumPy on the host, CuPy on a device, and how foreign arrays are adopted by them.

CuPy is imported only once a device array is there.
"""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DeviceArray(Protocol):
    """Memory of a CUDA device, as CuPy, Numba and torch show theirs."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """A dict of shape, typestr, data, strides and version."""


class DLPackArray(Protocol):
    """Memory of whatever device, shown through DLPack."""

    def __dlpack__(self, *, stream: None = None) -> Any:
        """A capsule of the memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """(kind, number) of the device that the memory is on."""
        ...


HostArray: TypeAlias = NDArray[Any]
# What a user may pass to a collective or a reduction.
Array: TypeAlias = Union[HostArray, DeviceArray, DLPackArray, "Buffer"]
# CuPy's, which is untyped; where a user passes a stream, also torch's, Numba's, or its address.
Stream: TypeAlias = Any
Event: TypeAlias = Any

# torch's names begin so.
_UNKNOWN_TO_NUMPY = ("bfloat16", "float8_")
_DLPACK_HOST = (1, 3)  # kDLCPU, kDLCUDAHost
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
# A device works on its streams through so many queues, 8 if nobody asks for more. A stream that waits for a message
# holds up those in its queue: where that waits for another rank, and one behind it has what that rank waits for, both
# wait for ever. Ours are some ten for a communicator and two for every neighbour in a pipeline, NCCL's own included.
CONNECTIONS_VARIABLE, MOST_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS", 32


def is_device_array(x: Any) -> bool:
    """True for memory of a CUDA device: `__cuda_array_interface__`, or DLPack on a CUDA device.

    Raises:
        InputError: the array does not give its memory away.
    """
    if type(x) is np.ndarray:
        return False
    # CuPy's arrays make their interface anew whenever they are asked, which takes as long as all the rest of this.
    if type(x) is getattr(sys.modules.get("cupy"), "ndarray", None):
        return True
    try:
        if hasattr(x, "__cuda_array_interface__"):
            return True
    except RuntimeError as error:
        # torch refuses so for tensors whose gradients it keeps.
        raise InputError(f"array: {error}") from error
    return hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] in _DLPACK_CUDA


def array_module(x: Any) -> Any:
    """The module that computes on `x`: cupy for device arrays, else numpy.

    Raises:
        Unavailable: a device array, and no CuPy here.
    """
    return import_cupy() if is_device_array(x) else np


def address_of(array: Any) -> int:
    """The address of the first element of a NumPy or CuPy array."""
    memory: Any = array
    if type(array) is np.ndarray:
        try:
            # Five times faster than the interface, but refuses read-only and empty arrays and foreign dtypes.
            return ctypes.addressof(ctypes.c_char.from_buffer(memory))
        except (TypeError, ValueError, BufferError):
            pass
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return interface["data"][0]


@functools.cache
def import_cupy() -> Any:
    """The cupy module; CUDA, unless this process uses it already, will give streams as many queues as there can be.

    Raises:
        Unavailable: CuPy is not installed or cannot be loaded.
    """
    os.environ.setdefault(CONNECTIONS_VARIABLE, str(MOST_CONNECTIONS))
    try:
        import cupy
    except ImportError as error:
        raise Unavailable(f"CuPy: {error}; install lanterne[cuda12] or lanterne[cuda13]") from error
    return cupy


@contextlib.contextmanager
def on_stream(cupy: Any, stream: Stream) -> Iterator[None]:
    """A block in which `stream` is the current one of the current device, its own.

    Afterwards that is what it was before. Where the user has set it by `use`, `with stream` would make it the default
    one instead.
    """
    before = cupy.cuda.get_current_stream()
    stream.use()
    try:
        yield
    finally:
        before.use()


def require_device() -> int:
    """Return the number of CUDA devices, at least 1.

    Raises:
        Unavailable: no CuPy, no driver, a driver older than CuPy's CUDA, or no device; says which and what to do.
    """
    cupy = import_cupy()
    try:
        num_devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Unavailable(f"CUDA: {error}; {_advice(str(error))}") from error
    if num_devices == 0:
        raise Unavailable("CUDA: no device; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu")
    return num_devices


def _advice(text: str) -> str:
    if "InsufficientDriver" in text:
        return "no driver is loaded, or it is older than this CuPy's CUDA: update it, or install lanterne[cuda12]"
    if "NoDevice" in text:
        return "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu"
    return "check that nvidia-smi works, or use --device cpu"


def adopt(x: Array, what: str = "array") -> Any:
    """`x` as a NumPy or CuPy array on the same memory.

    Raises:
        InputError: no array, or not C-contiguous.
        Unavailable: a device array, and no CuPy here.
    """
    return device_array(x, what) if is_device_array(x) else host_array(x, what)


def host_array(x: Array, what: str = "array") -> HostArray:
    """`x` as a C-contiguous NumPy array on the same memory: an array, a buffer, or a host tensor with DLPack.

    Raises:
        InputError: no array, a device array, or not C-contiguous.
    """
    if type(x) is not np.ndarray:
        x = numpy_array(x, what)
    if not x.flags.c_contiguous:
        raise InputError(f"{what}: got a non-contiguous array of shape {x.shape}, expected a C-contiguous one")
    return x


def numpy_array(x: Array, what: str = "array") -> HostArray:
    """`x` as a NumPy array of any layout on the same memory; see `told_dtype` for elements that NumPy does not know.

    Raises:
        InputError: no array, or a device array.
    """
    given: Any = x
    if isinstance(given, np.ndarray):
        return given.view(np.ndarray)
    if is_device_array(given):
        raise InputError(f"{what}: got a device array, expected host memory like the others")
    try:
        return np.asarray(memoryview(given))
    except (TypeError, ValueError):
        pass
    if not hasattr(given, "__dlpack__") or given.__dlpack_device__()[0] not in _DLPACK_HOST:
        raise InputError(f"{what}: got {type(given).__name__}, expected an array")
    if told_dtype(given) is not None:
        # torch is loaded: the array is one of its tensors.
        torch: Any = sys.modules[type(given).__module__.partition(".")[0]]
        given = given.detach().view(torch.uint16 if given.element_size() == 2 else torch.uint8)
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InputError(f"{what}: {error}") from error


def told_dtype(x: Any) -> str | None:
    """The name of the elements of a tensor that NumPy has no dtype for: "bfloat16", "float8_e5m2", ...; else None.

    Such a tensor's NumPy array is of unsigned integers of their size.
    """
    return None if type(x) is np.ndarray else _told_name(getattr(x, "dtype", None))


@functools.cache
def _told_name(dtype: object) -> str | None:
    library, _, name = str(dtype).partition(".")
    return name if library == "torch" and name.startswith(_UNKNOWN_TO_NUMPY) else None


def device_array(x: Any, what: str = "array") -> Any:
    """`x` as a C-contiguous CuPy array on the same memory.

    Raises:
        InputError: not a device array, or not C-contiguous.
        Unavailable: no CuPy here.
    """
    if not is_device_array(x):
        raise InputError(f"{what}: got {type(x).__name__} on the host, expected device memory like the others")
    cupy = import_cupy()
    if not isinstance(x, cupy.ndarray):
        x = cupy.asarray(x) if hasattr(x, "__cuda_array_interface__") else cupy.from_dlpack(x)
    if not x.flags.c_contiguous:
        raise InputError(f"{what}: got a non-contiguous array of shape {x.shape}, expected a C-contiguous one")
    return x
