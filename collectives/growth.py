"""How the communicator of a job's next epoch is made, with ranks that were taken in: alike on them and the others."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from lanterne.collectives.schedule.cost import CostModel
from lanterne.errors import TransportError
from lanterne.transport.base import Transport
from lanterne.transport.rank_group import Group
from lanterne.transport.registry import host_transport, open_transport


class Face(Protocol):
    """What is made: a Communicator."""

    def close(self) -> None: ...


Made = TypeVar("Made", bound=Face)


def known_to(model: CostModel | None, *, deterministic: bool) -> bytes:
    """What those that were there before tell the newcomers."""
    return json.dumps({"model": None if model is None else asdict(model), "deterministic": deterministic}).encode()


def enter(
    group: Group,
    transport: str,
    make: Callable[[Transport, Group, CostModel | None, bool], Made],
    limit_s: float,
    told: bytes = b"",
) -> Made | None:
    """What `make` makes of the ranks of `group`, for whom an epoch begins; None: one did not get so far.

    All its ranks call it. If it is None on one it is on all; the group is left then, and the epoch before goes on.

    Args:
        transport: its name, empty where nobody has said one; `make` gets it open, with what those that were there
            before know and have set.
        told: what `known_to` says; empty: of a newcomer.
    """
    with ExitStack() as undo:
        undo.callback(group.abandon)
        try:
            known: Mapping[str, Any] = json.loads(
                next(filter(None, group.exchange("lanterne/known", told, limit_s)), b"{}")
            )
            model = known.get("model")
            opened = open_transport(transport or host_transport(group, limit_s), group, limit_s)
            undo.callback(opened.close)
            deterministic = bool(known.get("deterministic"))
            made = make(opened, group, None if model is None else CostModel(**model), deterministic)
            undo.callback(made.close)
            if group.begin(limit_s):
                undo.pop_all()
                return made
        except TransportError:
            pass  # A rank has died meanwhile, or did not come.
    return None
