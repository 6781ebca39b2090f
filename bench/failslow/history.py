"""Show which hosts were named as slow or hanging, across jobs, and whether that is chronic or was a burst.

  lanterne history hosts.jsonl                         what `watch --history hosts.jsonl` has kept
  lanterne history lanterne-incidents                  or the incidents of jobs in a folder
  lanterne history hosts.jsonl --host node17           all incidents of one host, the latest last
  lanterne history hosts.jsonl --fail-on chronic       exit code 1 if a host is chronic: before a job is placed

chronic   named in at least 3 jobs, a quarter of those that it took part in, over more than an hour
burst     all its incidents, at least 3, within an hour
some      more than one, neither so nor so;   once: one incident

Of a file that probing jobs kept (`lanterne validate --every 10min --history probes.jsonl`) also a census: how many jobs
met contention for cores, slow computing, a slow network, several of these or nothing, in how many of their sweeps, how
often, for how long on average, and how many times as slow that was.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("where", metavar="WHERE", help="a file, or a folder of incidents")
    parser.add_argument("--host", metavar="NAME", help="all incidents of this host")
    parser.add_argument("--fail-on", choices=("chronic", "burst"), help="exit code 1 if a host has this pattern")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print; the exit code."""
    from pathlib import Path

    from lanterne.failslow.operate.census import census
    from lanterne.failslow.operate.history import open_history, patterns

    if "://" not in args.where and not Path(args.where).exists():
        raise InputError(f"history: got {args.where!r}, expected a file or a folder")
    entries, unused = open_history(args.where).read()
    hosts = [one.to_json() for one in patterns(entries)]
    rows = [row.to_json() for row in census(entries)]
    if args.host is not None:
        hosts = [one for one in hosts if one["host"] == args.host]
        entries = [one for one in entries if one["what"] == "incident" and one["host"] == args.host]
    # The census is of all hosts.
    counted = {} if args.host is not None else {"census": rows}
    document = report.envelope(hosts=hosts, **counted, entries=entries, unused=unused)
    show = show_host if args.host is not None else show_hosts
    report.tell(args.json, document, show)
    return int(args.fail_on in [one["pattern"] for one in hosts])


def show_hosts(document: Mapping[str, Any], file: TextIO) -> None:
    """The table of all hosts."""
    from lanterne.failslow.operate.page import day

    if document["unused"]:
        report.print_notes([f"{document['unused']} entries could not be used"], file)
    columns = [("host", ""), ("pattern", ""), ("incidents", ""), ("jobs", "named, of"), ("first", "UTC"), ("last", "")]
    rows = [
        [
            *(one["host"], one["pattern"], one["incidents"], f"{one['named_in']} of {one['jobs']}"),
            *(day(one["first_s"]), day(one["last_s"]), ", ".join((*one["gpus"], *one["nics"]))),
        ]
        for one in document["hosts"]
    ]
    if rows:
        report.print_table([*columns, ("GPU, NIC", "")], rows, left=(0, 1, 6), file=file)
    else:
        print("no host was named", file=file)
    if document["census"]:
        print(file=file)
        show_census(document["census"], file)


def show_census(census: Sequence[Mapping[str, Any]], file: TextIO) -> None:
    """The table of probing jobs by what they met."""
    from lanterne.bench.output.units import format_time

    totals = {scale: sum(row["jobs"] for row in census if row["scale"] == scale) for scale in _scales(census)}
    rows = [
        [
            *(row["scale"], row["cause"], row["jobs"], f"{row['jobs'] / totals[row['scale']]:.0%}", row["probes"]),
            *(row["spells"] or "-", format_time(row["spell_s"]) if row["spells"] else "-"),
            f"{row['ratio']:.2f}" if row["ratio"] is not None else "-",
        ]
        for row in census
    ]
    columns = [("probing jobs on", ""), ("met", ""), ("jobs", ""), ("", ""), ("sweeps", ""), ("spells", "")]
    notes = [f"probing jobs on {scale}: {number}" for scale, number in totals.items()]
    report.print_table([*columns, ("lasted", "mean"), ("slow", "x")], rows, notes=notes, left=(0, 1), file=file)


def _scales(census: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["scale"] for row in census))


def show_host(document: Mapping[str, Any], file: TextIO) -> None:
    """The incidents of one host."""
    from lanterne.failslow.operate.page import day

    latest: dict[str, dict[str, Any]] = {one["id"]: one for one in document["entries"]}
    rows: list[Sequence[object]] = [
        [day(one["time_s"]), one["kind"], ", ".join(map(str, one.get("ranks", ()))), one.get("text", "")]
        for one in latest.values()
    ]
    if rows:
        report.print_table([("UTC", ""), ("kind", ""), ("ranks", ""), ("", "")], rows, left=(0, 1, 2, 3), file=file)
    else:
        print("no incident of it", file=file)
