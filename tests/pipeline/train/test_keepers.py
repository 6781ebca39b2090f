"""Where copies of ranks' states lie: elsewhere than what they are copies of."""

from itertools import product

import pytest

from lanterne.pipeline.train.replicas import keepers, kept_at_home

HOSTS = [hosts for count in range(2, 8) for hosts in product("abc", repeat=count)]


def test_each_rank_keeps_one_of_another_and_on_another_host_wherever_that_can_be():
    for hosts in HOSTS:
        found = keepers(hosts)
        assert sorted(found) == [*range(len(hosts))], hosts
        assert all(keeper != rank for rank, keeper in enumerate(found)), hosts
        # Of a host with more than half of all ranks those that the others have no place for.
        most = max(map(hosts.count, hosts))
        assert len(kept_at_home(hosts)) == max(0, 2 * most - len(hosts)), hosts


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("abcd", [1, 2, 3, 0]),
        ("aabb", [2, 3, 0, 1]),
        ("abab", [1, 0, 3, 2]),
        ("aaaa", [1, 2, 3, 0]),
        ("aaab", [3, 0, 1, 2]),
    ],
)
def test_keepers(hosts, expected):
    assert keepers(hosts) == expected
