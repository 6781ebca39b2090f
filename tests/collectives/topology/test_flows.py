"""The simulator of flows: by hand, and beside the cost model, which knows nothing of it."""

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.cost import CostModel, late_start, price
from lanterne.collectives.topology.flows import simulate_flows
from lanterne.collectives.topology.presets import find_preset
from lanterne.collectives.topology.topology import equal_links
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
