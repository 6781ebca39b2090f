"""What a schedule takes where the host sends its messages over nodes: as the executor cuts and posts them.

There who has what it needs goes on, and messages of several rounds stand in line at ports (topology/queues.py).
"""

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from lanterne.collectives.algorithms.catalogue import Algorithm
from lanterne.collectives.auto.pacing import NEIGHBOUR_CREDITS, over_nodes, segment_nbytes, traffic_of, window
from lanterne.collectives.schedule.cost import chunk_nbytes, late_start
from lanterne.collectives.schedule.ir import CollectiveSchedule, LateRank
from lanterne.collectives.topology.queues import Pacing, simulate_queues
from lanterne.collectives.topology.topology import Topology

# Of more ranks, which take a second, prices go by rounds.
MOST_QUEUED_RANKS = 64
# When ranks come that come after all that can be done without them, s.
FAR_S = 1e4


def stand_in_line(links: object) -> TypeGuard[Topology]:
    """Whether messages do, in ways that no sum over a round tells."""
    return isinstance(links, Topology) and not links.in_rounds and links.world_size <= MOST_QUEUED_RANKS


def queued_s(
    schedule: CollectiveSchedule,
    line: Algorithm,
    nbytes: float,
    links: Topology,
    started: Topology,
    late: Sequence[LateRank] = (None,),
) -> list[float]:
    """Seconds of `schedule`, of algorithm `line`, from when all come, or, where some are `late` by far, these.

    Args:
        nbytes: of the larger of a rank's two buffers.
        links: by which messages are cut.
        started: `links` with starts as messages that are posted ahead have them.
    """
    starts_s = np.stack([late_start(schedule.world_size, each, FAR_S) for each in late])
    pacing, node_of = pacing_of(schedule, line, nbytes, links), np.array(links.node_of, np.int64)
    finish_s = simulate_queues(schedule, nbytes, started, node_of, starts_s, pacing)
    return (finish_s.max(axis=1) - starts_s.max(axis=1)).tolist()


def pacing_of(schedule: CollectiveSchedule, line: Algorithm, nbytes: float, links: Topology) -> Pacing:
    """How the messages of `schedule` are cut and posted; as of execute/plans.py."""
    nodes = links.nodes if line.nodes else None
    model = over_nodes(links.slowest, links.inside_models) if line.nodes else links.slowest
    traffic, chunk = traffic_of(schedule, line.chunked, nodes), max(1, int(chunk_nbytes(schedule, nbytes)))
    segment = min(chunk, segment_nbytes(model, chunk, traffic, links.nic_sharers if line.nodes else 1))
    sharers = [links.sharers_of_nic(rank) if line.nodes else 1 for rank in range(links.world_size)]
    windows = [window(model, segment, traffic, its) for its in sharers]
    few = None if None in windows else np.array(windows, np.int64)
    return Pacing(-(-chunk // segment), few, NEIGHBOUR_CREDITS)
