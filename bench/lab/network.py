"""The emulated cluster's network: one namespace per host, with rate-limited full-duplex links to a non-blocking
switch.

Hosts may have several NICs, each a network of its own (a *rail*): who talks to an address of rail k does so through his
own NIC k. Hosts of a site have a switch of theirs, with one limited line, and its latency, to the one between sites.

The switch is a bridge in a namespace of its own, so nothing of this machine's own network changes. Each host's link is
a veth pair with a token bucket (tc tbf) at both ends: what the host sends and what it receives are limited apart. Needs
root, ip and tc.

Run as a program it is the undertaker: it waits until its standard input ends, as it does when the lab's process dies
however it dies, and removes the network with every process in it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lanterne.errors import InputError, Unavailable
from lanterne.transport.own_python import own_python

MAX_HOSTS = 64  # chosen: addresses, and processes of one machine
MTU_NBYTES = 9000  # jumbo frames of data centres
# 64 kB loses tokens to late timers; it is 5 ms of credit at 200 Mbit/s, visible below some 4 MiB
BURST_NBYTES = 128 * 1000
QUEUE_S = 0.2  # chosen: what a bucket holds back before it drops
GSO_NBYTES = 18000  # segments of 64 kB would keep control messages and ACKs waiting behind them for 5 ms


INTERFACE, SWITCH = "lan0", "switch"
SYSCTLS = {
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    # All NICs are on one wire; each speaks for its own address alone.
    "net.ipv4.conf.all.arp_ignore": "1",
    "net.ipv4.conf.all.arp_announce": "2",
}


class Site(NamedTuple):
    """Hosts behind a line of `rate_bytes_per_s`, each way, whose messages take `latency_s` more each way."""

    hosts: tuple[int, ...]
    rate_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class Network:
    """An emulated cluster.

    Attributes: `name` begins the names of all that is its own; `rates_bytes_per_s` has one per host; `host_of` the host
    of each rank, empty: one rank on each; `more_rates` those of each host's further NICs, empty: none has any; `nic_of`
    the NIC of each rank, empty: the first; `sites`, empty: all hosts are at one.
    """

    name: str
    rates_bytes_per_s: tuple[float, ...]
    host_of: tuple[int, ...] = ()
    more_rates: tuple[tuple[float, ...], ...] = ()
    nic_of: tuple[int, ...] = ()
    sites: tuple[Site, ...] = ()

    @property
    def num_hosts(self) -> int:
        return len(self.rates_bytes_per_s)

    @property
    def placement(self) -> tuple[int, ...]:
        """The host of each rank."""
        return self.host_of or tuple(range(self.num_hosts))

    @property
    def num_ranks(self) -> int:
        return len(self.placement)

    def rank_variables(self, rank: int) -> dict[str, str]:
        """The torchrun-style variables of `rank` that tell its place."""
        here = self.placement[:rank].count(self.placement[rank])
        beside = self.placement.count(self.placement[rank])
        place = {"RANK": rank, "WORLD_SIZE": self.num_ranks, "LOCAL_RANK": here, "LOCAL_WORLD_SIZE": beside}
        return {name: str(number) for name, number in place.items()}

    def nic_rates(self, host: int) -> tuple[float, ...]:
        """Bytes per second of each NIC of a host."""
        return (self.rates_bytes_per_s[host], *(self.more_rates[host] if self.more_rates else ()))

    def rank_nic(self, rank: int) -> int:
        """The NIC of a rank."""
        return self.nic_of[rank] if self.nic_of else 0

    @property
    def switch(self) -> str:
        return f"{self.name}-switch"

    def host(self, index: int) -> str:
        """The namespace of a host, which is also its host name inside."""
        return f"{self.name}-{index}"

    def address(self, index: int, nic: int = 0) -> str:
        return f"10.77.{nic}.{index + 1}"

    def run_in(self, index: int) -> list[str]:
        """The words before a command that run it on host `index`."""
        return ["ip", "netns", "exec", self.host(index)]


def interface(nic: int) -> str:
    """What a NIC is called on its host."""
    return f"{INTERFACE[:-1]}{nic}"


def check_available() -> None:
    """Raise Unavailable if this machine cannot emulate a cluster."""
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            raise Unavailable(f"lab: {tool} not found; install it with: apt-get install iproute2")
    if os.geteuid() != 0:
        raise Unavailable("lab: network namespaces need root; run it with sudo")


def check_num_hosts(num_hosts: int) -> None:
    """Raise InputError unless a cluster may have so many hosts."""
    if not 1 <= num_hosts <= MAX_HOSTS:
        raise InputError(f"--hosts: got {num_hosts}, expected 1 to {MAX_HOSTS}")


def create(network: Network) -> None:
    """Make the namespaces, links and limits of `network`.

    Raises:
        InputError: too few or too many hosts.
        Unavailable: this machine does not allow it; what was made is removed again.
    """
    check_num_hosts(network.num_hosts)
    try:
        _ip("netns", "add", network.switch)
        _create_switch(network, SWITCH)
        for number, site in enumerate(network.sites):
            _create_site(network, f"site{number}", site)
        hosts = "127.0.0.1 localhost\n" + "".join(
            f"{network.address(i)} {network.host(i)}\n" for i in range(network.num_hosts)
        )
        for index in range(network.num_hosts):
            _create_host(network, index, hosts)
    except Unavailable:
        remove(network.name)
        raise


def _create_switch(network: Network, name: str) -> None:
    _ip("-n", network.switch, "link", "add", name, "mtu", str(MTU_NBYTES), "type", "bridge")
    _ip("-n", network.switch, "link", "set", name, "up")


def _create_site(network: Network, name: str, site: Site) -> None:
    """A switch for the hosts of `site`, and its line to the switch between sites."""
    _create_switch(network, name)
    near, far = f"{name}-up", f"{name}-down"
    _ip("-n", network.switch, "link", "add", near, "mtu", str(MTU_NBYTES), "type", "veth", "peer", "name", far)
    for device, switch in ((near, name), (far, SWITCH)):
        _limit(network.switch, device, site.rate_bytes_per_s)
        if site.latency_s:
            delay = f"{site.latency_s * 1e6:.0f}us"
            try:
                _run("tc", "-n", network.switch, "qdisc", "add", "dev", device, "parent", "1:", "netem", "delay", delay)
            except Unavailable as error:
                raise Unavailable(f"{error}; a trunk's alpha_s needs a kernel with netem, 0 does not") from None
        _ip("-n", network.switch, "link", "set", device, "master", switch, "up")


def _create_host(network: Network, index: int, hosts: str) -> None:
    name = network.host(index)
    folder = Path("/etc/netns") / name
    folder.mkdir(parents=True)
    (folder / "hosts").write_text(hosts)
    _ip("netns", "add", name)
    for key, setting in SYSCTLS.items():
        # A new namespace inherits from the first one what may not be set again.
        subprocess.run([*network.run_in(index), "sysctl", "-qw", f"{key}={setting}"], capture_output=True, check=False)
    at = next((f"site{number}" for number, site in enumerate(network.sites) if index in site.hosts), SWITCH)
    for nic, rate in enumerate(network.nic_rates(index)):
        device, port = interface(nic), f"port{index}-{nic}"
        peer = ("peer", "name", port, "netns", network.switch)
        _ip("-n", name, "link", "add", device, "mtu", str(MTU_NBYTES), "type", "veth", *peer)
        _limit(name, device, rate)
        _limit(network.switch, port, rate)
        _ip("-n", network.switch, "link", "set", port, "master", at, "up")
        _ip("-n", name, "addr", "add", f"{network.address(index, nic)}/24", "dev", device)
        _ip("-n", name, "link", "set", device, "up")
    _ip("-n", name, "link", "set", "lo", "up")


def _limit(space: str, device: str, rate_bytes_per_s: float) -> None:
    """Let `device` of namespace `space` send no more than the rate."""
    _ip("-n", space, "link", "set", device, "mtu", str(MTU_NBYTES), "gso_max_size", str(GSO_NBYTES))
    bucket = ["rate", f"{round(rate_bytes_per_s * 8)}bit", "burst", f"{BURST_NBYTES}b"]
    queue = ["latency", f"{QUEUE_S * 1e3:.0f}ms"]
    _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", *bucket, *queue)


def cut_hosts(network: Network, hosts: Iterable[int], way: str = "") -> None:
    """Take `hosts` off their switch, or only what comes "from" or "to" them: packets are lost, nobody is told."""
    for host in hosts:
        for nic in range(len(network.nic_rates(host))):
            port = f"port{host}-{nic}"
            if way:
                space, device = (network.host(host), interface(nic)) if way == "from" else (network.switch, port)
                _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "blackhole")
            else:
                _ip("-n", network.switch, "link", "set", port, "nomaster")


def remove(name: str) -> None:
    """Remove all that belongs to the network `name`, processes first. What is gone already is no error."""
    spaces = [space for space in namespaces() if space.startswith(f"{name}-")]
    _end_processes(spaces)
    for space in spaces:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
    for folder in Path("/etc/netns").glob(f"{name}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        Path("/etc/netns").rmdir()


def namespaces() -> list[str]:
    """Names of all network namespaces."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in listed.splitlines() if line.strip()]


def _end_processes(spaces: Iterable[str]) -> None:
    for _ in range(50):
        pids: set[int] = set()
        for space in spaces:
            listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            pids.update(map(int, listed.stdout.split()))
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = (result.stderr.strip() or str(result.returncode)).splitlines()[0]
        raise Unavailable(f"lab: `{' '.join(command)}` failed: {reason}")


class Undertaker:
    """Removes the network when this process ends, even by SIGKILL; or at once, by `close`."""

    def __init__(self, name: str) -> None:
        # Its own session, so that a Ctrl-C on the terminal does not end it before its work.
        command = [*own_python(), "-m", "lanterne.bench.lab.network", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Have the network removed and wait until it is."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    sys.stdin.read()
    remove(sys.argv[1])
