"""Benchmark planning of collectives: how long generating and checking a schedule takes, by algorithm and rank count.

  ./run evaluate schedules
  ./run evaluate schedules -n 1024 --collective all_reduce,all_gather --check

Each step is repeated, and the least time shown: the work is the same every time, so what is above was disturbed. Bars:
generating plus checking, 0.5 s up to 256 ranks and 5 s beyond; generating late_join, 50 ms and 0.5 s. None for
stragglar's matchings where ranks are no power of two. Algorithms that refuse a rank count are left out.
"""

import argparse
import time
from typing import Any

from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.collectives.algorithms.catalogue import MAX_RANKS, algorithms_for, find_algorithm, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.errors import InputError

# Up to so many ranks the first of two bars holds, beyond it the second.
SMALL_RANKS = 256
BARS_S = (0.5, 5.0)
LATE_JOIN_BARS_S = (0.05, 0.5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("-n", "--ranks", default="256,1024", metavar="N,...", help="rank counts (default 256,1024)")
    parser.add_argument("--collective", default="all_reduce", metavar="NAME,...", help="default all_reduce; or all")
    parser.add_argument("--algorithm", default="all", metavar="NAME,...", help="default all")
    parser.add_argument("--repeat", type=whole(1), default=3, metavar="K", help="repetitions of each (default 3)")
    parser.add_argument("--check", action="store_true", help="print the bars; exit 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write the samples as JSON ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Time and print; the exit code."""
    results = []
    for collective, name, world_size in cases(args.collective, args.algorithm, args.ranks):
        report.progress(f"{collective} {name}, {world_size} ranks")
        results.append(measure(collective, name, world_size, args.repeat))
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(results=results))
    if args.json != "-":
        columns = [("collective", ""), ("algorithm", ""), ("ranks", ""), ("rounds", ""), ("transfers", "")]
        columns += [("generated", "ms"), ("checked", "ms")] + [("bar", "")] * args.check
        rows = [_row(result)[: len(columns)] for result in results]
        report.print_table(columns, rows, left=(0, 1, 7)[: 2 + args.check])
    return int(args.check and any(result["missed"] for result in results))


def cases(collectives: str, algorithms: str, ranks: str) -> list[tuple[str, str, int]]:
    """(collective, algorithm, world size) of each case that the comma-separated lists name, as far as possible.

    Raises:
        InputError: a name or number that does not exist, or none that goes together.
    """
    counts = ranks.split(",")
    if not all(count.strip().isdecimal() and 1 <= int(count) <= MAX_RANKS for count in counts):
        raise InputError(f"-n: got {ranks!r}, expected numbers from 1 to {MAX_RANKS} such as 256,1024")
    found = []
    for collective in CONTRACTS if collectives == "all" else collectives.split(","):
        known = algorithms_for(collective)
        lines = known if algorithms == "all" else [find_algorithm(collective, name) for name in algorithms.split(",")]
        found += [(collective, line.name, int(n)) for line in lines for n in counts if not line.refuses(int(n))]
    if not found:
        raise InputError(f"--algorithm: got {algorithms}, which {ranks} ranks cannot use")
    return found


def measure(collective: str, name: str, world_size: int, repeat: int) -> dict[str, Any]:
    """One row of the document: samples of both steps in seconds, and by name the bars that they miss."""
    row: dict[str, Any] = {"collective": collective, "algorithm": name, "ranks": world_size}
    generated_s, checked_s = [], []
    for _ in range(repeat):
        started_s = time.perf_counter()
        schedule = make_schedule(collective, name, world_size)
        between_s = time.perf_counter()
        check(schedule)
        generated_s.append(between_s - started_s)
        checked_s.append(time.perf_counter() - between_s)
        row |= {"num_rounds": schedule.num_rounds, "num_transfers": schedule.num_transfers}
    row |= {"generated_s": generated_s, "checked_s": checked_s}
    limits_s = bars_s(name, world_size)
    times_s = {"generated": min(generated_s), "both": min(generated_s) + min(checked_s)}
    missed = [what for what, limit_s in limits_s.items() if times_s[what] > limit_s]
    return {**row, "bars_s": limits_s, "missed": missed}


def bars_s(name: str, world_size: int) -> dict[str, float]:
    """Seconds that `generated`, and `both` steps together, may take; without a key: any."""
    beyond = int(world_size > SMALL_RANKS)
    if name == "stragglar" and world_size & (world_size - 1):
        return {}
    bars = {"both": BARS_S[beyond]}
    return bars | {"generated": LATE_JOIN_BARS_S[beyond]} if name == "late_join" else bars


def _row(result: dict[str, Any]) -> list[object]:
    verdict = f"missed: {', '.join(result['missed'])}" if result["missed"] else "met" if result["bars_s"] else "-"
    cells = [result["collective"], result["algorithm"], result["ranks"], result["num_rounds"], result["num_transfers"]]
    return [*cells, *(f"{1e3 * min(result[step]):.1f}" for step in ("generated_s", "checked_s")), verdict]
