"""See the whole loop in about a minute: ranks train, something becomes slow, the job notices, finds it, adapts.

  lanterne demo                              a link, a rank, then another rank, beside the same job that is left alone
  lanterne demo --json demo.json --plot none

Four processes train two copies of a small GPT, each a pipeline of two stages, twice, an iteration of each in turn: left
alone (the grey line of demo.png), and watched and mitigated: what is slow is named, tested, and worked around by fewer
microbatches or other places. The picture says who was named when, what was done, and what was gained. Each stage
computes, then waits until --pace is over, as if on a device of its own: so ranks that share few cores do not disturb
each other. A link and ranks are made slow on purpose. Everything else is measured in this run.

`lanterne pipeline train --adapt --slow-link 1=30ms@40:80` shows one pipeline that changes its plan for a slow link.

Exit code 1 if something slow was not found, or something else was named. Beside other work iterations take longer:
--limit ends the job wherever it is, and that is said.
"""

import argparse
import sys

from lanterne.bench.demo import blows
from lanterne.bench.output import report
from lanterne.bench.output.options import add_json, add_seed, add_timeout, add_transport
from lanterne.bench.output.units import parse_time_s
from lanterne.errors import InputError, one_of
from lanterne.transport.job.bootstrap import launched_rank

# Duration of an iteration in paces, slow ones included.
PACES = 44
NO_PICTURE = "none"
TRANSPORTS = ("local", "mpi", "ucx", "tcp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_transport(parser, "mpi, ucx, tcp, or local: threads")
    parser.add_argument("--pace", default="5ms", metavar="T", help="that every F, B and W lasts (default 5ms)")
    parser.add_argument(
        "--limit", metavar="T", help="end the job after so long (default: twice what it should take, and 30s)"
    )
    add_seed(parser, "weights and batches")
    add_timeout(parser)
    add_json(parser)
    parser.add_argument("--plot", default="demo.png", metavar="FILE", help="the picture (default demo.png), or none")


def run(args: argparse.Namespace) -> int:
    """Run the job, show it, sum it up; return the exit code."""
    from lanterne.bench.pipeline.measure import on_ranks

    pace_s, timeout_s = _times(args)
    _, iterations = blows.blows(pace_s)
    expected_s = 2 * iterations * PACES * pace_s
    limit_s = 2 * expected_s + 30.0 if args.limit is None else parse_time_s(args.limit, "--limit")
    if limit_s <= 0:
        raise InputError(f"--limit: got {args.limit}, expected more than 0")
    file = sys.stderr if args.json == "-" else sys.stdout
    if launched_rank() == 0:
        print(f"# {blows.RANKS} ranks, twice {iterations} iterations, about {expected_s:.0f} s", file=file, flush=True)
    work = blows.work_of(pace_s, args.seed, limit_s)
    found = on_ranks(blows.run_blows, work, blows.RANKS, args.transport, timeout_s)
    report.progress("")
    if found is None:
        return 0
    document = blows.summed_up(work, found)
    if args.json:
        report.write_json(args.json, document)
    if args.plot != NO_PICTURE:
        blows.plot_blows(args.plot, document)
        print(f"# wrote {args.plot}", file=file)
    blows.print_blows(document, file)
    return 0 if document["closed"] else 1


def _times(args: argparse.Namespace) -> tuple[float, float]:
    """Return --pace and --timeout in seconds.

    Raises:
        InputError: one of them, or the transport, is impossible.
    """
    pace_s, timeout_s = parse_time_s(args.pace, "--pace"), parse_time_s(args.timeout, "--timeout")
    if not 1e-3 <= pace_s <= 1:
        raise InputError(f"--pace: got {args.pace}, expected 1ms to 1s")
    if timeout_s <= 0:
        raise InputError(f"--timeout: got {args.timeout}, expected more than 0")
    if args.transport not in TRANSPORTS:
        raise InputError(f"--transport: {one_of(args.transport, TRANSPORTS)}")
    return pace_s, timeout_s
