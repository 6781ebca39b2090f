"""Hosts are cut off in the lab: those that reach the witness, or most of the hosts, go on, and the others end."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lanterne.bench.lab import command
from lanterne.bench.lab.command import HostCut, parse_cut
from lanterne.errors import InputError

PROGRAM = str(Path(__file__).with_name("partitioned.py"))
# TCP finds in 4 s that nobody answers. Who is cut off asks others for 2.5 s more whether they follow another store.
GO_ON_S, END_S = 5.0, 7.0


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


def test_a_rank_has_met_once_its_host_is_connected_to_the_store(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as store:
        monkeypatch.setattr(command, "MASTER_PORT", store.getsockname()[1])
        assert not command._has_met(os.getpid())
        with socket.create_connection(store.getsockname()):
            assert command._has_met(os.getpid())


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(
    ("hosts", "cut", "witness", "way"),
    [
        *((3, (0,), True, ""), (3, (2,), True, ""), (4, (0, 1), True, ""), (5, (0, 2, 4), True, "")),
        *((3, (0,), False, ""), (3, (2,), False, ""), (5, (0, 1), False, ""), (5, (2, 4), False, "")),
        *((3, (0,), False, "=to"), (3, (0,), False, "=from"), (3, (2,), False, "=to"), (3, (2,), False, "=from")),
        *((3, (1,), True, "=to"), (3, (1,), True, "=from"), (7, (0, 1, 2), False, "=to")),
    ],
    ids=str,
)
def test_the_hosts_that_reach_the_witness_go_on_and_the_others_end(needs_lab, hosts, cut, witness, way):
    words = ["--hosts", str(hosts), "--rate", "200mbit", "--cut", f"{','.join(map(str, cut))}@8{way}"]
    words += ["--witness"] if witness else []
    words = [sys.executable, "-P", "-m", "lanterne", "lab", *words, "--", "python", "-P", PROGRAM, "10"]
    # With --witness it is the lab's.
    env = {**os.environ, "LANTERNE_WITNESS": "hosts", "LANTERNE_SILENT_S": "4"}
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=100, env=env)
    assert result.returncode == 0, result.stderr
    left = tuple(host for host in range(hosts) if host not in cut)
    went_on = re.findall(r"host (\d) goes on in (\(.*?\)) after (\S+) s", result.stdout)
    assert {host: ranks for host, ranks, _ in went_on} == {str(host): str(left) for host in left}, result.stdout
    ended = re.findall(r"host (\d) ends after (\S+) s: rank (\d) is cut off from its job", result.stdout)
    assert sorted((host, rank) for host, _, rank in ended) == [(str(host), str(host)) for host in cut], result.stdout
    assert max(float(time_s) for *_, time_s in went_on) < GO_ON_S, result.stdout
    assert max(float(time_s) for _, time_s, _ in ended) < END_S, result.stdout
