"""Show which hosts were named as slow or hanging, across jobs, and whether that is chronic or was a burst.

  lanterne history hosts.jsonl                         what `watch --history hosts.jsonl` has kept
  lanterne history redis://127.0.0.1:6379/lanterne/history
  lanterne history lanterne-incidents                  or the incidents of jobs in a folder
  lanterne history hosts.jsonl --host node17           all incidents of one host, the latest last
  lanterne history hosts.jsonl --fail-on chronic       exit code 1 if a host is chronic: before a job is placed

chronic   named in at least 3 jobs, a quarter of those that it took part in, over more than an hour
burst     all its incidents, at least 3, within an hour
some      more than one, neither so nor so;   once: one incident
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
    parser.add_argument("where", metavar="WHERE", help="a file, redis://HOST:PORT/KEY, or a folder of incidents")
    parser.add_argument("--host", metavar="NAME", help="all incidents of this host")
    parser.add_argument("--fail-on", choices=("chronic", "burst"), help="exit code 1 if a host has this pattern")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print; the exit code."""
    from pathlib import Path

    from lanterne.failslow.operate.history import open_history, patterns

    if "://" not in args.where and not Path(args.where).exists():
        raise InputError(f"history: got {args.where!r}, expected a file, a folder, or redis://HOST:PORT/KEY")
    entries, unused = open_history(args.where).read()
    hosts = [one.to_json() for one in patterns(entries)]
    if args.host is not None:
        hosts = [one for one in hosts if one["host"] == args.host]
        entries = [one for one in entries if one["what"] == "incident" and one["host"] == args.host]
    document = report.envelope(hosts=hosts, entries=entries, unused=unused)
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
