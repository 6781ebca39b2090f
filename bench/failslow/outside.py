"""Watch a job that was not started with `lanterne watch`, by what its host shows of its processes."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lanterne.bench.output import report
from lanterne.bench.output.units import format_count, format_time, parse_time_s
from lanterne.errors import InputError
from lanterne.failslow.operate.thresholds import Thresholds
from lanterne.failslow.record.recorder import RANK_VARIABLES
from lanterne.transport.job.launch import lives

if TYPE_CHECKING:
    from lanterne.failslow.record.incidents import IncidentLog
    from lanterne.failslow.record.outside_view import OddRank, OutsideView
    from lanterne.failslow.record.whereabouts import Whereabouts

LOOK_S = 0.5
NEEDS = "start it as `lanterne watch -- COMMAND`"


def say(text: str) -> None:
    """Say `text` on standard error, with the time."""
    print(f"lanterne watch: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def attach_outside(args: argparse.Namespace, command: list[str]) -> int:
    """Look at the ranks of the job of process --attach until that ends, or Ctrl-C; the exit code.

    Raises:
        InputError: it is no rank of a job, or an option needs calls.
    """
    from lanterne.failslow.record.outside_view import OutsideView, ranks_beside

    processes = ranks_beside(args.attach)
    who = f"--attach: got process {args.attach}, whose calls are not recorded"
    if not processes:
        names = ", ".join(RANK_VARIABLES)
        raise InputError(f"{who} and whose environment tells no rank ({names}): {NEEDS}")
    if given := [f"--{name}" for name in ("listen", "history", "thresholds") if getattr(args, name)]:
        raise InputError(f"{who}: {', '.join(given)} needs its calls: {NEEDS}")
    count = format_count(len(processes), "rank")
    say(f"process {args.attach} is not recorded: seen is what the system shows of its {count} here; for calls, {NEEDS}")
    view = OutsideView(processes)
    teller = OddTeller(view, args.incidents, command, parse_time_s(args.patience, "--patience"))
    with suppress(KeyboardInterrupt):
        while lives(args.attach):
            teller.look(time.monotonic())
            time.sleep(LOOK_S)
    found = view.report()
    if args.json:
        ended = report.envelope(command=command, recorded=False, ranks=found, incidents=teller.incidents.count)
        report.write_json(args.json, ended)
    print_ranks(found, teller.incidents.count)
    return int(bool(args.fail_on and teller.incidents.count))


class OddTeller:
    """Says on standard error which ranks are odd, and writes incidents: of one stopped at once, else after patience.

    Attributes: `incidents`, the IncidentLog.
    """

    def __init__(self, view: OutsideView, folder: str, command: list[str], patience_s: float) -> None:
        from lanterne.failslow.record.incidents import IncidentLog
        from lanterne.failslow.record.job_ledger import about_run

        self._view = view
        self._patience_s = patience_s
        self._host = socket.gethostname()
        # By rank: what was said, and whether it is an incident.
        self._told: dict[int, tuple[OddRank, bool]] = {}
        self.incidents: IncidentLog = IncidentLog(
            None if folder == "none" else folder, about_run(command), lambda rank: self._where(rank, "runs")
        )

    def look(self, now_s: float) -> None:
        """Look, and say what there is to say."""
        self._view.look(now_s)
        for rank, odd in self._view.odd.items():
            age_s = now_s - odd.since_s
            is_incident = odd.kind == "stopped" or age_s >= self._patience_s
            if not is_incident and age_s < Thresholds.status_s:
                continue
            told, was_incident = self._told.get(rank, (None, False))
            if told == odd and was_incident == is_incident:
                continue
            if told is not None and told != odd and was_incident:
                self._write(told, False, now_s - told.since_s)
            self._told[rank] = odd, is_incident
            file = self._write(odd, True, age_s) if is_incident else None
            lasts = f" for {format_time(age_s)}" if age_s else ""
            say(f"{'INCIDENT' if is_incident else 'odd'}{lasts}: {odd.text}" + (f"; written to {file}" if file else ""))
        for rank in [rank for rank in self._told if rank not in self._view.odd]:
            odd, was_incident = self._told.pop(rank)
            if was_incident:
                self._write(odd, False, now_s - odd.since_s)
            say(f"rank {rank}: as it should be again, after {format_time(now_s - odd.since_s)}")

    def _write(self, odd: OddRank, lasts: bool, ago_s: float) -> object:
        state = odd.kind if odd.kind in ("gone", "stopped") else "runs"
        return self.incidents.process(odd, self._where(odd.rank, state), lasts, ago_s)

    def _where(self, rank: int, state: str) -> Whereabouts:
        from lanterne.failslow.record.whereabouts import Whereabouts

        return Whereabouts(rank, self._host, self._view.processes[rank], state, (), None)


def print_ranks(found: Sequence[dict[str, Any]], incidents: int) -> None:
    """The table of the ranks as they were seen last."""
    print(f"# lanterne watch: not recorded; {format_count(len(found), 'rank')} on this host", file=sys.stderr)
    print(f"# {format_count(incidents, 'incident')}" if incidents else "no incident", file=sys.stderr)
    rows = [
        [
            one["rank"], one["pid"], one["state"], "-" if one["cores"] is None else f"{one['cores']:.2f}",
            one["waits"] or "-", one["odd"] or "",
        ]
        for one in found
    ]  # fmt: skip
    columns = [("rank", ""), ("pid", ""), ("state", ""), ("cores", "used"), ("waits in", ""), ("", "")]
    report.print_table(columns, rows, file=sys.stderr)
