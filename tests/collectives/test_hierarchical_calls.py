"""Collectives over nodes as calls: right results from every late rank, by the programs of roles."""

import json

import numpy as np
import pytest

from lanterne.collectives.communicator import core_of
from lanterne.collectives.jobs import agreed_topology, spawn
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.presets import find_preset
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology, nodes_of
from lanterne.collectives.topology.topology_json import to_document
from lanterne.errors import InputError

HOSTS = {"equal": "aabb", "in turns": "abcab", "uneven": "abbb"}
COUNT = 1003


def known_hosts(communicator, hosts):
    """`communicator` as if its ranks ran on `hosts`, with shared NICs."""
    core_of(communicator).hosts = communicator.hosts = tuple(hosts)
    nodes = nodes_of(hosts)
    inside = LinkClass(INSIDE, CostModel(1e-5, 1e-9), tuple((rank,) for rank in range(len(hosts))))
    topology = Topology(nodes, (inside, LinkClass(NIC, CostModel(1e-4, 1e-8), nodes)))
    communicator.tuning.adopt(topology.slowest, "test", (), topology)


def values(rank):
    return np.random.default_rng(rank).integers(-9, 9, COUNT).astype(np.float64)


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=list(HOSTS))
def test_sums_are_right_whoever_is_late(hosts):
    size = len(hosts)
    wanted = sum(map(values, range(size)))

    def job(communicator):
        known_hosts(communicator, hosts)
        given, wrong = values(communicator.rank), []
        calls = [{"algorithm": name} for name in ("auto", "hier_ring", "hier_bruck")]
        for name in ("hier_late_join", "hier_late_chain"):
            late = [*range(size), (0, 1), tuple(range(1, size))]
            calls += [{"algorithm": name, "late_rank": rank, "num_chunks": 7} for rank in late]
        for options in calls:
            found = np.zeros(COUNT)
            communicator.all_reduce(given, found, **options)
            wrong += [] if (found == wanted).all() else [options]
            placed = given.copy()
            communicator.all_reduce(placed, placed, **options)
            wrong += [] if (placed == wanted).all() else [options | {"in place": True}]
        return wrong

    assert spawn(size, job, timeout_s=60) == [[]] * size


def test_auto_goes_over_nodes_and_groups_know_theirs():
    def job(communicator):
        known_hosts(communicator, "aabb")
        over = communicator.tuning.choose("all_reduce", 1 << 24).algorithm
        here = communicator.split(communicator.hosts.index(communicator.hosts[communicator.rank]))
        pair = communicator.split(communicator.rank % 3 % 2)
        return over, here.tuning.model.beta_s_per_byte, here.tuning.topology, pair.hosts

    for over, beta, topology, hosts in spawn(4, job, timeout_s=60):
        assert over.startswith("hier_") and beta == 1e-9 and topology is None, (over, beta, topology, hosts)
        assert hosts in (("a", "b", "b"), ("a",)), (over, beta, topology, hosts)


def test_a_topology_is_the_same_on_all_ranks_or_none_goes_on(tmp_path):
    good, other, broken = (tmp_path / f"{name}.json" for name in ("good", "other", "broken"))
    good.write_text(json.dumps(to_document(find_preset("dgx-2x2"))))
    other.write_text(json.dumps(to_document(find_preset("hosts-2x2"))))
    broken.write_text(good.read_text().replace("[2, 3]", "[2, 2]", 1))

    def told(given, size=4):
        """What each rank hears, the others first: the last one sees all."""
        answers = []

        def exchange(name, told):
            answers.append(told)
            return answers

        for path in given:
            outcome = None
            try:
                found = agreed_topology(None if path is None else str(path), size, exchange)
                outcome = found and found.name
            except InputError as error:
                outcome = str(error)
        return outcome

    assert told([good] * 4) == "dgx-2x2" and told([None] * 4) is None
    # Hosts may have the same file at different paths, by which one without a name is called.
    nameless, copied = tmp_path / "nameless.json", tmp_path / "copied.json"
    document = to_document(find_preset("dgx-2x2"))
    del document["name"]
    for path in (nameless, copied):
        path.write_text(json.dumps(document))
    assert told([copied, nameless, nameless, nameless]).endswith("nameless.json")
    assert "rank 1 got another than rank 0" in told([good, other, good, good])
    assert "rank 1 got another than rank 0" in told([good, None, good, good])
    assert "rank 2: topology" in told([good, good, broken, good]) and "got rank 2" in told([good, good, broken, good])
    assert "expected the job's 3" in told([good] * 3, size=3)
