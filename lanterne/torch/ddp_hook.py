"""DDP communication hook: lanterne sums the gradients of a job that runs over another backend."""

from typing import Any

import torch
import torch.distributed as dist

from lanterne.torch.joining import NAME
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.torch_internals import OPTIONS, untraced


class _Made:
    """The group of all ranks that `comm_hook` made, and the default group of that time."""

    whole: Any = None
    group: LanterneGroup | None = None


# DDP refuses a hook with other annotations.
@untraced
def comm_hook(group: LanterneGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return a future of the mean of a bucket of gradients over all ranks.

    Call `model.register_comm_hook(None, lanterne.torch.comm_hook)` on all ranks. For a model on some ranks, pass their
    group, `dist.new_group(ranks, backend="lanterne")`, in place of None. Gradients are on the CPU or on a device.
    """
    if group is None:
        group = _group_of_all()
    options = OPTIONS["Allreduce"]()
    options.reduceOp = dist.ReduceOp.AVG
    summed: torch.futures.Future[torch.Tensor] = group.allreduce([bucket.buffer()], options).get_future().then(_first)
    return summed


def _first(future: Any) -> torch.Tensor:
    return future.value()[0]


def default_group() -> Any:
    """Return the default group if it is lanterne's, else that of `comm_hook`."""
    whole = dist.group.WORLD
    return whole if isinstance(whole, LanterneGroup) else _Made.group


def _group_of_all() -> LanterneGroup:
    whole = dist.group.WORLD
    if _Made.group is None or _Made.whole is not whole:
        _Made.group = whole if isinstance(whole, LanterneGroup) else dist.new_group(backend=NAME)
        _Made.whole = whole
    assert _Made.group is not None
    return _Made.group
