"""Say what makes the steps of a recorded job long, or hang: a worker, a link, uneven stages, uneven data, or nothing.

  lanterne locate FOLDER                             whatever a cluster wrote, of all ranks together
  lanterne locate trace.parquet
  lanterne locate trace.parquet --meta meta.yaml --json -

A FOLDER may hold NCCL Inspector's JSON lines, NCCL RAS documents, PyTorch Flight Recorder dumps (pickles are read
without running anything in them), Kineto traces, and the call logs of `lanterne watch --folder DIR --keep`; formats are
told by content. Clocks may be apart, ranks and rows missing: what cannot be used is counted and named. A verdict of
cause "worker" whose evidence says "missing" names ranks that others wait for, "silent" such of which nothing was read.
"none" that is conclusive is health, and says how small a slowdown would have been seen (`least_slowdown`); what is not
conclusive cannot be told, and `missing` says what it lacks. Groups that do the same are compared: one whose
collectives take 1.10 times those of its copies is a slow link.

A trace has one record per operation: dp_rank, stage, rank, step, optype, start_ts, duration, mb_id (and mc where
schedules interleave); parquet, CSV, or JSON. `saving` is what the step would gain without the cause: its dependency
graph replayed with the worker or link at its peers' speed, with the same work spread evenly over the stages, or with
equal microbatches. A worker is blamed only if it is slower than its peers by 5 % or more, beyond their noise, in 80 %
of at least 5 steps, and if that costs time.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.output.units import format_count
from lanterne.errors import InputError, shown
from lanterne.failslow.evidence.comparison import MIN_STEPS
from lanterne.failslow.locate.calls_verdicts import diagnose
from lanterne.failslow.locate.formats.folder import TRACES, read_folder
from lanterne.failslow.locate.locate import Verdict, locate
from lanterne.failslow.locate.trace import Trace, read_trace

# Of a job's layout: how many replicas, and how many stages of each.
SIZES = ("dp_size", "pp_size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("file", metavar="PATH", help="folder of what a cluster wrote, or a parquet, csv or json trace")
    parser.add_argument("--meta", metavar="FILE", help="YAML (dp_size, pp_size): tells missing replicas or stages")
    add_json(parser, "the verdicts")


def run(args: argparse.Namespace) -> int:
    """Locate and print; exit code 0 whatever the verdict."""
    report.progress(f"reading {args.file}")
    verdicts, notes, titles, steps = located(Path(args.file), args.meta)
    report.progress("")
    if args.json:
        content = {"trace": str(args.file), "steps": steps, "notes": notes}
        report.write_json(args.json, report.envelope(**content, verdicts=[asdict(v) for v in verdicts]))
    if args.json != "-":
        _print(verdicts, [*titles, *notes])
    return 0


def located(path: Path, meta: str | None = None) -> tuple[list[Verdict], list[str], list[str], int]:
    """Return (verdicts, notes, titles of what was read, steps) of a trace, or of all that is in a folder."""
    layout = read_layout(Path(meta)) if meta else {}
    if meta and not layout:
        raise InputError(f"--meta: got {shown(meta)}, which tells none of them, expected {' or '.join(SIZES)}")
    folder = None if path.suffix in TRACES and not path.is_dir() else read_folder(path)
    traces = [path] if folder is None else folder.traces
    if meta and not traces:
        raise InputError(
            f"--meta: got {shown(meta)}, expected none: {shown(path.name)} holds no trace that it lays out"
        )
    if folder is not None and folder.traces and folder.layout and not meta:
        layout = read_layout(folder.layout)
    verdicts: list[Verdict] = []
    notes: list[str] = []
    titles: list[str] = []
    count = 0
    for file in traces:
        trace = read_trace(file)
        steps, replicas = format_count(len(trace.steps), "step"), format_count(trace.replicas, "replica")
        titles.append(f"{shown(file.name)}: {steps}, {replicas} x {format_count(trace.stages, 'stage')}")
        notes += _notes(trace, layout)
        report.progress(titles[-1])
        verdicts += locate(trace)
        count += len(trace.steps)
    if folder is not None:
        calls = folder.calls
        used = ", ".join(f"{number} of {name}" for name, number in sorted(calls.used.items()))
        ranks = format_count(len(calls.processes), "rank")
        titles += [f"{shown(path.name)}: {used} records of {ranks}"] if used else []
        notes += [*calls.notes, *(f"{number} not used: {why}" for why, number in sorted(calls.skipped.items()))]
        if calls.used:
            found, told = diagnose(calls)
            verdicts += found
            notes += told
    # Nothing found in one file is no verdict beside something found in another.
    found = [verdict for verdict in verdicts if verdict.cause != "none"]
    return found or verdicts, notes, titles, count


def read_layout(path: Path) -> dict[str, int]:
    """What a YAML file's mapping, block or flow, tells of SIZES; whatever else is in it is left out.

    Raises:
        InputError: not readable, no mapping, or a size that is no whole number of at least 1.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {shown(path)}: {getattr(error, 'strerror', None) or error}") from error
    layout: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        plain = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        if not plain or plain[0] in " \t-%" or plain.startswith(("---", "...")):
            continue
        flow = re.fullmatch(r"\{(.*)\}", plain)
        for pair in flow.group(1).split(",") if flow else [plain]:
            key, colon, value = pair.partition(":")
            if not colon or (value and value[0] not in " \t"):
                raise InputError(f"{shown(path)}: line {number}: got a line without a colon, expected 'key: value'")
            if (name := key.strip().strip("\"'")) in SIZES:
                layout[name] = _size(f"{shown(path)}: line {number}, {name}", value.strip())
    return layout


def _size(where: str, text: str) -> int:
    if not re.fullmatch(r"\+?[0-9](_?[0-9]){0,17}", text) or int(text) < 1:
        raise InputError(f"{where}: got {shown(text) or 'nothing'}, expected a whole number of at least 1")
    return int(text)


def _notes(trace: Trace, layout: Mapping[str, int]) -> list[str]:
    """What a reader should know before the verdicts."""
    expected = (layout.get("dp_size", trace.replicas), layout.get("pp_size", trace.stages))
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
        because = _because(verdict) + _lack(verdict)
        rows.append([verdict.cause, ranks or "-", stage, f"{100 * verdict.saving:.1f}", because])
    report.print_table(
        [("cause", ""), ("ranks", ""), ("stage", ""), ("saving", "%"), ("because", "")], rows, notes=notes
    )


def _because(verdict: Verdict) -> str:
    """The evidence in a few words."""
    evidence = verdict.evidence
    if (job := evidence.get("job")) is not None:
        return f"job {job}: {_because(replace(verdict, evidence={**evidence, 'job': None}))}"
    if "state" in evidence:
        return _state(evidence)
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
    if not verdict.conclusive:
        return "cannot tell"
    seen = ", ".join(f"a {name} at {times:.2f}" for name, times in evidence.get("least_slowdown", {}).items())
    return "healthy" + (f": {seen} times its peers would have been seen" if seen else "")


def _lack(verdict: Verdict) -> str:
    """What would make a verdict certain, in words."""
    return "" if verdict.conclusive else f"; it lacks {'; '.join(verdict.missing)}"


def _state(evidence: Mapping[str, Any]) -> str:
    if evidence["state"] == "missing":
        shown = "; ".join(
            f"{one.get('process') or 'rank ' + str(one['rank'])}: {one['because']}" for one in evidence["missing"][:3]
        )
        return f"missing: {shown}" + ("; ..." if len(evidence["missing"]) > 3 else "")
    if evidence["state"] == "late":
        return f"comes last to {100 * evidence['last_arriver_share']:.0f} % of what others wait for, by its short calls"
    return f"{evidence['state']}: {evidence['because']}"
