"""The simulator of flows: by hand, beside the model of rounds, which knows nothing of it, and as prices go by it."""

import numpy as np
import pytest

from evaluation.random_clusters import AUTO_BAR, judge_auto
from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.cost import CostModel, Piece, late_start, price
from lanterne.collectives.schedule.ir import COPY, ScheduleBuilder
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


# A node of two ranks with a NIC at half the rate, one of one rank, one of four.
NODES = ((0, 1), (2,), (3, 4, 5, 6))


UNIT = CostModel(0.0, 1.0)


def cluster(*slowdown, model=UNIT):
    inside = LinkClass(INSIDE, CostModel(0.0, 1e-6), tuple((rank,) for rank in range(7)))
    return Topology(NODES, (inside, LinkClass(NIC, model, NODES, slowdown)))


def ends_s(topology, *rounds):
    """When each rank is done whose chunks have a byte; of each round (src, dst, chunks) of its messages."""
    total = sum(chunks for messages in rounds for *_, chunks in messages)
    build, number = ScheduleBuilder("all_reduce", "any", 7, total, ports=100), 0
    for messages in rounds:
        src, dst, chunks = (np.array(column) for column in zip(*messages, strict=True))
        src, dst = np.repeat(src, chunks), np.repeat(dst, chunks)
        build.rounds(np.zeros(len(src), np.int64), src, dst, np.arange(number, number + len(src)), COPY)
        number += len(src)
    return simulate_flows(build.build(), float(total), topology)


def test_a_message_of_two_chunks_has_to_go_on_when_those_of_one_are_over():
    """Six messages share the NIC of rank 2: those of one chunk end after 6 s, the others go on at half its rate."""
    messages = [(src, 2, 2 if src < 2 else 1) for src in (0, 1, 3, 4, 5, 6)]
    np.testing.assert_allclose(ends_s(cluster(2.0, 1.0, 1.0), messages), [10, 10, 10, 6, 6, 6, 6])
    # Where all NICs are alike it has eight chunks to take, and takes 8 s.
    assert ends_s(cluster(), messages).max() == pytest.approx(8.0)


def test_a_message_that_is_held_back_leaves_the_rest_to_others():
    """Rank 0 sends at a quarter of the rate of rank 2's NIC, so rank 3 has the other three."""
    np.testing.assert_allclose(ends_s(cluster(4.0, 1.0, 1.0), [(0, 2, 1), (3, 2, 3)])[[0, 2, 3]], 4.0)


def test_a_rank_that_has_less_to_do_is_a_round_ahead():
    """Ranks 3 and 4 share a NIC. Rank 3's second message begins after 4 s, when half of rank 4's first has gone."""
    topology = cluster(1.0, 1.0, 1.0)
    found = ends_s(topology, [(3, 0, 2), (4, 2, 4)], [(3, 0, 2)])
    np.testing.assert_allclose(found[[3, 4]], [8.0, 8.0])
    # In step it would begin after 6, and end after 8, beside nothing.
    assert ends_s(topology, [(3, 0, 2), (4, 2, 3)], [(3, 0, 2)])[3] == pytest.approx(7.0)


def test_starts_are_those_of_messages_of_their_size():
    """Below 4 bytes each takes 2 s: a link has the rate of the longest message, and what others take more is beside."""
    model = CostModel(0.5, 2.0, pieces=(Piece(4, 1.0, 1.0),))
    assert ends_s(cluster(1.0, 1.0, 1.0, model=model), [(0, 2, 8)])[2] == pytest.approx(9.0)
    assert ends_s(cluster(1.0, 1.0, 1.0, model=model), [(0, 2, 2)])[2] == pytest.approx(4.5)
    found = ends_s(cluster(1.0, 1.0, 1.0, model=model), [(0, 2, 2), (3, 1, 8)])
    np.testing.assert_allclose(found[[2, 3]], [4.5, 9.0])
    # A token bucket's credit, which one short message has, is none of many.
    bucket = CostModel(0.5, 0.25, pieces=(Piece(4, 0.0, 1.0),))
    assert ends_s(cluster(1.0, 1.0, 1.0, model=bucket), [(0, 2, 2)])[2] == pytest.approx(2.0)
    serial = CostModel(0.5, 1.0, serial_messages=True)
    assert ends_s(cluster(1.0, 1.0, 1.0, model=serial), [(0, 2, 1), (0, 3, 1)])[0] == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["dgx-2x4", "fat-tree-4x2", "hosts-3x2"])
def test_where_nodes_and_links_are_alike_prices_go_by_rounds(name):
    topology = find_preset(name)
    schedule = make_schedule("all_reduce", "ring", topology.world_size)
    assert topology.finish_s(schedule, 1 << 20, np.zeros(topology.world_size)) is None


# Hosts of 1, 3 and 4 ranks, the second with half a NIC.
HALF_NIC = Topology(
    ((5,), (0, 3, 7), (1, 2, 4, 6)),
    (
        LinkClass(INSIDE, CostModel(2e-6, 1e-10), tuple((rank,) for rank in range(8))),
        LinkClass(NIC, CostModel(2e-5, 0.8e-9), ((5,), (0, 3, 7), (1, 2, 4, 6)), (1.0, 2.0, 1.0)),
    ),
)


def test_where_they_differ_prices_are_those_of_flows():
    schedule, delays_s = make_schedule("all_reduce", "hier_ring", 8, nodes=HALF_NIC.nodes), late_start(8, 3, 1e-3)
    cost = price(schedule, 1 << 20, HALF_NIC, delays_s)
    np.testing.assert_array_equal(cost.finish_s, simulate_flows(schedule, 1 << 20, HALF_NIC, delays_s))
    assert cost.exposed_s == cost.makespan_s - 1e-3


def test_auto_does_not_count_on_a_step_that_ranks_cannot_keep():
    """They begin out of step by a start-up time, which grows: flows, and SimGrid, take half as long again."""
    assert judge_auto(HALF_NIC, 16 << 20, 7)["late_ratio"] <= AUTO_BAR
