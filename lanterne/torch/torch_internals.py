"""Everything in PyTorch beyond its documented interface that lanterne.torch relies on; nothing else there does.

TESTED names the versions in which tests/torch passes; `./run test -m torch-all` runs it in each.

| internal of torch | what it is needed for | where it differs |
| --- | --- | --- |
| `_C._distributed_c10d.*Options` | options of a call, and `asyncOp` in them | |
| `ProcessGroup`, `Work` as base classes | the group, in place of a `Backend` | 2.13: `Backend` has no constructor |
| `Backend._plugins`, `_ensure_backend_registered` | backends that are registered, their creators | 2.14: NCCL too |
| `ProcessGroup._register_backend`, `_set_default_backend` | a group over torch's own backend for a device | |
| verbs named `_allgather_base` and the like (OLD_NAMES) | torch calls the older or the newer name | |
| `distributed_c10d.<function>` | replaced by `serve` for groups of lanterne | |
| `_world.group_count` | names of groups that their members alone make, or after a retry | 2.14: in the names |
| `_world.pg_group_ranks`, `ErrorType` | groups that are reconfigured | |
| `_world.pg_map` | the groups to end after a death | |
| `distributed.tensor.debug._clear_sharding_prop_cache` | processes whose rank changes | |
| `_FR_SELF_RECORDING_BACKENDS` | keeps torch's Flight Recorder hook off | 2.15 has it |
| `nn.functional.*.__defaults__` | default groups that have ended | |
| `_C._dynamo.eval_frame` | keeps torch.compile from tracing lanterne | |
| `Future.then` in place of `set_exception` | DDP crashes on the latter | |
| `ReduceOp.op`, `.factor` | what an operation is | |
"""

import collections
import functools
import inspect
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._dynamo import eval_frame as _dynamo

from lanterne.errors import InputError, LanterneError, TransportTimeout
from lanterne.kernels.dtypes import Op, PremulSum
from lanterne.transport.timeouts import LONGEST_S

TESTED: tuple[str, ...] = ("2.13", "2.14", "2.15")
if TYPE_CHECKING:
    # Without PyTorch a type checker cannot see what a derived class inherits.
    class ProcessGroup:
        """torch.distributed.ProcessGroup, as far as ours use what torch implements."""

        def __init__(self, rank: int, size: int) -> None: ...
        def rank(self) -> int: ...
        def size(self) -> int: ...

    class Work:
        """torch.distributed.Work; ours overrides all that is used."""

else:
    ProcessGroup, Work = dist.ProcessGroup, dist.Work
# Verbs that have an older name too; torch calls either.
OLD_NAMES: dict[str, str] = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
# Class of each verb's options, for callers that give none.
OPTIONS: dict[str, Any] = {
    name: getattr(c10d, f"{name}Options")
    for name in (
        *("Allreduce", "AllreduceCoalesced", "Broadcast", "Reduce", "Allgather", "Gather", "Scatter"),
        *("ReduceScatter", "Barrier", "AllToAll"),
    )
}
_Kind = TypeVar("_Kind", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_RUN_AS_IT_IS: Any = _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.SKIP)
# ReduceOps whose name in lower case is not lanterne's.
_OPS = {"AVG": "mean", "PRODUCT": "prod"}
# For how long init_process_group may begin again: rank 0 closes the store of the last group long before.
RETRIED_S = 5.0
# Depth of nested callbacks that run in this thread.
_settling = threading.local()
# First count in the names of groups that their members alone make; torch counts other groups from 0.
_LOCAL_COUNT = 1_000_000_000
_local_groups: collections.Counter[tuple[int, ...]] = collections.Counter()


def warn_if_untested(version: str) -> None:
    """Warn if lanterne.torch was not tested with this `version` of PyTorch."""
    if ".".join(version.split(".")[:2]) not in TESTED:
        warnings.warn(
            f"lanterne.torch: got PyTorch {version}, expected {TESTED[0]} to {TESTED[-1]}, with which it is tested",
            stacklevel=2,
        )


class Untraced:
    """Base of classes whose methods torch.compile leaves as they are.

    While a compiled function runs, Dynamo traces every Python frame, and so the verbs that DDP's C++ calls.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for member in vars(cls).values():
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, types.FunctionType):
                untraced(function)


def untraced(function: _Function) -> _Function:
    """Have torch.compile run `function`, and what it calls, as it is; a decorator."""
    _dynamo.set_code_exec_strategy(function.__code__, _RUN_AS_IT_IS)
    return function


def register(name: str, create: Callable[[Any, Any], Any], kinds: Sequence[str]) -> None:
    """Have `init_process_group(name)` call `create(options, users_options)`, for tensors on devices of `kinds`."""
    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, create, extended_api=True, devices=list(kinds))
    # Other backends get a recorder that raises for a ProcessGroup in Python.
    recorded: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recorded.add(name)


def inner_group(name: str, kind: str, asked: Any) -> Any:
    """Return a group over torch's own backend `name` for devices of `kind`, which torch does not know of.

    Args:
        asked: the options that torch gave to `create`; their store is another from now on.
    """
    asked.store = dist.PrefixStore(f"lanterne {name}", asked.store)
    # 2.13 has neither; later versions register their own backends when one is first named.
    getattr(dist.Backend, "_ensure_backend_registered", lambda _name: None)(name)
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = asked.timeout
        options.global_ranks_in_group, options.group_name = asked.global_ranks_in_group, f"{asked.group_id} lanterne"
        made: Any = dist.ProcessGroupNCCL(asked.store, asked.group_rank, asked.group_size, options)
    else:
        made = plugin.creator_fn(asked, None)
    if isinstance(made, dist.ProcessGroup):
        return made
    group = dist.ProcessGroup(asked.store, asked.group_rank, asked.group_size)
    type_ = dist.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)
    group._set_default_backend(type_)
    group._register_backend(torch.device(kind), type_, made)
    return group


def old_names(kind: _Kind) -> _Kind:
    """Add the older names of its verbs to `kind`; a decorator."""
    for name, old in OLD_NAMES.items():
        setattr(kind, old, getattr(kind, name))
    return kind


def serve(name: str, group_is: str, kind: type, ours: Callable[..., Any]) -> None:
    """Have torch.distributed's function `name`, which serves torch's own backends, call `ours` for groups of `kind`.

    `ours` has the same parameters. `group_is` names the parameter for the group, where None is the default group.
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


def retry_init(backend: str) -> None:
    """Have init_process_group begin again for `backend` where the store is lost that torch itself has made.

    A rank may be so quick to make the next group that it still finds the store of the last one, which rank 0 then
    closes. A store that the program has given is its own matter.
    """
    theirs, world = dist.distributed_c10d.init_process_group, dist.distributed_c10d._world
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def init(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        may_retry = given.get("store") is None and backend in str(given.get("backend"))
        until_s = time.monotonic() + RETRIED_S
        while True:
            count = world.group_count
            try:
                return theirs(*args, **options)
            except dist.DistNetworkError:
                if not may_retry or dist.is_initialized() or time.monotonic() > until_s:
                    raise
                world.group_count = count

    for place in (dist, dist.distributed_c10d):
        place.init_process_group = init


def ranks_of(group: Any, members: Sequence[int]) -> list[int]:
    """Return the global ranks of `members`, ranks of `group`."""
    return [dist.get_global_rank(group, member) for member in members]


def new_group(ranks: Sequence[int], backend: str, **options: Any) -> Any:
    """Return the group of those global `ranks`, which alone call it, each as often as the others.

    Since 2.14 such a call counts in the name of the next group of all ranks, which then differs over ranks, and hangs.
    So torch's count is the one of earlier groups of these ranks meanwhile, and afterwards what it was.
    """
    members, world = tuple(sorted(ranks)), dist.distributed_c10d._world
    count, world.group_count = world.group_count, _LOCAL_COUNT + _local_groups[members]
    _local_groups[members] += 1
    try:
        return dist.new_group(list(ranks), backend=backend, use_local_synchronization=True, **options)
    finally:
        world.group_count = count


def groups() -> list[Any]:
    """Return the groups that torch knows of this process, the default one too."""
    return list(dist.distributed_c10d._world.pg_map)


def forget_meshes() -> None:
    """Empty the caches of DTensor, before this process has another rank in a group of the same size as one before.

    For them two meshes of the same ranks are equal: results would have the mesh of before, with the place that this
    process had in it. The caches are of this thread.
    """
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug

        debug._clear_sharding_prop_cache()


def forget_default(group: Any) -> None:
    """Have torch.distributed.nn.functional use the default group of each call in place of `group`, which has ended.

    Its functions have the group that was the default when that module was imported.
    """
    for function in vars(sys.modules.get("torch.distributed.nn.functional", object)).values():
        if isinstance(function, types.FunctionType) and function.__defaults__:
            defaults = function.__defaults__
            function.__defaults__ = tuple(None if value is group else value for value in defaults)


def seconds(limit: timedelta | None) -> float | None:
    """Return `limit` in seconds, at most LONGEST_S; None for no limit, which torch writes as 0 or less."""
    if limit is None or limit <= timedelta(0):
        return None
    return min(limit.total_seconds(), LONGEST_S)


def limit_of(name: str, limit: timedelta) -> float:
    """Return `limit` in seconds, at most LONGEST_S; raise InputError, from `name`, unless it is more than 0."""
    limit_s = seconds(limit) if isinstance(limit, timedelta) else None
    if limit_s is None:
        raise InputError(f"{name}: got {limit!r}, expected a timedelta of more than 0")
    return limit_s


def store_at(host: str, port: int, prefix: str, timeout_s: float) -> Any:
    """Return torch's store that is served at `host` and `port`, under `prefix`; gets wait `timeout_s` for a key."""
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    return dist.PrefixStore(prefix, store)


def store_served(host: str, timeout_s: float) -> Any:
    """Return a store of torch's that this process serves at `host`, at a free port."""
    limit = timedelta(seconds=timeout_s)
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=limit)


def renumber(group: Any, size: int) -> None:
    """Have torch number the ranks of `group` from 0 to `size` - 1, if it knows of it."""
    numbers = dist.distributed_c10d._world.pg_group_ranks
    if group in numbers:
        numbers[group] = {rank: rank for rank in range(size)}


def error_type(error: LanterneError | None) -> Any:
    """Return torch's ErrorType of `error`."""
    types = c10d.ErrorType
    return (
        types.SUCCESS if error is None else types.TIMEOUT if isinstance(error, TransportTimeout) else types.COMM_ERROR
    )


def after_each_step(hook: Callable[..., object]) -> None:
    """Call `hook` after each step of any optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(hook)


def op_of(op: Any) -> Op:
    """Return lanterne's op for a ReduceOp of torch."""
    name = getattr(op, "op", op).name
    return PremulSum(float(op.factor)) if name == "PREMUL_SUM" else _OPS.get(name, name.lower())


def is_settling() -> bool:
    """Return whether this thread runs callbacks of a future, and so cannot wait for another of its own."""
    return bool(getattr(_settling, "depth", 0))


def make_future(outcome: Callable[[], Sequence[torch.Tensor]]) -> tuple[Any, Callable[[], None]]:
    """Return (a future, the function that completes it) with the value of `outcome()`, called then, or its error.

    DDP's C++ takes an exception of Future.set_exception for tensors, and crashes; an error that a callback raises
    reaches it as an error.
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
    """Return `error` as an exception of torch's, or a ValueError, with the same text."""
    if isinstance(error, InputError):
        return error
    # torch and torchelastic search for these words.
    text = f"lanterne: Timed out waiting: {error}" if isinstance(error, TransportTimeout) else f"lanterne: {error}"
    return dist.DistBackendError(text)


@contextmanager
def torch_errors() -> Iterator[None]:
    """Convert the errors of a block by `as_torch`."""
    try:
        yield
    except LanterneError as error:
        converted = as_torch(error)
        if converted is error:
            raise
        raise converted from error
