"""The emulated cluster's network: one namespace per host, with a rate-limited full-duplex link to a non-blocking
switch.

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

from lanterne.errors import InputError, Unavailable
from lanterne.transport.own_python import own_python

MAX_HOSTS = 64
INTERFACE = "lan0"
MTU = 9000
# 64 kB loses tokens to late timers; 128 kB is 5 ms of credit at 200 Mbit/s, visible below some 4 MiB.
BURST_NBYTES = 128 * 1000
QUEUE_S = 0.2
# Bulk segments of 64 kB would keep control messages and ACKs waiting behind them for 5 ms.
GSO_NBYTES = 18000
SYSCTLS = {
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
}


@dataclass(frozen=True)
class Network:
    """An emulated cluster.

    Attributes: `name` begins the names of all that is its own; `rates_bytes_per_s` has one per host; `host_of` the host
    of each rank, empty: one rank on each.
    """

    name: str
    rates_bytes_per_s: tuple[float, ...]
    host_of: tuple[int, ...] = ()

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
        return {"RANK": str(rank), "WORLD_SIZE": str(self.num_ranks), "LOCAL_RANK": str(here)}

    @property
    def switch(self) -> str:
        return f"{self.name}-switch"

    def host(self, index: int) -> str:
        """The namespace of a host, which is also its host name inside."""
        return f"{self.name}-{index}"

    def address(self, index: int) -> str:
        return f"10.77.0.{index + 1}"

    def run_in(self, index: int) -> list[str]:
        """The words before a command that run it on host `index`."""
        return ["ip", "netns", "exec", self.host(index)]


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
        _ip("-n", network.switch, "link", "add", "switch", "mtu", str(MTU), "type", "bridge")
        _ip("-n", network.switch, "link", "set", "switch", "up")
        hosts = "127.0.0.1 localhost\n" + "".join(
            f"{network.address(i)} {network.host(i)}\n" for i in range(network.num_hosts)
        )
        for index, rate in enumerate(network.rates_bytes_per_s):
            _create_host(network, index, rate, hosts)
    except Unavailable:
        remove(network.name)
        raise


def _create_host(network: Network, index: int, rate_bytes_per_s: float, hosts: str) -> None:
    name, port = network.host(index), f"port{index}"
    folder = Path("/etc/netns") / name
    folder.mkdir(parents=True)
    (folder / "hosts").write_text(hosts)
    _ip("netns", "add", name)
    peer = ("peer", "name", port, "netns", network.switch)
    _ip("-n", name, "link", "add", INTERFACE, "mtu", str(MTU), "type", "veth", *peer)
    for space, device in ((name, INTERFACE), (network.switch, port)):
        _ip("-n", space, "link", "set", device, "mtu", str(MTU), "gso_max_size", str(GSO_NBYTES))
        limit = [
            "rate",
            f"{round(rate_bytes_per_s * 8)}bit",
            "burst",
            f"{BURST_NBYTES}b",
            "latency",
            f"{QUEUE_S * 1e3:.0f}ms",
        ]
        _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", *limit)
    _ip("-n", network.switch, "link", "set", port, "master", "switch", "up")
    _ip("-n", name, "addr", "add", f"{network.address(index)}/24", "dev", INTERFACE)
    _ip("-n", name, "link", "set", INTERFACE, "up")
    _ip("-n", name, "link", "set", "lo", "up")
    for key, value in SYSCTLS.items():
        # A new namespace inherits from the first one what may not be set again.
        subprocess.run([*network.run_in(index), "sysctl", "-qw", f"{key}={value}"], capture_output=True, check=False)


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
