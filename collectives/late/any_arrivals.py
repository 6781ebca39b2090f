"""Schedules for ranks whose arrivals are known in seconds."""

from collections.abc import Sequence

from lanterne.collectives.algorithms.catalogue import Algorithm, make_schedule
from lanterne.collectives.algorithms.hierarchical.compose import each_alone, num_rails
from lanterne.collectives.algorithms.late.any_arrival import arrival_rounds
from lanterne.collectives.auto.predict import Links, chunk_count, nodes_of_links, port_pass_s
from lanterne.collectives.schedule.ir import CollectiveSchedule
from lanterne.collectives.topology.topology import Topology
from lanterne.transport.board.arrival_bound import least_after_s
from lanterne.transport.board.late_policy import at_ports


def schedule_for_arrivals(
    line: Algorithm, arrivals_s: Sequence[float], nbytes: int, links: Links, num_chunks: int | None = None
) -> CollectiveSchedule:
    """Return the all-reduce of `nbytes` bytes by algorithm `line` for ranks that arrive at `arrivals_s`.

    An algorithm that expects one late rank expects the last.

    Args:
        arrivals_s: by rank, seconds.
        num_chunks: None for the count that `links` like best.
    """
    ranks, nodes = len(arrivals_s), nodes_of_links(links)
    chunks = num_chunks or chunk_count(line, ranks, nbytes, links, min_chunk_nbytes=1)
    if not line.any_arrivals:
        last = max(range(ranks), key=lambda rank: arrivals_s[rank]) if line.late else None
        return make_schedule("all_reduce", line.name, ranks, chunks, late_rank=last, nodes=nodes)
    chunks = chunks or 1
    # A round is what a port takes for the chunks of all rails.
    rails = num_rails(nodes or each_alone(ranks)) if line.nodes else 1
    alpha_s, round_s = port_pass_s(links, nbytes * rails / chunks)
    arrivals = arrival_rounds(arrivals_s, round_s, alpha_s)
    return make_schedule("all_reduce", line.name, ranks, chunks, nodes=nodes, arrivals=arrivals)


def bound_s(arrivals_s: Sequence[float], nbytes: int, links: Links) -> float:
    """Return about the least seconds from the last arrival to the end that equal ports allow, without latency."""
    topology = links if isinstance(links, Topology) else None
    at_s = at_ports(dict(enumerate(arrivals_s)), () if topology is None else topology.node_of)
    return least_after_s(at_s, port_pass_s(links, nbytes)[1])
