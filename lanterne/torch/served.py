"""torch.distributed's functions that torch has for its own backends only, for groups of lanterne: `serve_all`."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from lanterne.errors import InputError
from lanterne.torch.joining import NAME
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.torch_internals import new_group, ranks_of, retry_init, serve


def serve_all() -> None:
    """Have torch.distributed's own functions serve groups of lanterne; those of other backends they serve as before."""
    serve("monitored_barrier", "group", LanterneGroup, _monitored_barrier)
    serve("_set_pg_timeout", "group", LanterneGroup, _set_pg_timeout)
    serve("split_group", "parent_pg", LanterneGroup, _split_group)
    retry_init(NAME)


def _monitored_barrier(
    group: LanterneGroup, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    group.monitored_barrier(timeout, wait_all_ranks)


def _set_pg_timeout(timeout: timedelta, group: LanterneGroup) -> None:
    group.set_timeout(timeout)


def _split_group(
    parent_pg: LanterneGroup,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Any:
    """The group of those of `split_ranks`, ranks of `parent_pg`, among whom this one is; None: it is in none."""
    if backend not in (None, NAME):
        raise InputError(f"split_group: got backend {backend!r} of a group of lanterne, expected {NAME!r} or None")
    mine = _part_of(parent_pg.rank(), parent_pg.size(), split_ranks or ())
    if mine is None:
        return None
    return new_group(ranks_of(parent_pg, mine), NAME, timeout=timeout, pg_options=pg_options, group_desc=group_desc)


def _part_of(rank: int, size: int, parts: Sequence[Sequence[int]]) -> list[int] | None:
    """The one of `parts` that has `rank`, sorted; None where none has.

    Raises:
        InputError: there are none, one is empty, a rank is in two, or not of 0 to `size` - 1.
    """
    every = [each for part in parts for each in part]
    if not every or not all(parts) or len(set(every)) < len(every) or not all(0 <= each < size for each in every):
        raise InputError(
            f"split_group: got {[list(part) for part in parts]}, expected lists of ranks 0 to {size - 1}, each in one"
        )
    return next((sorted(part) for part in parts if rank in part), None)
