"""Find where a job became slow and when it recovered, in a series of iteration times.

  lanterne detect times.csv
  lanterne detect a.csv b.csv --column seconds --plot incidents.png
  lanterne detect megatron.log                             # or DeepSpeed's, NeMo's, torchtitan's: known by their lines
  lanterne detect trainer.jsonl                            # records with step_time, iteration_ms or steps_per_second
  lanterne detect train.log --pattern 'step took ([0-9.]+)' --unit ms
  lanterne detect times.csv --json -
  zcat times.csv.gz | lanterne detect - --column ended_at --timestamps

A file is CSV with a header line, records of JSON, or a log, such as bars of tqdm; `-` is standard input. The iteration
times are the column `seconds`, else the one whose name tells a unit (`step_time_ms`), else --column and --unit name it.
A column `step`, where there is one, must increase. Of a log, lines that match --pattern count; its first group is the
number, with --rate iterations or tokens a second. Rows are taken one by one, as a running job would give them: an
answer at row n uses no row after n. Rows count from 0, lines of a log that match likewise; so does one that is blank,
NaN or 0, which is left out. Where a line of a log has a batch size or a sequence length, times are compared only while
these stay as they are. With --timestamps row n is the time from timestamp n to the next.

An incident is a slow spell of 10 % or more, or of 5 % where that stands clear of the noise and lasts: `onset` is its
first slow row, `relief` the first one after it, `confirmed` the row at which it was certain. Events are the single
changes: onset, relief, and change (steps below 10 %, other levels inside an incident, faster jobs). A job that is slow
from its start is known to have been so once it recovers: a relief without an onset, of an incident at row 0. The first
16 rows are never judged, and a decaying warm-up is no event. A swing, such as with the time of day, is a slow spell
like any other where its crest is 10 % above its trough: no row tells that it will come back.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lanterne.bench.failslow.iteration_times import Source, differences, parse_unit, read_times, source_name
from lanterne.bench.output import report
from lanterne.bench.output.options import add_json, add_plot
from lanterne.errors import InputError
from lanterne.failslow.detect.events import Incident, LevelEvent
from lanterne.failslow.detect.tracker import SKIPPED_ROWS, Tracker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = TypeVar("Found", LevelEvent, Incident)


@dataclass(frozen=True)
class Series:
    """What was found in a file; rows are those of the file.

    Attributes: `seconds`: its iteration times, nan where a row has none; `notes`: how it was read; `noted`: rows that
    have a time.
    """

    file: str
    seconds: list[float]
    events: list[LevelEvent]
    incidents: list[Incident]
    notes: list[str]
    noted: int

    @property
    def name(self) -> str:
        """The file's name, in one line."""
        return Path(source_name(self.file)).name


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
    add_plot(parser, "the series with their incidents")
    add_json(parser, "events and incidents")


def run(args: argparse.Namespace) -> int:
    """Detect in every file, print, draw; exit code 0 whether there are incidents or not."""
    found: list[Series] = []
    if args.files.count("-") > 1:
        raise InputError("FILE: got - twice, expected standard input once at most")
    if args.rate and not args.pattern:
        raise InputError("--rate: expected with --pattern")
    if args.rate and args.timestamps:
        raise InputError("--rate: got it with --timestamps, whose differences are times, expected one of them")
    if args.rate and args.unit:
        raise InputError(f"--unit: got {args.unit}, of times, expected none with --rate")
    if args.column and args.pattern:
        raise InputError("--pattern: of a log, expected without --column, of CSV")
    source = Source(args.column, args.unit and parse_unit(args.unit), args.pattern, args.rate)
    for path in args.files:
        report.progress(f"reading {source_name(path)}")
        notes: list[str] = []
        changes: list[int] = []
        values = read_times(path, source, notes, changes)
        found.append(detect(path, differences(path, values) if args.timestamps else values, notes, changes))
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(series=[_record(series) for series in found]))
    if args.json != "-":
        _print(found)
    if args.plot:
        draw(args.plot, found)
    return 0


def detect(file: str, times_s: Iterable[float], notes: list[str], changes: Sequence[int] = ()) -> Series:
    """Return what a Tracker finds in `times_s` of `file`; those that are nan are left out, but count as rows.

    Args:
        changes: rows from which on an iteration does other work, filled as `times_s` is read. There another Tracker
            begins, and an incident that lasts is over.
    """
    seconds: list[float] = []
    events: list[LevelEvent] = []
    incidents: list[Incident] = []
    noted, begun = 0, 0
    tracker, rows = Tracker(), list[int]()

    def end(relief: int | None) -> None:
        events.extend(_in_file(event, rows, ("index", "provisional_at", "confirmed_at")) for event in tracker.events)
        found = [_in_file(one, rows, ("onset", "relief", "confirmed_at")) for one in tracker.incidents]
        incidents.extend(replace(one, relief=relief) if one.relief is None else one for one in found)

    for row, time_s in enumerate(times_s):
        if len(changes) > begun:
            end(row)
            tracker, rows, begun = Tracker(), [], len(changes)
        seconds.append(time_s)
        if not isnan(time_s):
            tracker.update(time_s)
            rows.append(row)
            noted += 1
    end(None)
    return Series(file, seconds, events, incidents, notes, noted)


def _in_file(found: Found, rows: Sequence[int], names: Iterable[str]) -> Found:
    """`found` with `rows[i]` for each i among its attributes of these names."""
    return replace(found, **{name: rows[at] for name in names if (at := getattr(found, name)) is not None})


def _record(series: Series) -> dict[str, Any]:
    return {
        "file": str(series.file),
        "rows": len(series.seconds),
        "events": [asdict(event) for event in series.events],
        "incidents": [asdict(incident) for incident in series.incidents],
    }


def _print(found: Sequence[Series]) -> None:
    rows, notes = [], []
    for series in found:
        name = series.name
        notes += [f"{name}: {note}" for note in series.notes]
        for incident in series.incidents:
            relief = "lasts" if incident.relief is None else incident.relief
            rows.append([name, incident.onset, relief, f"{incident.ratio:.2f}", incident.confirmed_at])
        others = sum(event.kind == "change" for event in series.events)
        if series.noted < 2 * SKIPPED_ROWS:
            notes.append(
                f"{name}: {series.noted} rows, too few to judge; the first {SKIPPED_ROWS} only show what is normal"
            )
        elif not series.incidents:
            notes.append(f"{name}: {series.noted} rows, no incident" + (f", {others} other changes" if others else ""))
        if series.noted >= SKIPPED_ROWS and all(before < now for before, now in pairwise(series.seconds)):
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
    for axis, series in zip(axes[:, 0], found, strict=True):
        _panel(axis, series)
    axes[-1, 0].set_xlabel("row")
    save(figure, path)


def _panel(axis: Axes, series: Series) -> None:
    seconds = series.seconds
    ordered = sorted(value for value in seconds if not isnan(value))
    bottom, top = ordered[0] * 0.9, max(ordered[int(0.99 * (len(ordered) - 1))] * 1.3, ordered[len(ordered) // 2] * 1.5)
    hidden = sum(value > top for value in seconds)
    axis.plot(seconds, color="0.35", linewidth=0.6, marker=".", markersize=2)
    for incident in series.incidents:
        end = len(seconds) if incident.relief is None else incident.relief
        axis.axvspan(incident.onset - 0.5, end - 0.5, color="tab:red", alpha=0.22, linewidth=0)
        until = "on" if incident.relief is None else f"to {incident.relief - 1}"
        label = f" x{incident.ratio:.2f}, rows {incident.onset} {until}"
        axis.annotate(
            label, (incident.onset, top), (0, -4), textcoords="offset points", va="top", fontsize=8, color="tab:red"
        )
    for event in series.events:
        if event.kind == "change":
            axis.axvline(event.index, color="tab:blue", linewidth=0.9, linestyle="--")
            text = f" x{event.ratio:.2f}"
            axis.annotate(text, (event.index, bottom), (0, 4), textcoords="offset points", fontsize=8, color="tab:blue")
    axis.set_ylim(bottom, top)
    axis.set_xlim(-1, len(seconds))
    axis.set_ylabel("iteration time (s)")
    count = len(series.incidents)
    above = f"; {hidden} row{'' if hidden == 1 else 's'} above the frame" if hidden else ""
    axis.set_title(f"{series.name}: {count} incident{'' if count == 1 else 's'}{above}", loc="left", fontsize=10)
