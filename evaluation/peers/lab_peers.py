"""Compare lanterne with MPICH, Open MPI and Gloo on the emulated cluster, with a late rank and without, in one session.

  ./run evaluate lab-peers --json lab.json --report lab.md
  ./run evaluate lab-peers --json lab.json --cases 8x16MiB@0.7,8x16MiB@0 --contenders lanterne,mpich --iterations 3
  ./run evaluate lab-peers --json lab.json --seconds 60        again and again: goes on where the last one ended

Every contender is started once on every host; then they take turns, one all_reduce (float32, sum) each, and every
element of every result is checked. A case HOSTSxSIZE@D has the last rank late by D * s/rate, the time that a link takes
for the buffer; @0: nobody is late. HOSTS may be 2*4, two hosts of four ranks that share its link, or 1+3+4, three hosts
of so many ranks, numbered across them. HOSTSxCALLS*SIZE@D starts so many calls one after the other and waits for all,
as a backward pass does, with s for all of them together. A figure is x, multiples of s/rate from the late rank's call
to the last completion on any host (without a late rank: from the common call); the rate is nominal. lanterne's `auto`
is told nothing; the others of its algorithms are told who is late. In a session a peer's first call does not count, nor
do the first of each of our algorithms at every size and the first four of auto in every case.

The contenders run in Pythons of their own, since MPICH and Open MPI exclude each other: --python openmpi=PATH, or the
environments .venv-openmpi and .venv-gloo of this folder. Who is missing is named, with the command that installs it.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.peers.peer_case import PeerCase
from evaluation.peers.peers_report import markdown, print_results
from evaluation.peers.team import CONTENDERS, Team, find_python
from lanterne.bench.lab.command import MAX_RANKS_PER_HOST, end_in_order
from lanterne.bench.lab.network import Network, Undertaker, check_available, create
from lanterne.bench.output import report
from lanterne.bench.output.units import parse_nbytes, parse_rate_bytes_per_s
from lanterne.collectives.algorithms.catalogue import find_algorithm
from lanterne.errors import InputError, TransportError, one_of

CASES = (
    "8x4MiB@1.1,8x16MiB@1.1,8x64MiB@1.1,8x16MiB@0.9,8x16MiB@0.7,8x16MiB@0.45,8x16MiB@0,4x16MiB@1.1,"
    "8x8*4MiB@1.1,8x8*4MiB@0.5,8x8*4MiB@0,"
    "2*4x8MiB@0,2*4x8MiB@1.1,4*2x8MiB@0,4*2x8MiB@1.1"
)
DEFAULT = "lanterne,mpich,openmpi,gloo"
ALGORITHMS = "auto,ring,late_join,late_chain,stragglar"
ITEMSIZE = 4
# auto knows a delay after at most five calls: these, and the first that counts.
AUTO_WARMUPS = 4
# From the order to call until the instant of the call: every rank has read it.
MARGIN_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", default=CASES, metavar="HOSTSxSIZE@D,...", help="default: %(default)s")
    parser.add_argument(
        "--contenders", default=DEFAULT, metavar="NAME,...", help=f"of {', '.join(CONTENDERS)} (default: {DEFAULT})"
    )
    parser.add_argument("--algorithm", default=ALGORITHMS, metavar="A,...", help="of lanterne (default: %(default)s)")
    parser.add_argument("--rate", default="200mbit", help="of every link, each way (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=5, metavar="K", help="turns that count, of each (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, metavar="S", help="start no call after S; 0 only shows (default 3600)"
    )
    parser.add_argument(
        "--python", action="append", default=[], metavar="NAME=PATH", help="the Python of a contender; may be repeated"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write everything, after every turn; what it holds already is kept"
    )
    parser.add_argument("--fresh", action="store_true", help="do not go on with what FILE holds")
    parser.add_argument("--report", metavar="FILE", help="write the tables as Markdown")


def run(args: argparse.Namespace) -> int:
    cases, names, algorithms, pythons = parse(args)
    rate_bytes_per_s = parse_rate_bytes_per_s(args.rate, "--rate")
    until_s = time.monotonic() + args.seconds
    document = _open(args, rate_bytes_per_s)
    check_available()
    session = Session(document, algorithms, args, rate_bytes_per_s, until_s)
    end_in_order()
    # 2*4 and 4+4 have the same hosts, on which ranks are numbered differently.
    for _, sizes, host_of in sorted({(case.hosts, case.sizes, case.host_of) for case in cases}, reverse=True):
        alike = [case for case in cases if (case.sizes, case.host_of) == (sizes, host_of)]
        session.run(alike, names, pythons)
    report.progress("")
    if args.report:
        report.write_atomically(args.report, markdown(document).encode())
    print_results(document)
    return int(any(record["wrong"] for record in document["results"]) or bool(document["failed"]))


def parse(args: argparse.Namespace) -> tuple[list[PeerCase], list[str], list[str], dict[str, str]]:
    """(cases, names of contenders, algorithms, {name: path of a Python}) of a command line.

    Raises:
        InputError: one of them that cannot be.
    """
    cases = [parse_case(text) for text in args.cases.split(",")]
    names = [name.strip() for name in args.contenders.split(",")]
    pythons = {}
    for text in args.python:
        name, equals, path = text.partition("=")
        if not equals:
            raise InputError(f"--python: got {text!r}, expected NAME=PATH")
        pythons[name] = path
    for name in (*names, *pythons):
        if name not in CONTENDERS:
            raise InputError(f"--contenders, --python: {one_of(name, CONTENDERS)}")
    algorithms = [name.strip() for name in args.algorithm.split(",")]
    for name in algorithms:
        if name != "auto":
            find_algorithm("all_reduce", name)
    if args.iterations < 1:
        raise InputError(f"--iterations: got {args.iterations}, expected at least 1")
    return cases, names, algorithms, pythons


def parse_case(text: str) -> PeerCase:
    """The PeerCase of "8x16MiB@0.7".

    Raises:
        InputError: it is none.
    """
    expected = (
        "HOSTSxSIZE@D, such as 8x16MiB@0.7, 2*4x8MiB@0, 1+3+4x8MiB@1.1 or 8x8*4MiB@1.1, with 2 to 64 hosts and a D of "
        "at least 0"
    )
    hosts, times, rest = text.strip().partition("x")
    size, at, delay = rest.partition("@")
    calls, _, size = size.rpartition("*")
    num, _, same = hosts.partition("*")
    try:
        shape = (hosts.count("+") + 1, hosts) if "+" in hosts else (int(num), int(same or 1))
        case = PeerCase(shape[0], parse_nbytes(size, "--cases"), float(delay), int(calls or 1), shape[1])
        sizes = case.sizes
    except (ValueError, InputError):
        case, sizes = None, ()
    if (
        not times
        or not at
        or case is None
        or not 2 <= case.hosts <= 64
        or not 0 <= case.delay < 1e3
        or case.nbytes < ITEMSIZE
        or not 1 <= case.calls <= 1000
        or not all(1 <= size <= MAX_RANKS_PER_HOST for size in sizes)
    ):
        raise InputError(f"--cases: got {text!r}, expected {expected}")
    return case


def _open(args: argparse.Namespace, rate_bytes_per_s: float) -> dict[str, Any]:
    """The document to go on with: that of --json, or an empty one."""
    # A result that is kept must not depend on where it was made.
    argv = ["evaluate", *sys.argv[1:]]
    sure = {"rate_bytes_per_s": rate_bytes_per_s, "code": code_digest()}
    document = report.envelope() | sure | {"argv": argv, "sessions": 0}
    document |= {"versions": {}, "missing": {}, "failed": {}, "results": []}
    path = Path(args.json) if args.json else None
    if path is None or args.fresh or not path.exists():
        return document
    try:
        found = json.loads(path.read_text())
        kept = {key: found[key] for key in ("versions", "results", "sessions")}
        differing = [key for key, value in sure.items() if found[key] != value]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"--json: got {path}, which is not of this command, expected one that is, or --fresh"
        ) from None
    if differing:
        raise InputError(f"--json: got {path}, made with another {differing[0]}, expected the same, or --fresh")
    return document | kept


def code_digest() -> str:
    """Of all that the results of lanterne depend on: its modules below bench."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for folder in ("kernels", "transport", "collectives"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Session:
    """Measures into a document, until all have as many samples as asked for; see the module's docstring."""

    def __init__(
        self,
        document: dict[str, Any],
        algorithms: Sequence[str],
        args: argparse.Namespace,
        rate_bytes_per_s: float,
        until_s: float,
    ) -> None:
        self._document, self._algorithms = document, algorithms
        self._iterations: int = args.iterations
        self._json: str | None = args.json
        self._rate, self._until_s = rate_bytes_per_s, until_s

    def run(self, cases: Sequence[PeerCase], names: Sequence[str], pythons: Mapping[str, str]) -> None:
        """All turns of `cases`, with the same ranks on the same hosts, as far as time goes."""
        if not any(self._due(case, name) for case in cases for name in names) or time.monotonic() > self._until_s:
            return
        network = Network(f"peer{os.getpid()}", (self._rate,) * cases[0].hosts, cases[0].host_of)
        undertaker = Undertaker(network.name)
        self._document["sessions"] += 1
        teams: dict[str, Team] = {}
        try:
            create(network)
            with tempfile.TemporaryDirectory(prefix="lanterne") as folder:
                for number, name in enumerate(names):
                    report.progress(f"{network.num_hosts} hosts: starting {name}")
                    self._start(teams, name, pythons.get(name), network, Path(folder), number)
                for case in cases:
                    self._turns(case, teams)
        finally:
            for team in teams.values():
                team.close()
            undertaker.close()

    def _start(
        self, teams: dict[str, Team], name: str, given: str | None, network: Network, folder: Path, number: int
    ) -> None:
        contender = CONTENDERS[name]
        python = find_python(contender, given)
        if python is None:
            self._document["missing"][name] = contender.install
            return
        try:
            teams[name] = Team(contender, python, network, folder, number)
            self._document["versions"][name] = teams[name].version
        except TransportError as error:
            self._document["failed"][name] = str(error)

    def _due(self, case: PeerCase, name: str) -> list[tuple[str | None, dict[str, Any]]]:
        """What `name` still has to do in `case`: [(algorithm or None, record)]."""
        found = []
        for algorithm in self._algorithms_of(case, name):
            record = self._record(case, name, algorithm)
            if len(record["x"]) < self._iterations:
                found.append((algorithm, record))
        return found

    def _algorithms_of(self, case: PeerCase, name: str) -> Sequence[str | None]:
        if name != "lanterne":
            return [None]
        # Without a late rank there is nobody to name.
        return [a for a in self._algorithms if a == "auto" or case.delay or not find_algorithm("all_reduce", a).late]

    def _record(self, case: PeerCase, name: str, algorithm: str | None) -> dict[str, Any]:
        key = {
            "hosts": case.hosts,
            "nbytes": case.nbytes,
            "delay": case.delay,
            "calls": case.calls,
            "contender": name,
            "algorithm": algorithm,
            "ranks_per_host": case.ranks_per_host,
        }
        for record in self._document["results"]:
            # 1 of those that are not there in files of before.
            if all(record.get(field, 1) == value for field, value in key.items()):
                return record
        record = key | {
            "delay_s": case.delay * case.calls * case.nbytes / self._rate,
            "time_s": [],
            "late_s": [],
            "x": [],
            "cpu_s": [],
            "wrong": 0,
        }
        self._document["results"].append(record)
        return record

    def _turns(self, case: PeerCase, teams: Mapping[str, Team]) -> None:
        for turn in range(-AUTO_WARMUPS, self._iterations):
            due = [(name, *item) for name in teams for item in self._due(case, name)]
            # Each turn begins with another one, so that nobody always follows the same.
            first = turn % len(due) if due else 0
            for name, algorithm, record in due[first:] + due[:first]:
                if time.monotonic() > self._until_s:
                    return
                if name in self._document["failed"] or (
                    turn < 0 and not self._warms_up(case, teams[name], algorithm, turn)
                ):
                    continue
                report.progress(f"{case}: {name} {algorithm or ''} {max(turn, 0) + 1}/{self._iterations}")
                try:
                    self._turn(case, teams[name], algorithm, record, counts=turn >= 0)
                except TransportError as error:
                    self._document["failed"][name] = str(error)
            if self._json and turn >= 0:
                report.write_json(self._json, self._document)

    def _warms_up(self, case: PeerCase, team: Team, algorithm: str | None, turn: int) -> bool:
        """Whether a turn before the first that counts is of use: see the module's docstring."""
        if algorithm == "auto":
            return True
        # Ours make a plan for each size; a peer connects.
        need = algorithm and (algorithm, case.nbytes)
        if turn < -1 or need in team.warm:
            return False
        team.warm.add(need)
        return True

    def _turn(self, case: PeerCase, team: Team, algorithm: str | None, record: dict[str, Any], counts: bool) -> None:
        count, late_rank = case.nbytes // ITEMSIZE, case.num_ranks - 1
        if team.prepared != (count, case.calls):
            team.order("prepare", count=count, calls=case.calls)
            team.prepared = count, case.calls
        options: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm}
        if algorithm not in (None, "auto") and find_algorithm("all_reduce", algorithm).late:
            options["late_rank"] = late_rank
        start_s = time.monotonic() + MARGIN_S
        at_s = [start_s + (record["delay_s"] if rank == late_rank else 0.0) for rank in range(case.num_ranks)]
        answers = team.order("call", at_s=at_s, options=options)
        record["wrong"] += sum(answer["wrong"] for answer in answers)
        if counts:
            last_s = max(answer["ended_s"] for answer in answers)
            late_s = last_s - answers[late_rank]["called_s"] if case.delay else None
            record["time_s"].append(last_s - start_s)
            # Files of before have none.
            record.setdefault("cpu_s", []).append(sum(answer["cpu_s"] for answer in answers))
            if late_s is not None:
                record["late_s"].append(late_s)
            exposed_s = last_s - start_s if late_s is None else late_s
            record["x"].append(exposed_s * self._rate / (case.calls * case.nbytes))
