"""See the whole loop in about a minute: ranks train, something becomes slow, the job notices, finds it, adapts.

  lanterne demo                              a link, a rank, then another rank, beside the same job that is left alone
  lanterne demo --json demo.json --plot none
  lanterne demo --slow-link 1=30ms           a link only, on a screen: each step of finding it, adapting, going back
  lanterne demo -n 6 --slow-link 2=40ms --seconds 90

Four processes train two copies of a small GPT, each a pipeline of two stages, twice, an iteration of each in turn: left
alone (the grey line of demo.png), and watched and mitigated: what is slow is named, tested, and worked around by fewer
microbatches or other places. The picture says who was named when, what was done, and what was gained.

With --slow-link, or another option of it (-n, --seconds, --hold), one link becomes slow. Four processes train the GPT
as one pipeline and learn the library's own source text. Each stage computes, then waits until --pace is over, as if on
a device of its own: so ranks that share few cores do not disturb each other. Then the messages of a link are held back;
that is the only thing done on purpose. Everything else is measured in this run:

  noticed    the detector of `lanterne detect`, on the time of iterations alone, says since when the job is slow
  located    the delay of the messages themselves and the time of every rank's work name the place
  swapped    a plan for the measured delays is made, checked, and taken over between two iterations; messages of the
             slow link go by delegate processes, so that no rank waits to send
  reverted   the delay of messages says that the link is well: no delegates any more, and the first plan comes back
             unless the one that runs is as good

Before the swap the job is left slow for --hold iterations from the onset on, to measure what it would have been like.

A screen on a terminal, lines in a pipe. Exit code 1 if a step did not happen or another link was named. Beside other
work iterations take longer: --limit ends the job wherever it is, and that is said.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from lanterne.bench.demo.screen import first_of, phases
from lanterne.bench.output import report
from lanterne.bench.output.options import add_json, add_seed, add_timeout, add_transport
from lanterne.bench.output.units import format_time, parse_time_s, whole
from lanterne.bench.pipeline.events_input import slow_link
from lanterne.errors import InputError, one_of
from lanterne.pipeline.adapt.injection import ends
from lanterne.transport.job.bootstrap import launched_rank

EXPECTED = ("slowed", "noticed", "located", "swapped", "recovered", "healed", "reverted", "restored")
# Iterations: what the detector needs to know the job, to see the slow stretch, and to see it over.
LEAST_HEALTHY, LEAST_AFTER, LEAST_SLOW = 40, 20, 25
MOST_HELD = 100_000
HEALTHY_SHARE, SLOW_SHARE = 0.3, 0.4
NOTHING, LOCAL = "none", "local"
# Ranks and seconds of the job with one slow link, and slow iterations that are measured, where options say nothing.
USUAL_RANKS, USUAL_SECONDS, USUAL_HELD = 4, 45.0, 12
# What an iteration of the job with three blows takes, in paces, blows included.
EACH_BLOWN = 44
TRANSPORTS = ("mpi", "ucx", "tcp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="ranks of the pipeline (default 4)")
    add_transport(parser, "mpi, ucx, tcp, or local: threads")
    parser.add_argument(
        "--slow-link", metavar="I=T", help="link I, of ranks I and I+1, gets so much slower (default: the middle, 30ms)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="about how long to train, from 97 iterations up (default 45)",
    )
    parser.add_argument("--pace", metavar="T", help="that every F, B and W lasts (default 5ms; with one link 8ms)")
    parser.add_argument("--hold", type=whole(1), metavar="K", help="slow ones to measure (default 12)")
    parser.add_argument(
        "--limit", metavar="T", help="end the job after so long (default: twice what it should take, and 30s)"
    )
    add_seed(parser, "weights and batches")
    add_timeout(parser)
    add_json(parser)
    parser.add_argument("--plot", default="demo.png", metavar="FILE", help="the picture (default demo.png), or none")
    parser.add_argument(
        "--trace", default="demo-trace.json", metavar="FILE",
        help="of one slow link, for Perfetto (default demo-trace.json), or none",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the job, show it, sum it up; the exit code."""
    options = args.slow_link, args.ranks, args.seconds, args.hold
    return run_three(args) if all(option is None for option in options) else run_link(args)


def run_link(args: argparse.Namespace) -> int:
    """As `run`, of one link."""
    from lanterne.bench.demo.job import run_demo
    from lanterne.bench.demo.picture import PictureView
    from lanterne.bench.pipeline.measure import on_ranks
    from lanterne.pipeline.planners.best import load_search

    about, work = job_of(args)
    timeout_s = parse_time_s(args.timeout, "--timeout")
    file = sys.stderr if args.json == "-" else sys.stdout
    if launched_rank() == 0:
        job = f"{about['ranks']} ranks, {about['iterations']} iterations, about {about['expected_s']:.0f} s"
        print(f"# {job}, longer beside other work; {about['disturbance']}", file=file, flush=True)
    report.progress("compiling the planner, once per machine")
    load_search()
    report.progress("")
    with tempfile.TemporaryDirectory() as folder:
        feed = Path(folder, "feed")
        feed.touch()
        with PictureView(feed, about, file):
            found = on_ranks(run_demo, work | {"feed": str(feed)}, about["ranks"], args.transport, timeout_s)
    if found is None:
        return 0
    trace = found.pop("trace", None)
    document = summed_up(about, found)
    write(args, document, trace, file)
    print_summary(document, file)
    return 0 if document["closed"] else 1


def run_three(args: argparse.Namespace) -> int:
    """As `run`, with three blows."""
    from lanterne.bench.demo import blows
    from lanterne.bench.pipeline.measure import on_ranks

    pace_s, timeout_s = times_of(args, "5ms")
    _, iterations = blows.blows(pace_s)
    expected_s = 2 * iterations * EACH_BLOWN * pace_s
    limit_s = limit_of(args, expected_s)
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
    if args.plot != NOTHING:
        blows.plot_blows(args.plot, document)
        print(f"# wrote {args.plot}", file=file)
    blows.print_blows(document, file)
    return 0 if document["closed"] else 1


def job_of(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what is told of the job, the work of its ranks), from the command line.

    Raises:
        InputError: an option that cannot be.
    """
    ranks = USUAL_RANKS if args.ranks is None else args.ranks
    seconds = USUAL_SECONDS if args.seconds is None else args.seconds
    hold = USUAL_HELD if args.hold is None else args.hold
    if not 2 <= ranks <= 16:
        raise InputError(f"-n: got {ranks}, expected 2 to 16")
    if not 0 < seconds <= 3600:
        raise InputError(f"--seconds: got {seconds:g}, expected more than 0, at most 3600")
    if hold > MOST_HELD:
        raise InputError(f"--hold: got {hold}, expected 1 to {MOST_HELD}")
    pace_s, _ = times_of(args, "8ms")
    link, latency_s = _slow_link(args.slow_link, ranks)
    healthy, slow, after = _iterations(seconds / _iteration_s(pace_s, ranks), hold)
    event = {"links": [link], "latency_s": latency_s, "first": healthy, "last": healthy + slow}
    expected_s = (healthy + slow + after) * _iteration_s(pace_s, ranks)
    about = {
        "ranks": ranks,
        "iterations": healthy + slow + after,
        "expected_s": expected_s,
        "limit_s": limit_of(args, expected_s),
        "link": f"{link}-{link + 1}",
        "disturbance": f"link {link}-{link + 1} made {format_time(latency_s)} slower, "
        f"iterations {healthy} to {healthy + slow - 1}",
        "first": healthy,
        "last": healthy + slow,
        "pace_s": pace_s,
        "hold": hold,
        "seed": args.seed,
    }
    work = {name: about[name] for name in ("iterations", "limit_s", "pace_s", "hold", "seed")}
    return about, work | {"event": event, "trace": args.trace != NOTHING}


def times_of(args: argparse.Namespace, usual_pace: str) -> tuple[float, float]:
    """(pace_s, timeout_s) of either job.

    Raises:
        InputError: one of them, or the transport, cannot be.
    """
    pace = args.pace or usual_pace
    pace_s, timeout_s = parse_time_s(pace, "--pace"), parse_time_s(args.timeout, "--timeout")
    if not 1e-3 <= pace_s <= 1:
        raise InputError(f"--pace: got {pace}, expected 1ms to 1s")
    if timeout_s <= 0:
        raise InputError(f"--timeout: got {args.timeout}, expected more than 0")
    if args.transport != LOCAL and args.transport not in TRANSPORTS:
        raise InputError(f"--transport: {one_of(args.transport, (LOCAL, *TRANSPORTS))}")
    return pace_s, timeout_s


def limit_of(args: argparse.Namespace, expected_s: float) -> float:
    """After how long the job is ended, that should take `expected_s`."""
    if args.limit is None:
        return 2 * expected_s + 30.0
    limit_s = parse_time_s(args.limit, "--limit")
    if limit_s <= 0:
        raise InputError(f"--limit: got {args.limit}, expected more than 0")
    return limit_s


def _slow_link(given: str | None, ranks: int) -> tuple[int, float]:
    """The link that becomes slow, and by how much, in seconds."""
    text = given if given is not None else f"{(ranks - 1) // 2}=30ms"
    event = slow_link(text)
    one, other = sorted(ends(event.links[0])) if event.links else (0, 0)
    if "@" in text or len(event.links) != 1 or not event.latency_s:
        raise InputError(f"--slow-link: got {text!r}, expected one link and a time, such as 1=30ms")
    if other != one + 1 or other >= ranks:
        raise InputError(f"--slow-link: got {text!r}, expected a link from 0 to {ranks - 2}")
    return one, event.latency_s


def _iteration_s(pace_s: float, ranks: int) -> float:
    """About how long an iteration takes: a slow one takes longer, some twice as long before the swap."""
    from lanterne.bench.demo.job import MICROBATCHES

    return (3 * MICROBATCHES + 2 * (ranks - 1)) * pace_s * 1.3


def _iterations(wanted: float, hold: int) -> tuple[int, int, int]:
    """(healthy, slow, healed) iterations, `wanted` in all, but enough to see something."""
    total = int(wanted)
    healthy, slow = max(LEAST_HEALTHY, int(total * HEALTHY_SHARE)), max(hold + LEAST_SLOW, int(total * SLOW_SHARE))
    return healthy, slow, max(LEAST_AFTER, total - healthy - slow)


def summed_up(about: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The JSON document of a run, from what its job found."""
    from lanterne.bench.demo.steps import HEALTHY

    steps, tokens = found["steps"], found.pop("tokens")
    some = [phase._asdict() for phase in phases(found["results"], steps, tokens, HEALTHY)]
    for phase in some:
        phase["share_of_healthy"] = phase["tokens_per_s"] / some[0]["tokens_per_s"]
    missing = [name for name in EXPECTED if first_of(steps, name) is None]
    named: list[str] = next((step["found"] for step in steps if step["name"] == "located"), [])
    right = f"link {about['link']}" in named
    return report.envelope(
        about=about, tokens_per_iteration=tokens, phases=some, missing=missing, named=named,
        closed=not missing and right, cut_short=cut_short(about, found["results"]), **found,
    )  # fmt: skip


def cut_short(about: dict[str, Any], results: list[dict[str, Any]]) -> str | None:
    """Why the job ended before its last iteration, in words; None if it did not."""
    if len(results) == about["iterations"]:
        return None
    usual_s = statistics.median(record["time_s"] for record in results)
    expected_s = about["expected_s"] / about["iterations"]
    return (
        f"{len(results)} of {about['iterations']} iterations when {format_time(about['limit_s'])} were over (--limit): "
        f"they took {format_time(usual_s)}, expected {format_time(expected_s)} or less"
    )


def write(args: argparse.Namespace, document: dict[str, Any], trace: dict[str, Any] | None, file: TextIO) -> None:
    """The files that are wanted; says which."""
    if args.json:
        report.write_json(args.json, document)
    if args.plot != NOTHING:
        from lanterne.bench.demo.picture import plot

        plot(args.plot, document)
        print(f"# wrote {args.plot}", file=file)
    if trace:
        report.write_atomically(args.trace, json.dumps(trace).encode())
        print(f"# wrote {args.trace}: open it in ui.perfetto.dev", file=file)


COLUMNS = [("throughput", ""), ("iterations", ""), ("median", "iteration"), ("tokens/s", ""), ("of healthy", "")]


def print_summary(document: dict[str, Any], file: TextIO) -> None:
    """The tables at the end: throughput by phase, and how soon each step came."""
    rows = [
        [
            phase["name"],
            f"{phase['first']}-{phase['last'] - 1}",
            format_time(phase["time_s"]),
            f"{phase['tokens_per_s']:.0f}",
            f"{phase['share_of_healthy']:.0%}",
        ]
        for phase in document["phases"]
    ]
    report.print_table(COLUMNS, rows, file=file)
    print(file=file)
    steps, about = document["steps"], document["about"]
    for since, names in (("first", ("suspected", "noticed", "located", "swapped")), ("last", ("reverted",))):
        begin = about[since]
        after = [
            f"{name} after {step['iteration'] - begin}"
            for name in names
            if (step := next((s for s in steps if s["name"] == name and s["iteration"] >= begin), None))
        ]
        print(f"iterations since the link {'slowed' if since == 'first' else 'healed'}: {', '.join(after)}", file=file)
    if document["cut_short"]:
        print(f"CUT SHORT: {document['cut_short']}", file=file)
    if document["missing"]:
        print(f"NOT SEEN: {', '.join(document['missing'])}", file=file)
    elif not document["closed"]:
        print(f"WRONG PLACE: {', '.join(document['named'])}, expected link {about['link']}", file=file)
