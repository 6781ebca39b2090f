"""How a process group of lanterne comes to be: the first joins the job, those of some ranks share its transport."""

import os
from typing import Any, NamedTuple

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import join
from lanterne.errors import InputError
from lanterne.kernels.cpu.jit import load_compiler
from lanterne.torch.meeting import meet
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.torch_internals import torch_errors
from lanterne.transport.registry import has_ucx
from lanterne.transport.timeouts import LONGEST_S

NAME = "lanterne"


class Options(NamedTuple):
    """What `pg_options` of init_process_group and new_group may be.

    Attributes: `transport`, `deterministic`: as lanterne.join has them. `communicator`: whose ranks, in its order, the
    group is of, and over which it goes; it is not closed with the group (docs/going-on.md).
    """

    transport: str | None = None
    deterministic: bool = False
    communicator: Communicator | None = None


def load_libraries() -> None:
    """Load what every group needs: while one is made, all ranks wait for the one that takes longest over it.

    Cost: some 0.3 s, the first time.
    """
    if os.environ.get("LANTERNE_TRANSPORT", "ucx") == "ucx":
        has_ucx()
    load_compiler()


class _Jobs:
    """The group of all ranks of this process, while there is one."""

    whole: LanterneGroup | None = None


def create(told: Any, options: Any) -> LanterneGroup:
    """The group that torch asks for; `told`: torch's _DistributedBackendOptions, `options`: the user's."""
    if not isinstance(options, (Options, type(None))):
        raise InputError(f"pg_options: got {type(options).__name__}, expected lanterne.torch.Options")
    timeout_s = min(told.timeout.total_seconds(), LONGEST_S)
    ranks = tuple(told.global_ranks_in_group)
    with torch_errors():
        whole = _Jobs.whole
        if ranks and whole is not None and options is None:
            return LanterneGroup(whole.communicator.group(ranks, timeout_s), timeout_s, _forget)
        transport, deterministic, own = options or Options()
        if own is not None and not ranks:
            _Jobs.whole = LanterneGroup(own.group(range(own.world_size), timeout_s), timeout_s, _forget)
            return _Jobs.whole
        place = meet(told.store, told.group_id, told.group_rank, told.group_size, timeout_s)
        comm = join(place, told.group_rank, told.group_size, transport, timeout_s, deterministic=deterministic)
    group = LanterneGroup(comm, timeout_s, _forget)
    if not ranks:
        _Jobs.whole = group
    return group


def _forget(group: LanterneGroup) -> None:
    if _Jobs.whole is group:
        _Jobs.whole = None
