"""What the bytes of a round take on links of different rates: by hand, and as flows have it."""

import numpy as np
import pytest

from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.ir import COPY, ScheduleBuilder
from lanterne.collectives.topology.flows import simulate_flows
from lanterne.collectives.topology.round_sharing import messages_of, moves_s
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology

# A node of two ranks with a NIC at half the rate, one of one rank, one of four.
NODES = ((0, 1), (2,), (3, 4, 5, 6))


def cluster(*slowdown):
    inside = LinkClass(INSIDE, CostModel(0.0, 1e-6), tuple((rank,) for rank in range(7)))
    return Topology(NODES, (inside, LinkClass(NIC, CostModel(0.0, 1.0), NODES, slowdown)))


def moved_s(topology, round_of, src, dst, nbytes):
    """Of each transfer, what its message takes."""
    messages = messages_of(round_of, src, dst, topology.world_size)
    return moves_s(topology._crossed, messages, nbytes)[messages.message_of]


def one_round(src, dst, chunks):
    """The columns (round_of, src, dst) of messages of so many chunks, all of round 0."""
    src, dst = np.repeat(src, chunks), np.repeat(dst, chunks)
    return np.zeros(len(src), np.int64), src, dst


def test_a_message_of_two_chunks_has_to_go_on_when_those_of_one_are_over():
    """Six messages share the NIC of rank 2: those of one chunk end after 6 s, the others go on at half its rate."""
    topology = cluster(2.0, 1.0, 1.0)
    columns = one_round([0, 1, 3, 4, 5, 6], [2] * 6, [2, 2, 1, 1, 1, 1])
    found = moved_s(topology, *columns, 1.0)
    np.testing.assert_allclose(found, [10.0] * 4 + [6.0] * 4)
    # Where all NICs are alike the NIC has eight chunks to take, and takes 8 s.
    np.testing.assert_allclose(moved_s(cluster(), *columns, 1.0)[:4], 8.0)


def test_a_message_that_is_held_back_leaves_the_rest_to_others():
    """Rank 0 sends at a quarter of the rate of rank 2's NIC, so rank 3 has the other three."""
    found = moved_s(cluster(4.0, 1.0, 1.0), *one_round([0, 3], [2, 2], [1, 3]), 1.0)
    np.testing.assert_allclose(found, [4.0, 4.0, 4.0, 4.0])


def test_rounds_that_are_alike_take_alike_and_do_not_meet():
    topology = cluster(2.0, 1.0, 1.0)
    _, src, dst = one_round([0, 3], [2, 2], [2, 1])
    rounds = np.repeat([0, 1, 2], [3, 1, 3])
    found = moved_s(topology, rounds, np.concatenate([src, [2], src]), np.concatenate([dst, [3], dst]), 1.0)
    np.testing.assert_allclose(found, [4.0, 4.0, 2.0, 1.0, 4.0, 4.0, 2.0])


def test_no_transfers_take_no_time():
    none = np.zeros(0, np.int64)
    assert moved_s(cluster(2.0, 1.0, 1.0), none, none, none, 1.0).shape == (0,)


@pytest.mark.parametrize("seed", range(20))
def test_a_round_takes_what_flows_take_for_it(seed):
    """That share none of the code: any messages of one round, each rank with any."""
    rng = np.random.default_rng(seed)
    topology = cluster(*rng.choice([1.0, 1.5, 3.0], 3))
    pairs = [(a, b) for a in range(7) for b in range(7) if a != b and rng.random() < 0.3]
    columns = one_round([a for a, _ in pairs], [b for _, b in pairs], rng.integers(1, 4, len(pairs)))
    found = moved_s(topology, *columns, 2.0)
    build = ScheduleBuilder("all_reduce", "any", 7, len(columns[0]), ports=100)
    build.rounds(columns[0], *columns[1:], np.arange(len(columns[0])), COPY)
    ends = simulate_flows(build.build(), 2.0 * len(columns[0]), topology)
    last = np.zeros(7)
    for side in columns[1:]:
        np.maximum.at(last, side, found)
    np.testing.assert_allclose(last, ends, rtol=1e-6)
