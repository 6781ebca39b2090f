"""Run a command on every host of a cluster in one box: a network namespace per host, rate-limited links, a switch.

  lanterne lab --hosts 8 --rate 200mbit -- lanterne bench all_reduce --transport ucx --bytes 16MiB
  lanterne lab --hosts 4 --rate 200mbit --rate 3=50mbit -- lanterne bench all_reduce --transport ucx    one slow NIC
  lanterne lab --hosts 2 --ranks-per-host 4 --rate 200mbit -- python job.py    ranks that share a host's link
  lanterne lab --topology cluster.json -- python job.py     hosts, ranks, rates and sites of a file
  lanterne lab --hosts 4 --rate 1gbit --launcher mpich -- python job.py       under MPICH's mpiexec (or openmpi)
  lanterne lab --hosts 4 --cut 3@10 -- python job.py     cut off 10 s after all have met; others go on
  lanterne lab --hosts 4 --cut 3@10=to -- python job.py  nothing comes to it any more, but from it

Each rank runs the command, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and a LANTERNE_TOKEN; UCX is
told to use TCP on the emulated NIC. Of a file (docs/topology.md) the lab emulates nodes, ranks, their NICs (each of
several is a network of its own, through which its ranks talk), and sites: a trunk with its rate and start-up time.
The links limit each direction to the rate; messages of up to some 4 MiB profit visibly from the bucket's first 128 kB.
Needs root, ip and tc, and removes everything that it made, whatever ends it.
Exit code: the first of a host that is not 0, and was not cut off.
"""

import argparse
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from lanterne.bench.lab.network import (
    INTERFACE,
    Network,
    Site,
    Undertaker,
    check_available,
    check_num_hosts,
    create,
    cut_hosts,
    interface,
)
from lanterne.bench.output.units import parse_rate_bytes_per_s
from lanterne.collectives.topology.topology import INSIDE, NIC, TRUNK, Topology
from lanterne.collectives.topology.topology_json import read_topology
from lanterne.errors import InputError, Unavailable
from lanterne.transport.job.launch import start_child
from lanterne.transport.own_python import own_python

MASTER_PORT = 29500
# As /proc/net/tcp has it; and how often that is read until all have met.
ESTABLISHED, MET_PAUSE_S = "01", 0.05
MAX_RANKS_PER_HOST = 64
# After one host has failed, how long the others may take to notice and say so themselves.
GRACE_S = 15.0


class HostCut(NamedTuple):
    """That `hosts` hear nobody and are heard by nobody from `at_s` seconds after the start on.

    `way`: "from", they are heard by nobody; "to", they hear nobody; empty: both.
    """

    hosts: tuple[int, ...]
    at_s: float
    way: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, metavar="N", help="hosts of the cluster (default 4)")
    parser.add_argument("--ranks-per-host", type=int, metavar="K", help="ranks on each (default 1)")
    parser.add_argument("--topology", metavar="FILE", help="hosts, their ranks and their NICs' rates, instead")
    parser.add_argument(
        "--rate",
        action="append",
        metavar="[HOST=]RATE",
        help="of every link, or of one host's; may be repeated (default 200mbit)",
    )
    parser.add_argument(
        "--launcher", choices=("none", "mpich", "openmpi"), default="none", help="start the command by an mpiexec"
    )
    parser.add_argument(
        "--cut",
        action="append",
        default=[],
        metavar="HOST[,...]@S[=WAY]",
        help="S seconds after all have met at the job's store no packet comes from these hosts or to them, or only "
        "from or to; may be repeated",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what every rank runs, after --")


def run(args: argparse.Namespace) -> int:
    # Names of devices and namespaces are short; the process id keeps labs apart.
    network = parse_network(args, f"lab{os.getpid()}")
    check_available()
    command = resolve(args.command)
    cuts = [parse_cut(text, max(network.placement) + 1) for text in args.cut]
    undertaker = Undertaker(network.name)
    end_in_order()
    try:
        create(network)
        if args.launcher == "none":
            return run_ranks(network, command, cuts)
        return run_mpi(network, command, args.launcher)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        undertaker.close()


def parse_network(args: argparse.Namespace, name: str) -> Network:
    """The Network that the options ask for.

    Raises:
        InputError: a number or rate that cannot be, options that exclude each other, or a topology without one NIC for
            each host.
    """
    if args.launcher != "none" and args.cut:
        raise InputError(f"--cut: got --launcher {args.launcher}, whose ranks end together, expected none")
    if args.topology is None:
        hosts = 4 if args.hosts is None else args.hosts
        each = 1 if args.ranks_per_host is None else args.ranks_per_host
        check_num_hosts(hosts)
        if not 1 <= each <= MAX_RANKS_PER_HOST:
            raise InputError(f"--ranks-per-host: got {each}, expected 1 to {MAX_RANKS_PER_HOST}")
        host_of = tuple(rank // each for rank in range(hosts * each))
        rates = parse_rates(args.rate or ["200mbit"], hosts)
        return Network(name, rates, host_of)
    for option, given in (("--hosts", args.hosts), ("--ranks-per-host", args.ranks_per_host), ("--rate", args.rate)):
        if given is not None:
            raise InputError(f"{option}: got {given} beside --topology, which says it")
    return network_of(read_topology(args.topology), name)


def network_of(topology: Topology, name: str) -> Network:
    """The Network that emulates `topology`: its nodes, NICs and one level of trunks.

    Raises:
        InputError: too many nodes, links of other classes, or trunks of several levels.
    """
    check_num_hosts(len(topology.nodes))
    kinds = [links.kind for links in topology.links if links.kind != INSIDE]
    if NIC not in kinds or set(kinds) - {NIC, TRUNK} or kinds.count(TRUNK) > 1:
        told = ", ".join(kinds) or "none"
        raise InputError(f"--topology: got links of class {told}, expected nic, and trunk at most once")
    rates: list[list[float]] = [[] for _ in topology.nodes]
    nic_of, sites = [0] * topology.world_size, []
    for links in topology.links:
        for number, ranks in enumerate(links.shared_by):
            slowdown = links.slowdown[number] if links.slowdown else 1.0
            bytes_per_s = 1 / max(links.model.beta_s_per_byte * slowdown, 1e-12)
            if links.kind == NIC:
                here = rates[topology.node_of[ranks[0]]]
                for rank in ranks:
                    nic_of[rank] = len(here)
                here.append(bytes_per_s)
            elif links.kind == TRUNK:
                hosts = tuple(sorted({topology.node_of[rank] for rank in ranks}))
                # A message crosses two lines, and starts once.
                sites.append(Site(hosts, bytes_per_s, links.model.alpha_s / 2))
    first, more = tuple(each[0] for each in rates), tuple(tuple(each[1:]) for each in rates)
    several = any(more)
    return Network(
        name, first, topology.node_of, more if several else (), tuple(nic_of) if several else (), tuple(sites)
    )


def end_in_order() -> None:
    """From now on a TERM or HUP ends this process as Ctrl-C does, through every `finally`, with exit code 128 + n."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))


def parse_rates(texts: Sequence[str], num_hosts: int) -> tuple[float, ...]:
    """Bytes per second of every host's link, from texts like "200mbit" and "3=50mbit".

    Raises:
        InputError: no rate, or a host that is not there.
    """
    common = None
    special: dict[int, float] = {}
    for text in texts:
        host, equals, rate = text.rpartition("=")
        if not equals:
            common = parse_rate_bytes_per_s(rate, "--rate")
            continue
        if not host.isascii() or not host.isdigit() or int(host) >= num_hosts:
            raise InputError(f"--rate: got host {host!r}, expected 0 to {num_hosts - 1}")
        special[int(host)] = parse_rate_bytes_per_s(rate, "--rate")
    if common is None:
        common = parse_rate_bytes_per_s("200mbit")
    return tuple(special.get(host, common) for host in range(num_hosts))


def parse_cut(text: str, num_hosts: int) -> HostCut:
    """The HostCut that HOST[,...]@S[=WAY] stands for.

    Raises:
        InputError: it is none, or of hosts that are not there.
    """
    found = re.fullmatch(r"(\d+(?:,\d+)*)@(\d+(?:\.\d+)?)(?:=(from|to))?", text, re.ASCII)
    hosts = tuple(map(int, found[1].split(","))) if found else ()
    if not found or max(hosts) >= num_hosts:
        raise InputError(
            f"--cut: got {text!r}, expected HOST[,...]@S, hosts from 0 to {num_hosts - 1} and seconds, =from or =to "
            "after it or nothing"
        )
    return HostCut(hosts, float(found[2]), found[3] or "")


def resolve(command: Sequence[str]) -> list[str]:
    """`command` with `lanterne` and `python` being those of this installation.

    Raises:
        InputError: no such program.
    """
    program = command[0]
    if program == "lanterne":
        return [*own_python(), "-m", "lanterne", *command[1:]]
    if program in ("python", "python3"):
        return [sys.executable, *command[1:]]
    found = shutil.which(str(Path(sys.executable).parent / program)) or shutil.which(program)
    if found is None:
        why = _no_program(Path(program)) if os.sep in program else "which is not on PATH"
        raise InputError(f"command: got {program!r}, {why}, expected a program")
    return [found, *command[1:]]


def _no_program(path: Path) -> str:
    """Why the file at `path` cannot be run."""
    if path.is_dir():
        return "a folder"
    return "which may not be executed (chmod +x)" if path.exists() else "which does not exist"


def environment(network: Network, token: str, rank: int) -> dict[str, str]:
    """The environment of the command that is `rank`."""
    own = {
        "LANTERNE_TOKEN": token,
        # All hosts have one kernel; this keeps them apart, or they would meet in shared memory.
        "LANTERNE_HOST_ID": network.host(network.placement[rank]),
        "LANTERNE_RANKS_HERE": str(network.num_ranks),
        "LANTERNE_RATE_BYTES_PER_S": repr(network.rates_bytes_per_s[network.placement[rank]]),
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": interface(network.rank_nic(rank)),
        # Namespaces of ours. With 0 tcp is sealed, as between real hosts.
        "LANTERNE_TRUSTED_NETWORK": os.environ.get("LANTERNE_TRUSTED_NETWORK", "1"),
        # Nobody tells these hosts their names.
        "LANTERNE_BIND": interface(network.rank_nic(rank)),
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }
    # What was measured at another rate, or without one, is no model of this network.
    return {"LANTERNE_CACHE": "off", **os.environ, **own}


def run_ranks(network: Network, command: list[str], cuts: Sequence[HostCut] = ()) -> int:
    """Run `command` as every rank of a torchrun-style job; the first exit code that is not 0, of hosts that stay."""
    token = secrets.token_hex(16)
    meeting = {"MASTER_ADDR": network.address(network.placement[0]), "MASTER_PORT": str(MASTER_PORT)}
    processes, cut_off = [], set()
    for rank, host in enumerate(network.placement):
        job = environment(network, token, rank) | network.rank_variables(rank) | meeting
        processes.append(start_child(network.run_in(host) + command, env=job))
        if any(host in cut.hosts for cut in cuts):
            cut_off.add(processes[-1].pid)
    done: list[HostCut] = []
    pids = [process.pid for process in processes]
    met_at = urlsplit(os.environ.get("LANTERNE_STORE", "")).port or MASTER_PORT
    threading.Thread(target=_cut_in_turn, args=(network, pids, met_at, cuts, done), daemon=True).start()
    code = wait_for_all(processes, cut_off)
    if len(done) < len(cuts):
        print(f"lab: {len(cuts) - len(done)} of {len(cuts)} cuts came too late: the job had ended", file=sys.stderr)
    return code


def _cut_in_turn(
    network: Network, pids: Sequence[int], met_at: int, cuts: Sequence[HostCut], done: list[HostCut]
) -> None:
    """Carry out `cuts`, whose times count from when all ranks have met at port `met_at`; `done` gets each."""
    late = set(pids)
    while late := {pid for pid in late if not _has_met(pid, met_at)}:
        time.sleep(MET_PAUSE_S)
    met_s = time.monotonic()
    for cut in sorted(cuts, key=lambda cut: cut.at_s):
        time.sleep(max(0.0, met_s + cut.at_s - time.monotonic()))
        cut_hosts(network, cut.hosts, cut.way)
        done.append(cut)


def _has_met(pid: int, port: int) -> bool:
    """Return whether the host of rank `pid` is connected to `port`, of the job's store, PyTorch's or Redis."""
    with suppress(OSError):
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                _, _, remote, state, *_ = line.split()
                if state == ESTABLISHED and int(remote.rpartition(":")[2], 16) == port:
                    return True
    return False


def wait_for_all(processes: Sequence[subprocess.Popen[bytes]], cut_off: Collection[int] = ()) -> int:
    """The first exit code that is not 0; waits for all, or GRACE_S after the first that failed, and ends the rest.

    Args:
        cut_off: pids of those whose end does not count.
    """

    def end_others(*_: object) -> None:
        for late in running.values():
            late.kill()

    failed = 0
    running = {process.pid: process for process in processes}
    while running:
        pid, status = os.wait()
        process = running.pop(pid, None)
        if process is None:
            continue
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode and not failed and pid not in cut_off:
            failed = process.returncode if process.returncode > 0 else 128 - process.returncode
            signal.signal(signal.SIGALRM, end_others)
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return failed


def run_mpi(network: Network, command: list[str], launcher: str) -> int:
    """Run `command` under an mpiexec on host 0; the mpiexec's exit code."""
    mpiexec = resolve(["mpiexec"])[0]
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    is_open_mpi = "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version
    if is_open_mpi != (launcher == "openmpi"):
        raise Unavailable(f"lab: got --launcher {launcher}, but {mpiexec} is {'' if is_open_mpi else 'not '}Open MPI's")
    with tempfile.TemporaryDirectory(prefix=network.name) as folder:
        words = [*mpiexec_words(network, mpiexec, launcher, Path(folder)), *command]
        return wait_for_all([start_child(words, env=mpi_environment(network))])


def mpiexec_words(network: Network, mpiexec: str, launcher: str, folder: Path) -> list[str]:
    """The words that start a command by `mpiexec` on every host of `network`; an agent is written to `folder`."""
    # What mpiexec believes to be ssh: AGENT [-x] HOST COMMAND...
    agent = folder / "agent"
    agent.write_text(
        "#!/bin/sh\nwhile case $1 in -*) true ;; *) false ;; esac; do shift; done\nhost=$1; shift\n"
        'exec ip netns exec "$host" env LANTERNE_HOST_ID="$host" sh -c "$*"\n'
    )
    agent.chmod(0o755)
    # Ranks in the order of the list, as many on each host as it is listed in a row.
    listed = [(network.host(host), len(list(ranks))) for host, ranks in groupby(network.placement)]
    hosts = ",".join(f"{name}:{count}" for name, count in listed)
    if launcher == "mpich":
        how = ["-hosts", hosts, "-launcher", "ssh", "-launcher-exec", str(agent), "-iface", INTERFACE]
    else:
        how = ["--host", hosts, "--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", str(agent)]
        how += [
            "--prtemca",
            "prte_if_include",
            INTERFACE,
            "--mca",
            "btl_tcp_if_include",
            INTERFACE,
            "--bind-to",
            "none",
        ]
    return [*network.run_in(0), str(mpiexec), "-n", str(network.num_ranks), *how]


def mpi_environment(network: Network) -> dict[str, str]:
    """The environment of an mpiexec on host 0."""
    child = environment(network, secrets.token_hex(16), 0)
    # Each host names itself (see the agent); the launcher's own value would make them all host 0.
    del child["LANTERNE_HOST_ID"]
    return child | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
