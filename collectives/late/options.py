"""By which late-rank algorithms calls may begin without ranks, and what these are predicted to take: Options."""

import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from lanterne.collectives.algorithms.catalogue import find_algorithm
from lanterne.collectives.algorithms.hierarchical.compose import Nodes
from lanterne.collectives.algorithms.late.any_arrival import CHUNKS_A_RANK, LEAST_CHUNKS, MAX_RANKS
from lanterne.collectives.auto.pacing import LEAST_HALF_NBYTES, sustained
from lanterne.collectives.auto.predict import (
    Links,
    chunk_count,
    flowing,
    in_series,
    late_times_s,
    leaf_sets_of,
    nodes_of_links,
    priced_schedule,
    slow_nodes_of,
    starts_part,
)
from lanterne.collectives.auto.queued import queued_s, stand_in_line
from lanterne.collectives.auto.tuning import MAX_PRICED_RANKS, late_num_chunks
from lanterne.collectives.schedule.cost import CostModel, price
from lanterne.collectives.schedule.passes import waiting_part
from lanterne.collectives.topology.topology import Topology
from lanterne.transport.board.late_policy import ANY, Option

# Those that keep to one message per port and round, as a network likes it; a tie goes to the first.
LATE_ALGORITHMS = ("late_join", "late_chain")
# Where ranks share nodes.
NODE_ALGORITHMS = ("hier_late_join", "hier_late_chain")
# And where some of those have slow NICs.
SLOW_ALGORITHM = "hier_late_slow"
# And where a NIC is nearly as fast as what is inside, or where ranks have NICs of their own of which slow ones are not
# on its way: around all ranks nothing is added up, or given out, beside it.
CHAIN = "late_chain"
# Those that know no nodes, in which the late rank has messages with many at once: for small buffers, where start-up
# times count most.
CROWDED_ALGORITHMS = ("late_join_allpairs", "late_direct", "late_broadcast")
# Of late_hybrid: shares of the chunks that join late. Few, since every choice has a plan, which the first call that
# needs it has to make.
CUTS = (0.5, 0.75)
# Kinds of ranks that are priced by themselves, Options of each, and of all: with those of several late ranks no more
# than a policy may have (MAX_OPTIONS).
MAX_KINDS, MAX_KIND_OPTIONS, MAX_SINGLE_OPTIONS = 12, 3, 12
# Kinds have their Options together where the joins of these are within such a factor.
ALIKE = 1.01
# And ranks are of two kinds where joins without them are further apart than this.
APART = 1.03
_making = threading.Lock()


# Ranks tell the board every so long how far they are; twice as long they can go on before they hear of it.
AHEAD_S = 4e-3
# Its rounds more than the bound, and of those that ranks go ahead, by which a rank that comes waits: 8 ranks in virtual
# time, 64 chunks, 2, 4 and 8 rounds ahead: 1.04, 1.07, 1.11 of the bound.
ROUNDS_MORE, OF_AHEAD = 1, 0.6
# Crowded algorithms are taken only where they are predicted to need such a part of the others' join.
MOST_CROWDED = 0.96  # a network likes many messages at once less than the model does
# Of more ranks on equal links, those are none.
CROWDED_RANKS = 16  # chosen: a rank that has messages with more at once meets them at its port
# And late_hybrid only where it may save such a part of the join: a cut that was too low costs several times what a
# good one saves.
LEAST_GAIN = 0.04  # chosen: models measured under load are wrong by more
# Of schedules with more chunks, so many for each rank that is there are priced.
PRICED_SLICES = 16
# Of more ranks, nodes are told apart by whether they are slow alone, and only the slow ones may hang on the others.
# counted: of 64 ranks all kinds take three times as long to price as two, seconds at a signature's first call
PLACED_RANKS = 32


class RankKind(NamedTuple):
    """Ranks that are alike: it costs about the same whichever is late, such as `sample`."""

    ranks: tuple[int, ...]
    sample: int


class Place(NamedTuple):
    """Ranks, and by what calls may begin without one of them."""

    ranks: tuple[int, ...]
    options: tuple[Option, ...]

    @property
    def least_s(self) -> float:
        """Seconds of the soonest join."""
        return min(option.join_s for option in self.options)


def single_options(collective: str, world_size: int, nbytes: int, links: Links, many: bool = False) -> list[Option]:
    """The Options for one late rank; see late_names.

    Over nodes that differ each kind of rank has its own: what to do depends on who is late.
    """
    names = late_names(links, many)
    if not isinstance(links, Topology) or many:
        names += () if many else _crowded_names(collective, world_size, nbytes, links)
        return [make_option(collective, name, world_size, nbytes, links) for name in names]
    with _making:
        kinds = [part for kind in kinds_of(links) for part in _by_join(kind, names, collective, nbytes, links)]
        places = [place for kind in kinds for place in _places_in(kind, names, collective, nbytes, links)]
    places = _merged(places)
    found = []
    for place in places:
        ranks = place.ranks if len(places) > 1 else ()
        found += [option._replace(ranks=ranks) for option in _worthwhile(place.options)]
    return found


def _places_in(kind: RankKind, names: Sequence[str], collective: str, nbytes: int, topology: Topology) -> list[Place]:
    """The Places of `kind`, by what a chain of all ranks has to carry without each, where it may pay."""
    size = topology.world_size

    def option(name: str, absent: int) -> Option:
        return _option(collective, name, size, nbytes, topology, absent)

    usual = {name: option(name, kind.sample) for name in names}
    least_s = min(each.join_s for each in usual.values())
    # Of kinds that had to be put together that with the slowest NIC: there all of theirs goes at once.
    slowest = max(kind.ranks, key=lambda rank: (topology.nic_slowdown[rank], rank == kind.sample))
    places = []
    for ranks, chained in _by_chain(kind.ranks, least_s, _chain_s(collective, topology, nbytes)):
        options = usual if chained is None else usual | {CHAIN: option(CHAIN, chained)}
        soon_s = MOST_CROWDED * min(each.join_s for each in options.values())
        crowded = (option(name, slowest) for name in CROWDED_ALGORITHMS)
        places.append(Place(ranks, (*options.values(), *(each for each in crowded if each.join_s < soon_s))))
    return places


def _by_join(kind: RankKind, names: Sequence[str], collective: str, nbytes: int, topology: Topology) -> list[RankKind]:
    """`kind` by what joins take without each node, where NICs differ: by where the node stands in their order."""
    first = {topology.node_of[rank]: rank for rank in reversed(kind.ranks)}
    if len(first) == 1 or not topology.is_uneven or topology.world_size > PLACED_RANKS:
        return [kind]
    samples = first | {topology.node_of[kind.sample]: kind.sample}
    joins_s = {
        node: [_option(collective, name, topology.world_size, nbytes, topology, rank).join_s for name in names]
        for node, rank in samples.items()
    }
    found: dict[int, list[int]] = {}
    for node in sorted(samples, key=lambda node: (node != topology.node_of[kind.sample], min(joins_s[node]), node)):
        like = next((other for other in found if _join_alike(joins_s[node], joins_s[other])), node)
        found.setdefault(like, []).append(node)
    parts = {like: [rank for rank in kind.ranks if topology.node_of[rank] in nodes] for like, nodes in found.items()}
    return [RankKind(tuple(ranks), samples[like]) for like, ranks in parts.items()]


def _join_alike(one_s: Sequence[float], other_s: Sequence[float]) -> bool:
    """Whether what joins soonest without either takes about as long without the other."""
    soonest = one_s.index(min(one_s)), other_s.index(min(other_s))
    return all(max(one_s[each], other_s[each]) <= APART * min(one_s[each], other_s[each]) for each in soonest)


def _by_chain(
    ranks: Sequence[int], least_s: float, chain_s: Sequence[float]
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """`ranks` by what a chain of all ranks takes without each; with the slowest of them, None where it takes longer.

    Args:
        least_s: of what else there is.
        chain_s: of each rank.
    """
    slowest = max(ranks, key=chain_s.__getitem__)
    if len(chain_s) > PLACED_RANKS:
        yield tuple(ranks), slowest if chain_s[slowest] < least_s else None
        return
    found: dict[float, list[int]] = {}
    for rank in ranks:
        part = chain_s[rank] / least_s
        found.setdefault(round(part, 1) if part < 1 else inf, []).append(rank)
    for part, its in found.items():
        yield tuple(its), None if part == inf else max(its, key=chain_s.__getitem__)


@functools.lru_cache(16)
def _chain_s(collective: str, topology: Topology, nbytes: int) -> tuple[float, ...]:
    """For each rank, about what CHAIN, a pipeline of all ranks in order, takes to join this one, at its end.

    The first chunk takes all its hops, the others follow by the slowest of them: it depends on how many hops share a
    NIC, and whether a slow one has any.
    """
    size, links, found = topology.world_size, in_series(topology).with_models(_unserial), []
    chunks = late_num_chunks(find_algorithm(collective, CHAIN), size, nbytes, topology)
    assert chunks is not None, "it takes any number"
    for late in range(size):
        order = np.array([*(rank for rank in range(size) if rank != late), late])
        hops_s = links.messages_s(np.zeros(size, np.int64), np.roll(order, 1), order, nbytes / chunks, size)
        found.append(float(hops_s.sum() + (chunks - 1) * hops_s.max()))
    return tuple(found)


def _merged(places: Sequence[Place]) -> list[Place]:
    """`places`, that of most ranks first; put together where Options are alike, and as far as there are too many."""
    found = list(places)
    while len(found) > 1:
        pairs = combinations(range(len(found)), 2)
        cost, one, other = min((_cost_together(found[one], found[other]), one, other) for one, other in pairs)
        if cost > ALIKE and sum(len(_worthwhile(place.options)) for place in found) <= MAX_SINGLE_OPTIONS:
            break
        found[one] = _together(found[one], found.pop(other))
    return sorted(found, key=lambda place: (-len(place.ranks), place.ranks))


def _together(one: Place, other: Place) -> Place:
    """Both as one Place: what both may begin by, priced by the one where it takes longer."""
    theirs = {option.choice: option for option in other.options}
    options = tuple(
        option._replace(
            before_s=max(option.before_s, theirs[option.choice].before_s),
            join_s=max(option.join_s, theirs[option.choice].join_s),
        )
        for option in one.options
        if option.choice in theirs
    )
    return Place(tuple(sorted((*one.ranks, *other.ranks))), options)


def _cost_together(one: Place, other: Place) -> float:
    """By what factor the soonest join of either is taken to be longer where they are one Place."""
    return _together(one, other).least_s / min(one.least_s, other.least_s)


def _crowded_names(collective: str, world_size: int, nbytes: int, links: Links) -> tuple[str, ...]:
    """Those of CROWDED_ALGORITHMS that pay on equal links, each with the chunk count that whole starts like best."""
    if world_size > CROWDED_RANKS:
        return ()
    late = _likely_absent(world_size, links, 1)
    with _making:
        join_s = {
            name: _option(collective, name, world_size, nbytes, links, late, ahead=False).join_s
            for name in (*LATE_ALGORITHMS, *CROWDED_ALGORITHMS)
        }
    least_s = MOST_CROWDED * min(join_s[name] for name in LATE_ALGORITHMS)
    return tuple(name for name in CROWDED_ALGORITHMS if join_s[name] < least_s)


def make_option(collective: str, name: str, world_size: int, nbytes: int, links: Links, late: int = 1) -> Option:
    """The Option of the late algorithm `name` for `late` ranks, whoever they are, made once for all threads."""
    with _making:
        absent = _likely_absent(world_size, links, late)
        return _option(collective, name, world_size, nbytes, links, absent, ahead=name not in CROWDED_ALGORITHMS)


def late_names(links: Links, many: bool = False) -> tuple[str, ...]:
    """The late-rank algorithms that a call chooses from; of `many` ranks those alone that have laws."""
    if nodes_of_links(links) is None:
        return LATE_ALGORITHMS
    return NODE_ALGORITHMS if many else (*NODE_ALGORITHMS, *map(_over_leaves, _priced_leaf_sets(links)))


def group_name(links: Links) -> str:
    """The algorithm of several late ranks."""
    if nodes_of_links(links) is None:
        return "late_group"
    slow = slow_nodes_of(links)
    return _over_leaves(slow) if slow else NODE_ALGORITHMS[0]


def _priced_leaf_sets(links: Links) -> tuple[tuple[int, ...], ...]:
    """Which nodes may hang on the others; of more than PLACED_RANKS ranks the slow ones alone."""
    leaf_sets = leaf_sets_of(links)
    return leaf_sets[:1] if isinstance(links, Topology) and links.world_size > PLACED_RANKS else leaf_sets


def _over_leaves(leaves: tuple[int, ...]) -> str:
    return ".".join(map(str, (SLOW_ALGORITHM, *leaves)))


def kinds_of(topology: Topology) -> list[RankKind]:
    """The RankKinds of `topology`.

    Ranks are alike by their own NIC, and their nodes by their NICs, their numbers of ranks, and whether they may hang
    on the others. By all of these, or where these are more kinds than may be priced by the last ones, and by the others
    as far as that leaves room; and where ranks are more than PLACED_RANKS by whether they hang.
    """
    takes, leaf_sets = [round(float(each), 1) for each in topology.node_takes], _priced_leaf_sets(topology)
    hangs = [tuple(node in leaves for leaves in leaf_sets) for node in range(len(topology.nodes))]
    is_large = topology.world_size > PLACED_RANKS
    numbers: list[tuple[float, ...]] = [
        (takes[node], len(topology.nodes[node]), round(slowdown, 1))
        for node, slowdown in zip(topology.node_of, topology.nic_slowdown, strict=True)
    ]
    about = [(hangs[node], *each) for node, each in zip(topology.node_of, numbers, strict=True)]
    counts = (1,) if is_large else (4, 3, 2, 1)
    ways = ((count, [each[:count] for each in about]) for count in counts)
    count, kinds = next((count, way) for count, way in ways if count == 1 or len(set(way)) <= MAX_KINDS)
    found: dict[object, list[int]] = {}
    for rank, kind in enumerate(kinds):
        found.setdefault(kind, []).append(rank)
    groups = list(found.values())
    for key in () if is_large else range(count - 1, 3):
        groups = _cut_at_gaps(groups, [each[key] for each in numbers])
    # Of those that are not quite alike the middle one stands for all.
    ordered = (sorted(ranks, key=about.__getitem__) for ranks in groups)
    return [RankKind(tuple(sorted(ranks)), ranks[len(ranks) // 2]) for ranks in ordered]


def _cut_at_gaps(groups: Sequence[list[int]], values: Sequence[float]) -> list[list[int]]:
    """`groups` of ranks cut in two where `values` of a group differ by the largest factor, as long as there is room."""
    groups = [sorted(ranks, key=values.__getitem__) for ranks in groups]
    while len(groups) < MAX_KINDS:
        gaps = [
            (values[above] / values[below], number, place)
            for number, ranks in enumerate(groups)
            for place, (below, above) in enumerate(pairwise(ranks), 1)
            if values[above] > values[below] > 0
        ]
        if not gaps:
            break
        _, number, place = max(gaps, key=lambda gap: gap[0])
        ranks = groups[number]
        groups[number : number + 1] = [ranks[:place], ranks[place:]]
    return groups


def _worthwhile(options: Sequence[Option]) -> list[Option]:
    """Those that join soonest, and of the others those that the late rank may come to sooner."""
    return sorted(undominated(options), key=lambda option: option.join_s)[:MAX_KIND_OPTIONS]


def undominated(options: Sequence[Option]) -> list[Option]:
    """Those that no other is as good as, both before the late ranks come and after; of equal ones the first.

    Options for other numbers of late ranks, or other ranks, are not compared.
    """
    found: list[Option] = []
    for option in options:
        rivals = [other for other in options if other[3:] == option[3:] and other[1:3] != option[1:3]]
        rivals += [other for other in found if other[1:] == option[1:]]
        if not any(other.before_s <= option.before_s and other.join_s <= option.join_s for other in rivals):
            found.append(option)
    return found


def cut_options(whole: Option, world_size: int) -> list[Option]:
    """Options of late_hybrid from `whole`, late_join's: the sooner the late rank comes, the fewer chunks are summed.

    Those join it, the rest goes around a ring of all. What the cut takes off the reduce-scatter, (p - 2) / (p - 1) of
    the rest's bytes at each port, it puts onto the join as (p - 2) / p of them: a second less before the late rank
    comes for (p - 1) / p more afterwards. So to cut too high, and let the late rank wait for the sums, loses but 1 / p
    of that time, and a forecast of the delay will do: the past ones, by which the board decides.
    """
    chunks = int(whole.choice.partition("/")[2])
    options = []
    for joined in sorted({round(share * chunks) for share in CUTS} - {0, chunks}):
        before_s = whole.before_s * joined / chunks
        cut_s = whole.before_s - before_s
        if cut_s / world_size >= LEAST_GAIN * whole.join_s:
            choice = f"late_hybrid/{chunks}/{joined}"
            options.append(Option(choice, before_s, whole.join_s + cut_s * (world_size - 1) / world_size))
    return options


def any_option(join: Option, ports: Nodes, nbytes: int) -> Option | None:
    """Return the Option that takes in ranks as they arrive, from `join`, late_join's, which joins in a port's pass.

    None where ports are too few or too many, or chunks would be too few, or too short.

    Args:
        ports: of equal_ports.
    """
    rails, size = len(ports[0]), len(ports)
    chunks = min(max(LEAST_CHUNKS, CHUNKS_A_RANK * size), nbytes // (2 * LEAST_HALF_NBYTES * rails))
    if not 3 < size <= MAX_RANKS or chunks < 2 * size:
        return None
    ahead = 2 * ceil(AHEAD_S * chunks / join.join_s)
    more = (ROUNDS_MORE + OF_AHEAD * ahead) / chunks
    return Option(f"any_arrival/{chunks}/{ahead}", join.join_s, join.join_s * (1 + more), ANY)


@functools.lru_cache(1024)
def _option(
    collective: str,
    name: str,
    world_size: int,
    nbytes: int,
    links: Links,
    absent: int | tuple[int, ...],
    *,
    ahead: bool = True,
) -> Option:
    """The Option of the late algorithm `name` where `absent` are late, with the chunk count that `links` like best.

    Args:
        ahead: count chunks as they are posted ahead; else by whole starts, as they are priced.
    """
    line, late = find_algorithm(collective, name), len(absent) if isinstance(absent, tuple) else 1
    chunks = (late_num_chunks if ahead else chunk_count)(line, world_size, nbytes, links)
    if late > 1 and chunks is not None and chunks > world_size and not line.nodes:
        # Whole slices: the last one takes as long with fewer chunks.
        chunks -= chunks % (world_size - late)
    # A start-up time for each round, although most overlap: where ranks share cores they do not, and a rank is not to
    # be called late for less. Not for each chunk, since those of a round are posted together; nor a whole one for each
    # round of a long pipeline over nodes, whose links are what takes long; and the same per byte whatever the size of
    # messages, which are cut alike.
    paced: Links = in_series(links) if isinstance(links, Topology) else _paced(links)
    if line.nodes and chunks is not None:
        paced = flowing(paced, starts_part(line, chunks, nbytes, links))
    if name not in CROWDED_ALGORITHMS:
        paced = paced.with_models(_unserial) if isinstance(paced, Topology) else _unserial(paced)
    if world_size > MAX_PRICED_RANKS:
        assert chunks is not None, "of each in late_names"
        return Option(f"{name}/{chunks}", *late_times_s(line, world_size, chunks, nbytes, paced), late)
    # Several late ranks bring slices of chunks: of more than so many the time hardly changes, and pricing takes longer.
    priced = chunks if late == 1 or chunks is None else min(chunks, PRICED_SLICES * (world_size - late))
    nodes = nodes_of_links(links) if line.nodes else None
    schedule = priced_schedule(collective, name, world_size, priced, absent, nodes)
    # Where links and nodes are alike joins take as long by rounds.
    if stand_in_line(links) and stand_in_line(paced) and links.is_uneven:
        together_s, join_s = queued_s(schedule, line, nbytes, links, paced, (None, absent))
    else:
        join_s = price(waiting_part(schedule, absent), nbytes, paced).makespan_s
        together_s = price(schedule, nbytes, paced).makespan_s
    choice = f"{name}/{chunks or schedule.num_chunks}"
    return Option(choice, max(0.0, together_s - join_s), join_s, late)


def _likely_absent(world_size: int, links: Links, late: int) -> int | tuple[int, ...]:
    """Who is late, for all that are alike: not of those with a slow NIC where there are others."""
    nodes: Nodes = nodes_of_links(links) or (tuple(range(world_size)),)
    slow = slow_nodes_of(links)
    places = sorted(range(len(nodes)), key=lambda node: node not in slow)
    order = [rank for place in places for rank in nodes[place]]
    return order[-1] if late == 1 else tuple(sorted(order[-late:]))


def _paced(model: CostModel) -> CostModel:
    return replace(sustained(model), alpha_s=model.alpha_s)


def _unserial(model: CostModel) -> CostModel:
    return replace(model, serial_messages=False)
