"""Time all-reduces under patterns of arrivals on the emulated cluster: `auto`, told nothing, beside our ring, in turn.

  ./run evaluate lab-arrivals --json arrivals.json
  ./run evaluate lab-arrivals --patterns steady --warmups 0 --algorithm auto --calls 8    a fresh job, call by call
  ./run evaluate lab-arrivals --patterns uniform,two --algorithm any_arrival,ring --bytes 16M      told everything
  ./run evaluate lab-arrivals --hosts 4 --ranks-per-host 2 --algorithm auto,hier_ring --bytes 8M

Every call of a pattern is made by each algorithm in turn, who is first changing, with the same arrivals, drawn from
--seed; every element of every result is checked. Delays are in multiples of s/rate, the time that a link takes for the
buffer. x, in the same multiples: from the last rank's call to the last completion on any host. The ratio of a call is
its x over that of the last of the algorithms under the same arrivals; the worst of all x is compared, too. The bound is
that of `lanterne cost --arrivals`, without the headers of packets (1.045 with an MTU of 1,500 bytes). any_arrival is
given a schedule that was made for the arrivals of the call, and runs it once before: it shows what its schedules take
on real links, not what a job would see.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from evaluation.peers.team import CONTENDERS, Team, find_python
from lanterne.bench.lab.command import end_in_order
from lanterne.bench.lab.network import Network, Undertaker, check_available, create
from lanterne.bench.output import report
from lanterne.bench.output.units import chosen, format_nbytes, parse_rate_bytes_per_s, parse_sizes, whole
from lanterne.collectives.algorithms.catalogue import Algorithm, find_algorithm
from lanterne.collectives.late.any_arrivals import schedule_for_arrivals
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.schedule.formats.export_json import to_json
from lanterne.errors import InputError
from lanterne.transport.board.arrival_bound import least_after
from lanterne.transport.board.late_policy import at_ports

ITEMSIZE = 4
# From the order to call until the instant of the first call: every rank has read it.
MARGIN_S = 0.05
# What a schedule that is made for arrivals counts with: from a start to the first byte; headers of TCP/IP packets.
START_S, HEADERS = 5e-4, 1.045
# Of a call, by its number, for so many hosts: when each rank comes, in multiples of s/rate.
Pattern: TypeAlias = Callable[[int, int, random.Random], list[float]]


def _late(hosts: int, *delays: float) -> list[float]:
    """The last ranks come late by `delays`."""
    return [0.0] * (hosts - len(delays)) + list(delays)


def _moving(number: int, hosts: int, rng: random.Random) -> list[float]:
    # Never the one before: that is even or odd, as the number of the call is not.
    late = rng.randrange(number % 2, hosts, 2)
    return [1.1 if rank == late else 0.0 for rank in range(hosts)]


PATTERNS: dict[str, tuple[str, Pattern]] = {
    "nobody": ("nobody is late", lambda number, hosts, rng: _late(hosts)),
    "steady": ("the last rank by 1.1", lambda number, hosts, rng: _late(hosts, 1.1)),
    "half": ("the last rank by 0.5", lambda number, hosts, rng: _late(hosts, 0.5)),
    "moving": ("any rank, another one each time, by 1.1", _moving),
    "spread": ("every rank by something from 0 to 1", lambda number, hosts, rng: [rng.random() for _ in range(hosts)]),
    "uniform": (
        "every rank by something from 0 to 1.1",
        lambda number, hosts, rng: [1.1 * rng.random() for _ in range(hosts)],
    ),
    "alternating": (
        "the last rank by 1.2 and 0.3 in turn",
        lambda number, hosts, rng: _late(hosts, (1.2, 0.3)[number % 2]),
    ),
    "seldom": (
        "the last rank, once in eight, by 1.1",
        lambda number, hosts, rng: _late(hosts, 1.1 * (number % 8 == 5)),
    ),
    "two": ("the last two ranks by 1.1", lambda number, hosts, rng: _late(hosts, 1.1, 1.1)),
    "three": ("the last three by 0.5, 1 and 1.5", lambda number, hosts, rng: _late(hosts, 0.5, 1.0, 1.5)[-hosts:]),
}


def draw(name: str, calls: int, hosts: int, seed: int) -> list[list[float]]:
    """When each rank comes to each of `calls` calls, in multiples of s/rate: the same for the same seed."""
    rng = random.Random(f"{name} {seed}")
    return [PATTERNS[name][1](number, hosts, rng) for number in range(calls)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    names = "; ".join(f"{name}: {about}" for name, (about, _) in PATTERNS.items())
    parser.add_argument(
        "--patterns", default="spread,alternating,seldom", metavar="NAME,...", help=f"{names} (default: %(default)s)"
    )
    parser.add_argument("--calls", type=whole(1), default=14, metavar="K", help="of each pattern (default 14)")
    parser.add_argument("--algorithm", default="auto,ring", metavar="A,...", help="default: %(default)s")
    parser.add_argument("--hosts", type=whole(2), default=8, metavar="N", help="default 8")
    parser.add_argument(
        "--ranks-per-host", type=whole(1), default=1, metavar="K", help="that share the host's link (default 1)"
    )
    parser.add_argument("--bytes", default="4M", metavar="SIZE", help="of the buffer (default 4M)")
    parser.add_argument("--rate", default="200mbit", help="of every link, each way (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the arrivals (default 0)")
    parser.add_argument(
        "--warmups", type=whole(0), default=2, metavar="K", help="calls before, which do not count (default 2)"
    )
    parser.add_argument("--json", metavar="FILE", help="write every call ('-': standard output)")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    names = chosen(args.patterns, "--patterns", PATTERNS)
    host_of = tuple(rank // args.ranks_per_host for rank in range(args.hosts * args.ranks_per_host))
    patterns = {name: draw(name, args.calls, len(host_of), args.seed) for name in names}
    algorithms = args.algorithm.split(",")
    for name in algorithms:
        if name != "auto" and find_algorithm("all_reduce", name).late:
            raise InputError(f"--algorithm: got {name}, which is to be told who is late, expected one that is not")
        if name != "auto" and find_algorithm("all_reduce", name).any_arrivals and args.ranks_per_host > 1:
            raise InputError(f"--algorithm: got {name} beside --ranks-per-host, expected one that waits for all")
    nbytes = max(parse_sizes(args.bytes, "--bytes", copies=4 * len(host_of)))
    rate_bytes_per_s = parse_rate_bytes_per_s(args.rate, "--rate")
    if nbytes < ITEMSIZE:
        raise InputError(f"--bytes: got {args.bytes}, expected at least {ITEMSIZE}")
    check_available()
    end_in_order()
    network = Network(f"arr{os.getpid()}", (rate_bytes_per_s,) * args.hosts, host_of)
    undertaker = Undertaker(network.name)
    team = None
    try:
        create(network)
        with tempfile.TemporaryDirectory(prefix="lanterne") as folder:
            report.progress(f"{args.hosts} hosts: starting")
            contender = CONTENDERS["lanterne"]
            python = find_python(contender)
            assert python is not None, "this one has it"
            team = Team(contender, python, network, Path(folder), 0)
            team.order("prepare", count=nbytes // ITEMSIZE, calls=1)
            caller = _Caller(team, nbytes, rate_bytes_per_s, Path(folder))
            for _ in range(args.warmups):
                for algorithm in algorithms:
                    caller.call(algorithm, _late(len(host_of)))
            records = [record for name in patterns for record in _pattern(caller, name, patterns[name], algorithms)]
    finally:
        if team is not None:
            team.close()
        undertaker.close()
    report.progress("")
    document = report.envelope(
        hosts=args.hosts,
        host_of=host_of,
        nbytes=nbytes,
        rate_bytes_per_s=rate_bytes_per_s,
        seed=args.seed,
        warmups=args.warmups,
        results=records,
        wrong=caller.wrong,
    )
    report.tell(args.json, document, _show)
    return int(bool(caller.wrong))


class _Caller:
    """Has all ranks of `team` make a call. `wrong`: elements, of all calls."""

    def __init__(self, team: Team, nbytes: int, rate_bytes_per_s: float, folder: Path) -> None:
        self._team, self._nbytes, self._folder = team, nbytes, folder
        # s/rate.
        self._unit_s = nbytes / rate_bytes_per_s
        self.wrong = 0

    def call(self, algorithm: str, delays: Sequence[float]) -> float:
        """Return the x of one call."""
        line = None if algorithm == "auto" else find_algorithm("all_reduce", algorithm)
        if line is not None and line.any_arrivals:
            algorithm = self._planned(line, delays)
            self._call(algorithm, [0.0] * len(delays))
        return self._call(algorithm, delays)

    def _planned(self, line: Algorithm, delays: Sequence[float]) -> str:
        """Return the file of the schedule for ranks that come so."""
        model = CostModel(START_S, HEADERS * self._unit_s / self._nbytes)
        schedule = schedule_for_arrivals(line, [delay * self._unit_s for delay in delays], self._nbytes, model)
        file = self._folder / f"{schedule.fingerprint[:16]}.json"
        file.write_text(json.dumps(to_json(schedule)))
        return str(file)

    def _call(self, algorithm: str, delays: Sequence[float]) -> float:
        start_s = time.monotonic() + MARGIN_S
        at_s = [start_s + delay * self._unit_s for delay in delays]
        answers = self._team.order("call", at_s=at_s, options={"algorithm": algorithm})
        self.wrong += sum(answer["wrong"] for answer in answers)
        ended_s, called_s = (max(answer[name] for answer in answers) for name in ("ended_s", "called_s"))
        return float(ended_s - called_s) / self._unit_s


def _pattern(
    caller: _Caller, name: str, arrivals: Sequence[Sequence[float]], algorithms: Sequence[str]
) -> list[dict[str, Any]]:
    """A record of each algorithm."""
    found: dict[str, list[float]] = {algorithm: [] for algorithm in algorithms}
    for number, delays in enumerate(arrivals):
        report.progress(f"{name} {number + 1}/{len(arrivals)}")
        first = number % len(algorithms)
        for algorithm in [*algorithms[first:], *algorithms[:first]]:
            found[algorithm].append(caller.call(algorithm, delays))
    return [
        {"pattern": name, "algorithm": algorithm, "x": x, "delays": list(map(list, arrivals))}
        for algorithm, x in found.items()
    ]


def compare(results: Sequence[Mapping[str, Any]], host_of: Sequence[int] = ()) -> list[dict[str, Any]]:
    """A row for each pattern and algorithm, and for all patterns together where there are several.

    Args:
        host_of: by rank; empty: one rank on each host.

    `ratio_*`: of the calls' x over those of the last algorithm; `worst_ratio`: of the largest x of all; `bound`: the
    median of what none beats, of several ranks on a host none that waits for all of these.
    """
    patterns = list(dict.fromkeys(record["pattern"] for record in results))
    algorithms = list(dict.fromkeys(record["algorithm"] for record in results))
    by_key = {(record["pattern"], record["algorithm"]): record["x"] for record in results}
    bounds = {
        record["pattern"]: [least_after(at_ports(dict(enumerate(delays)), host_of)) for delays in record["delays"]]
        for record in results
    }
    groups = {name: [name] for name in patterns} | ({"all": patterns} if len(patterns) > 1 else {})
    rows = []
    for title, names in groups.items():
        base = [x for name in names for x in by_key[name, algorithms[-1]]]
        for algorithm in algorithms:
            mine = [x for name in names for x in by_key[name, algorithm]]
            ratios = sorted(one / other for one, other in zip(mine, base, strict=True))
            row = {"pattern": title, "algorithm": algorithm, "calls": len(mine), "x": statistics.median(mine)}
            row |= {"ratio": statistics.median(ratios), "ratio_p90": ratios[(len(ratios) - 1) * 9 // 10]}
            row |= {"bound": statistics.median(bound for name in names for bound in bounds[name])}
            rows.append(row | {"worst": max(mine), "worst_ratio": max(mine) / max(base)})
    return rows


def _show(document: dict[str, Any], stream: Any) -> None:
    rows = [
        [row["pattern"], row["algorithm"], str(row["calls"])]
        + [f"{row[name]:.2f}" for name in ("bound", "x", "worst", "ratio", "ratio_p90", "worst_ratio")]
        for row in compare(document["results"], document["host_of"])
    ]
    titles = ("pattern", "algorithm", "calls", "bound", "median x", "worst x", "ratio", "p90", "of worst")
    first = [
        f"first calls, {record['pattern']}, {record['algorithm']}: " + " ".join(f"{x:.2f}" for x in record["x"][:8])
        for record in document["results"]
    ]
    size = format_nbytes(document["nbytes"])
    ranks = len(document["host_of"])
    notes = [f"{document['hosts']} hosts, {ranks} ranks, {size}, {document['wrong']} wrong elements", *first]
    report.print_table([(title, "") for title in titles], rows, notes=notes, left=(0, 1), file=stream)
