"""Decisions of rank 0, sent to every rank and kept in the job's store."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lanterne.failslow.mitigate.controller import Controller
from lanterne.failslow.mitigate.decision import Decision
from lanterne.failslow.validate.links import Link
from lanterne.pipeline.adapt.agreement import Agreement

if TYPE_CHECKING:
    from lanterne.transport.store.client import StoreClient

# What rank 0 knows is under this in the store, for others to read.
KEY = "lanterne/mitigation"


class Verdicts:
    """What rank 0 has decided, alike on every rank.

    Args:
        store: where rank 0 keeps what it knows; None: nowhere.
        before: as ClosedLoop has it.

    Attributes: `probed`, the links whose delays are to be measured by themselves; `slow`, rank -> factor of those that
    are blamed.
    """

    def __init__(self, agreement: Agreement, store: "StoreClient | None", before: Mapping[int, float]) -> None:
        self.probed: tuple[Link, ...] = ()
        self.slow: dict[int, float] = dict(before)
        self._agreement = agreement
        self._store = store

    def told(self, controller: Controller | None, decision: Decision | None) -> dict[str, Any] | None:
        """What rank 0, which has a `controller`, decided, a dict, or None; every rank calls it."""
        payload = None
        if controller is not None:
            probed, slow = controller.probes, dict(controller.slow_ranks)
            told = decision.to_dict() if decision is not None else None
            changed = told or probed != self.probed or slow != self.slow
            payload = json.dumps([told, probed, [*slow.items()]]).encode() if changed else b""
            if told and self._store is not None:
                self._store.set(KEY, json.dumps(controller.state()).encode())
        payload = self._agreement.verdict(payload)
        if not payload:
            return None
        verdict, links, factors = json.loads(payload)
        self.probed = tuple((a, b) for a, b in links)
        self.slow = dict(factors)
        return verdict
