"""Topologies: what they refuse, their files, presets, and that equal links cost what the cost model says."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.cost import CostModel, late_start, price
from lanterne.collectives.topology.presets import PRESETS, find_preset
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology, equal_links, nodes_of
from lanterne.collectives.topology.topology_json import from_document, read_topology, to_document
from lanterne.errors import InputError

MODELS = [
    CostModel(3e-6, 1e-9, 2e-10),
    CostModel(3e-6, 1e-9, serial_messages=True),
    CostModel(1e-5, 0, pieces=((1000, 2e-6, 1e-9), (100_000, 0, 2e-9)), serial_messages=True),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["ring", "allpairs", "rhd", "late_join", "late_join_allpairs"])
@pytest.mark.parametrize("nbytes", [100, 1 << 20])
def test_equal_links_cost_what_the_cost_model_says(model, name, nbytes):
    schedule = make_schedule("all_reduce", name, 7)
    delays_s = late_start(7, 6, 1e-3)
    ours, theirs = (price(schedule, nbytes, links, delays_s) for links in (equal_links(7, model), model))
    np.testing.assert_array_equal(ours.finish_s, theirs.finish_s)


def one_round_s(links, src, dst, nbytes):
    """What the messages from `src` to `dst` take, all of one round."""
    return links.messages_s(np.zeros(len(src), np.int64), np.array(src), np.array(dst), nbytes, 4)


def test_a_round_is_as_long_as_its_busiest_link():
    """Two nodes of two ranks, one NIC each of which the second is half as fast: all by hand."""
    document = {
        "nodes": [[0, 2], [1, 3]],
        "links": [
            {"class": "inside", "alpha_s": 1.0, "bytes_per_s": 10.0},
            {"class": "nic", "alpha_s": 2.0, "bytes_per_s": [2.0, 1.0]},
            {"class": "trunk", "alpha_s": 4.0, "bytes_per_s": 0.5, "shared_by": [[1, 3]]},
        ],
    }
    topology = from_document(document)
    assert topology.node_of == (0, 1, 0, 1)
    src, dst = [0, 0, 2, 1], [2, 1, 3, 3]
    # Inside: rank 0 to 2 alone. Two messages of 10 bytes enter node 1: 20 s by its NIC, 40 by the trunk.
    np.testing.assert_allclose(one_round_s(topology, src, dst, 10.0), [2.0, 46.0, 46.0, 2.0])
    # Two rounds are as each alone.
    twice_s = topology.messages_s(np.repeat([0, 1], 4), np.tile(src, 2), np.tile(dst, 2), 10.0, 4)
    np.testing.assert_allclose(twice_s, np.tile([2.0, 46.0, 46.0, 2.0], 2))
    # One leaves node 0, which takes 5 s there and 10 at the other end.
    assert one_round_s(topology, [0], [1], 10.0)[0] == pytest.approx(6.0 + 20.0)
    without = from_document(document | {"links": document["links"][:2]})
    assert one_round_s(without, [0], [1], 10.0)[0] == pytest.approx(2.0 + 10.0)
    part = topology.of_ranks([3, 1])
    assert part.nodes == ((0, 1),) and [links.kind for links in part.links] == ["inside"]
    assert one_round_s(without.of_ranks([1, 3, 0, 2]), [2], [1], 10.0)[0] == pytest.approx(12.0)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_their_files(name, tmp_path):
    topology = find_preset(f"{name}-4x2")
    assert topology.world_size == 8 and len(topology.nodes) == 4
    (tmp_path / "topology.json").write_text(json.dumps(to_document(topology)))
    found = read_topology(tmp_path / "topology.json")
    assert found.nodes == topology.nodes and found.name == topology.name
    schedule = make_schedule("all_reduce", "ring", 8)
    assert price(schedule, 1 << 20, found).makespan_s == pytest.approx(price(schedule, 1 << 20, topology).makespan_s)


def test_hosts_are_told_apart():
    assert nodes_of(["b", "a", "b", "c", "a"]) == ((0, 2), (1, 4), (3,))


def test_who_may_hang_on_the_others():
    def leaf_sets(*slowdown):
        nodes = tuple((rank,) for rank in range(len(slowdown)))
        return Topology(nodes, (LinkClass(NIC, MODELS[0], nodes, slowdown),)).leaf_sets

    assert leaf_sets(1.0, 4.0, 1.0, 1.0) == ((1,), (1, 2, 3))
    assert leaf_sets(2.0, 1.0) == ((0,),)
    assert leaf_sets(1.0, 1.2, 1.0) == ()
    assert leaf_sets(*[1.0] * 8, 4.0) == ((8,),)
    assert leaf_sets(1.0, 2.0, 1.0, 4.0, 1.0) == ((1, 3), (3,), (1, 2, 3, 4))
    # All but the fastest, and all but the one with the most ranks, which is nearly as fast.
    nodes = ((0,), (1, 2), (3, 4, 5))
    nics = LinkClass(NIC, MODELS[0], nodes, (3.0, 1.0, 1.2))
    assert Topology(nodes, (LinkClass(INSIDE, MODELS[0], tuple((rank,) for rank in range(6))), nics)).leaf_sets == (
        (0,),
        (0, 2),
        (0, 1),
    )


INSIDE_LINK = {"class": "inside", "alpha_s": 1e-6, "bytes_per_s": 1e9}
NIC_LINK = {"class": "nic", "alpha_s": 1e-6, "bytes_per_s": 1e9}
BAD = {
    "got list, |got \\[\\], expected a JSON object": [],
    "got no nodes": {"links": []},
    "got key 'node' .did you mean 'nodes'": {"node": [[0]], "links": []},
    "nodes.1.: got rank 1, which nodes.0. has": {"nodes": [[0, 1], [1]], "links": [INSIDE_LINK, NIC_LINK]},
    "nodes.1.: got rank 3, expected 0 to 2": {"nodes": [[0, 1], [3]], "links": [INSIDE_LINK, NIC_LINK]},
    "nodes.0.: got no ranks": {"nodes": [[], [0]], "links": [INSIDE_LINK, NIC_LINK]},
    "nodes.0.: got .0.5., expected a list of ranks": {"nodes": [[0.5]], "links": []},
    "links: got none of class nic": {"nodes": [[0, 1], [2]], "links": [INSIDE_LINK]},
    "links: got none of class inside": {"nodes": [[0, 1], [2]], "links": [NIC_LINK]},
    "links: got class nic twice": {"nodes": [[0, 1], [2]], "links": [INSIDE_LINK, NIC_LINK, NIC_LINK]},
    "links.1..class: got 'nik' .did you mean 'nic'": {
        "nodes": [[0, 1]],
        "links": [INSIDE_LINK, NIC_LINK | {"class": "nik"}],
    },
    "links.0..bytes_per_s: got 0, expected a number above 0": {
        "nodes": [[0, 1]],
        "links": [INSIDE_LINK | {"bytes_per_s": 0}],
    },
    "links.0..alpha_s: got -1": {"nodes": [[0, 1]], "links": [INSIDE_LINK | {"alpha_s": -1}]},
    "links.0..bytes_per_s: got 3 rates": {"nodes": [[0, 1]], "links": [INSIDE_LINK | {"bytes_per_s": [1, 2, 3]}]},
    "links.1..shared_by.0.: got ranks of 2 nodes": {
        "nodes": [[0, 1], [2]],
        "links": [INSIDE_LINK, NIC_LINK | {"shared_by": [[0, 1, 2]]}],
    },
    "links.1..shared_by: got no rank 2": {
        "nodes": [[0, 1], [2]],
        "links": [INSIDE_LINK, NIC_LINK | {"shared_by": [[0, 1]]}],
    },
    "links.2..shared_by: got nothing": {
        "nodes": [[0, 1], [2]],
        "links": [INSIDE_LINK, NIC_LINK, NIC_LINK | {"class": "trunk"}],
    },
    "links.2..shared_by.0.: got a part of a node": {
        "nodes": [[0, 1], [2]],
        "links": [INSIDE_LINK, NIC_LINK, NIC_LINK | {"class": "trunk", "shared_by": [[0, 2]]}],
    },
    "schema_version: got 2": {"schema_version": 2, "nodes": [[0]], "links": []},
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_files_name_the_place(message, tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(BAD[message]))
    with pytest.raises(InputError, match=message) as error:
        read_topology(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "\xff", "[" * 100_000], ids=["empty", "cut off", "no UTF-8", "too deep"])
def test_files_that_are_no_json(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="got no JSON"):
        read_topology(tmp_path / "x.json")


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_topology(tmp_path / "none.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70_000) | st.floats() | st.sampled_from(["nic", "inside", "rank", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["nodes", "links", "class", "alpha_s", "shared_by", "pieces"]), inner)
    ),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"nodes": VALUES, "links": st.lists(st.just(INSIDE_LINK) | VALUES)}) | VALUES)
def test_whatever_is_read_is_a_topology_or_one_clear_line(document):
    try:
        assert isinstance(from_document(document), Topology)
    except InputError as error:
        assert re.match(r"topology", str(error)) and "\n" not in str(error)


@pytest.mark.parametrize("text", ["dgx", "dgx-8", "dgy-8x8", "dgx-0x8", "dgx-99999x99", "same-campus-1x8"])
def test_bad_presets(text):
    with pytest.raises(InputError, match=r"topology: got|preset same-campus: got|expected"):
        find_preset(text)


def test_slowdowns_are_at_least_one():
    with pytest.raises(InputError, match="got slowdowns"):
        Topology(((0,), (1,)), (LinkClass(NIC, CostModel(0, 1e-9), ((0,), (1,)), (0.5, 1)),))


@pytest.mark.parametrize(
    ("slowdown", "slow", "middle", "flat"),
    [((), (), 1.0, True), ((1.0, 1.2, 1.1), (), 1.1, True), ((1.0, 4.0, 4.0), (), 4.0, False),
     ((1.0, 1.0, 3.0), (2,), 1.0, False)],
)  # fmt: skip
def test_nics_that_differ_are_known(slowdown, slow, middle, flat):
    """What counts most is the NIC in the middle; where the others differ from it nodes are worth knowing."""
    nodes = ((0,), (1,), (2,))
    topology = Topology(nodes, (LinkClass(NIC, CostModel(1e-5, 1e-9, pieces=((100, 0, 2e-9),)), nodes, slowdown),))
    assert (topology.slow_nodes, topology.is_flat) == (slow, flat)
    assert topology.slowest.beta_s_per_byte == pytest.approx(middle * 1e-9)
    assert topology.slowest.pieces[0].beta_s_per_byte == pytest.approx(middle * 2e-9)


def test_of_nodes_as_fast_that_of_most_ranks_is_the_middle_of_a_star():
    nodes, alone = ((0, 1), (2,), (3, 4, 5, 6)), tuple((rank,) for rank in range(7))
    links = LinkClass("inside", MODELS[0], alone), LinkClass(NIC, MODELS[0], nodes, (1.0, 2.0, 1.0))
    assert Topology(nodes, links).leaf_sets == ((1,), (0, 1))


def test_where_nics_differ_and_no_node_is_slow_the_slowest_may_hang():
    """Two nodes with a NIC for each rank: the slow one of three has a third of what crosses, that of four a quarter."""
    nodes, alone = ((0, 1, 2, 3), (4, 5, 6)), tuple((rank,) for rank in range(7))
    links = LinkClass("inside", MODELS[0], alone), LinkClass(NIC, MODELS[0], alone, (1.0, 1.0, 4.0, 2.0, 1.0, 4.0, 1.0))
    topology = Topology(nodes, links)
    assert topology.slow_nodes == ()
    assert topology.leaf_sets == ((1,),)
    assert Topology(nodes, (links[0], LinkClass(NIC, MODELS[0], nodes))).leaf_sets == ()


def test_who_shares_the_nic_of_a_rank():
    nodes = ((0,), (1, 2, 3), (4, 5))
    model = CostModel(3e-6, 1e-9)
    alone = tuple((rank,) for rank in range(6))
    inside = LinkClass(INSIDE, model, alone)
    shared, own = (Topology(nodes, (inside, LinkClass(NIC, model, by))) for by in (nodes, alone))
    assert [shared.sharers_of_nic(rank) for rank in range(6)] == [1, 3, 3, 3, 2, 2]
    assert shared.nic_sharers == 3 and {own.sharers_of_nic(rank) for rank in range(6)} == {1}
