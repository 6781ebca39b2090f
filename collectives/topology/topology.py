"""A cluster as data: nodes, the ranks on them, and links by class, with what they cost and who shares them.

A message crosses at most one link of each class on its way out, and one on its way in (full duplex). It takes the sum
of the start-up times of the classes that it crosses, and the bytes at the busiest of those links at that link's rate:

    class    carries messages                        shared by, if the file does not say it
    inside   between two ranks of a node             one rank: its port at shared memory, NVLink or NVSwitch
    switch   from a rank below it to any other       (must be said) ranks of a node: a PCIe switch, say
    nic      from a rank that uses it to other nodes the ranks of a node
    trunk    from a rank on its side to the others   (must be said) whole nodes: a rack, a site
    mesh     between two ranks of a node             nobody: each pair has its own

Equal links are the special case of one class, with the numbers of its CostModel (schedule/cost.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.cost import CostModel, num_messages
from lanterne.collectives.schedule.ir import MAX_WORLD_SIZE, CollectiveSchedule, Ints
from lanterne.collectives.topology.crossing import Crossing
from lanterne.collectives.topology.flows import simulate_flows
from lanterne.errors import InputError, one_of

Ranks: TypeAlias = tuple[int, ...]

# See Topology.slow_nodes: what is less slow costs a ring less than going round it does.
SLOW = 1.3
# Of more ranks flows take up to minutes: prices go by rounds.
MOST_FLOW_RANKS = 1024
# Of more nodes one alone would have too many to speak with; see Topology.leaf_sets.
MOST_STAR = 8
INSIDE, SWITCH, NIC, TRUNK, MESH = "inside", "switch", "nic", "trunk", "mesh"


class LinkKind(NamedTuple):
    """Of a class: messages `inside` a node and `between` nodes are carried; ranks that share a link are of one node."""

    inside: bool
    between: bool
    one_node: bool


KINDS: dict[str, LinkKind] = {
    INSIDE: LinkKind(True, False, True),
    SWITCH: LinkKind(True, True, True),
    NIC: LinkKind(False, True, True),
    TRUNK: LinkKind(False, True, False),
    MESH: LinkKind(True, False, True),
}


@dataclass(frozen=True)
class LinkClass:
    """The links of one class.

    Attributes:
        kind: a key of KINDS.
        model: of the fastest link, on which a message is alone. Its gamma does not count.
        shared_by: the ranks of each link, ascending; of a mesh, empty.
        slowdown: of each link, its beta over that of `model`, at least 1; empty: all alike.
    """

    kind: str
    model: CostModel
    shared_by: tuple[Ranks, ...] = ()
    slowdown: tuple[float, ...] = ()

    @cached_property
    def link_of(self) -> Ints:
        """(highest rank + 1,) the link of each rank; len(shared_by) where it has none."""
        size = 1 + max((rank for ranks in self.shared_by for rank in ranks), default=-1)
        found = np.full(size, len(self.shared_by), np.int64)
        for link, ranks in enumerate(self.shared_by):
            found[list(ranks)] = link
        return found


@dataclass(frozen=True)
class Topology:
    """See the module's docstring; a LinkCosts.

    Attributes:
        nodes: the ranks of each node, ascending.
        links: LinkClass tuple; several trunks stand for several levels.
        gamma_s_per_byte: time to add one received byte, s per byte.
        name: for people.
        in_rounds: ranks are done with a round before they go on, as streams are; False: a message leaves once what it
            carries has come, as hosts have it (auto/queued.py).

    Raises:
        InputError: a rank twice, missing or on no link that it needs; names the place.
    """

    nodes: tuple[Ranks, ...]
    links: tuple[LinkClass, ...]
    gamma_s_per_byte: float = 0.0
    name: str = "topology"
    in_rounds: bool = True

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(map(len, self.nodes))

    @cached_property
    def node_of(self) -> Ranks:
        """The node of each rank."""
        found = {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}
        return tuple(found[rank] for rank in range(self.world_size))

    @property
    def is_flat(self) -> bool:
        """Whether there is nothing to gain from knowing nodes: one, or one rank on each, NICs alike and no mesh."""
        is_mesh, takes = any(links.kind == MESH for links in self.links), self.node_takes
        return len(self.nodes) in (1, self.world_size) and not (is_mesh or takes.max() > SLOW * takes.min())

    @cached_property
    def slow_nodes(self) -> Ranks:
        """The nodes that take SLOW times as long as the middle one to send what crosses, by their slowest NIC.

        What crosses goes on as many rails as the largest node has ranks, alike; ranks have equal parts of those.
        """
        takes = self.node_takes
        return tuple(np.flatnonzero(takes >= SLOW * np.median(takes)).tolist()) if takes.max() > 0 else ()

    @property
    def leaf_sets(self) -> tuple[Ranks, ...]:
        """Nodes that may hang on the others: the slow ones; of few nodes the slowest alone, and all but the fastest.

        Of those as fast the one with the most ranks, since the others share what it has to carry inside; where the one
        with the most ranks of all is not slow beside it, all but that one, too. Where NICs differ and no node is slow
        the slowest counts as one, also where that is but for a NIC of one of its ranks.
        """
        takes = self.node_takes
        slowest = (int(takes.argmax()),)
        differ = takes.max() > SLOW * takes.min() or max(self.nic_slowdown) > SLOW
        slow = self.slow_nodes or (slowest if differ else ())
        nodes = range(len(takes))
        if not slow or len(nodes) > MOST_STAR:
            return (slow,) if slow else ()
        fastest = min(nodes, key=lambda node: (takes[node], -len(self.nodes[node])))
        widest = min(nodes, key=lambda node: (-len(self.nodes[node]), takes[node]))
        hubs = [fastest, widest] if takes[widest] <= SLOW * takes[fastest] else [fastest]
        stars = (tuple(node for node in nodes if node != hub) for hub in hubs)
        return tuple(dict.fromkeys((slow, slowest, *stars)))

    @cached_property
    def node_takes(self) -> NDArray[np.float64]:
        """(nodes,) what each takes to send what crosses, in times of the fastest NIC; 0 where nothing crosses NICs."""
        takes, nics = np.zeros(len(self.nodes)), self._nics
        if nics is None or len(self.nodes) == 1:
            return takes
        for link, ranks in enumerate(nics.shared_by):
            node = self.node_of[ranks[0]]
            share = len(ranks) / len(self.nodes[node])
            takes[node] = max(takes[node], share * (nics.slowdown[link] if nics.slowdown else 1.0))
        return takes

    @cached_property
    def nic_slowdown(self) -> tuple[float, ...]:
        """Of each rank, its NIC's beta over that of the fastest; 1 where there is none."""
        nics = self._nics
        if nics is None or not nics.slowdown or len(self.nodes) == 1:
            return (1.0,) * self.world_size
        return tuple(nics.slowdown[link] for link in nics.link_of.tolist())

    @property
    def _nics(self) -> LinkClass | None:
        return next((links for links in self.links if links.kind == NIC), None)

    @cached_property
    def _node_column(self) -> Ints:
        return np.array(self.node_of, np.int64)

    def crossed(self, src: Ints, dst: Ints) -> list[tuple[CostModel, Crossing]]:
        """See SharedLinks."""
        node = self._node_column
        inside = node[src] == node[dst]
        found = []
        for links in self.links:
            kind = KINDS[links.kind]
            mask = np.where(inside, kind.inside, kind.between)
            if links.kind == MESH:
                # Only pairs that are used: there are as many as ranks, squared.
                used, pair = np.unique((src * self.world_size + dst)[mask], return_inverse=True)
                found.append((links.model, Crossing(mask, pair, pair, len(used), np.ones(len(used)))))
                continue
            size = len(links.shared_by)
            link_of = np.full(self.world_size, size, np.int64)
            link_of[: len(links.link_of)] = links.link_of
            mask = mask & (link_of[src] != link_of[dst])
            slowdown = np.append(np.array(links.slowdown or np.ones(size)), 0.0)
            found.append((links.model, Crossing(mask, link_of[src[mask]], link_of[dst[mask]], size + 1, slowdown)))
        return found

    @cached_property
    def is_uneven(self) -> bool:
        """Whether links of a class, or nodes, differ: then they are shared in ways that no sum over a round tells."""
        return any(links.slowdown for links in self.links) or len(set(map(len, self.nodes))) > 1

    def messages_s(self, round_of: Ints, src: Ints, dst: Ints, nbytes: float, world_size: int) -> NDArray[np.float64]:
        """See LinkCosts: start-up times, and what its round has to move at its busiest link."""
        starts_s, moves_s = np.zeros(len(src)), np.zeros(len(src))
        for model, (mask, leaves, enters, size, slowdown) in self.crossed(src, dst):
            if not len(leaves):
                continue
            its_round = round_of[mask]
            out, into = its_round * size + leaves, its_round * size + enters
            sent, received = np.bincount(out)[out], np.bincount(into)[into]
            load = nbytes * np.maximum(sent * slowdown[leaves], received * slowdown[enters])
            alpha, beta = model.alpha_beta(load)
            if model.serial_messages:
                ranks = (its_round * world_size + src[mask], its_round * world_size + dst[mask])
                alpha = alpha * num_messages(*ranks, out, into)
            starts_s[mask] += alpha
            moves_s[mask] = np.maximum(moves_s[mask], beta * load)
        return starts_s + moves_s

    def finish_s(
        self, schedule: CollectiveSchedule, nbytes: float, start_s: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """See LinkCosts."""
        flows = self.is_uneven and self.world_size <= MOST_FLOW_RANKS
        return simulate_flows(schedule, nbytes, self, start_s) if flows else None

    @property
    def inside_models(self) -> list[CostModel]:
        """Of messages inside nodes."""
        return [links.model for links in self.links if links.kind == INSIDE]

    @property
    def slowest(self) -> CostModel:
        """What counts most: of messages between nodes, by the NIC in the middle; of one node, inside."""
        order = (NIC, SWITCH, TRUNK, INSIDE, MESH)
        model = min(self.links, key=lambda links: order.index(links.kind)).model
        return replace(model.slowed(float(np.median(self.nic_slowdown))), gamma_s_per_byte=self.gamma_s_per_byte)

    @property
    def nic_sharers(self) -> int:
        """The ranks that share a NIC, at most."""
        return max((len(ranks) for links in self.links if links.kind == NIC for ranks in links.shared_by), default=1)

    def sharers_of_nic(self, rank: int) -> int:
        """The ranks that share the NIC of `rank`."""
        its = (ranks for links in self.links if links.kind == NIC for ranks in links.shared_by if rank in ranks)
        return max(map(len, its), default=1)

    def with_models(self, change: Callable[[CostModel], CostModel]) -> "Topology":
        """The same with `change`d models of all links."""
        links = tuple(LinkClass(at.kind, change(at.model), at.shared_by, at.slowdown) for at in self.links)
        return replace(self, links=links)

    def of_ranks(self, rank_of: Sequence[int]) -> "Topology":
        """Of the ranks `rank_of` alone, in whose places are 0, 1, ...; links that none of them uses are left out."""
        place_of = {rank: place for place, rank in enumerate(rank_of)}

        def named(ranks: Ranks) -> Ranks:
            return tuple(sorted(place_of[rank] for rank in ranks if rank in place_of))

        nodes = tuple(filter(None, map(named, self.nodes)))
        links = []
        for at in self.links:
            kind = KINDS[at.kind]
            used = [number for number, ranks in enumerate(at.shared_by) if named(ranks)]
            if (used or at.kind == MESH) and (kind.inside or len(nodes) > 1):
                slowdown = tuple(at.slowdown[number] for number in used) if at.slowdown else ()
                links.append(LinkClass(at.kind, at.model, tuple(named(at.shared_by[i]) for i in used), slowdown))
        return replace(self, nodes=nodes, links=tuple(links))


def equal_links(world_size: int, model: CostModel) -> Topology:
    """The Topology of `world_size` ranks that each have a port of their own, as `model` has it."""
    ranks = tuple(range(world_size))
    ports = LinkClass(INSIDE, model, tuple((rank,) for rank in ranks))
    return Topology((ranks,), (ports,), model.gamma_s_per_byte, "equal links")


def nodes_of(hosts: Sequence[object]) -> tuple[Ranks, ...]:
    """The ranks of each host, from each rank's; in the order of their first ranks."""
    found: dict[object, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return tuple(map(tuple, found.values()))


def _check(topology: Topology) -> None:
    _check_each_once(topology.name, "nodes", topology.nodes, whole=True)
    if not 0 <= topology.gamma_s_per_byte < float("inf"):
        raise InputError(f"{topology.name}: gamma_s_per_byte: got {topology.gamma_s_per_byte}, expected 0 or more")
    for number, links in enumerate(topology.links):
        _check_class(topology, f"links[{number}]", links)
    kinds = [links.kind for links in topology.links]
    if not any(KINDS[kind].inside for kind in kinds) and any(len(ranks) > 1 for ranks in topology.nodes):
        raise InputError(f"{topology.name}: links: got none of class {INSIDE}, {SWITCH} or {MESH}, expected one")
    if not any(KINDS[kind].between for kind in kinds) and len(topology.nodes) > 1:
        raise InputError(f"{topology.name}: links: got none of class {NIC}, {SWITCH} or {TRUNK}, expected one")
    for kind in set(kinds) - {TRUNK}:
        if kinds.count(kind) > 1:
            raise InputError(f"{topology.name}: links: got class {kind} twice, expected it once")


def _check_class(topology: Topology, where: str, links: LinkClass) -> None:
    if links.kind not in KINDS:
        raise InputError(f"{topology.name}: {where}.class: {one_of(links.kind, KINDS)}")
    if links.kind == MESH:
        return
    place = f"{where}.shared_by"
    whole = links.kind in (INSIDE, NIC) and len(topology.nodes if links.kind == NIC else range(2)) > 1
    _check_each_once(topology.name, place, links.shared_by, world_size=topology.world_size, whole=whole)
    for number, ranks in enumerate(links.shared_by):
        nodes = {topology.node_of[rank] for rank in ranks}
        if KINDS[links.kind].one_node and len(nodes) > 1:
            raise InputError(f"{topology.name}: {place}[{number}]: got ranks of {len(nodes)} nodes, expected of one")
        if links.kind == TRUNK and sum(len(topology.nodes[node]) for node in nodes) != len(ranks):
            raise InputError(f"{topology.name}: {place}[{number}]: got a part of a node's ranks, expected whole nodes")
    slow = links.slowdown
    if slow and (len(slow) != len(links.shared_by) or not all(1 <= factor < float("inf") for factor in slow)):
        raise InputError(f"{topology.name}: {where}: got slowdowns {slow}, expected one of 1 or more for each link")


def _check_each_once(
    name: str, place: str, groups: Sequence[Ranks], *, world_size: int | None = None, whole: bool
) -> None:
    """Raise unless `groups` hold each rank at most once, and all of them where `whole`."""
    size = world_size or sum(map(len, groups))
    if not 1 <= size <= MAX_WORLD_SIZE:
        raise InputError(f"{name}: {place}: got {size} ranks, expected 1 to {MAX_WORLD_SIZE}")
    seen: dict[int, int] = {}
    for number, ranks in enumerate(groups):
        if not ranks:
            raise InputError(f"{name}: {place}[{number}]: got no ranks, expected at least one")
        for rank in ranks:
            if rank in seen:
                raise InputError(
                    f"{name}: {place}[{number}]: got rank {rank}, which {place}[{seen[rank]}] has, expected each once"
                )
            if not 0 <= rank < size:
                raise InputError(f"{name}: {place}[{number}]: got rank {rank}, expected 0 to {size - 1}")
            seen[rank] = number
    if whole and len(seen) != size:
        missing = next(rank for rank in range(size) if rank not in seen)
        raise InputError(f"{name}: {place}: got no rank {missing}, expected all of 0 to {size - 1}")
