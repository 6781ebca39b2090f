"""What the links between GPUs are: NVLink, PCIe, host memory, a network with or without GPUDirect; as far as is known.

Two tell of it. NVML knows of two GPUs of one host whether they reach each other by NVLink, else how far apart they are
on PCIe. NCCL knows what it has taken, and says it in its log (transport/nccl/connection_log.py): whether a message goes
straight between the GPUs, through host memory or over a network, but not over which wires. Where one is silent, the
other is believed; where both are, the kind is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from lanterne.failslow.operate.telemetry import open_nvml
from lanterne.transport.nccl.connection_log import FILE, LEVEL, ConnectionLog

UNKNOWN = "kind unknown"
# nvmlGpuTopologyLevel_t: the nearest that two GPUs have in common.
PCIE_LEVELS = {
    0: "PCIe on one board",
    10: "PCIe, one switch",
    20: "PCIe, several switches",
    30: "PCIe, host bridge",
    40: "PCIe, within a NUMA node",
    50: "PCIe, between sockets",
}


def near_kinds(own: str, others: Sequence[str]) -> tuple[dict[str, str], str]:
    """What links the GPU at PCI address `own` to those at `others`, GPUs of one host, as NVML has it.

    Returns:
        ({PCI address: kind} as far as NVML tells, why it does not tell at all or "").
    """
    nvml, why = open_nvml()
    found: dict[str, str] = {}
    if nvml is None:
        return found, why
    for other in others:
        # Who is too old for a question, or may not see a GPU, raises one of many errors of its own.
        with suppress(Exception):
            found[other] = _near_kind(nvml, own, other)
    return found, ""


def _near_kind(nvml: Any, own: str, other: str) -> str:
    if own == other:
        return "one GPU"
    here, there = (nvml.nvmlDeviceGetHandleByPciBusId(address.encode()) for address in (own, other))
    with suppress(Exception):
        if nvml.nvmlDeviceGetP2PStatus(here, there, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
            return "NVLink"
    return PCIE_LEVELS[nvml.nvmlDeviceGetTopologyCommonAncestor(here, there)]


def named(taken: str, near: str) -> str:
    """The kind of a link by which NCCL has `taken` a way, and which is `near` by NVML; empty: not told."""
    kind, _, rest = taken.partition("/")
    if kind == "NET":
        network = rest.partition("/")[0]
        return f"{network}, {'GPUDirect' if 'GDRDMA' in rest else 'through host memory'}"
    if kind == "SHM":
        return "through host memory"
    if kind == "P2P":
        return near or "between GPUs, NVLink or PCIe"
    return near or UNKNOWN


def summary(kinds: Iterable[str], silent: str) -> str:
    """`kinds` of directed links, counted, and why those that are unknown are; "" without any.

    Args:
        silent: see KindFinder.own_kinds.
    """
    counts = Counter(kinds)
    text = "; ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{text} ({silent})" if silent else text


class KindFinder:
    """What this rank's links are; made before NCCL's communicator of these ranks, asked when its messages have gone."""

    def __init__(self) -> None:
        self._log = ConnectionLog.here()

    def own_kinds(self, rank: int, seats: Sequence[tuple[int, str]]) -> tuple[list[str], str]:
        """The kind of the link from `rank` to each rank, "" to itself.

        Args:
            seats: (host, PCI address) of each rank.

        Returns:
            (kinds by rank; where one is unknown, who could have told and what it takes, else "").
        """
        host, own = seats[rank]
        here = [address for peer, (there, address) in enumerate(seats) if there == host and peer != rank]
        near, why = near_kinds(own, here) if here else ({}, "")
        taken = {} if self._log is None else self._log.taken(rank)
        kinds = [
            "" if peer == rank else named(taken.get(peer, ""), near.get(address, "") if there == host else "")
            for peer, (there, address) in enumerate(seats)
        ]
        if UNKNOWN not in kinds:
            return kinds, ""
        by_log = f"{LEVEL}=INFO {FILE}=/tmp/nccl.%h.%p would tell" if self._log is None else "it names no connection"
        by_nvml = f"NVML: {why or 'it tells of GPUs of one host'}"
        return kinds, f"{by_nvml}; NCCL's log: {by_log}"
