"""What the algorithms of a collective are predicted to take, and how predictions are corrected by trials."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.algorithms.catalogue import (
    Algorithm,
    algorithms_for,
    best_num_chunks,
    find_algorithm,
    make_schedule,
    on_leaves,
)
from lanterne.collectives.algorithms.hierarchical.compose import Nodes, each_alone, num_rails
from lanterne.collectives.auto.pacing import LARGE, OVERLAPPED, STREAM, over_nodes, segment_nbytes, start_s, sustained
from lanterne.collectives.auto.queued import queued_s, stand_in_line
from lanterne.collectives.schedule.cost import CostModel, price
from lanterne.collectives.schedule.ir import CollectiveSchedule, LateRank
from lanterne.collectives.topology.topology import MESH, Topology

# Pipelined algorithms are cut no finer: every message costs the executor some 10 us of Python.
MIN_CHUNK_NBYTES = 16 << 10


# What `auto` goes by: equal links, or those of nodes.
Links: TypeAlias = CostModel | Topology


# Calls through shared memory: whoever reduces reads the buffers of all, so that it pays for short ones; and all_reduces
# for which the others might begin without a late rank are to go by messages: those that take MESSAGES_S that way.
SHARED_REDUCTIONS = ("all_reduce", "reduce")
SHARED_MOVES = ("broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier")
MOST_SHARED_NBYTES, MOST_SHARED_PAIR_NBYTES = 32 << 10, 4 << 20
MOST_READ_NBYTES, MESSAGES_S = 1 << 20, 2e-3


class Factor(NamedTuple):
    """An algorithm on buffers of `nbytes` took `factor` times what was predicted."""

    collective: str
    algorithm: str
    nbytes: int
    factor: float


class Prediction(NamedTuple):
    """An algorithm, its num_chunks (None: its own), and the seconds that it is predicted to take.

    `overlaps`: its rounds do, so that starts, and all else that takes as long for any size, pass beside its bytes.
    """

    algorithm: str
    num_chunks: int | None
    time_s: float
    overlaps: bool = False


@functools.cache
def fitting(
    collective: str, over_nodes: bool = False, leaf_sets: tuple[tuple[int, ...], ...] = ()
) -> tuple[Algorithm, ...]:
    """The lines of the registry that make sense; `over_nodes`: ranks share nodes, or some have slow NICs.

    Args:
        leaf_sets: nodes that may hang on the others (Topology.leaf_sets).
    """
    found: list[Algorithm] = []
    for line in algorithms_for(collective):
        if line.leaves:
            found += [on_leaves(line, leaves) for leaves in leaf_sets if not line.one_leaf or len(leaves) == 1]
        elif over_nodes or not line.nodes:
            found.append(line)
    return tuple(found)


def candidates(
    collective: str, world_size: int, over_nodes: bool = False, leaf_sets: tuple[tuple[int, ...], ...] = ()
) -> tuple[Algorithm, ...]:
    """The lines that `auto` chooses from; otherwise as `fitting`."""
    lines = fitting(collective, over_nodes, leaf_sets)
    return tuple(line for line in lines if not (line.late or line.any_arrivals or line.refuses(world_size)))


def can_go_through_memory(collective: str) -> bool:
    """Whether there is a way through shared memory for `collective`."""
    return collective in SHARED_REDUCTIONS or collective in SHARED_MOVES


def goes_through_memory(collective: str, world_size: int, nbytes: int, message_s: float = inf) -> bool:
    """Whether calls of `nbytes` go through the memory that the ranks share.

    Args:
        message_s: what they are predicted to take by messages; inf: not known.
    """
    if collective in SHARED_MOVES:
        return True
    if collective not in SHARED_REDUCTIONS:
        return False
    if nbytes <= (MOST_SHARED_PAIR_NBYTES if world_size == 2 else MOST_SHARED_NBYTES):
        return True
    return nbytes * world_size <= MOST_READ_NBYTES and message_s < MESSAGES_S


def slow_nodes_of(links: Links) -> tuple[int, ...]:
    """The nodes of `links` whose NICs are slow."""
    return links.slow_nodes if isinstance(links, Topology) else ()


def leaf_sets_of(links: Links) -> tuple[tuple[int, ...], ...]:
    """The nodes of `links` that may hang on the others."""
    return links.leaf_sets if isinstance(links, Topology) else ()


@functools.lru_cache(64)
def priced_schedule(
    collective: str,
    algorithm: str,
    world_size: int,
    num_chunks: int | None,
    late_rank: LateRank = None,
    nodes: Nodes | None = None,
) -> CollectiveSchedule:
    """The schedule of a registered algorithm, unchecked, cached."""
    return make_schedule(collective, algorithm, world_size, num_chunks, late_rank=late_rank, nodes=nodes)


def nodes_of_links(links: Links) -> Nodes | None:
    """The nodes of `links`; None where there is nothing to gain from them."""
    return links.nodes if isinstance(links, Topology) and not links.is_flat and len(links.nodes) > 1 else None


def equal_ports(links: Links, world_size: int) -> Nodes | None:
    """Return the ranks of each port, those of a node or each alone; None where these differ."""
    if not isinstance(links, Topology):
        return each_alone(world_size)
    differ = links.is_uneven or any(each.kind == MESH for each in links.links)
    return None if differ else nodes_of_links(links)


def port_pass_s(links: Links, nbytes: float) -> tuple[float, float]:
    """Return the seconds until the first byte of a message arrives, and those in which a port carries `nbytes`."""
    carried = nbytes
    if isinstance(links, Topology):
        rails = num_rails(links.nodes)
        carried *= min(rails, links.nic_sharers) / rails
    alpha_s, beta_s = _port(links).alpha_beta(carried)
    return float(alpha_s), float(beta_s) * carried


def chunk_count(
    line: Algorithm, world_size: int, nbytes: int, links: Links, min_chunk_nbytes: int = MIN_CHUNK_NBYTES
) -> int | None:
    """The chunk count of `line` that the links like best; None where it has no choice."""
    nodes = nodes_of_links(links)
    if not line.nodes or nodes is None or not isinstance(links, Topology):
        return best_num_chunks(line, world_size, nbytes, _port(links), min_chunk_nbytes)
    # As nodes do that have the bytes which their busiest NIC carries.
    rails = num_rails(nodes)
    sharers = min(rails, links.nic_sharers)
    model = _with_inside(in_series(links), rails)
    count = best_num_chunks(line, len(nodes), nbytes * sharers / rails, model, min_chunk_nbytes * sharers)
    return None if count is None else count * rails


@functools.lru_cache(16)
def in_series(links: Topology) -> Topology:
    """`links` as chunks find them that follow each other over nodes: a line each, without a token bucket's credit.

    Each message between nodes goes with some inside, where a node has several ranks, so that it starts no sooner than
    those.
    """
    inside = links.inside_models if any(len(ranks) > 1 for ranks in links.nodes) else []

    def line(model: CostModel) -> CostModel:
        return replace(sustained(model), alpha_s=start_s(over_nodes(model, inside)))

    return links.with_models(line)


def _with_inside(links: Topology, rails: int) -> CostModel:
    """The model of messages between nodes; with the starts of those inside that go with each, where they add up."""
    model = links.slowest
    starts_s = sum(each.alpha_s for each in links.inside_models if each.serial_messages)
    return replace(model, alpha_s=model.alpha_s + 2 * (rails - 1) * starts_s)


def late_times_s(line: Algorithm, world_size: int, num_chunks: int, nbytes: int, links: Links) -> tuple[float, float]:
    """(seconds before the join, seconds of the join) of a late-rank algorithm, by its laws; for many ranks.

    Where prices would take a schedule of all ranks. From 1 MiB on within a fifth of those, where both are known.
    """
    assert line.law is not None and line.early is not None, "of each in late/calls.late_names"
    n, count, message_s = _rounds_by_law(line, world_size, num_chunks, nbytes, links)
    rounds, chunks = line.early(n, count)
    a, c, k, _ = line.law(n)
    return rounds * message_s(chunks), (a * count + c) * message_s(k)


def _rounds_by_law(
    line: Algorithm, world_size: int, num_chunks: int, nbytes: int, links: Links
) -> tuple[int, int, Callable[[float], float]]:
    """What the laws of `line` take: ranks and chunks, or nodes and chunks of a rail; and seconds of k chunks' round."""
    unit = nbytes / num_chunks
    if not line.nodes or not isinstance(links, Topology):
        model = _port(links)
        return world_size, num_chunks, lambda chunks: float(model.message_s(chunks * unit))
    rails, between = num_rails(links.nodes), links.slowest
    slowdown = max((factor for each in links.links for factor in each.slowdown), default=1.0)

    def message_s(chunks: float) -> float:
        # The chunks of all rails that share a NIC, and inside what a rank gets from, or gives to, each of the others.
        across_s = float(between.message_s(slowdown * links.nic_sharers * chunks * unit))
        inside_s = [float(inside.message_s((rails - 1) * chunks * unit)) for inside in links.inside_models]
        return max([across_s, *inside_s])

    return len(links.nodes), -(-num_chunks // rails), message_s


def _port(links: Links) -> CostModel:
    """The model of the links that count most."""
    return links.slowest if isinstance(links, Topology) else links


def ordinary_by_law_s(world_size: int, nbytes: int, links: Links) -> float:
    """Seconds of the ring, or the ring of nodes, which stands for `auto` where ranks are many."""
    if nodes_of_links(links) is None:
        return 2 * (world_size - 1) * float(_port(links).message_s(nbytes / world_size))
    line = find_algorithm("all_reduce", "hier_ring")
    chunks = chunk_count(line, world_size, nbytes, links)
    assert line.law is not None and chunks is not None and isinstance(links, Topology), "it has both"
    series = in_series(links)
    at = flowing(series) if _fills_rails(chunks, links.nodes) else series
    n, count, message_s = _rounds_by_law(line, world_size, chunks, nbytes, at)
    a, c, k, _ = line.law(n)
    return (a * count + c) * message_s(k)


def predictions(collective: str, world_size: int, nbytes: int, links: Links) -> list[Prediction]:
    """What every candidate takes by `links`, cheapest first."""
    nodes = nodes_of_links(links)
    lines = candidates(collective, world_size, nodes is not None, leaf_sets_of(links))
    rows = [_predicted(line, world_size, nbytes, links, nodes) for line in lines]
    return sorted(rows, key=lambda row: row.time_s)


def _predicted(line: Algorithm, world_size: int, nbytes: int, links: Links, nodes: Nodes | None) -> Prediction:
    chunks = chunk_count(line, world_size, nbytes, links)
    over = nodes if line.nodes else None
    schedule = priced_schedule(line.collective, line.name, world_size, chunks, nodes=over)
    part = starts_part(line, schedule.num_chunks, nbytes, links)
    at = in_series(links) if over and isinstance(links, Topology) else links
    at = flowing(at, part) if part < 1 else at
    least_s = 0.0
    if stand_in_line(links):
        (makespan_s,) = queued_s(schedule, line, nbytes, links, at if isinstance(at, Topology) else links)
    else:
        cost = price(schedule, nbytes, at)
        makespan_s, least_s = cost.makespan_s, port_s(links, cost.load * nbytes)
    return Prediction(line.name, chunks, max(makespan_s, least_s), line.stream and part < 1)


def starts_part(line: Algorithm, num_chunks: int, nbytes: float, links: Links) -> float:
    """The part of a start that each round of `line` takes; the rest passes beside bytes.

    OVERLAPPED of a stream, where ranks send parts of a chunk on before the whole has come; of a stream of nodes,
    where these have two chunks or more each on every rail, so that the next one is posted while one crosses. Of a join,
    or of nodes that hang on others, too, but for the rounds that fill the pipeline: in virtual time, 3 and 4 hosts at
    200 Mbit/s, starts of 0.1 and 0.4 ms, 64 KiB to 1 MiB, hier_late_join takes within 7 % of that.
    """
    nodes = nodes_of_links(links) if line.nodes else None
    if line.stream and line.nodes:
        overlaps = nodes is not None and _fills_rails(num_chunks, nodes)
    elif line.stream:
        chunk_nbytes = math.ceil(nbytes / num_chunks)
        overlaps = chunk_nbytes > segment_nbytes(_port(links), chunk_nbytes, STREAM)
    else:
        if nodes is None or line.law is None or not (line.late or line.leaves):
            return 1.0
        a, c, _, _ = line.law(len(nodes))
        # Of those on which others hang the law has the most rounds that there may be.
        c = min(c, len(nodes)) if line.leaves else c
        fills = c / (a * -(-num_chunks // num_rails(nodes)) + c)
        return fills + (1 - fills) * OVERLAPPED
    return OVERLAPPED if overlaps else 1.0


def _fills_rails(num_chunks: int, nodes: Nodes) -> bool:
    return num_chunks >= 2 * num_rails(nodes) * len(nodes)


@functools.lru_cache(64)
def flowing(links: Links, part: float | None = None) -> Links:
    """`links` as a stream of messages finds them that are posted ahead: see pacing.sustained."""
    if isinstance(links, Topology):
        return links.with_models(lambda model: sustained(model, part))
    return sustained(links, part)


def port_s(links: Links, nbytes: float) -> float:
    """The least that a port takes to carry `nbytes` in messages of any size: one message of them all.

    What a short one was measured to have, a token bucket's credit or caches, a series of them has once. 0 where the
    links are those of nodes (see in_series), or take as long for each byte of any message.
    """
    if isinstance(links, Topology) or not links.pieces:
        return 0.0
    if nbytes >= LARGE * links.pieces[-1].nbytes:
        return nbytes * sustained(links).beta_s_per_byte
    return float(links.message_s(nbytes))


def correction(
    factors: Iterable[Factor], collective: str, algorithm: str, nbytes: int, *, overlaps: bool = False
) -> float:
    """What to multiply a prediction by: interpolated in log(nbytes) between the sizes tried; 1 where none was.

    Larger sizes were not tried because they take long: there the seconds above the prediction stay as they were, since
    they are those of rounds and of the trials' disturbances, not of bytes; where rounds overlap (see Prediction), a
    part of them.
    """
    tried = sorted((row.nbytes, row.factor) for row in factors if row[:2] == (collective, algorithm))
    if not tried:
        return 1.0
    sizes, values = np.array(tried).T
    beyond = max(1.0, nbytes / sizes[-1])
    part = OVERLAPPED if overlaps and beyond > 1 else 1.0
    return float(1 + part * (np.interp(np.log(max(nbytes, 1)), np.log(sizes), values) - 1) / beyond)


def corrected(rows: Iterable[Prediction], factors: Sequence[Factor], collective: str, nbytes: int) -> list[Prediction]:
    """`rows` with their seconds corrected by trials, cheapest first."""

    def factor(row: Prediction) -> float:
        return correction(factors, collective, row.algorithm, nbytes, overlaps=row.overlaps)

    return sorted((row._replace(time_s=row.time_s * factor(row)) for row in rows), key=lambda row: row.time_s)
