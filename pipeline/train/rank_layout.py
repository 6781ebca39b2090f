"""Which rank of a job has which part of a model's copies: pipelines side by side, each stage shared by some ranks."""

from dataclasses import dataclass

import numpy as np

from lanterne.collectives.topology.topology import TRUNK, Topology
from lanterne.errors import InputError


@dataclass(frozen=True)
class Layout:
    """Ranks by what they do.

    Attributes:
        ranks: ranks[copy][place][part], nested tuples of each rank once: `copy` of the pipeline (data parallelism),
            `place` in it, `part` of what is there (tensor parallelism).
    """

    ranks: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        array = np.array(self.ranks)
        if array.ndim != 3 or sorted(array.reshape(-1).tolist()) != list(range(array.size)):
            raise InputError(f"layout: got {self.ranks}, expected [copy][place][part] with each rank once")
        object.__setattr__(self, "ranks", tuple(tuple(map(tuple, copy)) for copy in array.tolist()))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(copies, places, parts)."""
        return len(self.ranks), len(self.ranks[0]), len(self.ranks[0][0])

    def where(self, rank: int) -> tuple[int, int, int]:
        """(copy, place, part) of `rank`."""
        copy, place, part = np.argwhere(np.array(self.ranks) == rank)[0].tolist()
        return copy, place, part


def make_layout(
    world_size: int,
    places: int | None = None,
    copies: int | None = None,
    parts: int = 1,
    topology: Topology | None = None,
) -> Layout:
    """The Layout with parts of a place next to each other, then places of a copy; what is None follows from the rest.

    Args:
        topology: where ranks share nodes, the links between these: parts of a place are next to each other on it, then
            its copies, and pipelines run across what is slow, which their plans can absorb and all-reduces cannot.

    Raises:
        InputError: no such division of `world_size` ranks.
    """
    if min(parts, 1 if places is None else places, 1 if copies is None else copies) < 1:
        raise InputError(f"layout: got {places} stages, {copies} copies and {parts} parts, expected at least 1 of each")
    given = parts * (places or 1) * (copies or 1)
    if world_size % given or (places and copies and world_size != given):
        words = [f"{places} stages"] * bool(places) + [f"{copies} copies"] * bool(copies) + [f"{parts} tensor parts"]
        expected = f"{given}" if places and copies else f"a multiple of {given}"
        raise InputError(f"ranks: got {world_size} for {' x '.join(words)}, expected {expected}")
    places = places or world_size // given
    array = np.arange(world_size).reshape(-1, places, parts)
    if topology is not None:
        array = np.array(nearest_first(topology)).reshape(places, -1, parts).swapaxes(0, 1)
    return Layout(tuple(tuple(map(tuple, copy)) for copy in array.tolist()))


def nearest_first(topology: Topology) -> list[int]:
    """The ranks of `topology`: those of a site next to each other, there those of a rack, and there those of a node.

    Paper: ADAPTRA section 6 has groups by the network's topology, and slow links in pipelines, not in all-reduces.
    """
    trunks = [links for links in topology.links if links.kind == TRUNK]
    # The widest first.
    trunks.sort(key=lambda links: -max(map(len, links.shared_by), default=0))
    first_of = [{rank: min(ranks) for ranks in links.shared_by for rank in ranks} for links in trunks]
    first_of.append({rank: min(ranks) for ranks in topology.nodes for rank in ranks})
    return sorted(range(topology.world_size), key=lambda rank: (*(first.get(rank, rank) for first in first_of), rank))


def fit_layout(world_size: int, places: int | None, parts: int, most_places: int) -> Layout:
    """The Layout of all ranks that there are, with as many `places`, else the next more that go, else the next less.

    More places need less memory of a rank, fewer more.

    Args:
        places: None: all ranks in one copy, as far as the model goes.
        most_places: into how many the model can be cut.

    Raises:
        InputError: `world_size` is no multiple of `parts`.
    """
    if world_size % parts:
        raise InputError(f"layout: got {world_size} ranks for {parts} tensor parts, expected a multiple")
    pairs = world_size // parts
    wanted = min(pairs if places is None else places, most_places)
    divisors = [count for count in range(1, min(pairs, most_places) + 1) if pairs % count == 0]
    chosen = next((count for count in divisors if count >= wanted), divisors[-1])
    return make_layout(world_size, chosen, pairs // chosen, parts)
