"""Find where a job became slow and when it recovered, in a series of iteration times.

  lanterne detect times.csv
  lanterne detect a.csv b.csv --column seconds --plot incidents.png
  lanterne detect times.csv --json -
  zcat times.csv.gz | lanterne detect - --column ended_at --timestamps

A file is CSV with a header line, `-` standard input; `--column` names the iteration times, in seconds; a column
`step`, where there is one, must increase. Rows are taken one by one, as a running job would give them: an answer at
row n uses no row after n. Rows count from 0. With --timestamps row n is the time from timestamp n to the next.

An incident is a slow spell of 10 % or more, or of 5 % where that stands clear of the noise and lasts: `onset` is its
first slow row, `relief` the first one after it, `confirmed` the row at which it was certain. Events are the single
changes: onset, relief, and change (steps below 10 %, other levels inside an incident, faster jobs). The first 16 rows
are never judged, and a decaying warm-up is no event. A swing, such as with the time of day, is a slow spell like any
other where its crest is 10 % above its trough: no row tells that it will come back.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.bench.output import report
from lanterne.bench.output.units import format_count
from lanterne.errors import InputError
from lanterne.failslow.detect.decisions import SKIPPED_ROWS
from lanterne.failslow.detect.tracker import Tracker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A file, what was found in it, and its iteration times in seconds.
Series: TypeAlias = tuple[str, Tracker, list[float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="CSV with a header line; - is standard input")
    parser.add_argument(
        "--column", default="seconds", metavar="NAME", help="column of iteration times (default: seconds)"
    )
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
    for path in args.files:
        report.progress(f"reading {_name(path)}")
        tracker = Tracker()
        seconds: list[float] = []
        values = read_column(path, args.column)
        for time_s in differences(path, args.column, values) if args.timestamps else values:
            tracker.update(time_s)
            seconds.append(time_s)
        found.append((path, tracker, seconds))
    report.progress("")
    if args.json:
        series = [_record(path, tracker) for path, tracker, _ in found]
        report.write_json(args.json, report.envelope(series=series))
    if args.json != "-":
        _print(found)
    if args.plot:
        draw(args.plot, found)
    return 0


def differences(path: str, column: str, timestamps: Iterable[float]) -> Iterator[float]:
    """What lies between `timestamps`, of `column` of `path`, one by one, in seconds.

    Raises:
        InputError: there is only one, or one is not above the one before.
    """
    row = 0
    for row, (before, now) in enumerate(pairwise(timestamps), start=1):
        if not now > before:
            raise InputError(
                f"{_name(path)}: row {row}, column {column}: got {now!r} after {before!r},"
                " expected increasing timestamps (was the clock set back?)"
            )
        yield now - before
    if row == 0:
        raise InputError(f"{_name(path)}: got one row, expected several timestamps")


def read_column(path: str | Path, column: str) -> Iterator[float]:
    """The numbers of `column` of CSV file `path`, "-" for standard input, one by one.

    Raises:
        InputError: no such file or column, no rows, a value that is no positive number, or a column `step` that does
        not increase.
    """
    name = _name(path)
    try:
        with nullcontext(sys.stdin) if path == "-" else open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not reader.fieldnames:
                raise InputError(f"{name}: got an empty file, expected CSV with a header line")
            if column not in reader.fieldnames:
                raise InputError(_no_column(name, column, reader.fieldnames, next(reader, {})))
            if reader.fieldnames.count(column) > 1:
                raise InputError(f"{name}: got several columns {column!r}, expected one")
            row = -1
            last_step: float | None = None
            for row, record in enumerate(reader):
                if None in record:
                    fields = len(reader.fieldnames)
                    raise InputError(
                        f"{name}: row {row}: got {fields + len(record[None])} fields, expected {fields}"
                        " as in the header (a decimal comma?)"
                    )
                last_step = _check_step(name, row, record.get("step"), last_step)
                yield _positive(name, row, column, record[column])
            if row < 0:
                raise InputError(f"{name}: got a header and no rows, expected iteration times")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def _no_column(name: str, column: str, header: Sequence[str], record: dict[str | Any, Any]) -> str:
    """What is wrong with a file whose first line is `header`; only of a table of numbers, names from it are told."""
    is_table = None not in (*record, *record.values()) and any(map(_is_number, record.values()))
    if is_table and not any(map(_is_number, header)):
        return f"{name}: no column {column!r}, expected one of: {', '.join(header)} (--column)"
    return (
        f"{name}: got a first line that does not look like column names ({format_count(len(header), 'field')}), "
        f"expected CSV with a header line, one column {column!r} (--column), and rows of numbers"
    )


def _is_number(text: object) -> bool:
    try:
        return isinstance(text, str) and isfinite(float(text))
    except ValueError:
        return False


def _positive(name: str, row: int, column: str, text: str | None) -> float:
    try:
        value = float("nan" if text is None else text)
    except ValueError:
        value = float("nan")
    if not 0.0 < value < float("inf"):
        got = "nothing" if text is None else repr(text)
        raise InputError(f"{name}: row {row}, column {column}: got {got}, expected a positive time in seconds")
    return value


def _check_step(name: str, row: int, text: str | None, last: float | None) -> float | None:
    if text is None:
        return last
    try:
        step = float(text)
    except ValueError:
        step = float("nan")
    if not isfinite(step):
        raise InputError(f"{name}: row {row}, column step: got {text!r}, expected a number")
    if last is not None and not step > last:
        raise InputError(f"{name}: row {row}: got step {text} after step {last:g}, expected increasing steps")
    return step


def _name(path: str | Path) -> str:
    return "standard input" if path == "-" else str(path)


def _record(path: str, tracker: Tracker) -> dict[str, Any]:
    return {
        "file": str(path),
        "rows": tracker.row,
        "events": [asdict(event) for event in tracker.events],
        "incidents": [asdict(incident) for incident in tracker.incidents],
    }


def _print(found: Sequence[Series]) -> None:
    rows, notes = [], []
    for path, tracker, seconds in found:
        name = Path(_name(path)).name
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
    for axis, (file, tracker, seconds) in zip(axes[:, 0], found, strict=True):
        _panel(axis, "standard input" if file == "-" else Path(file).name, tracker, seconds)
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
