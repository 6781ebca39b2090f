"""All-gather, reduce-scatter, broadcast and reduce over nodes: between nodes every part goes once to each of them.

As in compose.py what crosses does so on rails, between ranks in the same place of their nodes, and who receives for its
node, the owner there, gives it to the others in the next round, beside what crosses. Flat algorithms send a part to
each rank of a node, through the NIC that they share, or leave the NICs of other ranks idle.
"""

from collections.abc import Callable

import numpy as np

from lanterne.collectives.algorithms.hierarchical.compose import (
    Nodes,
    Transfers,
    across_rails,
    add_rounds,
    each_alone,
    nodes_with,
    num_rails,
    owners,
)
from lanterne.collectives.algorithms.pipelined_chain import chain_broadcast
from lanterne.collectives.algorithms.tree import tree_broadcast
from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, Ints, ScheduleBuilder
from lanterne.collectives.schedule.passes import relabelled, reverse


def hier_ring_all_gather(world_size: int, nodes: Nodes | None = None) -> CollectiveSchedule:
    """A ring of nodes, on every rail; each rank gives its own part to its node first.

    Cost (p = world_size; one rank on each node): rounds = p - 1; load = (p - 1) / p
    """
    nodes = nodes or each_alone(world_size)
    count, rails = len(nodes), num_rails(nodes)
    sizes, owner = np.array([len(ranks) for ranks in nodes]), owners(nodes, rails)
    # In step t node a sends on what node a - t has, rail by rail; t = -1: every node has its own.
    step, node, rail = (grid.reshape(-1) for grid in np.indices((count, count, rails)))
    source = (node - step) % count
    real = rail < sizes[source]
    step, node, rail, source = step[real], node[real], rail[real], source[real]
    part = owner[source, rail]
    crosses = step < count - 1
    after = (node[crosses] + 1) % count
    ring = _copies(step[crosses], owner[node, rail][crosses], owner[after, rail[crosses]], part[crosses])
    # What a node has got in step t - 1, or has at first, its owner gives to each other of the node.
    giver, place = np.repeat(owner[node, rail], rails), np.tile(np.arange(rails), len(node))
    taker = owner[np.repeat(node, rails), place]
    others = (place < np.repeat(sizes[node], rails)) & (taker != giver)
    inside = _copies(np.repeat(step, rails)[others], giver[others], taker[others], np.repeat(part, rails)[others])
    return _built("all_gather", "hier_ring", world_size, world_size, [ring, inside])


def hier_ring_reduce_scatter(world_size: int, nodes: Nodes | None = None) -> CollectiveSchedule:
    """The all-gather reversed in time: sums inside the nodes, which travel around the ring of nodes.

    Cost (p = world_size; one rank on each node): rounds = p - 1; load = (p - 1) / p
    """
    return reverse(hier_ring_all_gather(world_size, nodes), "reduce_scatter")


def hier_chain_broadcast(
    world_size: int, root: int, num_chunks: int | None = None, nodes: Nodes | None = None
) -> CollectiveSchedule:
    """From node to node in a row, on every rail. Default chunk count N R, of N nodes and R rails.

    Cost (p = world_size, m = num_chunks; one rank on each node): rounds = (m + p - 2) * (p > 1); load = rounds / m
    """
    return _broadcast("hier_chain", chain_broadcast, world_size, root, num_chunks, nodes)


def hier_tree_broadcast(
    world_size: int, root: int, num_chunks: int | None = None, nodes: Nodes | None = None
) -> CollectiveSchedule:
    """Down two trees of nodes, on every rail; for many nodes. Default chunk count that of the trees, on each rail.

    Cost (p = world_size, m = num_chunks; one rank on each node): rounds <= (m + 1 + 2 * ceil(log2(p))) * (p > 1)
    """
    return _broadcast("hier_tree", tree_broadcast, world_size, root, num_chunks, nodes)


def hier_tree_reduce(
    world_size: int, root: int, num_chunks: int | None = None, nodes: Nodes | None = None
) -> CollectiveSchedule:
    """The broadcast reversed in time: sums inside the nodes, which travel up two trees of them.

    Cost (p = world_size, m = num_chunks; one rank on each node): rounds <= (m + 1 + 2 * ceil(log2(p))) * (p > 1)
    """
    return reverse(hier_tree_broadcast(world_size, root, num_chunks, nodes), "reduce")


def hier_chain_reduce(
    world_size: int, root: int, num_chunks: int | None = None, nodes: Nodes | None = None
) -> CollectiveSchedule:
    """The broadcast reversed in time: sums inside the nodes, which travel from node to node.

    Cost (p = world_size, m = num_chunks; one rank on each node): rounds = (m + p - 2) * (p > 1); load = rounds / m
    """
    return reverse(hier_chain_broadcast(world_size, root, num_chunks, nodes), "reduce")


def _broadcast(
    name: str,
    across: Callable[[int, int, int | None], CollectiveSchedule],
    world_size: int,
    root: int,
    num_chunks: int | None,
    nodes: Nodes | None,
) -> CollectiveSchedule:
    nodes = nodes or each_alone(world_size)
    rails, home = num_rails(nodes), nodes_with(nodes, (root,))[0]
    schedule = across(len(nodes), home, None if num_chunks is None else -(-num_chunks // rails))
    num_chunks = num_chunks or schedule.num_chunks * rails
    crossing, _, first, last = across_rails(schedule, nodes, num_chunks)
    owner, chunk = owners(nodes, num_chunks), np.arange(num_chunks)
    # The root hands each chunk to its owner in the round before that first sends it.
    needed = np.minimum(first[home, chunk // rails], chunk // rails)
    away = owner[home] != root
    parts = [
        crossing._replace(round=crossing.round + 1),
        _copies(needed[away], np.full(away.sum(), root), owner[home][away], chunk[away]),
    ]
    for node, ranks in enumerate(nodes):
        got = needed if node == home else last[node, chunk // rails] + 1
        for rank in ranks:
            given = (owner[node] != rank) & (rank != root)
            parts.append(_copies(got[given] + 1, owner[node][given], np.full(given.sum(), rank), chunk[given]))
    return _built("broadcast", name, world_size, num_chunks, parts, root)


def _copies(index: Ints, src: Ints, dst: Ints, chunk: Ints) -> Transfers:
    return Transfers(index, src, dst, chunk, np.full(len(index), COPY))


def _built(
    collective: str, name: str, world_size: int, num_chunks: int, parts: list[Transfers], root: int | None = None
) -> CollectiveSchedule:
    """The schedule of `parts`, with the ports that it needs."""
    build = ScheduleBuilder(collective, name, world_size, num_chunks, root=root)
    found = Transfers(*map(np.concatenate, zip(*parts, strict=True)))
    add_rounds(build, found, np.unique(found.round))
    return relabelled(build.build())
