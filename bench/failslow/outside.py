"""Watch a job that was not started with `lanterne watch`, by what its host shows of its processes."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from lanterne.bench.output import report
from lanterne.bench.output.units import format_count, format_time, parse_time_s
from lanterne.errors import InputError
from lanterne.failslow.operate.thresholds import Thresholds
from lanterne.failslow.record.recorder import RANK_VARIABLES
from lanterne.transport.job.launch import lives

if TYPE_CHECKING:
    from lanterne.failslow.record.incidents import IncidentLog
    from lanterne.failslow.record.outside_view import OutsideView
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


class Trouble(NamedTuple):
    """Trouble of a rank: its `kind`, of REMEDIES; `text`, which names the rank; `is_final`: no waiting mends it."""

    kind: str
    text: str
    is_final: bool


class _Known(NamedTuple):
    """A Trouble since `since_s`, and whether it was reported, and as an incident."""

    trouble: Trouble
    since_s: float
    is_said: bool
    is_incident: bool


class TroubleTeller:
    """Reports troubles of ranks that are not recorded on standard error, and writes incidents.

    A trouble is an incident at once where it is final, else after `patience_s`. It is reported after `status_s`.

    Args:
        where: returns the Whereabouts of the ranks that a key stands for, in trouble of a kind.
    """

    def __init__(
        self,
        incidents: IncidentLog,
        where: Callable[[int | str, str], Sequence[Whereabouts]],
        patience_s: float,
        status_s: float = 0.0,
    ) -> None:
        self._incidents = incidents
        self._where = where
        self._patience_s, self._status_s = patience_s, status_s
        # By rank, or by the name of a process of unknown rank.
        self._known: dict[int | str, _Known] = {}

    @property
    def reported(self) -> dict[int | str, str]:
        """The troubles that were reported and last, in words."""
        return {who: known.trouble.text for who, known in self._known.items() if known.is_said}

    def look(self, found: Mapping[int | str, Trouble], now_s: float) -> None:
        """Report what is new in the troubles `found` now."""
        for who, trouble in found.items():
            before = self._known.get(who)
            if before is not None and before.trouble.kind != trouble.kind:
                self._end(who, before, now_s)
                before = None
            since_s = now_s if before is None else before.since_s
            age_s = now_s - since_s
            is_incident = trouble.is_final or age_s >= self._patience_s
            self._known[who] = now = _Known(trouble, since_s, is_incident or age_s >= self._status_s, is_incident)
            if now.is_said and (before is None or now[2:] != before[2:]):
                file = self._write(who, now, now_s, lasts=True) if is_incident else None
                lasts = f" for {format_time(age_s)}" if age_s else ""
                written = f"; written to {file}" if file else ""
                say(f"{'INCIDENT' if is_incident else 'odd'}{lasts}: {trouble.text}{written}")
        for who in self._known.keys() - found.keys():
            known = self._known.pop(who)
            self._end(who, known, now_s)
            if known.is_said:
                say(f"{name_of(who)}: as it should be again, after {format_time(now_s - known.since_s)}")

    def _end(self, who: int | str, known: _Known, now_s: float) -> None:
        if known.is_incident:
            self._write(who, known, now_s, lasts=False)

    def _write(self, who: int | str, known: _Known, now_s: float, *, lasts: bool) -> object:
        kind, text, _ = known.trouble
        ranks, ago_s = self._where(who, kind), now_s - known.since_s
        return self._incidents.process((who, known.since_s), kind, text, ranks, ago_s, lasts=lasts)


def name_of(who: int | str) -> str:
    """Return a rank, or a process of unknown rank, in words."""
    return f"rank {who}" if isinstance(who, int) else who


class OddTeller:
    """Reports which ranks of `view` are odd, as a TroubleTeller.

    Attributes: `incidents`, the IncidentLog.
    """

    def __init__(self, view: OutsideView, folder: str, command: list[str], patience_s: float) -> None:
        from lanterne.failslow.record.incidents import IncidentLog
        from lanterne.failslow.record.job_ledger import about_run

        self._view = view
        self._host = socket.gethostname()
        self.incidents: IncidentLog = IncidentLog(
            None if folder == "none" else folder, about_run(command), lambda rank: self._where(rank, "runs")[0]
        )
        self._teller = TroubleTeller(self.incidents, self._where, patience_s, Thresholds.status_s)

    def look(self, now_s: float) -> None:
        """Look, and report what is new."""
        self._view.look(now_s)
        odd: dict[int | str, Trouble] = {
            rank: Trouble(one.kind, one.text, one.kind == "stopped") for rank, one in self._view.odd.items()
        }
        self._teller.look(odd, now_s)

    def _where(self, rank: int | str, kind: str) -> Sequence[Whereabouts]:
        from lanterne.failslow.record.whereabouts import Whereabouts

        assert isinstance(rank, int)
        state = kind if kind in ("gone", "stopped") else "runs"
        return (Whereabouts(rank, self._host, self._view.processes[rank], state, (), None),)


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
