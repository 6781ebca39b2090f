"""Creation of process groups: the first joins the job; groups of some ranks share its transport."""

import os
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import join
from lanterne.errors import InputError
from lanterne.kernels.cpu.jit import load_compiler
from lanterne.torch.accelerators import KINDS, accelerator_here
from lanterne.torch.device_calls import StagedCalls
from lanterne.torch.device_native import NativeCalls
from lanterne.torch.meeting import meet
from lanterne.torch.process_group import HostGroup, LanterneGroup
from lanterne.torch.reconfigurable import ReconfigurableGroup
from lanterne.torch.torch_internals import forget_default, inner_group, register, torch_errors
from lanterne.transport.registry import has_ucx
from lanterne.transport.timeouts import LONGEST_S

NAME = "lanterne"


# How a group serves tensors on a device.
STAGED, NATIVE = "staged", "native"


class Options(NamedTuple):
    """Options for `pg_options` of init_process_group and new_group.

    Attributes:
        transport, deterministic: as in lanterne.join.
        communicator: the group has its ranks, in its order, and uses it; the group's end does not close it
            (docs/going-on.md).
        device: "native": torch's own backend moves tensors on a device, and lanterne sums large ones over nccl;
            "staged": lanterne moves all through pinned host memory. None: native where torch has such a backend.
    """

    transport: str | None = None
    deterministic: bool = False
    communicator: Communicator | None = None
    device: str | None = None


def load_libraries() -> None:
    """Load the libraries of every group, so that no rank waits for another to load them while a group is made.

    Cost: some 0.3 s, the first time.
    """
    if os.environ.get("LANTERNE_TRANSPORT", "ucx") == "ucx":
        has_ucx()
    load_compiler()


def register_backend() -> None:
    """Register the backend with torch, which also calls this where a program names it without importing lanterne."""
    register(NAME, create, ["cpu", *KINDS])


class _Jobs:
    """The group of all ranks, while there is one, and how its ranks serve tensors on a device."""

    whole: LanterneGroup | None = None
    way: str | None = None


def create(asked: Any, options: Any) -> LanterneGroup:
    """Return the group that torch asks for.

    Args:
        asked: torch's _DistributedBackendOptions.
        options: the user's `pg_options`.
    """
    if not isinstance(options, (Options, type(None))):
        raise InputError(f"pg_options: got {type(options).__name__}, expected lanterne.torch.Options")
    given = options or Options()
    if given.device not in (None, STAGED, NATIVE):
        raise InputError(f"pg_options: got device {given.device!r}, expected {STAGED!r}, {NATIVE!r} or None")
    timeout_s = min(asked.timeout.total_seconds(), LONGEST_S)
    if getattr(asked, "enable_reconfigure", False):
        return ReconfigurableGroup(asked.timeout, given.transport, deterministic=given.deterministic)
    way, ranks = _way_here(given.device), tuple(asked.global_ranks_in_group)
    shared = _Jobs.whole if ranks and options is None else None
    with torch_errors():
        group = LanterneGroup(_communicator(asked, given, timeout_s, shared), timeout_s, _forget)
        try:
            # Of the ranks of the whole group each knows what they have.
            agreed = _agreed_way(group.communicator, way) if shared is None else _Jobs.way
            _serve_device(group, asked, agreed)
        except BaseException:
            group.abort()
            raise
    if not ranks:
        _Jobs.whole, _Jobs.way = group, agreed
    return group


def _communicator(asked: Any, given: Options, timeout_s: float, shared: LanterneGroup | None) -> Communicator:
    """Return the Communicator of the group that torch asks for, of ranks of `shared` if that is one."""
    ranks, own = tuple(asked.global_ranks_in_group), given.communicator
    if shared is not None:
        return shared.communicator.group(ranks, timeout_s)
    if own is not None and not ranks:
        return own.group(range(own.world_size), timeout_s)
    place = meet(asked.store, asked.group_id, asked.group_rank, asked.group_size, timeout_s)
    return join(
        place, asked.group_rank, asked.group_size, given.transport, timeout_s, deterministic=given.deterministic
    )


# What a rank has for tensors on a device, from nothing on.
_WAYS = (None, STAGED, NATIVE)


def _way_here(way: str | None) -> str | None:
    """Return how this rank serves tensors on a device, if `way` is that of Options.device; None without a device."""
    accelerator = accelerator_here()
    native = None if accelerator is None else accelerator.native
    if way == NATIVE and native is None:
        raise InputError(f"pg_options: got device {NATIVE!r}, expected {STAGED!r}: torch has no backend for it here")
    return None if accelerator is None else way or (STAGED if native is None else NATIVE)


def _agreed_way(comm: Communicator, way: str | None) -> str | None:
    """Return how all ranks of `comm` serve tensors on a device, if this one can do it as `way` says."""
    everyone = np.empty(comm.world_size, np.uint8)
    comm.all_gather(np.array([_WAYS.index(way)], np.uint8), everyone)
    return _WAYS[everyone.min()]


def _serve_device(group: LanterneGroup, asked: Any, agreed: str | None) -> None:
    """Have `group` serve tensors on a device as the ranks have `agreed`."""
    accelerator, comm = accelerator_here(), group.communicator
    if accelerator is None or agreed is None:
        return
    rank, size, timeout_s = comm.rank, comm.world_size, comm.timeout_s
    if agreed == STAGED:
        host = HostGroup(comm.group(range(size), timeout_s), timeout_s, lambda _: None)
        group.serve(accelerator, StagedCalls(host, accelerator))
        return
    store, name, deterministic, native = asked.store, asked.group_id, comm.deterministic, accelerator.native
    assert native is not None, "else it would be staged"

    def join_device() -> Communicator:
        # The host's transport has met under the group's own name.
        place = meet(store, f"{name} device", rank, size, timeout_s)
        return accelerator.join(place, rank, size, timeout_s, deterministic=deterministic)

    make_inner = partial(inner_group, native, accelerator.kind, asked)
    group.serve(accelerator, NativeCalls(group, accelerator, make_inner, join_device))


def _forget(group: LanterneGroup) -> None:
    if _Jobs.whole is group:
        _Jobs.whole = None
        forget_default(group)
