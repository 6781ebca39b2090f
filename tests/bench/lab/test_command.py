"""The emulated cluster: it gives the rates asked for, and leaves nothing behind whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from lanterne.bench.cli import main
from lanterne.bench.lab import network as lab_network
from lanterne.bench.lab.command import add_arguments, network_of, parse_network, parse_rates, resolve
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.presets import find_preset
from lanterne.collectives.topology.topology import LinkClass
from lanterne.collectives.topology.topology_json import to_document
from lanterne.errors import InputError, Unavailable

# Sends 12 MiB from host 0 to host 1, raw TCP, and then back, each while the other direction is idle; then both at once.
MEASURE = """
import json, os, socket, sys, threading, time
rank, nbytes = int(os.environ["RANK"]), 12 << 20
address = (os.environ["MASTER_ADDR"], 5000)
if rank == 0:
    listener = socket.create_server(address)
    sock, _ = listener.accept()
elif rank == 1:
    while True:
        try:
            sock = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
else:
    sys.exit(0)
def send():
    sock.sendall(bytes(nbytes))
def receive():
    left = nbytes
    while left:
        left -= len(sock.recv(min(left, 1 << 16)))
def timed(*verbs):
    started = time.monotonic()
    threads = [threading.Thread(target=verb) for verb in verbs]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return time.monotonic() - started
times = [timed(receive if rank == 0 else send), timed(send if rank == 0 else receive), timed(send, receive)]
if rank == 0:
    print(json.dumps({"to_0": nbytes / times[0], "both": 2 * nbytes / times[2]}), flush=True)
else:
    print(json.dumps({"to_1": nbytes / times[1]}), flush=True)
"""


@pytest.fixture
def lab(needs_lab):
    """Run `lanterne lab`."""
    before = set(lab_network.namespaces())

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "lanterne", "lab", *words], capture_output=True, text=True, timeout=120, check=False
        )

    yield run
    assert set(lab_network.namespaces()) == before


def test_the_rates_are_those_asked_for(lab):
    result = lab("--hosts", "3", "--rate", "200mbit", "--rate", "1=100mbit", "--", "python", "-c", MEASURE)
    assert result.returncode == 0, result.stderr
    got = {key: value for line in result.stdout.splitlines() for key, value in json.loads(line).items()}
    # The slower end limits each direction to 12.5 MB/s, of which headers take some 1 %; the full bucket gives 128 kB
    # back. A busy machine may be slower than its links, but never faster.
    assert 0.6 * 12.5e6 < got["to_0"] < 1.05 * 12.5e6
    assert 0.6 * 12.5e6 < got["to_1"] < 1.05 * 12.5e6
    assert 1.1 * 12.5e6 < got["both"] < 1.05 * 25e6, "the link is not full duplex"


def test_the_first_failure_is_the_exit_code(lab):
    code = "import os, sys; sys.exit(7 if os.environ['RANK'] == '1' else 0)"
    assert lab("--hosts", "3", "--", "python", "-c", code).returncode == 7


def test_hosts_know_each_other_by_name_and_have_their_own(lab):
    code = "import os, socket; os.write(1, socket.gethostbyname(os.environ['LANTERNE_HOST_ID']).encode())"
    result = lab("--hosts", "2", "--", "python", "-c", code)
    # Both write to one pipe, perhaps at once.
    assert "10.77.0.1" in result.stdout and "10.77.0.2" in result.stdout


def test_link_delays_are_measured_between_clocks_that_differ(lab):
    off_s, nbytes = 300.0, 1_250_000
    job = str(Path(__file__).parents[1].joinpath("clock_job.py"))
    result = lab("--hosts", "2", "--rate", "1gbit", "--", "python", job, str(off_s), str(nbytes))
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert abs(found["clock_s"][1] + off_s) <= found["error_s"][1]
    # A message takes 10 ms on its link; a clock that is wrong would show in seconds, and with the other sign each way.
    for way in ("0-1", "1-0"):
        low_s, high_s = found["delay_s"][way]
        assert high_s > 0 and low_s < off_s / 100, found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_it_is_killed(lab, number):
    before = set(lab_network.namespaces())
    command = [sys.executable, "-m", "lanterne", "lab", "--hosts", "2", "--", "sleep", "1000"]
    # Tests that were started in the background ignore Ctrl-C, and so would what they start.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=heed) as process:  # noqa: PLW1509 (one system call)
        try:
            deadline = time.monotonic() + 60
            while not (mine := running(f"lab{process.pid}")) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert mine
            process.send_signal(number)
            assert process.wait(60) == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        finally:
            process.terminate()
    while (set(lab_network.namespaces()) != before or alive(mine)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(lab_network.namespaces()) == before and not alive(mine)


def running(name):
    """Process ids in both hosts of network `name`; empty until each has one."""
    listed = [
        subprocess.run(["ip", "netns", "pids", f"{name}-{i}"], capture_output=True, text=True, check=False)
        for i in range(2)
    ]
    pids = [list(map(int, result.stdout.split())) for result in listed]
    return [*chain.from_iterable(pids)] if all(pids) else []


def alive(pids):
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_rates():
    assert parse_rates(["200mbit", "2=50mbit"], 3) == (25e6, 25e6, 6.25e6)
    assert parse_rates(["0=1gbit"], 2) == (125e6, 25e6)


@pytest.mark.parametrize("texts", [["fast"], ["3=50mbit"], ["x=50mbit"], ["-1=50mbit"]])
def test_bad_rates(texts):
    with pytest.raises(InputError, match="--rate: got"):
        parse_rates(texts, 3)


def network(*words):
    parser = ArgumentParser()
    add_arguments(parser)
    return parse_network(parser.parse_args([*words, "--", "true"]), "lab")


def test_ranks_share_hosts(tmp_path):
    found = network("--hosts", "2", "--ranks-per-host", "3", "--rate", "1=100mbit", "--rate", "200mbit")
    assert found.placement == (0, 0, 0, 1, 1, 1) and found.rates_bytes_per_s == (25e6, 12.5e6)
    assert found.rank_variables(4) == {
        "RANK": "4",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
    }
    (tmp_path / "t.json").write_text(
        '{"nodes": [[1, 2], [0]], "links": [{"class": "inside", "alpha_s": 0, "bytes_per_s": 1e9},'
        ' {"class": "nic", "alpha_s": 0, "bytes_per_s": [1e7, 2e7]}]}'
    )
    found = network("--topology", str(tmp_path / "t.json"))
    assert found.placement == (1, 0, 0) and found.rates_bytes_per_s == pytest.approx((1e7, 2e7))
    assert found.rank_variables(2)["LOCAL_RANK"] == "1"


def test_bad_ranks_and_topologies(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(to_document(find_preset("dgx-2x2"))))
    for words, message in (
        (["--ranks-per-host", "0"], "--ranks-per-host: got 0, expected 1 to 64"),
        (["--topology", str(tmp_path / "t.json"), "--hosts", "2"], "--hosts: got 2 beside --topology"),
        (["--topology", str(tmp_path / "none.json")], "No such file"),
    ):
        with pytest.raises(InputError, match=message):
            network(*words)


@pytest.mark.parametrize("preset", ["mesh-2x2", "dgx-1x2"])
def test_a_topology_with_other_links_than_networks_have(preset):
    topology = find_preset(preset)
    switch = LinkClass("switch", topology.links[0].model, ((0, 1),))
    with pytest.raises(InputError, match="expected nic, and trunk at most once"):
        network_of(replace(topology, links=(*topology.links, switch)), "lab")


def test_rails_and_sites_of_a_topology():
    """Two NICs a host, for a rank each, and two sites of two hosts behind a line with half of its latency each way."""
    found = network_of(find_preset("cross-campus-4x2"), "lab")
    assert found.placement == (0, 0, 1, 1, 2, 2, 3, 3)
    assert [found.nic_rates(host) for host in range(4)] == [pytest.approx((50e9, 50e9))] * 4
    assert [found.rank_nic(rank) for rank in range(8)] == [0, 1] * 4
    assert found.address(2, 1) == "10.77.1.3"
    assert [site.hosts for site in found.sites] == [(0, 1), (2, 3)]
    assert found.sites[0].rate_bytes_per_s == pytest.approx(25e9)
    assert found.sites[0].latency_s == pytest.approx(1e-4)


def test_two_sites_of_hosts_with_two_nics_each(lab, tmp_path):
    """Ranks of both rails reach those of both sites, through the line between these."""
    # Without a latency, which few kernels in a box can emulate.
    small = [CostModel(0, 1e-9), CostModel(0, 1 / 25e6), CostModel(0, 1 / 12.5e6)]
    topology = find_preset("cross-campus-2x2")
    links = tuple(replace(each, model=model) for each, model in zip(topology.links, small, strict=True))
    path = tmp_path / "sites.json"
    path.write_text(json.dumps(to_document(replace(topology, links=links))))
    words = "bench all_reduce --transport tcp --bytes 1M --iterations 1 --warmup 0 --algorithm ring,hier_ring --json -"
    result = lab("--topology", str(path), "--", "lanterne", *words.split())
    assert result.returncode == 0, result.stderr
    records = {each["algorithm"]: each for each in json.loads(result.stdout)["results"]}
    assert all(each["wrong"] == 0 for each in records.values())
    # One buffer crosses the line at least, less what its bucket lets through at once.
    assert min(records["hier_ring"]["time_s"]) > 0.8 * (1 << 20) / 12.5e6


def test_commands_are_those_of_this_installation():
    assert resolve(["lanterne", "info"]) == [sys.executable, "-P", "-m", "lanterne", "info"]
    assert resolve(["python", "x.py"])[0] == sys.executable
    with pytest.raises(InputError, match="no-such-program"):
        resolve(["no-such-program"])


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="need root"):
        lab_network.check_available()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="apt-get install iproute2"):
        lab_network.check_available()


@pytest.mark.parametrize("hosts", ["0", "65", "1" * 18])
def test_bad_numbers_of_hosts(capsys, hosts):
    assert main(["lab", "--hosts", hosts, "--", "true"]) == 2
    assert capsys.readouterr().err == f"lanterne: --hosts: got {hosts}, expected 1 to 64\n"
