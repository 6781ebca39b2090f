"""Say what makes the steps of a recorded job long: a worker, a link, uneven stages, uneven data, or nothing.

  lanterne locate trace.parquet
  lanterne locate trace.parquet --meta meta.yaml --json -

A trace has one record per operation: dp_rank, stage, rank, step, optype, start_ts, duration, mb_id (and mc where
schedules interleave); parquet, CSV, or JSON. `saving` is what the step would gain without the cause: its dependency
graph replayed with the worker or link at its peers' speed, with the same work spread evenly over the stages, or with
equal microbatches. A worker is blamed only if it is slower than its peers by 5 % or more, beyond their noise, in 80 %
of at least 5 steps, and if that costs time.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lanterne.bench.output import report
from lanterne.bench.output.units import format_count
from lanterne.errors import InputError
from lanterne.failslow.locate.locate import MIN_STEPS, Verdict, locate
from lanterne.failslow.locate.trace import Trace, read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("file", metavar="TRACE", help="parquet, csv or json file of operations")
    parser.add_argument(
        "--meta", metavar="FILE", help="layout as 'key: value' lines (dp_size, pp_size), to find silent workers"
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdicts as JSON ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Locate and print; exit code 0 whatever the verdict."""
    meta = read_meta(args.meta) if args.meta else {}
    report.progress(f"reading {args.file}")
    trace = read_trace(args.file)
    notes = _notes(trace, meta)
    report.progress(f"{len(trace.steps)} steps, {trace.ranks.size} workers")
    verdicts = locate(trace)
    report.progress("")
    if args.json:
        content = {"trace": str(args.file), "steps": len(trace.steps), "notes": notes}
        report.write_json(args.json, report.envelope(**content, verdicts=[asdict(v) for v in verdicts]))
    if args.json != "-":
        steps, replicas = format_count(len(trace.steps), "step"), format_count(trace.replicas, "replica")
        about = f"{Path(args.file).name}: {steps}, {replicas} x {format_count(trace.stages, 'stage')}"
        _print(verdicts, [about, *notes])
    return 0


def read_meta(path: str) -> dict[str, int | str]:
    """The 'key: value' lines of a file, whole numbers as int.

    Raises:
        InputError: not readable, or a line is neither empty nor such a pair.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    meta: dict[str, int | str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise InputError(f"{path}: line {number}: got a line without a colon, expected 'key: value'")
        value = value.strip()
        meta[key.strip()] = int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value
    return meta


def _notes(trace: Trace, meta: Mapping[str, int | str]) -> list[str]:
    """What a reader should know before the verdicts."""
    expected = (meta.get("dp_size", trace.replicas), meta.get("pp_size", trace.stages))
    found, notes = (trace.replicas, trace.stages), list(trace.notes)
    if expected != found:
        notes.append(f"the layout has {expected[0]} x {expected[1]} workers, compared are {found[0]} x {found[1]}")
    if len(trace.steps) < MIN_STEPS:
        notes.append(f"fewer than {MIN_STEPS} steps: too few to blame a worker or a link")
    if trace.replicas < 2:
        notes.append("one replica: a worker or a link has none to be compared with")
    return notes


def _print(verdicts: Sequence[Verdict], notes: Sequence[str]) -> None:
    rows = []
    for verdict in verdicts:
        ranks = ", ".join(map(str, verdict.ranks[:8])) + (", ..." if len(verdict.ranks) > 8 else "")
        stage = "-" if verdict.stage is None else verdict.stage
        rows.append([verdict.cause, ranks or "-", stage, f"{100 * verdict.saving:.1f}", _because(verdict)])
    report.print_table(
        [("cause", ""), ("ranks", ""), ("stage", ""), ("saving", "%"), ("because", "")], rows, notes=notes
    )


def _because(verdict: Verdict) -> str:
    """The evidence in a few words."""
    evidence = verdict.evidence
    if verdict.cause == "worker":
        worst = evidence["workers"][0]
        steps = f"{100 * worst['slow_step_share']:.0f} % of steps {worst['first_step']}-{worst['last_step']}"
        return f"x{worst['slowdown']:.2f} of its peers in {steps}"
    if verdict.cause == "link":
        return f"x{evidence['slowdown']:.2f} of its peers, {evidence.get('direction') or evidence.get('collective')}"
    if verdict.cause == "stage":
        return f"x{evidence['stage_over_others']:.2f} of the other stages' compute"
    if verdict.cause == "data":
        return f"forward and backward of a microbatch vary together, r = {evidence['forward_backward_correlation']:.3f}"
    return "no worker, link, stage or microbatch stands out for long enough"
