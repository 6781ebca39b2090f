"""All that this backend needs of torch.distributed beyond what that documents: names, base classes, ways around traps.

Checked against torch 2.13 by tests/torch. What changes in another torch changes here only.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from lanterne.errors import InputError, LanterneError, TransportTimeout
from lanterne.kernels.dtypes import Op, PremulSum
from lanterne.transport.timeouts import LONGEST_S

# Python may derive from these. Of `Backend` it may not, so a group of ours is a whole ProcessGroup.
if TYPE_CHECKING:
    # Where PyTorch is missing, a checker knows nothing of a class that derives from torch's.
    class ProcessGroup:
        """torch.distributed.ProcessGroup: of what torch does itself, what ours use."""

        def __init__(self, rank: int, size: int) -> None: ...
        def rank(self) -> int: ...
        def size(self) -> int: ...

    class Work:
        """torch.distributed.Work: all of it that is used is ours."""

else:
    ProcessGroup, Work = dist.ProcessGroup, dist.Work
# Such verbs have an older name too, and torch calls now one, now the other.
OLD_NAMES: dict[str, str] = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
# What each verb's options are, where its caller gives none.
OPTIONS: dict[str, Any] = {
    name: getattr(c10d, f"{name}Options")
    for name in (
        *("Allreduce", "AllreduceCoalesced", "Broadcast", "Reduce", "Allgather", "Gather", "Scatter"),
        *("ReduceScatter", "Barrier", "AllToAll"),
    )
}
_Kind = TypeVar("_Kind", bound=type)
# Other names are the same in lower case.
_OPS = {"AVG": "mean", "PRODUCT": "prod"}
# Callbacks that run in this thread right now, one inside the other.
_settling = threading.local()


def register(name: str, create: Callable[[Any, Any], Any]) -> None:
    """Make `init_process_group(name)` call `create(options, users_options)`, for tensors of the CPU."""
    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])


def old_names(kind: _Kind) -> _Kind:
    """`kind` with the older names of its verbs; a decorator."""
    for name, old in OLD_NAMES.items():
        setattr(kind, old, getattr(kind, name))
    return kind


def serve(name: str, group_is: str, kind: type, ours: Callable[..., Any]) -> None:
    """Have torch.distributed's function `name`, which is for torch's own backends, call `ours` for groups of `kind`.

    `ours` has its parameters; `group_is` says which is the group, None of which is the default group.
    """
    theirs = getattr(dist.distributed_c10d, name)
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def call(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        group = given.get(group_is)
        if group is None and dist.is_initialized():
            group = given[group_is] = dist.group.WORLD
        return ours(**given) if isinstance(group, kind) else theirs(*args, **options)

    for place in (dist, dist.distributed_c10d):
        if hasattr(place, name):
            setattr(place, name, call)


def ranks_of(group: Any, members: Sequence[int]) -> list[int]:
    """What the job's numbers are of those ranks of `group`."""
    return [dist.get_global_rank(group, member) for member in members]


def new_group(ranks: Sequence[int], backend: str, **options: Any) -> Any:
    """The group of those `ranks` of the job, who alone call it, each as often as the others."""
    return dist.new_group(list(ranks), backend=backend, use_local_synchronization=True, **options)


def seconds(limit: timedelta | None) -> float | None:
    """`limit` in seconds, LONGEST_S at most; None where it is none, which torch writes as 0 or less."""
    if limit is None or limit <= timedelta(0):
        return None
    return min(limit.total_seconds(), LONGEST_S)


def limit_of(name: str, limit: timedelta) -> float:
    """`limit` in seconds, LONGEST_S at most; InputError where it is none, from `name`."""
    limit_s = seconds(limit) if isinstance(limit, timedelta) else None
    if limit_s is None:
        raise InputError(f"{name}: got {limit!r}, expected a timedelta of more than 0")
    return limit_s


def store_at(host: str, port: int, prefix: str, timeout_s: float) -> Any:
    """The store of torch's that somebody has there, under `prefix`; a key is waited for `timeout_s`."""
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    return dist.PrefixStore(prefix, store)


def after_each_step(hook: Callable[..., object]) -> None:
    """Call `hook` after each step of any optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(hook)


def op_of(op: Any) -> Op:
    """lanterne's op for a ReduceOp of torch."""
    name = getattr(op, "op", op).name
    return PremulSum(float(op.factor)) if name == "PREMUL_SUM" else _OPS.get(name, name.lower())


def is_settling() -> bool:
    """Whether this thread runs callbacks of a future: it is the one that would complete others."""
    return bool(getattr(_settling, "depth", 0))


def make_future(outcome: Callable[[], Sequence[torch.Tensor]]) -> tuple[Any, Callable[[], None]]:
    """(a future, what completes it): its value is `outcome()`, called then, or what that raises.

    After Future.set_exception DDP's C++ takes the exception for tensors and crashes; an error that a callback raises is
    one to it.
    """
    start: Any = torch.futures.Future()
    future = start.then(lambda _: list(outcome()))

    def complete() -> None:
        _settling.depth = getattr(_settling, "depth", 0) + 1
        try:
            start.set_result(None)
        finally:
            _settling.depth -= 1

    return future, complete


def as_torch(error: LanterneError) -> Exception:
    """`error` as torch's users know it: an exception of torch's, or ValueError, with our line as its text."""
    if isinstance(error, InputError):
        return error
    # torch and torchelastic look for these words.
    told = f"lanterne: Timed out waiting: {error}" if isinstance(error, TransportTimeout) else f"lanterne: {error}"
    return dist.DistBackendError(told)


@contextmanager
def torch_errors() -> Iterator[None]:
    """A block whose errors are those of `as_torch`."""
    try:
        yield
    except LanterneError as error:
        told = as_torch(error)
        if told is error:
            raise
        raise told from error
