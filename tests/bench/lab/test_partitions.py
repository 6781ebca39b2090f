"""Hosts are cut off in the lab: those that reach the store, or Redis where one is named, go on; the others end."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lanterne.bench.lab import command
from lanterne.bench.lab.command import HostCut, parse_cut
from lanterne.errors import InputError

PROGRAM = str(Path(__file__).with_name("partitioned.py"))
# TCP finds in 4 s that nobody answers; a rank that is cut off looks for a store for as long as its calls may take.
# After a store on another host has taken over, a rank that does not come is dead after 10 s.
GO_ON_S, END_S = 20.0, 30.0
REDIS_PORT = 6379


def test_cuts():
    assert parse_cut("0@10", 4) == HostCut((0,), 10.0)
    assert parse_cut("0,3@1.5", 4) == HostCut((0, 3), 1.5)
    assert parse_cut("2@3=from", 4) == HostCut((2,), 3.0, "from")


@pytest.mark.parametrize(
    "text", ["", "0", "@3", "4@1", "0,@1", "0@", "0@x", "-1@2", "0@1e3", "0@-1", "0@1=", "0@1=by", "0=to"]
)
def test_bad_cuts(text):
    with pytest.raises(InputError, match=r"--cut: got .*, expected HOST\[,...\]@S, hosts from 0 to 3 and seconds"):
        parse_cut(text, 4)


def test_a_rank_has_met_once_its_host_is_connected_to_the_store():
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        assert not command._has_met(os.getpid(), port)
        with socket.create_connection(store.getsockname()):
            assert command._has_met(os.getpid(), port)


# Hosts, those that are cut off, the way; "redis": in a Redis on the last host, else the store is on the first host.
CASES = [
    (3, (2,), "", False),
    (3, (0,), "", False),
    (3, (0,), "", True),
    (4, (0, 1), "", True),
    (3, (0,), "=to", True),
    (3, (1,), "=from", True),
]


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(("hosts", "cut", "way", "redis"), CASES, ids=str)
def test_the_hosts_that_reach_the_store_go_on_and_the_others_end(needs_lab, hosts, cut, way, redis):
    if redis and shutil.which("redis-server") is None:
        pytest.skip("no redis-server on PATH")
    words = ["--hosts", str(hosts), "--rate", "200mbit", "--cut", f"{','.join(map(str, cut))}@8{way}"]
    words = [sys.executable, "-P", "-m", "lanterne", "lab", *words, "--", "python", "-P", PROGRAM, "10"]
    env = os.environ | {"LANTERNE_SILENT_S": "4", "LANTERNE_TIMEOUT_S": "12"}
    if redis:
        env["LANTERNE_STORE"] = f"redis://10.77.0.{hosts}:{REDIS_PORT}"
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=100, env=env)
    went_on = re.findall(r"host (\d) goes on in (\(.*?\)) after (\S+) s", result.stdout)
    ended = re.findall(r"host (\d) ends after (\S+) s: (.*)", result.stdout)
    # Without a Redis the ranks that reach the store on host 0 go on.
    goes_on = set(range(hosts)) - set(cut) if redis or 0 not in cut else set(cut)
    left, cut = tuple(sorted(goes_on)), tuple(sorted(set(range(hosts)) - goes_on))
    said = "cut off from its job" if redis else "name a Redis in LANTERNE_STORE to outlive it"
    assert all(said in text for *_, text in ended), result.stdout
    assert {host: ranks for host, ranks, _ in went_on} == {str(host): str(left) for host in left}, result.stdout
    assert sorted(host for host, *_ in ended) == [str(host) for host in cut], result.stdout
    assert all(float(time_s) < GO_ON_S for *_, time_s in went_on), result.stdout
    assert all(float(time_s) < END_S for _, time_s, _ in ended), result.stdout
