"""Distribute microbatches over data-parallel groups of different speed, so that the slowest group ends first.

  lanterne rebalance --times 1.0,1.0,1.6,1.0 --microbatches 64
  lanterne rebalance --times 80ms,80ms,128ms --microbatches 48 --multiple-of 4 --stages 4

Times are those of one microbatch per group, in any one unit. The answer is exact. Multiply each group's mean gradient
by its weight (column 3) and sum: the gradient of the whole batch is then what it was.
"""

import argparse
import time
from collections.abc import Sequence

from lanterne.bench.output import report, units
from lanterne.bench.output.options import add_json
from lanterne.errors import InputError
from lanterne.failslow.mitigate.rebalance import gradient_weights, rebalance

# Of every count: beyond, sums of counts and times would not be exact.
MOST = 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--times", required=True, metavar="T1,T2,...", help="time of one microbatch per group")
    parser.add_argument("--microbatches", required=True, type=int, metavar="M", help="microbatches of the global batch")
    parser.add_argument("--multiple-of", type=int, default=1, metavar="P", help="each group's count is a multiple of P")
    parser.add_argument("--stages", type=int, default=1, metavar="S", help="1F1B pipeline: a group takes t (m + S - 1)")
    add_json(parser, "the answer")


def run(args: argparse.Namespace) -> int:
    """Solve and print; exit code 0."""
    for option in ("microbatches", "multiple_of", "stages"):
        if getattr(args, option) > MOST:
            got = getattr(args, option)
            raise InputError(f"--{option.replace('_', '-')}: got {got}, expected a whole number of at most {MOST}")
    times, shown = units.parse_times(args.times, "--times")
    # NumPy loads on first use; that is not the solver's time.
    rebalance([1.0], 1)
    start = time.perf_counter()
    balance = rebalance(times, args.microbatches, args.multiple_of, args.stages)
    solve_s = time.perf_counter() - start
    weights = gradient_weights(balance.microbatches)
    even = _even(times, args)
    if args.json:
        content = {"microbatches": list(balance.microbatches), "makespan": balance.makespan, "solve_s": solve_s}
        extra = {"gradient_weights": list(weights), "even_makespan": even}
        report.write_json(args.json, report.envelope(**content, **extra))
    if args.json != "-":
        rows = [
            [i, shown(t), m, f"{w:.6f}"]
            for i, (t, m, w) in enumerate(zip(times, balance.microbatches, weights, strict=True))
        ]
        gain = f", {even / balance.makespan:.3f} times faster than even shares ({shown(even)})" if even else ""
        report.print_table([("group", ""), ("time", ""), ("microbatches", ""), ("weight", "")], rows)
        print(f"makespan {shown(balance.makespan)}{gain}; solved in {units.format_time(solve_s)}")
    return 0


def _even(times: Sequence[float], args: argparse.Namespace) -> float | None:
    """Makespan of even shares; None where the count cannot be divided evenly."""
    share, rest = divmod(args.microbatches, len(times))
    if rest or share % args.multiple_of:
        return None
    return max((share + args.stages - 1) * t for t in times)
