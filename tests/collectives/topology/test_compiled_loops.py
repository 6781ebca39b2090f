"""The compiled event loops do what they do as plain Python, to the bit."""

import itertools

import numpy as np
import pytest

from evaluation.random_clusters import random_topologies
from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.cost import late_start
from lanterne.collectives.topology import flows, queues
from lanterne.collectives.topology.flow_events import run_events
from lanterne.collectives.topology.queue_events import run_queues


@pytest.mark.parametrize("name", ["ring", "tree", "allpairs", "hier_ring", "hier_late_join"])
@pytest.mark.parametrize("number", range(12))
def test_flows_do_what_python_does_to_the_bit(number, name):
    topology, late = next(itertools.islice(random_topologies(number + 1, 77), number, None))
    expected = late if "late" in name else None
    schedule = make_schedule("all_reduce", name, topology.world_size, late_rank=expected, nodes=topology.nodes)
    start_s = late_start(topology.world_size, late, 1e-3 * number)
    finish_s = start_s.copy()
    run_events.py_func(*flows.arguments_of(schedule, 1 << 20, topology, finish_s))
    np.testing.assert_array_equal(flows.simulate_flows(schedule, 1 << 20, topology, start_s), finish_s)
    assert (finish_s > start_s).all()


@pytest.mark.parametrize("cells", [1, 3])
@pytest.mark.parametrize("name", ["ring", "tree", "hier_bruck", "hier_late_join"])
@pytest.mark.parametrize("number", range(8))
def test_queues_do_what_python_does_to_the_bit(number, name, cells):
    topology, late = next(itertools.islice(random_topologies(number + 1, 78), number, None))
    size, node_of = topology.world_size, np.array(topology.node_of)
    expected, window = (late, np.full(size, 2)) if "late" in name else (None, None)
    schedule = make_schedule("all_reduce", name, size, late_rank=expected, nodes=topology.nodes)
    starts_s = np.stack([np.zeros(size), late_start(size, late, 1e-3 * number)])
    pacing = queues.Pacing(cells, window, 3)
    found_s = queues.simulate_queues(schedule, 1 << 20, topology, node_of, starts_s, pacing)
    cut = queues.cut(schedule, cells)
    for start_s, its_s in zip(starts_s, found_s, strict=True):
        finish_s = start_s.copy()
        run_queues.py_func(*queues.arguments_of(cut, 1 << 20, topology, node_of, pacing), finish_s)
        np.testing.assert_array_equal(its_s, finish_s, err_msg=f"from {start_s}")
    assert (found_s > starts_s).all()
