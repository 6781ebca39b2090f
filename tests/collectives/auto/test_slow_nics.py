"""Which hosts have slow NICs: told by pairs of hosts, and a topology made of it."""

from types import SimpleNamespace

import numpy as np
import pytest

from lanterne.collectives.auto import slow_nics
from lanterne.collectives.auto.learn import MeasuredLinks
from lanterne.collectives.auto.slow_nics import LEAST_HOSTS, exchange_s, faster, measure_slowdowns, slowdowns
from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.cost import CostModel, Piece
from lanterne.transport.base import Capabilities

BURST_NBYTES = 128_000


class BucketPair:
    """One of two ranks behind token buckets, and its clock; every `stalls`-th message comes 50 ms late."""

    rank, world_size = 0, 2
    transport = SimpleNamespace(capabilities=Capabilities())

    def __init__(self, rate_bytes_per_s, stalls):
        self.rate, self.stalls = rate_bytes_per_s, stalls
        self.at_s, self.calls, self.tokens = 0.0, 0, BURST_NBYTES

    def monotonic(self):
        return self.at_s

    def all_gather(self, part, whole, algorithm):
        self.calls += 1
        self.let(3e-4 + 50e-3 * (self.calls % self.stalls == 0))
        missing = max(0.0, part.nbytes - self.tokens)
        self.tokens = max(0.0, self.tokens - part.nbytes)
        self.at_s += missing / self.rate

    def all_reduce(self, array, out, op, algorithm):
        self.let(3e-4)

    def let(self, time_s):
        self.at_s += time_s
        self.tokens = min(BURST_NBYTES, self.tokens + self.rate * time_s)


@pytest.mark.parametrize("stalls", [100, 5])
def test_what_a_bucket_lets_through_at_once_does_not_count(stalls, monkeypatch):
    took_s = []
    for rate in (25e6, 6.25e6):
        pair = BucketPair(rate, stalls)
        monkeypatch.setattr(slow_nics, "time", pair)
        took_s.append(exchange_s(pair, 256 << 10))
        assert took_s[-1] * rate == pytest.approx(256 << 10, rel=0.2), rate
        assert pair.at_s < 0.5, rate
    assert slowdowns(np.array(took_s[:1] * 3 + took_s[1:])) == pytest.approx((1, 1, 1, 4), rel=0.2)


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
    one, other, third = (np.array([rank]) for rank in (0, 1, 2))
    slow_s = model.messages_s(np.zeros(1, np.int64), one, other, 1e5, 4)
    assert topology.messages_s(np.zeros(1, np.int64), one, other, 1e5, 4) == pytest.approx(slow_s)
    assert topology.messages_s(np.zeros(1, np.int64), one, third, 1e5, 4) < 0.5 * slow_s


def test_few_hosts_are_not_asked():
    model = CostModel(1e-5, 1e-9)
    assert spawn(LEAST_HOSTS - 1, lambda communicator: measure_slowdowns(communicator, model)) == [()] * 3
