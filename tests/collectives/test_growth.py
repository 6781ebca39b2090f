"""What ranks that are taken in know of the job's links: what was measured of those whose places they take."""

from types import SimpleNamespace

import pytest

from lanterne.collectives.auto.predict import Factor
from lanterne.collectives.growth import KnownLinks, node_names, understand
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology

MODEL = CostModel(1e-5, 1e-9)
FACTORS = (Factor("all_reduce", "rhd", 1 << 20, 0.5),)
HOSTS = ("a", "a", "b", "b", "c", "c")
NODES = ((0, 1), (2, 3), (4, 5))
TOPOLOGY = Topology(
    NODES,
    (
        LinkClass(INSIDE, CostModel(1e-6, 1e-10), tuple((rank,) for rank in range(6))),
        LinkClass(NIC, MODEL, NODES, (1.0, 2.0, 1.0)),
    ),
)


class Taught:
    """As Tuning."""

    def adopt(self, model, source, factors=(), topology=None):
        self.model, self.source, self.factors, self.topology = model, source, factors, topology


def known(topology=TOPOLOGY, hosts=HOSTS):
    tuning = SimpleNamespace(model=MODEL, factors=FACTORS, topology=topology)
    return KnownLinks.of(tuning, hosts, range(len(hosts)))


def after(links, *kept):
    """`links` as they are told by those that had the places `kept`, None for one that is new, in their new order."""
    told = [
        b"" if place is None else links.told(place, deterministic=True, whole=place == max(filter(None, kept)))
        for place in kept
    ]
    understood, deterministic = understand(told)
    assert deterministic
    return understood


def test_those_that_come_back_have_the_links_of_before():
    links = after(known(), 0, None, 2, 3, None, 5).placed(HOSTS)
    assert [links.place_of[rank] for rank in range(6)] == [*range(6)]
    taught = Taught()
    links.teach(taught)
    assert (taught.factors, taught.topology) == (FACTORS, TOPOLOGY)
    assert taught.model == TOPOLOGY.slowest and taught.source == "told"


def test_while_some_are_dead_their_links_are_left_out_and_their_places_stay():
    first = after(known(), 0, 2, 3, None).placed(("a", "b", "b", "c"))
    taught = Taught()
    first.teach(taught)
    assert taught.topology.nodes == ((0,), (1, 2), (3,)) and taught.factors == ()
    assert taught.topology.links[1].slowdown == (1.0, 2.0, 1.0)
    # The others come later: they were told by ranks of the second epoch.
    second = after(first, 0, None, 2, 3, 4, None).placed(("a", "a", "b", "b", "c", "c"))
    taught = Taught()
    second.teach(taught)
    assert (taught.factors, taught.topology) == (FACTORS, TOPOLOGY)


def test_a_new_host_stands_for_one_that_is_gone_with_all_its_ranks():
    links = after(known(), 0, 1, None, None, 4, 5).placed(("a", "a", "new", "new", "c", "c"))
    assert [links.place_of[rank] for rank in range(6)] == [*range(6)]
    assert links.hosts == ("a", "a", "new", "new", "c", "c")
    # Known by its own name from then on.
    again = after(links, 0, 1, 2, None, 4, 5).placed(("a", "a", "new", "new", "c", "c"))
    assert again.place_of == links.place_of


@pytest.mark.parametrize(
    ("kept", "hosts"),
    [
        ((0, 1, 2, 3, 4, 5, None), (*HOSTS, "a")),
        ((0, 1, None, None, 4, 5), ("a", "a", "new", "other", "c", "c")),
        ((0, 1, 2, None, 4, 5), ("a", "a", "b", "new", "c", "c")),
        ((0, 1, 2, None, 4, 5), ("a", "a", "b", "a", "c", "c")),
    ],
    ids=["one more", "two new hosts for one", "another of a host that lives", "of another host"],
)
def test_for_others_there_is_no_place(kept, hosts):
    assert after(known(), *kept).placed(hosts) is None


def test_more_ranks_on_links_that_are_all_alike_are_as_those():
    alike = after(known(None, ("a", "b")), 0, 1, None)
    assert alike.placed(("a", "b", "c")) is None
    assert alike.also_of(("a", "b", "c")) and not alike.also_of(("a", "b", "b"))
    assert not after(known(), 0, 1, None).also_of(("a", "b", "c"))


def test_nothing_is_known_where_all_are_new():
    assert understand([b"", b""]) == (None, False)
    unmeasured = KnownLinks(None, (), None, ("a", "a"), {0: 0, 1: 1})
    assert after(unmeasured, 0, 1).placed(("a", "a")) is None
    assert not unmeasured.also_of(("a", "a", "a"))


def test_ranks_share_nodes_by_host_unless_a_topology_has_others():
    assert node_names(HOSTS, None) == HOSTS == node_names(HOSTS, TOPOLOGY)
    assert node_names(("a",) * 6, TOPOLOGY) == ("node 0", "node 0", "node 1", "node 1", "node 2", "node 2")
