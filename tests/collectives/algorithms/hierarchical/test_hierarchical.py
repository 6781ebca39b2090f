"""Collectives over nodes: proven for any nodes, chunks and late ranks; what they cost on links that are shared."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.auto.predict import chunk_count
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel, late_start, price
from lanterne.collectives.topology.flows import simulate_flows
from lanterne.collectives.topology.presets import find_preset
from lanterne.collectives.topology.topology import NIC, LinkClass, Topology
from lanterne.errors import InputError

PLAIN, LATE = ("hier_ring", "hier_bruck"), ("hier_late_join", "hier_late_chain")
NODES = [
    ((0, 1), (2, 3)),
    ((0, 3), (1, 2, 4), (5,)),
    ((0, 1, 2),),
    ((0, 4, 6), (1,), (2, 3, 5, 7)),
    ((0, 1), (2, 3), (4, 5), (6, 7)),
]


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("num_chunks", [1, 5, 24, None])
def test_all_late_ranks_pass_the_checker(nodes, num_chunks):
    size = sum(map(len, nodes))
    for name in PLAIN:
        check(make_schedule("all_reduce", name, size, num_chunks, nodes=nodes))
    sets = [late for count in (1, 2) for late in combinations(range(size), count)]
    for name, late in product(LATE, [*sets, *(ranks for ranks in nodes if 2 < len(ranks) < size)]):
        rank = late if len(late) > 1 else late[0]
        check(make_schedule("all_reduce", name, size, num_chunks, nodes=nodes, late_rank=rank))


@given(
    st.integers(2, 14).flatmap(
        lambda size: st.tuples(
            st.lists(st.integers(0, 4), min_size=size, max_size=size),
            st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1),
        )
    ),
    st.integers(1, 40),
    st.sampled_from(LATE),
)
def test_any_nodes_chunks_and_late_ranks(placement, num_chunks, name):
    hosts, late = placement
    nodes = tuple(tuple(rank for rank, host in enumerate(hosts) if host == wanted) for wanted in dict.fromkeys(hosts))
    schedule = make_schedule("all_reduce", name, len(hosts), num_chunks, nodes=nodes, late_rank=tuple(sorted(late)))
    assert check(schedule).schedule.num_chunks == num_chunks


@pytest.mark.parametrize(("preset", "bound"), [("dgx-8x8", 1 / 8), ("dgx-one-nic-8x8", 1.0)])
@pytest.mark.parametrize("late", [0, 37, 63])
def test_a_late_rank_costs_what_its_node_must_send(preset, bound, late):
    """1 GiB, the rank later than all else takes: from its arrival near the time of its bytes through the NICs."""
    topology, nbytes = find_preset(preset), 1 << 30
    schedule = make_schedule("all_reduce", "hier_late_join", 64, 8 * 64, nodes=topology.nodes, late_rank=late)
    exposed_s = price(schedule, nbytes, topology, late_start(64, late, 1.0)).exposed_s
    least_s = bound * nbytes / 50e9
    assert least_s <= exposed_s <= 1.15 * least_s
    flat = make_schedule("all_reduce", "late_join", 64, 63 * 4, late_rank=late)
    assert price(flat, nbytes, topology, late_start(64, late, 1.0)).exposed_s > 4 * exposed_s


@pytest.mark.parametrize(("preset", "bound"), [("dgx-8x8", 1 / 8), ("dgx-one-nic-8x8", 1.0)])
def test_the_chunk_count_is_within_a_tenth_of_the_optimum_for_any(preset, bound):
    """Of rounds that each take 3 us and a chunk's time on a NIC, as many as chunks and log2 of the nodes."""
    topology, nbytes = find_preset(preset), 1 << 30
    chunks = chunk_count(find_algorithm("all_reduce", "hier_late_join"), 64, nbytes, topology, min_chunk_nbytes=1)
    schedule = make_schedule("all_reduce", "hier_late_join", 64, chunks, nodes=topology.nodes, late_rank=21)
    exposed_s = price(schedule, nbytes, topology, late_start(64, 21, 1.0)).exposed_s
    best_s = min((count + 2) * (3e-6 + bound * nbytes / 50e9 / count) for count in range(1, 2000))
    assert exposed_s <= 1.10 * best_s


def test_nobody_late_is_at_the_bound_of_the_nics():
    topology, nbytes = find_preset("dgx-8x8"), 1 << 30
    schedule = make_schedule("all_reduce", "hier_ring", 64, 8 * 16, nodes=topology.nodes)
    assert price(schedule, nbytes, topology).makespan_s == pytest.approx(2 * 7 / 8 / 8 * nbytes / 50e9, rel=0.12)


def test_a_late_owner_does_not_give_out_what_it_owns():
    """Its port inside carries its contributions; its results go out once, to a deputy."""
    nodes = ((0, 1, 2, 3), (4, 5, 6, 7))
    schedule = make_schedule("all_reduce", "hier_late_join", 8, 16, nodes=nodes, late_rank=7)
    inside = (schedule.src == 7) & np.isin(schedule.dst, nodes[1])
    # 12 chunks that others own, and the 4 of its own once.
    assert inside.sum() == 12 + 4


@pytest.mark.parametrize("nodes", [((0, 1), (1, 2)), ((0,), (2,)), ((0, 1, 2), ())], ids=str)
def test_bad_nodes(nodes):
    with pytest.raises(InputError, match="expected ranks 0 to 2 once each"):
        make_schedule("all_reduce", "hier_ring", 3, nodes=nodes)


SLOW = [(0,), (1,), (0, 1), (5,)]


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("num_chunks", [1, 5, 24, None])
def test_slow_nodes_pass_the_checker_as_leaves(nodes, num_chunks):
    size = sum(map(len, nodes))
    for slow in SLOW:
        names = [".".join(map(str, (name, *slow))) for name in ("hier_slow", "hier_late_slow", "hier_join")]
        if max(slow) >= len(nodes):
            for name in names:
                with pytest.raises(InputError, match=f"got slow node {max(slow)}, expected 0 to {len(nodes) - 1}"):
                    make_schedule("all_reduce", name, size, num_chunks, nodes=nodes)
            continue
        for name in (names[0], names[2]):
            check(make_schedule("all_reduce", name, size, num_chunks, nodes=nodes))
        for late in [*range(size), (0, size - 1), *(ranks for ranks in nodes if 1 < len(ranks) < size)]:
            check(make_schedule("all_reduce", names[1], size, num_chunks, nodes=nodes, late_rank=late))


def test_names_of_slow_nodes():
    assert find_algorithm("all_reduce", "hier_slow.2.5").leaves
    with pytest.raises(InputError, match="did you mean"):
        find_algorithm("all_reduce", "hier_rnig.2")


@pytest.mark.parametrize("name", ["hier_slow.", "hier_slow.a", "hier_slow.2.", "hier_slow.-1"])
def test_bad_names_of_slow_nodes(name):
    with pytest.raises(InputError, match="expected the numbers of slow nodes"):
        find_algorithm("all_reduce", name)


@pytest.mark.parametrize(
    ("name", "late", "limit"),
    [("hier_slow.5", None, 4.4), ("hier_late_slow.5", 2, 4.3), ("hier_late_slow.5", 5, 4.3), ("ring", None, 7.1)],
)
def test_a_nic_at_a_quarter_costs_little_more_than_its_bytes(name, late, limit):
    """Eight hosts, in multiples of what the buffer takes on a good NIC, from the last arrival; model and flows."""
    nodes = tuple((rank,) for rank in range(8))
    nics = LinkClass(NIC, CostModel(2e-4, 1 / 25e6), nodes, (1, 1, 1, 1, 1, 4, 1, 1))
    topology, nbytes = Topology(nodes, (nics,)), 4 << 20
    line = find_algorithm("all_reduce", name)
    chunks = chunk_count(line, 8, nbytes, topology, min_chunk_nbytes=1)
    schedule = make_schedule("all_reduce", name, 8, chunks, nodes=nodes, late_rank=late)
    unit_s = nbytes / 25e6
    start = late_start(8, late, 1.1 * unit_s if late is not None else 0.0)
    flows_s = simulate_flows(schedule, nbytes, topology, start).max() - start.max()
    for found_s in (price(schedule, nbytes, topology, start).exposed_s, flows_s):
        assert 4.0 <= found_s / unit_s <= limit, found_s


MOVES = [("all_gather", "hier_ring"), ("reduce_scatter", "hier_ring")]
ROOTED = [(collective, name) for collective in ("broadcast", "reduce") for name in ("hier_chain", "hier_tree")]


@pytest.mark.parametrize("nodes", NODES, ids=str)
def test_other_collectives_over_nodes_pass_the_checker(nodes):
    size = sum(map(len, nodes))
    for collective, name in MOVES:
        check(make_schedule(collective, name, size, nodes=nodes))
        check(make_schedule(collective, name, size, 3 * size, nodes=nodes))
    for (collective, name), root, chunks in product(ROOTED, range(size), (None, 1, 7)):
        check(make_schedule(collective, name, size, chunks, root=root, nodes=nodes))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=14),
    st.sampled_from([*MOVES, *ROOTED]),
    st.integers(1, 30),
    st.integers(0, 13),
)
def test_any_nodes_and_roots(hosts, which, num_chunks, root):
    nodes = tuple(tuple(rank for rank, host in enumerate(hosts) if host == wanted) for wanted in dict.fromkeys(hosts))
    rooted = which in ROOTED
    chunks, of = (num_chunks, root % len(hosts)) if rooted else (None, None)
    check(make_schedule(*which, len(hosts), chunks, root=of, nodes=nodes))


@pytest.mark.parametrize("which", [*MOVES, ("broadcast", "hier_chain"), ("broadcast", "hier_tree")])
def test_every_part_crosses_to_a_node_once(which):
    """So on hosts with a NIC for four ranks it takes little more than those bytes, and less than flat ones do."""
    topology, nbytes = find_preset("hosts-4x4"), 64 << 20
    line = find_algorithm(*which)
    chunks = chunk_count(line, 16, nbytes, topology)
    schedule = make_schedule(*which, 16, chunks, nodes=topology.nodes)
    # Each NIC has to send, or receive, the parts of others once.
    share = 1.0 if which[0] == "broadcast" else 3 / 4
    least_s = share * nbytes / 1.25e9
    found_s = price(schedule, nbytes, topology).makespan_s
    assert least_s <= found_s <= 1.25 * least_s
    if which[1] != "hier_tree":
        flat = {"broadcast": "scatter_allgather"}.get(which[0], "bruck")
        assert price(make_schedule(which[0], flat, 16), nbytes, topology).makespan_s > 1.5 * found_s
