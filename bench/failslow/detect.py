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

import csv
import sys
from contextlib import nullcontext
from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from pathlib import Path

from lanterne.bench.output import report
from lanterne.errors import InputError
from lanterne.failslow.detect.tracker import SKIPPED_ROWS, Tracker


def add_arguments(parser):
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


def run(args):
    """Detect in every file, print, draw; exit code 0 whether there are incidents or not."""
    found = []
    if args.files.count("-") > 1:
        raise InputError("FILE: got - twice, expected standard input once at most")
    for path in args.files:
        report.progress(f"reading {_name(path)}")
        tracker, seconds = Tracker(), []
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
        from lanterne.bench.failslow.detect_plot import draw

        draw(args.plot, found)
    return 0


def differences(path, column, timestamps):
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


def read_column(path, column):
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
                raise InputError(
                    f"{name}: no column {column!r}, expected one of: {', '.join(reader.fieldnames)} (--column)"
                )
            if reader.fieldnames.count(column) > 1:
                raise InputError(f"{name}: got several columns {column!r}, expected one")
            row, last_step = -1, None
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


def _positive(name, row, column, text):
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0.0 < value < float("inf"):
        got = "nothing" if text is None else repr(text)
        raise InputError(f"{name}: row {row}, column {column}: got {got}, expected a positive time in seconds")
    return value


def _check_step(name, row, text, last):
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


def _name(path):
    return "standard input" if path == "-" else str(path)


def _record(path, tracker):
    return {
        "file": str(path),
        "rows": tracker.row,
        "events": [asdict(event) for event in tracker.events],
        "incidents": [asdict(incident) for incident in tracker.incidents],
    }


def _print(found):
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
