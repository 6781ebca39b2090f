"""Which hosts have slow NICs: told by pairs of hosts, and a topology made of it."""

import numpy as np
import pytest

from lanterne.collectives.auto.learn import MeasuredLinks
from lanterne.collectives.auto.slow_nics import LEAST_HOSTS, faster, measure_slowdowns, slowdowns
from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.cost import CostModel, Piece


def test_what_takes_longer_than_the_middle_one_is_slow():
    assert slowdowns(np.array([1.0, 1.1, 4.0, 0.9])) == pytest.approx((1.0, 1.0, 4 / 1.05, 1.0))
    assert slowdowns(np.array([1.0, 1.4, 1.0])) == ()
    assert slowdowns(np.array([1.0, np.inf, 1.0])) == ()
    assert slowdowns(np.zeros(3)) == ()


def test_a_slow_nic_makes_a_topology_of_hosts_with_one_rank_each():
    nodes = tuple((rank,) for rank in range(4))
    model = CostModel(1e-4, 4e-8, 1e-10, (Piece(1e6, 2e-4, 8e-8),))
    assert MeasuredLinks(model).topology(nodes) is None
    topology = MeasuredLinks(model, slowdown=(1.0, 4.0, 1.0, 1.0)).topology(nodes)
    assert topology.slow_nodes == (1,)
    assert not topology.is_flat
    assert topology.links[0].model == faster(model, 4.0)
    # The slow link costs what was measured.
    src, dst = np.array([0]), np.array([1])
    assert topology.round_s(src, dst, 1e5, 4) == pytest.approx(model.round_s(src, dst, 1e5, 4))
    assert topology.round_s(src, np.array([2]), 1e5, 4) < 0.5 * model.round_s(src, dst, 1e5, 4)


def test_few_hosts_are_not_asked():
    model = CostModel(1e-5, 1e-9)
    assert spawn(LEAST_HOSTS - 1, lambda communicator: measure_slowdowns(communicator, model)) == [()] * 3
