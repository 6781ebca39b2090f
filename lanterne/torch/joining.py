"""Creation of process groups: the first joins the job; groups of some ranks share its transport."""

import os
from typing import Any, NamedTuple

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import join
from lanterne.errors import InputError
from lanterne.kernels.cpu.jit import load_compiler
from lanterne.torch.meeting import meet
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.torch_internals import forget_default, register, torch_errors
from lanterne.transport.registry import has_ucx
from lanterne.transport.timeouts import LONGEST_S

NAME = "lanterne"


class Options(NamedTuple):
    """Options for `pg_options` of init_process_group and new_group.

    Attributes: `transport`, `deterministic`: as in lanterne.join. `communicator`: the group has its ranks, in its
    order, and uses it; the group's end does not close it (docs/going-on.md).
    """

    transport: str | None = None
    deterministic: bool = False
    communicator: Communicator | None = None


def load_libraries() -> None:
    """Load the libraries of every group, so that no rank waits for another to load them while a group is made.

    Cost: some 0.3 s, the first time.
    """
    if os.environ.get("LANTERNE_TRANSPORT", "ucx") == "ucx":
        has_ucx()
    load_compiler()


def register_backend() -> None:
    """Register the backend with torch, which also calls this where a program names it without importing lanterne."""
    register(NAME, create)


class _Jobs:
    """The group of all ranks, while there is one."""

    whole: LanterneGroup | None = None


def create(asked: Any, options: Any) -> LanterneGroup:
    """Return the group that torch asks for.

    Args:
        asked: torch's _DistributedBackendOptions.
        options: the user's `pg_options`.
    """
    if not isinstance(options, (Options, type(None))):
        raise InputError(f"pg_options: got {type(options).__name__}, expected lanterne.torch.Options")
    timeout_s = min(asked.timeout.total_seconds(), LONGEST_S)
    ranks = tuple(asked.global_ranks_in_group)
    with torch_errors():
        whole = _Jobs.whole
        if ranks and whole is not None and options is None:
            return LanterneGroup(whole.communicator.group(ranks, timeout_s), timeout_s, _forget)
        transport, deterministic, own = options or Options()
        if own is not None and not ranks:
            _Jobs.whole = LanterneGroup(own.group(range(own.world_size), timeout_s), timeout_s, _forget)
            return _Jobs.whole
        place = meet(asked.store, asked.group_id, asked.group_rank, asked.group_size, timeout_s)
        comm = join(place, asked.group_rank, asked.group_size, transport, timeout_s, deterministic=deterministic)
    group = LanterneGroup(comm, timeout_s, _forget)
    if not ranks:
        _Jobs.whole = group
    return group


def _forget(group: LanterneGroup) -> None:
    if _Jobs.whole is group:
        _Jobs.whole = None
        forget_default(group)
