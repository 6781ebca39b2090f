"""A rank shows others the address by which it has reached the meeting place, whatever its host is called."""

import pytest
from two_networks import DOCKER, TwoHosts, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "they are here")

SUM = """
import numpy as np, lanterne
with lanterne.init() as comm:
    ranks = np.array([comm.rank + 1])
    comm.all_reduce(ranks, ranks)
    print(f"rank {comm.rank}: {ranks[0]}")
"""


@pytest.mark.parametrize(
    ("lan", "names", "ranks"),
    [
        ("10.50.0.", (DOCKER, DOCKER), (0, 1)),
        ("fd50::", ("", ""), (0, 1)),
        ("10.50.0.", ("10.50.0.1", "10.50.0.2"), (1, 0)),
    ],
    ids=["the name means another network", "IPv6 without a name", "rank 0 is not at MASTER_ADDR"],
)
def test_the_address_by_which_a_rank_has_reached_the_others(tmp_path, lan, names, ranks):
    with TwoHosts(tmp_path, lan, names) as hosts:
        assert hosts.run(SUM, ranks) == [(f"rank {rank}: 3\n", 0) for rank in ranks]


def test_an_address_that_the_others_do_not_reach_is_one_line_with_the_cure(tmp_path):
    # On rank 1 alone, as in an environment that is right on one host only.
    code = "import os\nif os.environ['RANK'] == '1': os.environ['LANTERNE_BIND'] = 'docker0'\n" + SUM
    with TwoHosts(tmp_path, names=(DOCKER, DOCKER)) as hosts:
        (said, code), _ = hosts.run(code)
    assert code == 1 and said.count("\n") == 1, said
    assert said.startswith("lanterne: rail to rank 1: delegate: cannot connect to 172.17.0.1:"), said
    assert said.endswith("set LANTERNE_BIND on rank 1 to an address that all reach\n"), said
