"""The simulator of flows: by hand, and beside the cost model, which knows nothing of it."""

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.cost import CostModel, late_start, price
from lanterne.collectives.schedule.passes import waiting_part
from lanterne.collectives.topology.flows import simulate_flows
from lanterne.collectives.topology.presets import find_preset
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology, equal_links
from lanterne.collectives.topology.topology_json import from_document


def test_flows_that_share_a_nic_by_hand():
    """Two ranks of a node send 10 bytes each to the other node at once, through NICs of 2 and 5 bytes a second."""
    document = {
        "nodes": [[0, 1], [2, 3]],
        "links": [
            {"class": "inside", "alpha_s": 0.5, "bytes_per_s": 10},
            {"class": "nic", "alpha_s": 1, "bytes_per_s": [2, 5]},
        ],
    }
    schedule = make_schedule("all_reduce", "hier_ring", 4, 2, nodes=((0, 1), (2, 3)))
    # Inside 0.5 + 10 / 10; across 1 + 20 / 2 there, to be added, and back; then inside again.
    finish_s = simulate_flows(schedule, 20.0, from_document(document))
    assert finish_s.max() == pytest.approx(1.5 + 11.0 + 11.0 + 1.5)


@pytest.mark.parametrize("name", ["ring", "rhd", "allpairs", "late_join", "late_chain"])
def test_on_equal_links_both_agree(name):
    """One message at a time at a port, or as many of one size: nothing to share unevenly."""
    model = CostModel(3e-6, 1e-9, 1e-10)
    schedule, delays_s = make_schedule("all_reduce", name, 6), late_start(6, 5, 2e-4)
    found_s = simulate_flows(schedule, 1e6, equal_links(6, model), delays_s)
    np.testing.assert_allclose(found_s.max(), price(schedule, 1e6, model, delays_s).makespan_s, rtol=0.06)


@pytest.mark.parametrize("preset", ["dgx-4x2", "dgx-one-nic-4x2", "fat-tree-5x2", "hosts-2x4"])
@pytest.mark.parametrize("name", ["hier_ring", "hier_late_join", "ring"])
def test_on_shared_links_they_differ_little(preset, name):
    topology, nbytes = find_preset(preset), 64 << 20
    size = topology.world_size
    chunks = None if name == "ring" else 8 * len(topology.nodes)
    schedule = make_schedule("all_reduce", name, size, chunks, nodes=topology.nodes)
    delays_s = late_start(size, schedule.late_rank, 1.0)
    modelled_s = price(schedule, nbytes, topology, delays_s).exposed_s
    assert simulate_flows(schedule, nbytes, topology, delays_s).max() - delays_s.max() == pytest.approx(
        modelled_s, rel=0.15
    )


@pytest.mark.parametrize("name", ["hier_late_slow.1", "hier_late_slow.0.1.3", "hier_late_join", "allpairs", "ring"])
@pytest.mark.parametrize("alone", [False, True])
def test_what_waits_for_a_late_rank_does_not_meet_what_is_over(name, alone):
    """A NIC at a quarter of the rate, whose messages have long come when the late rank does: both agree then."""
    nodes = tuple((2 * node, 2 * node + 1) for node in range(4))
    ranks = tuple((rank,) for rank in range(8))
    nics = ranks if alone else nodes
    slowdown = tuple(4.0 if 3 in each else 1.0 for each in nics)
    inside, nic = CostModel(2e-6, 1 / 100e9), CostModel(2e-5, 1 / 10e9)
    topology = Topology(nodes, (LinkClass(INSIDE, inside, ranks), LinkClass(NIC, nic, nics, slowdown)))
    over, late = name.startswith("hier"), 7
    chunks, expected = (24 if over else None), (late if "late" in name else None)
    schedule = make_schedule("all_reduce", name, 8, chunks, late_rank=expected, nodes=nodes if over else None)
    found_s = simulate_flows(schedule, 1 << 24, topology, late_start(8, late, 1.0)).max() - 1.0
    part = waiting_part(schedule, late)
    assert price(part, 1 << 24, topology).makespan_s == pytest.approx(found_s, rel=1e-6)
    assert part.num_transfers < schedule.num_transfers and part.num_rounds <= schedule.num_rounds
