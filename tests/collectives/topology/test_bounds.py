"""What no all-reduce can beat: the limits that are known by hand, and no schedule below them."""

import pytest

from evaluation.random_clusters import random_topologies
from lanterne.collectives.algorithms.catalogue import algorithms_for, make_schedule
from lanterne.collectives.schedule.cost import CostModel, late_start
from lanterne.collectives.topology.flows import simulate_flows
from lanterne.collectives.topology.port_bounds import bound_s
from lanterne.collectives.topology.presets import dgx, dgx_one_nic, find_preset
from lanterne.collectives.topology.topology import NIC, LinkClass, Topology, equal_links

GIB = float(1 << 30)


def slow_nic(slowdown):
    """Eight hosts of a rank each, NICs of 1 byte a second, one of them slower."""
    nodes = tuple((rank,) for rank in range(8))
    return Topology(nodes, (LinkClass(NIC, CostModel(0, 1.0), nodes, (*[1.0] * 7, slowdown)),))


@pytest.mark.parametrize(
    ("topology", "together", "late"),
    [
        (equal_links(8, CostModel(0, 1.0)), 1.75, 1.0),
        (slow_nic(4.0), 4.0, 4.0),
        (slow_nic(1.25), 2 * 7 / 7.8, 1.25),
        # Two hosts of four ranks, four of two: of the NIC's rate.
        (dgx_one_nic(2, 4), 1 / 50e9, 1 / 50e9),
        (dgx_one_nic(4, 2), 1.5 / 50e9, 1 / 50e9),
        (dgx(8, 8), 1.75 / 400e9, 1 / 400e9),
        (find_preset("same-region-cloud-4x2"), 8 / 11.3e9, 8 / 11.3e9),
        # Inside a node, a link to each other.
        (find_preset("mesh-1x4"), 1.5 / 300e9, 1 / 300e9),
        (equal_links(1, CostModel(0, 1.0)), 0.0, 0.0),
    ],
)
def test_by_hand(topology, together, late):
    nbytes = 8.0
    assert bound_s(topology, nbytes) == pytest.approx(nbytes * together)
    assert bound_s(topology, nbytes, late=True) == pytest.approx(nbytes * late)


def test_no_schedule_is_below_them():
    nbytes = 1 << 20
    for topology, late in random_topologies(2, 5):
        size = topology.world_size
        for line in algorithms_for("all_reduce"):
            if line.refuses(size) or line.slow:
                continue
            expected = late if line.late else None
            schedule = make_schedule("all_reduce", line.name, size, late_rank=expected, nodes=topology.nodes)
            whole_s = float(simulate_flows(schedule, nbytes, topology).max())
            assert whole_s >= 0.999 * bound_s(topology, nbytes), (topology, late, line)
            start = late_start(size, late, 10 * whole_s)
            exposed_s = float(simulate_flows(schedule, nbytes, topology, start).max()) - 10 * whole_s
            assert exposed_s >= 0.999 * bound_s(topology, nbytes, late=True), (topology, late, line)
