"""A call of torch's in the making: its options, its tensors as arrays, and what is left to be done at its end."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from lanterne.errors import InputError
from lanterne.torch.tensor_views import View, check_tensor, check_written, view_of, whole_of
from lanterne.torch.torch_internals import OPTIONS
from lanterne.torch.works import Started

Tensors = Sequence[torch.Tensor]


class Draft:
    """A call in the making: what it has started, and what is left to be done once that is complete."""

    def __init__(self) -> None:
        self.requests: list[Started] = []
        self.at_end: list[Callable[[], object]] = []

    def read(self, tensor: torch.Tensor) -> View:
        """What `tensor` holds; a copy where it is not contiguous."""
        check_tensor(tensor)
        return view_of(tensor.resolve_conj().resolve_neg().contiguous())

    def write(self, tensor: torch.Tensor, holds: bool = False) -> View:
        """Where the new contents of `tensor` go, which `holds` what it held, or anything."""
        check_written(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return view_of(tensor)
        fresh = tensor.contiguous() if holds else torch.empty(tensor.shape, dtype=tensor.dtype)
        fresh = fresh.clone() if fresh.data_ptr() == tensor.data_ptr() else fresh
        self._copy_back(tensor, fresh)
        return view_of(fresh)

    def read_parts(self, tensors: Tensors) -> View:
        """What `tensors` hold, one after the other: one piece of memory, a copy unless they are that already."""
        whole = whole_of(tensors)
        return self.read(torch.cat([each.reshape(-1) for each in tensors]) if whole is None else whole)

    def write_parts(self, tensors: Tensors) -> View:
        """Where the new contents of `tensors` go, one after the other."""
        for tensor in tensors:
            check_written(tensor)
        whole = whole_of(tensors)
        if whole is not None:
            return view_of(whole)
        fresh = torch.empty(sum(each.numel() for each in tensors), dtype=tensors[0].dtype)
        parts = fresh.split([each.numel() for each in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            self._copy_back(tensor, part.view(tensor.shape))
        return view_of(fresh)

    def _copy_back(self, tensor: torch.Tensor, fresh: torch.Tensor) -> None:
        self.at_end.append(lambda: tensor.detach().copy_(fresh))

    def finish(self) -> None:
        """The requests are complete: do what is left; a second time there is nothing to do."""
        at_end, self.at_end = self.at_end, []
        for action in at_end:
            action()


def options_of(kind: str, tensors: Any, opts: Any, timeout: timedelta | None) -> tuple[list[torch.Tensor], Any]:
    """(the tensors, the options of a call): torch calls with a tensor or a list, and options or what is in them."""
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if opts is not None and not isinstance(opts, int) and not hasattr(opts, "timeout"):
        op, opts = opts, with_timeout(kind, None, timeout)
        opts.reduceOp = op
    return tensors, with_timeout(kind, opts, timeout)


def with_timeout(kind: str, opts: Any, timeout: timedelta | None) -> Any:
    """The options of a call; an int is its root."""
    if isinstance(opts, int):
        number, opts = opts, OPTIONS[kind]()
        opts.rootRank = number
    opts = OPTIONS[kind]() if opts is None else opts
    if timeout is not None:
        opts.timeout = timeout
    return opts


def unless_even(counts: list[int]) -> list[int] | None:
    """Return `counts` where they differ."""
    return None if len(set(counts)) == 1 else counts


def check_dtypes(verb: str, one: torch.Tensor, other: torch.Tensor) -> None:
    """Raise InputError unless the two tensors of `verb` have one dtype."""
    if one.dtype != other.dtype:
        raise InputError(f"{verb}: got tensors of {one.dtype} and {other.dtype}, expected one dtype")
