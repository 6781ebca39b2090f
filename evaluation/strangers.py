"""Benchmark a running job under forged connections: whoever reaches its ports without its secret changes nothing.

Two ranks add arrays over tcp, call after call, each result checked: by `ring`, since a call by `auto` would not leave
the memory that they share. They have delegates with rails, too. Meanwhile strangers connect to every port that a
process of the job listens on, in all ways of KINDS, in bursts with quiet between them. Reported are wrong elements, the
median call during the bursts over that of the quiet, what the store and the ranks grew by, and how many connections
were refused. tcp's own ports are closed once the ranks have met, and the launcher listens on none but the store's, so
these are all that a stranger finds.

With --transport ucx the ranks talk over UCX's TCP layer on loopback, and strangers are UCX clients (ucx_strangers.py)
that send well-formed messages, with tags of their own, to the ports of the ranks' workers.

  ./run evaluate strangers                               1,000 connections
  ./run evaluate strangers --transport ucx               1,000 messages
  ./run evaluate strangers --connections 5000 --json strangers.json

Exit code 1 if an element was wrong or the job ended; with --check if calls became slower or memory grew beyond the
bars, too.
"""

import argparse
import hmac
import itertools
import json
import os
import socket
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.units import format_time, whole
from lanterne.transport import wire
from lanterne.transport.own_python import own_python

# Bars: the median call over the quiet one, and bytes that all processes of the job together may grow by.
SLOWER, GROWTH_NBYTES = 1.1, 64 << 20
RANKS, COUNT = 2, 1024
BURST_S = 1.0
# Of a stranger that drips: between two bytes, and how many.
DRIP_S, DRIPS = 0.01, 20
# What has UCX open ports although its ranks share a host.
UCX_ON_LOOPBACK = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "LANTERNE_TRUSTED_NETWORK": "1"}
UCX_STRANGERS_S = 120.0
# How long the ranks may take to start, and ports to be served after the last burst.
START_S, SETTLE_S = 60.0, 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transport", default="tcp", choices=("tcp", "ucx"), help="of the ranks (default tcp)")
    parser.add_argument("--connections", type=whole(1), default=1000, metavar="N", help="forged (default 1000)")
    parser.add_argument("--bursts", type=whole(1), default=10, metavar="K", help="with quiet between (default 10)")
    parser.add_argument("--check", action="store_true", help="print the bars; exit code 1 if one is missed, too")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    from lanterne.transport.job.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        attack = (Attack if args.transport == "tcp" else UcxAttack)(Path(folder), args.connections, args.bursts)
        if args.transport == "ucx":
            os.environ.update(UCX_ON_LOOPBACK)
        attacker = threading.Thread(target=attack.run, daemon=True)
        attacker.start()
        code = "import sys; from evaluation.strangers import rank_main; rank_main(*sys.argv[1:])"
        command = [*own_python(), "-c", code, folder, args.transport]
        exit_code = launch(command, RANKS, launcher="direct", timeout_s=600)
        attacker.join(10)
        results = [verdict(Path(folder), attack, exit_code)]
    report.tell(args.json, report.envelope(results=results), partial(print_records, with_bars=args.check))
    return int(results[0]["failed"] or (args.check and results[0]["missed"]))


# -- the job


def rank_main(folder: str, transport: str) -> None:
    """One rank: calls until the file `stop` is there; its times, and how many elements were wrong, go to `folder`."""
    import numpy as np

    import lanterne
    from lanterne.transport.rails.delegate_transport import Delegates
    from lanterne.transport.rank_group import Group

    communicator = lanterne.init(transport=transport)
    rank, told = communicator.rank, Path(folder)
    group = communicator.transport.membership
    assert isinstance(group, Group)
    peers = [peer for peer in range(RANKS) if peer != rank]
    exchange = lambda data: group.exchange("strangers", data)  # noqa: E731
    delegates = Delegates(rank, peers, exchange, rails=("tcp",), check_dead=group.check_peers)
    (told / f"pid{rank}").write_text(str(os.getpid()))
    # Start and length of each call, in turn: 16 bytes a call, since the job's own growth is judged.
    times = array("d")
    wrong = 0
    number = stopping = 0
    sent, got = np.zeros(COUNT, np.int64), np.zeros(COUNT, np.int64)
    while not stopping:
        number += 1
        sent[:] = np.arange(COUNT) * (rank + 1) + number
        sent[0] = (told / "stop").exists()
        got[:] = -1
        started_s = time.monotonic()
        communicator.all_reduce(sent, got, algorithm="ring")
        times.extend((started_s, time.monotonic() - started_s))
        stopping = int(got[0])
        wrong += int(np.count_nonzero(got[1:] != (np.arange(COUNT) * 3 + RANKS * number)[1:]))
    delegates.check()
    delegates.close()
    communicator.close()
    np.savez(told / f"rank{rank}.npz", times=np.reshape(times, (-1, 2)), wrong=wrong)


# -- the strangers


class Attack:
    """Connects to all ports of the job below this process, in bursts.

    Attributes: `bursts`, (start, end) of each, and `calm`, of the quiet before each, of time.monotonic; `made`,
    connections by kind; `grown_nbytes`, by how much the job's resident memory grew; `ports`, those found; `what` is
    made, and the `bars` on (call over the quiet one, growth in bytes).
    """

    what = "connections"
    bars: tuple[float, float] = (SLOWER, GROWTH_NBYTES)

    def __init__(self, folder: Path, connections: int, bursts: int) -> None:
        self._folder = folder
        self._per_burst = -(-connections // bursts)
        self._num_bursts = bursts
        self.bursts: list[tuple[float, float]] = []
        self.calm: list[tuple[float, float]] = []
        self.made: Counter[str] = Counter()
        self.grown_nbytes: int = 0
        self.ports: set[tuple[str, int]] = set()

    def run(self) -> None:
        """All bursts, once the ranks are there; then the job is told to end."""
        try:
            deadline_s = time.monotonic() + START_S
            while len(pids := self._ranks()) < RANKS and time.monotonic() < deadline_s:
                time.sleep(0.05)
            time.sleep(SETTLE_S)
            token = _token_of(pids[0])
            turns = itertools.cycle(KINDS)
            before = _memory_nbytes()
            for _ in range(self._num_bursts):
                began_s = time.monotonic()
                time.sleep(BURST_S)
                self.calm.append((began_s, time.monotonic()))
                self.ports = self._targets(pids)
                self._burst(turns, token)
            time.sleep(SETTLE_S)
            self.grown_nbytes = _memory_nbytes() - before
        finally:
            (self._folder / "stop").touch()

    def _ranks(self) -> list[int]:
        return [int(path.read_text()) for path in self._folder.glob("pid*") if path.read_text()]

    def _targets(self, _pids: list[int]) -> set[tuple[str, int]]:
        return ports_of(_pids_here())

    def _burst(self, turns: Iterator[str], token: str) -> None:
        began_s, opened, ports = time.monotonic(), list[socket.socket](), sorted(self.ports)
        for number in range(self._per_burst):
            kind = next(turns)
            with suppress(OSError):
                sock = socket.create_connection(ports[number % len(ports)], 5)
                opened.append(sock)
                self.made[kind] += 1
                KINDS[kind](sock, token)
            left_s = began_s + BURST_S * (number + 1) / self._per_burst - time.monotonic()
            time.sleep(max(0.0, left_s))
        self.bursts.append((began_s, time.monotonic()))
        for sock in opened:
            sock.close()


class UcxAttack(Attack):
    """Sends messages to the UCX workers of the ranks. What these do with them is UCX's: no bar on times and memory."""

    what = "messages"
    bars: tuple[float, float] = (inf, inf)

    def _targets(self, pids: list[int]) -> set[tuple[str, int]]:
        return ports_of(pids)

    def _burst(self, turns: Iterator[str], token: str) -> None:
        began_s = time.monotonic()
        code = "from evaluation.ucx_strangers import main; main()"
        ports = [str(port) for _, port in sorted(self.ports)]
        command = [*own_python(), "-c", code, str(self._per_burst), str(len(self.bursts)), *ports]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=UCX_STRANGERS_S, check=True).stdout
        self.made.update(json.loads(told))
        self.bursts.append((began_s, time.monotonic()))


def _challenge(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < wire.CHALLENGE_NBYTES:
        part = sock.recv(wire.CHALLENGE_NBYTES - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def _wrong_secret(sock: socket.socket, _token: str) -> None:
    sock.sendall(wire.answer_challenge(b"what nobody said to be it", _challenge(sock))[0])


def _replay(sock: socket.socket, token: str) -> None:
    """A good answer, to the challenge of another connection."""
    with socket.create_connection(sock.getpeername()[:2], 5) as other:
        answer, *_ = wire.answer_challenge(token.encode(), _challenge(other))
    sock.sendall(answer)


def _half(sock: socket.socket, token: str) -> None:
    answer, *_ = wire.answer_challenge(token.encode(), _challenge(sock))
    sock.sendall(answer[: len(answer) // 2])
    sock.shutdown(socket.SHUT_WR)


def _reflect(sock: socket.socket, token: str) -> None:
    """The proof that the other side would give, said by the wrong side."""
    challenge = _challenge(sock)
    nonce = os.urandom(wire.NONCE_NBYTES)
    proof = hmac.digest(token.encode(), b"store" + challenge[len(wire.MAGIC) :] + nonce, "sha256")
    sock.sendall(wire.MAGIC + nonce + proof)


def _drip(sock: socket.socket, _token: str) -> None:
    def drip() -> None:
        with suppress(OSError):
            for _ in range(DRIPS):
                sock.send(b"l")
                time.sleep(DRIP_S)

    threading.Thread(target=drip, daemon=True).start()


def _huge_length(sock: socket.socket, _token: str) -> None:
    sock.sendall(struct.pack("<IHI", 0xFFFFFFFF, 1, 1) * 8 + struct.pack("<qqqq", 1, 0, 0, 1 << 40))


KINDS: dict[str, Callable[[socket.socket, str], object]] = {
    "no secret": lambda _sock, _token: None,
    "wrong secret": _wrong_secret,
    "replayed": _replay,
    "half a handshake": _half,
    "reflected": _reflect,
    "drip": _drip,
    "flood": lambda sock, _token: sock.sendall(bytes(1 << 16)),
    "garbage": lambda sock, _token: sock.sendall(os.urandom(4096)),
    "length of gigabytes": _huge_length,
    "hang up": lambda sock, _token: sock.close(),
}


# -- what is seen from outside


def _pids_here() -> list[int]:
    """The job's processes."""
    from lanterne.transport.job.guard import descendants

    return descendants(os.getpid())


def ports_of(pids: Iterable[int]) -> set[tuple[str, int]]:
    """(address, port) of all that these processes listen on."""
    inodes: set[str] = set()
    for each in pids:
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{each}/fd"):
                with suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{each}/fd/{fd}"))
    found: set[tuple[str, int]] = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            address, _, port = fields[1].partition(":")
            found.add((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return found


def _memory_nbytes() -> int:
    """Resident memory of the job's processes together."""
    pages = 0
    for pid in _pids_here():
        with suppress(OSError, IndexError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _token_of(pid: int) -> str:
    """The job's secret, for replays: as root or its user can read it."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(each[15:].decode() for each in variables if each.startswith(b"LANTERNE_TOKEN="))


# -- the verdict


def verdict(folder: Path, attack: Attack, exit_code: int) -> dict[str, Any]:
    """The record of one job."""
    import numpy as np

    files = [np.load(path) for path in sorted(folder.glob("rank*.npz"))]
    times = [(at_s, took_s) for file in files for at_s, took_s in file["times"]]
    during, calm = (
        [took_s for at_s, took_s in times if any(start_s <= at_s <= end_s for start_s, end_s in spans)]
        for spans in (attack.bursts, attack.calm)
    )
    crashed = exit_code != 0 or len(files) < RANKS
    ratio = statistics.median(during) / statistics.median(calm) if during and calm else None
    wrong = sum(int(file["wrong"]) for file in files)
    failed = bool(crashed or wrong or ratio is None or not sum(attack.made.values()))
    return {
        "what": attack.what,
        "connections": attack.made,
        "ports": len(attack.ports),
        "calls": len(times) // RANKS,
        "wrong": wrong,
        "crashed": crashed,
        "call_s": during,
        "quiet_call_s": calm,
        "over_quiet": ratio,
        "grown_nbytes": attack.grown_nbytes,
        "bars": [bar if bar < inf else None for bar in attack.bars],
        "failed": failed,
        "missed": bool(failed or (ratio or 0) > attack.bars[0] or attack.grown_nbytes > attack.bars[1]),
    }


def print_records(document: dict[str, Any], file: TextIO, *, with_bars: bool = False) -> None:
    """One line for each way to connect, and what the job made of them; `with_bars`: beside its bars."""
    for record in document["results"]:
        for kind, count in record["connections"].items():
            print(f"{count:6d}  {kind}", file=file)
        slower, growth_nbytes = record["bars"] if with_bars else (None, None)
        print(f"{sum(record['connections'].values()):6d}  {record['what']} to {record['ports']} ports", file=file)
        if record["over_quiet"] is not None:
            quiet, during = (format_time(statistics.median(record[key])) for key in ("quiet_call_s", "call_s"))
            print(
                f"median call {during}, quiet {quiet}: {record['over_quiet']:.2f} of it{_bar(slower)}; "
                f"{record['calls']} calls",
                file=file,
            )
        print(
            f"{record['wrong']} wrong elements; {'the job ended' if record['crashed'] else 'no crash'}; memory "
            f"{record['grown_nbytes'] / 2**20:+.1f} MiB{_bar(growth_nbytes and growth_nbytes >> 20)}",
            file=file,
        )


def _bar(value: float | None) -> str:
    return "" if value is None else f" (bar {value:g})"
