"""Views of CPU tensors as the NumPy arrays that lanterne takes; contiguous tensors share their memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lanterne.errors import InputError

# NumPy's type string of every dtype whose memory NumPy can show; float8 can be moved, but not summed.
_TYPESTRS = {
    **{
        getattr(torch, name): np.dtype(name).str
        for name in (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "complex64", "complex128"),
        )
    },
    **{dtype: "|u1" for name, dtype in vars(torch).items() if name.startswith("float8_")},
    torch.bfloat16: "<i2",
}
# lanterne's names of the dtypes that the array does not say.
_NAMES = {torch.bfloat16: "bfloat16"}


class View(NamedTuple):
    """Memory of a tensor: a flat `array`, and the `dtype` for lanterne where the array does not say it."""

    array: NDArray[Any]
    dtype: str | None


class _Memory:
    """Memory of a contiguous tensor, in NumPy's array interface.

    Tensor.numpy() would forbid that tensor's storage to be resized for ever, which FSDP1 does after each use;
    np.from_dlpack gives arrays that NumPy before 2.1 holds to be read-only.
    """

    def __init__(self, tensor: torch.Tensor, typestr: str) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": (tensor.numel(),),
            "data": (tensor.data_ptr(), False),
        }


def view_of(tensor: torch.Tensor) -> View:
    """Return the View of a contiguous tensor.

    Raises:
        InputError: the tensor is not dense, is of another device, or has a dtype that NumPy cannot show.
    """
    check_tensor(tensor)
    typestr = check_dtype(tensor)
    # An empty tensor has no address, which some versions of NumPy refuse.
    array = np.asarray(_Memory(tensor, typestr)) if tensor.numel() else np.empty(0, typestr)
    return View(array, _NAMES.get(tensor.dtype))


def check_dtype(tensor: torch.Tensor) -> str:
    """Return NumPy's type string of the elements of `tensor`; raise InputError if NumPy has none."""
    typestr = _TYPESTRS.get(tensor.dtype)
    if typestr is None:
        raise InputError(f"tensor: got one of {tensor.dtype}, which lanterne cannot move: NumPy has no such dtype")
    return typestr


def check_device(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is on the CPU."""
    if tensor.device.type != "cpu":
        raise InputError(f"tensor: got one on {tensor.device}, expected the CPU, which lanterne serves")


def check_tensor(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is dense and on the CPU."""
    check_device(tensor)
    if tensor.layout is not torch.strided:
        raise InputError(f"tensor: got one of {tensor.layout}, expected a dense one")


def check_written(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is dense, on the CPU, and each of its elements has memory of its own."""
    check_tensor(tensor)
    check_unshared(tensor)


def check_unshared(tensor: torch.Tensor) -> None:
    """Raise InputError unless each element of `tensor` has memory of its own."""
    if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise InputError(
            f"tensor: got one of shape {tuple(tensor.shape)} whose elements share memory, as expand() makes it, "
            "expected memory for each; clone() it"
        )


def whole_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the flat tensor whose parts in order are `tensors`, of one size; None if their memory is not one piece."""
    first = tensors[0]
    place = first.storage_offset()
    for tensor in tensors:
        is_next = tensor.storage_offset() == place and tensor.data_ptr() == first.data_ptr() + (
            (place - first.storage_offset()) * first.element_size()
        )
        if not (is_next and tensor.is_contiguous() and tensor.numel() == first.numel() and tensor.dtype == first.dtype):
            return None
        place += tensor.numel()
    total = first.numel() * len(tensors)
    if first.untyped_storage().nbytes() < (first.storage_offset() + total) * first.element_size():
        return None
    return first.detach().as_strided((total,), (1,), first.storage_offset())


def on_cpu(value: Any) -> Any:
    """Return `value` with copies on the CPU of its tensors, in dicts, lists and tuples too."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: on_cpu(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = map(on_cpu, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
