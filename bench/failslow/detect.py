"""Find where a job became slow and when it recovered, in a series of iteration times.

  lanterne detect times.csv
  lanterne detect a.csv b.csv --column seconds --plot incidents.png
  lanterne detect megatron.log                             # or torchtitan's, nanoGPT's: known by their lines
  lanterne detect train.log --pattern 'step took ([0-9.]+)' --unit ms
  lanterne detect times.csv --json -
  zcat times.csv.gz | lanterne detect - --column ended_at --timestamps

A file is CSV with a header line, or a log; `-` is standard input. The iteration times are the column `seconds`, else
the one whose name tells a unit (`step_time_ms`), else --column and --unit name it; a column `step`, where there is one,
must increase. Of a log, lines that match --pattern count; its first group is the number, with --rate iterations or
tokens a second. Rows are taken one by one, as a running job would give them: an answer at row n uses no row after n.
Rows count from 0, lines of a log that match likewise. With --timestamps row n is the time from timestamp n to the next.

An incident is a slow spell of 10 % or more, or of 5 % where that stands clear of the noise and lasts: `onset` is its
first slow row, `relief` the first one after it, `confirmed` the row at which it was certain. Events are the single
changes: onset, relief, and change (steps below 10 %, other levels inside an incident, faster jobs). A job that is slow
from its start is known to have been so once it recovers: a relief without an onset, of an incident at row 0. The first
16 rows are never judged, and a decaying warm-up is no event. A swing, such as with the time of day, is a slow spell
like any other where its crest is 10 % above its trough: no row tells that it will come back.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.bench.failslow.iteration_times import Source, differences, parse_unit, read_times, source_name
from lanterne.bench.output import report
from lanterne.errors import InputError
from lanterne.failslow.detect.decisions import SKIPPED_ROWS
from lanterne.failslow.detect.tracker import Tracker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A file, what was found in it, its iteration times in seconds, and notes on how it was read.
Series: TypeAlias = tuple[str, Tracker, list[float], list[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="CSV with a header line, or a log; -: standard input")
    parser.add_argument("--column", metavar="NAME", help="column of iteration times (default: seconds, or by name)")
    parser.add_argument("--unit", metavar="UNIT", help="s, ms, us, ns, min (default: as named, or s)")
    parser.add_argument("--pattern", metavar="REGEX", help="of a log: lines that match; its first group is the number")
    parser.add_argument("--rate", action="store_true", help="with --pattern: the number is a rate, more is faster")
    parser.add_argument(
        "--timestamps",
        action="store_true",
        help="the column says when iterations began or ended, not how long they took",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the series with their incidents (png, svg, pdf)")
    parser.add_argument("--json", metavar="FILE", help="write events and incidents as JSON ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Detect in every file, print, draw; exit code 0 whether there are incidents or not."""
    found: list[Series] = []
    if args.files.count("-") > 1:
        raise InputError("FILE: got - twice, expected standard input once at most")
    if args.rate and not args.pattern:
        raise InputError("--rate: expected with --pattern")
    if args.column and args.pattern:
        raise InputError("--pattern: of a log, expected without --column, of CSV")
    source = Source(args.column, args.unit and parse_unit(args.unit), args.pattern, args.rate)
    for path in args.files:
        report.progress(f"reading {source_name(path)}")
        tracker = Tracker()
        seconds: list[float] = []
        notes: list[str] = []
        values = read_times(path, source, notes)
        for time_s in differences(path, values) if args.timestamps else values:
            tracker.update(time_s)
            seconds.append(time_s)
        found.append((path, tracker, seconds, notes))
    report.progress("")
    if args.json:
        series = [_record(path, tracker) for path, tracker, _, _ in found]
        report.write_json(args.json, report.envelope(series=series))
    if args.json != "-":
        _print(found)
    if args.plot:
        draw(args.plot, found)
    return 0


def _record(path: str, tracker: Tracker) -> dict[str, Any]:
    return {
        "file": str(path),
        "rows": tracker.row,
        "events": [asdict(event) for event in tracker.events],
        "incidents": [asdict(incident) for incident in tracker.incidents],
    }


def _print(found: Sequence[Series]) -> None:
    rows, notes = [], []
    for path, tracker, seconds, about in found:
        name = Path(source_name(path)).name
        notes += [f"{name}: {note}" for note in about]
        for incident in tracker.incidents:
            relief = "lasts" if incident.relief is None else incident.relief
            rows.append([name, incident.onset, relief, f"{incident.ratio:.2f}", incident.confirmed_at])
        others = sum(event.kind == "change" for event in tracker.events)
        if tracker.row < 2 * SKIPPED_ROWS:
            notes.append(
                f"{name}: {tracker.row} rows, too few to judge; the first {SKIPPED_ROWS} only show what is normal"
            )
        elif not tracker.incidents:
            notes.append(f"{name}: {tracker.row} rows, no incident" + (f", {others} other changes" if others else ""))
        if len(seconds) >= SKIPPED_ROWS and all(before < now for before, now in pairwise(seconds)):
            notes.append(f"{name}: every row is longer than the one before: timestamps? --timestamps takes differences")
    columns = [("file", ""), ("onset", "row"), ("relief", "row"), ("ratio", ""), ("confirmed", "row")]
    if rows:
        report.print_table(columns, rows, notes=notes)
    else:
        for note in notes:
            print(f"# {note}")


def draw(path: str, found: Sequence[Series]) -> None:
    """Draw `found`, one panel each, into file `path`.

    Raises:
        InputError: the file cannot be written or its ending names no picture format.
    """
    import matplotlib

    from lanterne.pipeline.simulate.gantt import save

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(found), 1, figsize=(12, 3.2 * len(found)), squeeze=False, layout="constrained")
    for axis, (file, tracker, seconds, _) in zip(axes[:, 0], found, strict=True):
        _panel(axis, Path(source_name(file)).name, tracker, seconds)
    axes[-1, 0].set_xlabel("row")
    save(figure, path)


def _panel(axis: Axes, name: str, tracker: Tracker, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    bottom, top = ordered[0] * 0.9, max(ordered[int(0.99 * (len(ordered) - 1))] * 1.3, ordered[len(ordered) // 2] * 1.5)
    hidden = sum(value > top for value in seconds)
    axis.plot(seconds, color="0.35", linewidth=0.6, marker=".", markersize=2)
    for incident in tracker.incidents:
        end = len(seconds) if incident.relief is None else incident.relief
        axis.axvspan(incident.onset - 0.5, end - 0.5, color="tab:red", alpha=0.22, linewidth=0)
        until = "on" if incident.relief is None else f"to {incident.relief - 1}"
        label = f" x{incident.ratio:.2f}, rows {incident.onset} {until}"
        axis.annotate(
            label, (incident.onset, top), (0, -4), textcoords="offset points", va="top", fontsize=8, color="tab:red"
        )
    for event in tracker.events:
        if event.kind == "change":
            axis.axvline(event.index, color="tab:blue", linewidth=0.9, linestyle="--")
            text = f" x{event.ratio:.2f}"
            axis.annotate(text, (event.index, bottom), (0, 4), textcoords="offset points", fontsize=8, color="tab:blue")
    axis.set_ylim(bottom, top)
    axis.set_xlim(-1, len(seconds))
    axis.set_ylabel("iteration time (s)")
    count = len(tracker.incidents)
    above = f"; {hidden} row{'' if hidden == 1 else 's'} above the frame" if hidden else ""
    axis.set_title(f"{name}: {count} incident{'' if count == 1 else 's'}{above}", loc="left", fontsize=10)
