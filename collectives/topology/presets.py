"""Topologies to begin with, by name and size: what a user without a file, or without the cluster, prices and draws for.

Rates are of one direction. Start-up times are those of a message between two ranks that are ready.
"""

import re
from collections.abc import Callable
from pathlib import Path

from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import MAX_WORLD_SIZE
from lanterne.collectives.topology.topology import INSIDE, MESH, NIC, TRUNK, LinkClass, Ranks, Topology
from lanterne.collectives.topology.topology_json import read_topology
from lanterne.errors import InputError, one_of

GB_PER_S = 1e9
GBIT_PER_S = 1e9 / 8
# An NVSwitch (StragglAR section 5), its start-up time, and that between hosts.
NVSWITCH_BYTES_PER_S, INSIDE_S, BETWEEN_S = 450 * GB_PER_S, 3e-6, 3e-6
NIC_BYTES_PER_S = 50 * GB_PER_S


def nodes_in_order(num_nodes: int, ranks_per_node: int) -> tuple[Ranks, ...]:
    """The ranks of each node, numbered node by node."""
    return tuple(
        tuple(range(first, first + ranks_per_node)) for first in range(0, num_nodes * ranks_per_node, ranks_per_node)
    )


def each_alone(nodes: tuple[Ranks, ...]) -> tuple[Ranks, ...]:
    """A link for every rank."""
    return tuple((rank,) for ranks in nodes for rank in ranks)


def dgx(num_nodes: int, ranks_per_node: int) -> Topology:
    """GPUs below an NVSwitch, 450 GB/s each, with a NIC of 50 GB/s each."""
    nodes = nodes_in_order(num_nodes, ranks_per_node)
    inside = LinkClass(INSIDE, CostModel(INSIDE_S, 1 / NVSWITCH_BYTES_PER_S), each_alone(nodes))
    nics = LinkClass(NIC, CostModel(BETWEEN_S, 1 / NIC_BYTES_PER_S), each_alone(nodes))
    return Topology(nodes, (inside, nics), name=f"dgx-{num_nodes}x{ranks_per_node}")


def dgx_one_nic(num_nodes: int, ranks_per_node: int) -> Topology:
    """As `dgx`, with one NIC of 50 GB/s for all GPUs of a node."""
    nodes = nodes_in_order(num_nodes, ranks_per_node)
    inside = LinkClass(INSIDE, CostModel(INSIDE_S, 1 / NVSWITCH_BYTES_PER_S), each_alone(nodes))
    nics = LinkClass(NIC, CostModel(BETWEEN_S, 1 / NIC_BYTES_PER_S), nodes)
    return Topology(nodes, (inside, nics), name=f"dgx-one-nic-{num_nodes}x{ranks_per_node}")


def fat_tree(num_nodes: int, ranks_per_node: int) -> Topology:
    """As `dgx`, in racks of four nodes whose uplinks carry half of what their NICs do."""
    plain = dgx(num_nodes, ranks_per_node)
    racks = tuple(
        tuple(rank for ranks in plain.nodes[first : first + 4] for rank in ranks) for first in range(0, num_nodes, 4)
    )
    uplink = LinkClass(TRUNK, CostModel(1e-6, 1 / (NIC_BYTES_PER_S * 4 * ranks_per_node / 2)), racks)
    return Topology(plain.nodes, (*plain.links, uplink), name=f"fat-tree-{num_nodes}x{ranks_per_node}")


def mesh(num_nodes: int, ranks_per_node: int) -> Topology:
    """GPUs of a node with a link of 100 GB/s to each other (StragglAR appendix G), and a NIC of 25 GB/s each."""
    nodes = nodes_in_order(num_nodes, ranks_per_node)
    pairs = LinkClass(MESH, CostModel(INSIDE_S, 1 / (100 * GB_PER_S)))
    nics = LinkClass(NIC, CostModel(BETWEEN_S, 1 / (25 * GB_PER_S)), each_alone(nodes))
    return Topology(nodes, (pairs, nics), name=f"mesh-{num_nodes}x{ranks_per_node}")


def hosts(num_nodes: int, ranks_per_node: int) -> Topology:
    """CPU hosts: shared memory at 10 GB/s for each rank, one NIC of 10 Gbit/s."""
    nodes = nodes_in_order(num_nodes, ranks_per_node)
    inside = LinkClass(INSIDE, CostModel(1e-6, 1 / (10 * GB_PER_S)), each_alone(nodes))
    nics = LinkClass(NIC, CostModel(20e-6, 1 / (10 * GBIT_PER_S)), nodes)
    return Topology(nodes, (inside, nics), 1 / (10 * GB_PER_S), f"hosts-{num_nodes}x{ranks_per_node}")


def _two_sites(name: str, latency_s: float, trunk_bytes_per_s: float) -> Callable[[int, int], Topology]:
    """Half of the nodes at each of two sites (CrossPipe section 2.3)."""

    def make(num_nodes: int, ranks_per_node: int) -> Topology:
        plain = dgx(num_nodes, ranks_per_node)
        half = num_nodes // 2
        if not half:
            raise InputError(f"preset {name}: got {num_nodes} node, expected 2 or more")
        sites = tuple(
            tuple(rank for ranks in part for rank in ranks) for part in (plain.nodes[:half], plain.nodes[half:])
        )
        trunk = LinkClass(TRUNK, CostModel(latency_s, 1 / trunk_bytes_per_s), sites)
        return Topology(plain.nodes, (*plain.links, trunk), name=f"{name}-{num_nodes}x{ranks_per_node}")

    return make


# By name: what makes it of numbers of nodes and ranks on each, and a line for people. The last four are CrossPipe's,
# each with one port's rate between two sites.
PRESETS: dict[str, tuple[Callable[[int, int], Topology], str]] = {
    "dgx": (dgx, "NVSwitch 450 GB/s, a NIC of 50 GB/s a GPU"),
    "dgx-one-nic": (dgx_one_nic, "NVSwitch 450 GB/s, a NIC of 50 GB/s a node"),
    "fat-tree": (fat_tree, "dgx in racks of 4 nodes, uplinks oversubscribed twice"),
    "mesh": (mesh, "100 GB/s between any two GPUs of a node, a NIC of 25 GB/s a GPU"),
    "hosts": (hosts, "CPUs: 10 GB/s inside, a NIC of 10 Gbit/s a host"),
    "same-campus": (_two_sites("same-campus", 10e-6, 800 * GBIT_PER_S), "dgx at two sites of a campus"),
    "cross-campus": (_two_sites("cross-campus", 200e-6, 200 * GBIT_PER_S), "dgx at two sites 40 km apart"),
    "same-region-cloud": (_two_sites("same-region-cloud", 1e-3, 11.3 * GBIT_PER_S), "dgx in two zones of a cloud"),
    "cross-region-cloud": (_two_sites("cross-region-cloud", 30e-3, 5 * GBIT_PER_S), "dgx in two regions of a cloud"),
}
_SIZED = re.compile(r"(.+)-(\d{1,5})x(\d{1,5})")


def find_topology(text: str) -> Topology:
    """The Topology of a file, where `text` has a suffix or is there, else of a preset.

    Raises:
        InputError: as read_topology and find_preset.
    """
    path = Path(text)
    return read_topology(path) if path.suffix or path.exists() else find_preset(text)


def find_preset(text: str) -> Topology:
    """The Topology of "dgx-8x8": a preset, and how many nodes of how many ranks.

    Raises:
        InputError: no such preset, or a size that cannot be.
    """
    match = _SIZED.fullmatch(text)
    if not match or match[1] not in PRESETS:
        name = match[1] if match else text
        if name in PRESETS:
            raise InputError(f"topology: got {text!r}, expected its nodes and ranks behind it: {name}-8x8")
        raise InputError(f"topology: {one_of(name, PRESETS)}, and its size: dgx-8x8")
    num_nodes, ranks_per_node = int(match[2]), int(match[3])
    if not 1 <= num_nodes * ranks_per_node <= MAX_WORLD_SIZE:
        raise InputError(f"topology: got {num_nodes * ranks_per_node} ranks, expected 1 to {MAX_WORLD_SIZE}")
    return PRESETS[match[1]][0](num_nodes, ranks_per_node)
