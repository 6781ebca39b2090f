"""Hierarchical all-reduces: which schedule runs across the nodes."""

from collections.abc import Callable, Sequence

from lanterne.collectives.algorithms.bruck import bruck_all_reduce
from lanterne.collectives.algorithms.hierarchical.compose import (
    Nodes,
    compose_all_reduce,
    each_alone,
    nodes_with,
    num_rails,
    repeated,
)
from lanterne.collectives.algorithms.hierarchical.leaves import leaves_all_reduce
from lanterne.collectives.algorithms.late.chain import late_chain_all_reduce
from lanterne.collectives.algorithms.late.group import late_group_all_reduce
from lanterne.collectives.algorithms.late.join import late_join_all_reduce
from lanterne.collectives.algorithms.ring import ring_all_reduce
from lanterne.collectives.schedule.ir import CollectiveSchedule, LateRank, late_set
from lanterne.errors import InputError


def hier_ring_all_reduce(
    world_size: int, num_chunks: int | None = None, nodes: Nodes | None = None, only: int | None = None
) -> CollectiveSchedule:
    """A ring of nodes on every rail. Default chunk count N R, of N nodes and R rails.

    Cost (p = world_size; one rank on each node): rounds = 2 * (p - 1); load = 2 * (p - 1) / p
    """
    return _without_late("hier_ring", ring_all_reduce, world_size, num_chunks, nodes, only)


def hier_bruck_all_reduce(
    world_size: int, num_chunks: int | None = None, nodes: Nodes | None = None, only: int | None = None
) -> CollectiveSchedule:
    """A circulant exchange of nodes on every rail; few rounds, for many nodes. Default chunk count N R.

    Cost (p = world_size; one rank on each node): rounds = 2 * ceil(log2(p)); load = 2 * (p - 1) / p
    """
    return _without_late("hier_bruck", bruck_all_reduce, world_size, num_chunks, nodes, only)


def hier_late_join_all_reduce(
    world_size: int,
    late_rank: LateRank,
    num_chunks: int | None = None,
    nodes: Nodes | None = None,
    only: int | None = None,
) -> CollectiveSchedule:
    """A late join of the late rank's node on every rail. Default chunk count N - 1 a rail.

    Of several late nodes it is late_group's, and where all nodes have a late rank a ring, once they have come.

    Cost (p = world_size, m = num_chunks; one rank on each node): join = m - 1 + ceil(log2(p)); join_load = join / m
    """
    return _with_late("hier_late_join", late_join_all_reduce, world_size, late_rank, num_chunks, nodes, only)


def hier_late_chain_all_reduce(
    world_size: int,
    late_rank: LateRank,
    num_chunks: int | None = None,
    nodes: Nodes | None = None,
    only: int | None = None,
) -> CollectiveSchedule:
    """A pipelined ring of nodes through the late rank's, on every rail. Default chunk count N - 1 a rail.

    Of several late nodes it is late_group's, and where all nodes have a late rank a ring, once they have come.

    Cost (p = world_size, m = num_chunks; one rank on each node): join = m + p - 1; join_load = join / m
    """
    return _with_late("hier_late_chain", late_chain_all_reduce, world_size, late_rank, num_chunks, nodes, only)


def hier_slow_all_reduce(
    world_size: int, num_chunks: int | None = None, nodes: Nodes | None = None, slow: Sequence[int] | None = None
) -> CollectiveSchedule:
    """Nodes whose NICs are slow hang on a ring of the others (leaves.py), on every rail. Default chunk count 8 N R.

    Args:
        slow: those nodes; None: the last one. Where all are, none is.

    Cost (p = world_size, m = num_chunks; one rank on each node): rounds <= m + 2 * p
    """
    nodes = nodes or each_alone(world_size)
    return _on_leaves("hier_slow", None, num_chunks, nodes, _hanging("hier_slow", len(nodes), slow))


def hier_join_all_reduce(
    world_size: int, num_chunks: int | None = None, nodes: Nodes | None = None, slow: Sequence[int] | None = None
) -> CollectiveSchedule:
    """Nodes whose NICs are slow come to the others' sums as late ones do. Default chunk count as hier_late_join's.

    Such a node sends the buffer once and gets it once, as with hier_slow; the others hand on results as they come.

    Args:
        slow: those nodes; None: the last one. Where all are, none is.

    Cost (p = world_size, m = num_chunks; one rank on each node): rounds <= m + 2 * p
    """
    nodes = nodes or each_alone(world_size)
    size, rails = len(nodes), num_rails(nodes)
    slow = _hanging("hier_join", size, slow)
    num_chunks = num_chunks or max(1, size - 1) * rails
    across = _joined(late_join_all_reduce, size, slow, -(-num_chunks // rails))
    return compose_all_reduce("hier_join", across, nodes, num_chunks)


def hier_late_slow_all_reduce(
    world_size: int,
    late_rank: LateRank,
    num_chunks: int | None = None,
    nodes: Nodes | None = None,
    slow: Sequence[int] | None = None,
) -> CollectiveSchedule:
    """As hier_slow, with the nodes of late ranks, of which none passes anything on, beside the slow ones.

    Args:
        slow: those nodes; None: the last one.

    Cost (p = world_size, m = num_chunks; one rank on each node): join <= m + p
    """
    nodes = nodes or each_alone(world_size)
    hanging = _hanging("hier_late_slow", len(nodes), slow)
    return _on_leaves("hier_late_slow", late_rank, num_chunks, nodes, hanging)


def _hanging(name: str, size: int, slow: Sequence[int] | None) -> tuple[int, ...]:
    if slow is None:
        return (size - 1,)
    if wrong := [node for node in slow if not 0 <= node < size]:
        raise InputError(f"{name}: got slow node {wrong[0]}, expected 0 to {size - 1}")
    return tuple(slow)


def _on_leaves(
    name: str, late_rank: LateRank, num_chunks: int | None, nodes: Nodes, slow: tuple[int, ...]
) -> CollectiveSchedule:
    size, rails = len(nodes), num_rails(nodes)
    num_chunks = num_chunks or 8 * size * rails
    late, each = nodes_with(nodes, late_set(late_rank)), -(-num_chunks // rails)
    if len({*slow, *late}) == size:
        slow = ()
    if len(late) == size or size == 1:
        schedule = repeated(ring_all_reduce(size), -(-each // size))
    else:
        schedule = leaves_all_reduce(size, slow, late, each)
    return compose_all_reduce(name, schedule, nodes, num_chunks, late_rank)


def _without_late(
    name: str,
    across: Callable[[int], CollectiveSchedule],
    world_size: int,
    num_chunks: int | None,
    nodes: Nodes | None,
    only: int | None,
) -> CollectiveSchedule:
    nodes = nodes or each_alone(world_size)
    rails = num_rails(nodes)
    num_chunks = num_chunks or len(nodes) * rails
    times = -(-num_chunks // (len(nodes) * rails))
    return compose_all_reduce(name, repeated(across(len(nodes)), times), nodes, num_chunks, only=only)


def _with_late(
    name: str,
    across: Callable[[int, int, int], CollectiveSchedule],
    world_size: int,
    late_rank: LateRank,
    num_chunks: int | None,
    nodes: Nodes | None,
    only: int | None,
) -> CollectiveSchedule:
    nodes = nodes or each_alone(world_size)
    rails, size = num_rails(nodes), len(nodes)
    num_chunks = num_chunks or max(1, size - 1) * rails
    late = nodes_with(nodes, late_set(late_rank))
    schedule = _joined(across, size, late, -(-num_chunks // rails))
    return compose_all_reduce(name, schedule, nodes, num_chunks, late_rank, only)


def _joined(
    across: Callable[[int, int, int], CollectiveSchedule], size: int, late: tuple[int, ...], num_chunks: int
) -> CollectiveSchedule:
    """`across` of `size` nodes, which one of them joins; where several do late_group's, where all do a ring."""
    if len(late) == size:
        return repeated(ring_all_reduce(size), -(-num_chunks // size))
    if len(late) == 1:
        return across(size, late[0], num_chunks)
    return late_group_all_reduce(size, late, num_chunks)
