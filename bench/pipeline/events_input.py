"""Options and files of events: --slow-link 1=20ms@50:120, --slow-rank 2=1.5x@50:120, --events trace.json or .csv."""

import argparse
import csv
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from lanterne.bench.output import units
from lanterne.bench.output.report import read_json, read_text
from lanterne.errors import InputError
from lanterne.pipeline.adapt.injection import EventLink, InjectedEvent, check_events

# ADAPTRA section 2: 0.125, 0.25 and 0.375 ms per packet are 10, 20 and 30 ms for an activation.
LINK_PRESETS = {"weak": "10ms", "medium": "20ms", "severe": "30ms"}
# A GPU clocked down by a tenth, a third, a half.
RANK_PRESETS = {"weak": 1.1, "medium": 1.5, "severe": 2.0}
# Traces that come with lanterne, by name.
EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parents[1] / "examples").glob("*.csv"))}
CSV_COLUMNS = ("first", "last", "links", "latency", "bandwidth", "rank", "slowdown", "down")
YES_OR_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
EXPECTED_LINK = "LINK=TIME, LINK=RATE or LINK=weak|medium|severe, with @FIRST:LAST, such as 1=20ms@50:120"
EXPECTED_RANK = "RANK=FACTORx or RANK=weak|medium|severe, with @FIRST:LAST, such as 2=1.5x@50:120"

_SPEC = re.compile(r"(\d+(?:-\d+)?(?:\+\d+(?:-\d+)?)*)=([^@]+)(?:@(\d+)?:(\d+)?)?")


def add_event_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that slow links and ranks, to a parser."""
    group = parser.add_argument_group(
        "slowed on purpose",
        "From iteration A until before B, counted from 0; link I is between ranks I and I+1, A-B between any two, both "
        "ways. weak, medium and severe: links 10, 20, 30ms more; ranks 1.1, 1.5, 2 times as slow.",
    )
    group.add_argument(
        "--slow-link",
        action="append",
        default=[],
        metavar="I=T@A:B",
        help="so much more latency (20ms), or at most that bandwidth (200mbit); 0+2=... for two; repeatable",
    )
    group.add_argument(
        "--slow-rank", action="append", default=[], metavar="R=Fx@A:B", help="F times as slow; repeatable"
    )
    group.add_argument(
        "--events",
        metavar="FILE",
        help=f"a trace of such events, JSON or CSV, as `--json` writes it, or one of ours: {', '.join(EXAMPLES)}",
    )


def events_from(args: argparse.Namespace, num_ranks: int) -> tuple[InjectedEvent, ...]:
    """The Events of a command line, a tuple.

    Raises:
        InputError: one that cannot be, or is about a link or rank that there is not.
    """
    events = [slow_link(text) for text in args.slow_link] + [slow_rank(text) for text in args.slow_rank]
    if args.events:
        events += read_events(args.events)
    check_events(events, num_ranks)
    if any(event.down for event in events) and not args.adapt:
        raise InputError("--events: got a path that is down without --adapt, expected both: only delegates get through")
    return tuple(events)


def slow_link(text: str) -> InjectedEvent:
    """The InjectedEvent of `--slow-link`."""
    links, value, first, last = _parts(text, "--slow-link", EXPECTED_LINK)
    value = LINK_PRESETS.get(value, value)
    if value[-1].isdecimal():
        raise InputError(f"--slow-link: got {text!r}, a time or rate without a unit, expected {EXPECTED_LINK}")
    for key, parse in (("latency_s", units.parse_time_s), ("bandwidth_bytes_per_s", units.parse_rate_bytes_per_s)):
        try:
            given: dict[str, Any] = {key: parse(value)}
        except InputError:
            continue
        return InjectedEvent(first, last, links, **given)
    raise InputError(f"--slow-link: got {text!r}, expected {EXPECTED_LINK}")


def slow_rank(text: str) -> InjectedEvent:
    """The InjectedEvent of `--slow-rank`."""
    ranks, value, first, last = _parts(text, "--slow-rank", EXPECTED_RANK)
    try:
        slowdown = RANK_PRESETS[value] if value in RANK_PRESETS else float(value.removesuffix("x"))
    except ValueError:
        slowdown = 0.0
    if len(ranks) != 1 or not isinstance(ranks[0], int) or not 1 <= slowdown < inf:
        raise InputError(f"--slow-rank: got {text!r}, expected {EXPECTED_RANK}")
    return InjectedEvent(first, last, rank=ranks[0], slowdown=slowdown)


def _parts(text: str, option: str, expected: str) -> tuple[tuple[EventLink, ...], str, int, float]:
    """(numbers, value, first, last) of an option's text."""
    match = _SPEC.fullmatch(text)
    if not match:
        raise InputError(f"{option}: got {text!r}, expected {expected}")
    numbers, value, first, last = match.groups()
    return tuple(map(_link, numbers.split("+"))), value, int(first or 0), inf if last is None else int(last)


def _link(text: str) -> EventLink:
    """3, or (3, 5) of "3-5"."""
    one, *others = map(int, text.split("-"))
    return (one, others[0]) if others else one


def read_events(path: str | Path) -> list[InjectedEvent]:
    """The Events of a file: {"events": [...]}, such a list alone, or CSV with the columns of CSV_COLUMNS.

    A name of EXAMPLES stands for its file. CSV cells may be empty; links are joined by +; times and rates have units.

    Raises:
        InputError: the file cannot be read, or an event cannot be; names its place.
    """
    path = EXAMPLES.get(str(path), path)
    is_csv = str(path).lower().endswith(".csv")
    rows = _read_csv(path) if is_csv else read_json(path)
    if isinstance(rows, dict):
        rows = rows.get("events")
    if not isinstance(rows, list):
        raise InputError(f"{path}: got no list of events, expected one, or an object with `events`")
    events = []
    for index, row in enumerate(rows):
        try:
            events.append(InjectedEvent.from_dict(_of_csv(row) if is_csv else row))
        except InputError as error:
            raise InputError(f"{path}: event {index}: {error}") from None
    return events


def _read_csv(path: str | Path) -> list[dict[str, Any]]:
    lines = read_text(path).splitlines()
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path}: is no CSV: {error}") from error
    unknown = set(reader.fieldnames or ()) - set(CSV_COLUMNS)
    if unknown or "first" not in (reader.fieldnames or ()):
        raise InputError(f"{path}: got columns {reader.fieldnames}, expected some of {', '.join(CSV_COLUMNS)}")
    return rows


def _of_csv(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of text as the object that InjectedEvent.from_dict takes."""
    given = {key: text.strip() for key, text in row.items() if key and text and text.strip()}
    found: dict[str, Any] = {}
    for key, text in given.items():
        if key in ("first", "last", "rank"):
            found[key] = int(text) if text.isdecimal() else text
        elif key == "links":
            found[key] = [_link(link) if re.fullmatch(r"\d+(-\d+)?", link) else link for link in text.split("+")]
        elif key == "latency":
            found["latency_s"] = units.parse_time_s(text, "latency")
        elif key == "bandwidth":
            found["bandwidth_bytes_per_s"] = units.parse_rate_bytes_per_s(text, "bandwidth")
        elif key == "slowdown":
            found[key] = slow_rank(f"0={text}").slowdown
        else:
            found[key] = YES_OR_NO.get(text.lower(), text)
    return found
