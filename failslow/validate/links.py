"""Which links to test, and in which passes, so that each link of a ring or tree is measured in both directions.

Paper: Wu et al. (GREYHOUND), section 4.3, figure 10; differs: its 2 or 3 ring passes and 4 tree passes measure one
direction of each link only (parent to child never) and one tree of NCCL's two. Here each pass is full duplex, the
links of the ring and of both trees are deduplicated, and an edge colouring packs them into as many passes as the
busiest rank has links: 6 at most.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from lanterne.errors import InputError

# Healthy ranks, or links of the suspects' kind, that are measured again beside these.
WITNESSES = 4

# (a, b) of ranks; directed links are (src, dst).
Link: TypeAlias = tuple[int, int]
# By rank, the other end of its link of each colour.
_Colouring: TypeAlias = dict[int, dict[int, int]]


def tree_parents(world_size: int, tree: int) -> tuple[int | None, ...]:
    """Parent of each rank (None for the root) in NCCL's double binary tree.

    Tree 0 hangs rank r, whose lowest set bit is b, below the rank with b cleared and 2b set, or with b cleared where
    that rank does not exist. Tree 1 is tree 0 mirrored for even world sizes, shifted by one rank for odd ones: the
    leaves of the one are inner ranks of the other.
    """
    if tree == 0:
        return tuple(_parent(rank, world_size) for rank in range(world_size))
    if world_size % 2 == 0:
        to_first = [world_size - 1 - rank for rank in range(world_size)]
    else:
        to_first = [(rank - 1) % world_size for rank in range(world_size)]
    from_first = {there: here for here, there in enumerate(to_first)}
    parents = (_parent(there, world_size) for there in to_first)
    return tuple(None if parent is None else from_first[parent] for parent in parents)


def _parent(rank: int, world_size: int) -> int | None:
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < world_size else rank ^ bit


def collective_links(world_size: int) -> tuple[Link, ...]:
    """The links (a, b), a < b, that a ring and both trees over ranks 0 to world_size - 1 use, sorted."""
    links = {(rank, (rank + 1) % world_size) for rank in range(world_size)}
    for tree in (0, 1):
        links |= {(rank, up) for rank, up in enumerate(tree_parents(world_size, tree)) if up is not None}
    return tuple(sorted({(min(link), max(link)) for link in links if link[0] != link[1]}))


def link_passes(ranks: Iterable[int]) -> tuple[tuple[Link, ...], ...]:
    """Passes that test every link of a ring and both trees over `ranks` (in ring order), each rank in one link a pass.

    In a pass the two ends of each link (a, b) send and receive at once, so both directions are measured.

    Raises:
        InputError: fewer than 2 ranks, or one twice.

    Cost: as many passes as the busiest rank has links: 1 for 2 ranks, at most 6 for 2 to 64.
    """
    ranks = tuple(ranks)
    if len(ranks) < 2 or len(set(ranks)) < len(ranks):
        raise InputError(f"link passes: got ranks {ranks}, expected at least 2, each once")
    links = collective_links(len(ranks))
    return tuple(tuple((ranks[a], ranks[b]) for a, b in batch) for batch in colour_edges(links))


def colour_edges(links: Iterable[Link]) -> tuple[tuple[Link, ...], ...]:
    """Partition `links` into matchings: as many as the largest degree, or one more where the search does not find that.

    Each edge takes a colour free at both ends; where there is none, an alternating path of two colours is swapped to
    make one (Kempe). A few orders of the edges are tried before another colour is allowed: Vizing's theorem says that
    it suffices.
    """
    import random

    degree: dict[int, int] = {}
    for link in links:
        for end in link:
            degree[end] = degree.get(end, 0) + 1
    largest = max(degree.values(), default=0)
    for colours in range(largest, 2 * largest):
        for attempt in range(200):
            order = sorted(links, key=lambda link: -degree[link[0]] - degree[link[1]])
            if attempt:
                random.Random(attempt).shuffle(order)
            at = _colour(order, colours)
            if at is not None:
                batches = [
                    sorted({(min(end, at[end][c]), max(end, at[end][c])) for end in at if c in at[end]})
                    for c in range(colours)
                ]
                return tuple(tuple(batch) for batch in batches if batch)
    return ()


def _colour(order: Iterable[Link], colours: int) -> _Colouring | None:
    """The links of each rank by colour, or None where an edge finds no colour."""
    at: _Colouring = {end: {} for link in order for end in link}
    for a, b in order:
        free_a = [c for c in range(colours) if c not in at[a]]
        free_b = [c for c in range(colours) if c not in at[b]]
        both = next((c for c in free_a if c in free_b), None)
        if both is None:
            both = next((ca for ca in free_a for cb in free_b if _swap_path(at, b, ca, cb, avoid=a)), None)
        if both is None:
            return None
        at[a][both], at[b][both] = b, a
    return at


def _swap_path(at: _Colouring, start: int, first: int, second: int, avoid: int) -> bool:
    """Swap two colours along the path from `start`, to free `first` there; False where it ends at `avoid`."""
    path, vertex, colour = [start], start, first
    while colour in at[vertex]:
        vertex = at[vertex][colour]
        path.append(vertex)
        colour = second if colour == first else first
    if vertex == avoid:
        return False
    edges = [(a, b, first if i % 2 == 0 else second) for i, (a, b) in enumerate(pairwise(path))]
    for a, b, colour in edges:
        del at[a][colour], at[b][colour]
    for a, b, colour in edges:
        other = second if colour == first else first
        at[a][other], at[b][other] = b, a
    return True


def neighbours(ranks: Sequence[int]) -> list[Link]:
    """Links that give each of `ranks` another one, few to a rank."""
    return sorted({(min(pair), max(pair)) for pair in zip(ranks[::2], [*ranks[1::2], ranks[0]], strict=False)})


def both_ways(passes: Iterable[Iterable[Link]]) -> list[Link]:
    """Both directions (src, dst) of every link of `passes`."""
    return [way for batch in passes for a, b in batch for way in ((a, b), (b, a))]


def with_witnesses(samples: Iterable[Link], suspects: Collection[Link], hosts: Sequence[int]) -> list[Link]:
    """Links (a, b): the suspects, and up to WITNESSES links of each of their kinds that look healthy both ways."""
    chosen = {(min(link), max(link)) for link in suspects}
    for inside in {hosts[a] == hosts[b] for a, b in suspects}:
        healthy = {(min(link), max(link)) for link in samples if (hosts[link[0]] == hosts[link[1]]) == inside} - chosen
        chosen |= set(sorted(healthy)[:WITNESSES])
    return sorted(chosen)


def split_blame(tested: Collection[Link], bad: Collection[Link]) -> tuple[tuple[int, ...], tuple[Link, ...]]:
    """(ranks, links) to blame for the slow links `bad` among the directed links `tested`.

    A rank is blamed where it has at least two links and all of them are slow in a direction (outgoing or incoming);
    what is slow beyond that is a link.
    """
    ranks: set[int] = set()
    for end in (0, 1):
        for rank in {link[end] for link in tested}:
            own = [link for link in tested if link[end] == rank]
            if len(own) > 1 and all(link in bad for link in own):
                ranks.add(rank)
    links = sorted(link for link in bad if link[0] not in ranks and link[1] not in ranks)
    return tuple(sorted(ranks)), tuple(links)
