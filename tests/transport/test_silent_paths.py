"""A path that is cut for a while is waited for; a host that stays away for LANTERNE_SILENT_S is named."""

import pytest
from two_networks import TwoHosts, missing

from lanterne.transport.timeouts import SILENT_S

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

# Rank 1 takes its network away, and gives it back after {cut_s} seconds (0: never).
CODE = """
import subprocess, sys, time
import numpy as np, lanterne
cut_s, x, y = {cut_s}, np.ones(1 << 16), np.empty(1 << 16)
try:
    with lanterne.init(transport="{transport}") as comm:
        for call in range(40):
            if call == 20 and comm.rank == 1:
                back = f"sleep {{cut_s}}; ip link set lan0 up" if cut_s else "true"
                subprocess.Popen(["sh", "-c", f"ip link set lan0 down; {{back}}"])
            time.sleep(0.02)
            comm.all_reduce(x, y)
            assert (y == 2).all()
        print("all calls", flush=True)
except lanterne.LanterneError as error:
    print(type(error).__name__, error, flush=True)
"""


@pytest.mark.parametrize("transport", ["tcp", pytest.param("ucx", marks=pytest.mark.slow)])
def test_a_cut_of_seconds_is_survived(tmp_path, transport):
    assert SILENT_S >= 20
    if transport == "ucx":
        pytest.importorskip("ucxx")
    with TwoHosts(tmp_path) as hosts:
        ended = hosts.run(CODE.format(cut_s=4.5, transport=transport), LANTERNE_TIMEOUT_S="60")
    assert [code for _, code in ended] == [0, 0], ended
    assert all("all calls" in text for text, _ in ended), ended


def test_a_host_that_stays_away_is_named(tmp_path):
    with TwoHosts(tmp_path) as hosts:
        (survivor, _), _ = hosts.run(CODE.format(cut_s=0, transport="tcp"), LANTERNE_SILENT_S="2")
    assert "PeerFailed rank 1" in survivor, survivor
    assert "no other host answers either, so its host or that of the store is cut off" in survivor, survivor
