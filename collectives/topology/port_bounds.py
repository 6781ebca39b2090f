"""What no all-reduce on a topology can beat, by bytes alone: every part of the cluster has to send and get the buffer.

Whatever the algorithm, the buffer's bytes must leave each rank, node and side of a trunk that is not alone, and come
in: nobody else has its contribution, and its own result needs theirs. With a late rank that holds from its arrival on,
since all results need what it brings. With nobody late all nodes (and all ranks) together send twice the buffer for
each but one of them.
"""

from collections.abc import Iterator

import numpy as np

from lanterne.collectives.topology.topology import INSIDE, MESH, NIC, SWITCH, TRUNK, Ranks, Topology


def bound_s(topology: Topology, nbytes: float, *, late: bool = False) -> float:
    """Seconds that an all-reduce of `nbytes` takes at least; `late`: from the arrival of the last rank, or ranks."""
    ranks, nodes = _rank_rates(topology), _node_rates(topology)
    slowest = min((*ranks, *nodes, *_side_rates(topology)), default=np.inf)
    bound = nbytes / slowest
    if not late:
        # A NIC that ranks share is no more than one for all of them.
        inside = sum(_rank_rates(topology, between=False))
        for count, total in ((len(nodes), sum(nodes)), (len(ranks), inside + sum(nodes))):
            if count > 1 and total > 0:
                bound = max(bound, 2 * (count - 1) * nbytes / total)
    return float(bound)


def _rates(topology: Topology, kind: str) -> Iterator[tuple[Ranks, float]]:
    """(who shares it, bytes per s) of each link of a class."""
    for links in topology.links:
        if links.kind == kind:
            _, beta = links.model.alpha_beta(1e12)
            for ranks, factor in zip(links.shared_by, links.slowdown or [1.0] * len(links.shared_by), strict=True):
                yield ranks, 1 / max(float(beta) * factor, 1e-30)


def _rank_rates(topology: Topology, *, between: bool = True) -> list[float]:
    """Of each rank, the bytes per s that it can send by all its links; those inside nodes, or `between` them too."""
    if topology.world_size == 1:
        return []
    found = np.zeros(topology.world_size)
    several = len(topology.nodes) > 1
    for kind in (INSIDE, *((NIC,) if between and several else ())):
        for ranks, rate in _rates(topology, kind):
            found[list(ranks)] += rate if kind == NIC or len(topology.nodes[topology.node_of[ranks[0]]]) > 1 else 0.0
    for links in topology.links:
        if links.kind == MESH:
            for ranks in topology.nodes:
                found[list(ranks)] += (len(ranks) - 1) / links.model.beta_s_per_byte
    for ranks, rate in _rates(topology, SWITCH):
        found[list(ranks)] = np.minimum(np.where(found[list(ranks)] > 0, found[list(ranks)], np.inf), rate)
    return [float(rate) for rate in found]


def _node_rates(topology: Topology) -> list[float]:
    """Of each node, the bytes per s that it can send to others."""
    if len(topology.nodes) == 1:
        return []
    found = np.full(len(topology.nodes), np.inf)
    for kind in (NIC, SWITCH):
        by_class = np.zeros(len(topology.nodes))
        for ranks, rate in _rates(topology, kind):
            by_class[topology.node_of[ranks[0]]] += rate
        found = np.minimum(found, np.where(by_class > 0, by_class, np.inf))
    return [float(rate) for rate in found]


def _side_rates(topology: Topology) -> list[float]:
    """The rates of the trunks that not all ranks are on one side of."""
    return [rate for ranks, rate in _rates(topology, TRUNK) if len(ranks) < topology.world_size]
