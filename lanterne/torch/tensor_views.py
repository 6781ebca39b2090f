"""Tensors of the CPU as the arrays that lanterne takes: the same memory wherever it is contiguous."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from lanterne.errors import InputError

# dtype -> (what NumPy sees in its memory, or None: itself; lanterne's name of it, or None: NumPy's).
_SEEN: dict[torch.dtype, tuple[torch.dtype | None, str | None]] = {
    torch.bfloat16: (torch.int16, "bfloat16"),
    **{
        getattr(torch, name): (torch.uint8, None)
        for name in dir(torch)
        if name.startswith("float8_") and isinstance(getattr(torch, name), torch.dtype)
    },
}


class View(NamedTuple):
    """A tensor's memory: a flat `array`, and its `dtype` for lanterne where the array does not say it."""

    array: NDArray[Any]
    dtype: str | None


def view_of(tensor: torch.Tensor) -> View:
    """The View of a contiguous tensor.

    Raises:
        InputError: it is not dense, of another device, or of a dtype that NumPy cannot show.
    """
    check_tensor(tensor)
    flat = tensor.detach().view(-1)
    seen, name = _SEEN.get(tensor.dtype, (None, None))
    try:
        return View((flat if seen is None else flat.view(seen)).numpy(), name)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"tensor: got one of {tensor.dtype}, which lanterne cannot move: {error}") from error


def check_device(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is of the CPU."""
    if tensor.device.type != "cpu":
        raise InputError(f"tensor: got one on {tensor.device}, expected the CPU, which lanterne serves")


def check_tensor(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is dense and of the CPU."""
    check_device(tensor)
    if tensor.layout is not torch.strided:
        raise InputError(f"tensor: got one of {tensor.layout}, expected a dense one")


def check_written(tensor: torch.Tensor) -> None:
    """Raise InputError unless `tensor` is dense, of the CPU, and each of its elements has memory of its own."""
    check_tensor(tensor)
    if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise InputError(
            f"tensor: got one of shape {tuple(tensor.shape)} whose elements share memory, as expand() makes it, "
            "expected memory for each; clone() it"
        )


def whole_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The flat tensor of which `tensors`, of one size, are the parts in order; None: their memory is not one piece."""
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
