"""Double binary tree: two trees, each with half the chunks, in which hardly a rank is inner twice; pipelined."""

import numpy as np

from lanterne.collectives.algorithms.binomial import from_root
from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, Ints, ScheduleBuilder
from lanterne.collectives.schedule.passes import chain, reverse


def tree_broadcast(
    world_size: int, root: int, num_chunks: int | None = None, *, only: int | None = None
) -> CollectiveSchedule:
    """The root feeds both trees in turn; a rank hears its two parents in turn and sends to two children in turn.

    Cost (p = world_size, m = num_chunks): rounds <= (m + 1 + 2 * ceil(log2(p))) * (p > 1); load <= rounds / m
    Paper: Sanders, Speck and Traeff 2009.
    """
    num_chunks = num_chunks or max(2, 2 * (world_size - 1).bit_length())
    rank_of = from_root(world_size, root)
    build = ScheduleBuilder("broadcast", "tree", world_size, num_chunks, rank_of=rank_of, root=root, only=only)
    if world_size > 1:
        tree, parent, child = _two_trees(world_size - 1)
        first = _first_rounds(tree, parent, child, _edge_colours(parent, child))
        # The chunks of a tree after its first one follow every second round; of one chunk the second tree has none.
        last = (first + 2 * ((num_chunks - 1 - tree) // 2))[tree < num_chunks].max()
        mine = build.mine(world_size)
        kept = np.isin(parent, mine) | np.isin(child, mine)
        tree, parent, child, first = tree[kept], parent[kept], child[kept], first[kept]
        turn = np.arange((num_chunks + 1) // 2)
        chunk = 2 * turn + tree[:, None]
        index, src, dst, chunk = np.broadcast_arrays(first[:, None] + 2 * turn, parent[:, None], child[:, None], chunk)
        real = chunk < num_chunks
        build.rounds(index[real], src[real], dst[real], chunk[real], COPY, count=int(last) + 1)
    return build.build()


def tree_reduce(
    world_size: int, root: int, num_chunks: int | None = None, *, only: int | None = None
) -> CollectiveSchedule:
    """The broadcast reversed in time.

    Cost (p = world_size, m = num_chunks): rounds <= (m + 1 + 2 * ceil(log2(p))) * (p > 1); load <= rounds / m
    """
    return reverse(tree_broadcast(world_size, root, num_chunks, only=only), "reduce")


def tree_all_reduce(world_size: int, num_chunks: int | None = None, *, only: int | None = None) -> CollectiveSchedule:
    """Up both trees to rank 0, then down again.

    Cost (p = world_size, m = num_chunks): rounds <= 2 * (m + 1 + 2 * ceil(log2(p))) * (p > 1); load <= rounds / m
    """
    up, down = (make(world_size, 0, num_chunks, only=only) for make in (tree_reduce, tree_broadcast))
    return chain("all_reduce", {"reduce": up, "broadcast": down})


def _two_trees(size: int) -> tuple[Ints, Ints, Ints]:
    """Edges (tree, parent, child) of two binary trees over roles 1 to `size`, both fed by role 0.

    In the first tree the odd positions are leaves; the second shifts or mirrors the roles so that odd roles sit at even
    positions.
    """
    position = np.arange(1, size + 1)
    parent_position = np.array([_parent(p, size) for p in position.tolist()])
    second = np.r_[position[1:], 1] if size % 2 else position[::-1]
    # role_at[k]: role at position k; the feeder, role 0, is the parent of the root.
    edges: list[tuple[Ints, Ints, Ints]] = []
    for tree, position_of in enumerate((position, second)):
        role_at = np.zeros(size + 1, np.int64)
        role_at[position_of] = position
        edges.append((np.full(size, tree), role_at[parent_position], role_at[position]))
    trees, parents, children = zip(*edges, strict=True)
    return np.concatenate(trees), np.concatenate(parents), np.concatenate(children)


def _parent(position: int, size: int) -> int:
    """Parent of `position` in the in-order binary tree of positions 1 to `size`; 0 for the root."""
    if position & (position - 1) == 0 and 2 * position > size:
        return 0
    bit = position & -position
    parent = (position ^ bit) | (bit << 1)
    return parent if parent <= size else position ^ bit


def _edge_colours(parent: Ints, child: Ints) -> dict[int, int]:
    """0 or 1 for every edge, so that edges that leave one role differ, and so do edges that enter one role."""
    of_port: dict[tuple[str, int], list[int]] = {}
    for edge, (src, dst) in enumerate(zip(parent.tolist(), child.tolist(), strict=True)):
        of_port.setdefault(("out", src), []).append(edge)
        of_port.setdefault(("in", dst), []).append(edge)
    neighbours: list[list[int]] = [[] for _ in parent]
    for edges in of_port.values():
        for edge in edges:
            neighbours[edge] += [other for other in edges if other != edge]
    colour: dict[int, int] = {}
    for start in range(len(parent)):
        if start not in colour:
            colour[start], stack = 0, [start]
            while stack:
                edge = stack.pop()
                for other in neighbours[edge]:
                    if other not in colour:
                        colour[other] = 1 - colour[edge]
                        stack.append(other)
    return colour


def _first_rounds(tree: Ints, parent: Ints, child: Ints, colour: dict[int, int]) -> Ints:
    """The round in which every edge carries its tree's first chunk; the next ones follow every second round."""
    edge_into = {(t, dst): edge for edge, (t, dst) in enumerate(zip(tree.tolist(), child.tolist(), strict=True))}
    first: dict[int, int] = {}

    def visit(edge: int) -> int:
        if edge not in first:
            above = edge_into.get((int(tree[edge]), int(parent[edge])))
            earliest = 0 if above is None else visit(above) + 1
            first[edge] = earliest + (earliest + colour[edge]) % 2
        return first[edge]

    return np.array([visit(edge) for edge in range(len(tree))])
