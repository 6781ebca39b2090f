"""Benchmark how long messages stall when the path under them dies, and that none is lost and none comes twice.

Two ranks send each other a message every --every: through `delegates` with several rails, or directly over `mpi` or
`ucx` with the rails to spare. Half-way the rail or path in use is cut: `reset`, its connections are shut, as when a
card's driver gives up; `silent`, its packets vanish and nobody is told, as when a cable is out. Delegates' rails and
UCX's TCP connections are cut from outside, MPI is no longer used by both ends. `stall` is the longest time between two
arrivals, less the usual.

  ./run evaluate failover
  ./run evaluate failover --path ucx --trials 3
  ./run evaluate failover --bytes 16M --every 20ms --trials 10 --json failover.json
  ./run evaluate failover --rails eth0,eth1                on one host: two interfaces

Exit code 1 if a message was lost, came twice or was damaged; with --check if a stall lasted 1 s or longer, too.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, at_most, print_bars
from lanterne.bench.output.units import chosen, format_time, parse_sizes, parse_time_s, whole
from lanterne.errors import InputError

HOWS, PATHS = ("reset", "silent"), ("delegates", "mpi", "ucx")
# Below 1 s, to the millisecond.
BAR_S = 0.999


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes", default="1M", metavar="SIZE", help="of a message (default 1M)")
    parser.add_argument("--every", default="5ms", metavar="T", help="time between messages (default 5ms)")
    parser.add_argument("--messages", type=whole(4), default=200, metavar="N", help="a trial, each way (default 200)")
    parser.add_argument(
        "--rails", default="127.0.0.2,127.0.0.3", metavar="A,B,...", help="addresses or interfaces; the first is cut"
    )
    parser.add_argument(
        "--path", default="delegates,mpi", metavar="A,B", help="who sends: delegates, mpi, ucx (default delegates,mpi)"
    )
    parser.add_argument("--how", default="reset,silent", metavar="A,B", help="default reset,silent")
    parser.add_argument("--trials", type=whole(1), default=5, metavar="K", help="of each, in turn (default 5)")
    parser.add_argument("--check", action="store_true", help="print the bars; exit code 1 if one is missed, too")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    nbytes, every_s = max(parse_sizes(args.bytes, "--bytes", copies=16)), parse_time_s(args.every, "--every")
    rails, hows, paths = args.rails.split(","), chosen(args.how, "--how", HOWS), chosen(args.path, "--path", PATHS)
    if len(rails) < 2:
        raise InputError(f"--rails: got {args.rails}, expected at least two")
    if nbytes < 8:
        raise InputError(f"--bytes: got {args.bytes}, expected at least 8")
    from evaluation.rails.failover_trial import run_trial
    from lanterne.transport.rails.rail_names import check_rail

    for rail in rails:
        check_rail(rail)

    cases = [(path, how) for path in paths for how in hows]
    trials: dict[tuple[str, str], list[tuple[float, int]]] = {case: [] for case in cases}
    for number in range(args.trials):
        for path, how in cases:
            report.progress(f"{path} {how} {number + 1}/{args.trials}")
            trial = {"path": path, "how": how, "nbytes": nbytes, "every_s": every_s, "messages": args.messages}
            trials[path, how].append(run_trial(trial | {"rails": rails}))
    report.progress("")
    document = report.envelope(
        results=[record(*case, nbytes, every_s, args.messages, rails, done) for case, done in trials.items()]
    )
    bars = [bar_of(result) for result in document["results"]] if args.check else []
    report.tell(args.json, document, partial(print_records, bars=bars))
    return int(any(result["wrong"] for result in document["results"]) or not all(bar.is_met for bar in bars))


def bar_of(result: Mapping[str, Any]) -> Bar:
    """What a record of failover has to reach: how long its messages stood still."""
    return at_most(f"{result['path']}, {result['how']}: longest stall, s", max(result["stall_s"]), BAR_S)


def record(
    path: str,
    how: str,
    nbytes: int,
    every_s: float,
    count: int,
    rails: Sequence[str],
    trials: Sequence[tuple[float, int]],
) -> dict[str, Any]:
    """What the trials of one kind show."""
    return {
        "path": path,
        "how": how,
        "nbytes": nbytes,
        "every_s": every_s,
        "messages": count,
        "rails": list(rails),
        "stall_s": [stall_s for stall_s, _ in trials],
        "wrong": sum(wrong for _, wrong in trials),
    }


def print_records(document: dict[str, Any], file: TextIO, *, bars: Sequence[Bar] = ()) -> None:
    """The table of a failover document, and a line for each of `bars`."""
    columns = [("path", ""), ("dies by", ""), ("size", "B"), ("messages", ""), ("trials", "")]
    columns += [("stall", "median"), ("most", ""), ("#wrong", "")]
    rows = [
        (
            result["path"],
            result["how"],
            result["nbytes"],
            result["messages"],
            len(result["stall_s"]),
            format_time(statistics.median(result["stall_s"])),
            format_time(max(result["stall_s"])),
            result["wrong"],
        )
        for result in document["results"]
    ]
    report.print_table(columns, rows, left=(0, 1), file=file)
    print_bars(bars, file)
