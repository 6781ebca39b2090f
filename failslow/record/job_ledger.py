"""What has become of a job up to now, for operators: its incidents, what its hosts tell, and its status.

A status is one document (schema 1), of which metrics and the page are made: `run`, `program`, `host`, `began`, `time`,
`ended`, `ranks`, `reported`, `iterations` (`count`, `total_s`, `last_s`, `median_s`, `usual_s`, `ratio`, `slow`,
`recent`: [index, seconds]), `late` (by rank: `host`, `late_s` in an iteration, `last`, `waited_s`), `counts` and
`incidents` (incidents.py), `telemetry` by host, `thresholds`, `notes`, and where it is known `saved_s`, `begun_early`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanterne.failslow.operate.history import History, incident_entries, job_entry
from lanterne.failslow.operate.publisher import Publisher
from lanterne.failslow.operate.telemetry import changes
from lanterne.failslow.operate.thresholds import ThresholdFile
from lanterne.failslow.record.incidents import IncidentLog

if TYPE_CHECKING:
    from lanterne.failslow.record.hangs import Hang
    from lanterne.failslow.record.iteration_log import Notice
    from lanterne.failslow.record.job_log import JobLog

SCHEMA_VERSION = 1


READINGS = 360  # chosen: an hour
MAX_HOSTS_OF_CALLS = 16  # chosen: memory of an incident


def about_run(program: Sequence[str]) -> dict[str, Any]:
    """What names a job in its incidents and status: `run`, a name that no other job has, `program`, `host`, `began`."""
    host = socket.gethostname()
    return {"run": f"{host}-{os.getpid()}-{int(time.time())}", "program": list(program), "host": host, "began": utc()}


def utc() -> str:
    """Now, UTC, as ISO 8601 has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class JobLedger:
    """Keeps it.

    Args:
        job: the JobLog that is read; its reader calls `notice`, `hang` and `finish`, and `look` every second, while any
            thread may call `status`.
        about: of about_run.
        folder: where incidents are written; None: nowhere.
        history: where they are kept by host; None: nowhere.
        thresholds: a file of thresholds that may change; None: those of `job` stay.
        publisher: is offered the status; None: nobody asks for it.
        begun_early: tells how many calls began without the late rank; None where nobody knows.

    Attributes: `incidents`, the IncidentLog.
    """

    def __init__(
        self,
        job: JobLog,
        about: dict[str, Any],
        folder: str | Path | None,
        *,
        history: History | None = None,
        thresholds: ThresholdFile | None = None,
        publisher: Publisher | None = None,
        begun_early: Callable[[], int] | None = None,
    ) -> None:
        self._job, self._about = job, about
        self._history = history
        self._thresholds = thresholds
        self._publisher = publisher
        self._begun_early = begun_early
        self._hosts: dict[str, deque[tuple[float, dict[str, Any]]]] = {}
        self._stamps: dict[Path, int] = {}
        # Incidents whose beginning, and whose end, the history has.
        self._kept: set[tuple[str, bool]] = set()
        # Whether a slow spell lasts that is no incident yet.
        self._spell_lasts = False
        self.incidents: IncidentLog = IncidentLog(folder, about, job.where, self.troubles)
        if thresholds is not None:
            job.thresholds = thresholds.now
        if publisher is not None:
            publisher.offer(self.status)

    def notice(self, notice: Notice) -> list[Path]:
        """If it is certain, write what has become of the slow spells; the last one's file."""
        if notice.event.confirmed_at is None:
            return []
        with self._job.lock:
            written = self._slow(self._job.incidents())
        self._keep()
        return written

    def hang(self, hang: Hang) -> list[Path]:
        """If it is an incident, write it; its file."""
        with self._job.lock:
            found = self.incidents.hang(hang) if hang.is_incident else None
        self._keep()
        return [found] if found else []

    def finish(self, found: dict[str, Any]) -> None:
        """Write what is known at the end."""
        with self._job.lock:
            self._slow(found["incidents"])
        self._keep()
        if self._publisher is not None:
            self._publisher.publish(self.status(ended=True))
        if self._history is not None:
            hosts = {one["host"] for one in found["arrivals"]["ranks"] if one["host"]}
            self._history.add([job_entry(self._about["run"], hosts or [self._about["host"]], time.time())])

    def look(self) -> list[Path]:
        """Read what hosts tell and whether thresholds have changed; about every second.

        What is told already, and has lasted for long enough by now, becomes an incident: its file.
        """
        count, written = self.incidents.count, []
        with self._job.lock:
            self._read_hosts()
            if self._spell_lasts:
                written = self._slow(self._job.incidents())
        if self.incidents.count > count:
            self._keep()
        if self._thresholds is not None and (changed := self._thresholds.look()) is not None:
            self._job.thresholds = changed
        if self._publisher is not None:
            self._publisher.look()
        return written if self.incidents.count > count else []

    def status(self, *, ended: bool = False) -> dict[str, Any]:
        """The status document."""
        early = {} if self._begun_early is None else {"begun_early": self._begun_early()}
        about = {"schema_version": SCHEMA_VERSION, **self._about, "program": " ".join(self._about["program"])}
        with self._job.lock:
            return {
                **about,
                "time": utc(),
                "ended": ended,
                **self._job.status(),
                "counts": dict(self.incidents.counts),
                "incidents": list(self.incidents.documents.values()),
                "telemetry": {host: told[-1][1] for host, told in self._hosts.items()},
                **early,
            }

    def troubles(self, hosts: Sequence[str], ago_s: float) -> list[str]:
        """What telemetry speaks for trouble, against that of `ago_s` ago; `hosts`: those to look at, none: all."""
        found = []
        chosen = hosts or list(self._hosts)[:MAX_HOSTS_OF_CALLS]
        for host in chosen:
            if told := self._hosts.get(host):
                earlier = list(told)[:-1]
                before = [reading for at_s, reading in earlier if at_s <= time.monotonic() - ago_s]
                found += [f"{host}: {text}" for text in changes(before[-1] if before else None, told[-1][1])]
        return found

    def _slow(self, spells: Sequence[dict[str, Any]]) -> list[Path]:
        """Write those that are incidents; the file of the last spell, where it is one."""
        file: Path | None = None
        self._spell_lasts = False
        for spell in spells:
            is_incident = self._is_incident(spell)
            self._spell_lasts |= spell["lasts"] and not is_incident
            file = self.incidents.slow(spell, self._job.age_s(spell["onset"])) if is_incident else None
        return [] if file is None else [file]

    def _is_incident(self, spell: Mapping[str, Any]) -> bool:
        """Whether a slow spell is slow enough for one and, where other work has the cores, lasts for long enough.

        That the cores are shared is no fault of the job, of a rank or of a link, and mostly soon over.
        """
        thresholds = self._job.thresholds
        if spell["ratio"] < thresholds.slow_ratio:
            return False
        if any(cause["kind"] != "host" for cause in spell["causes"]):
            return True
        since_end_s = 0.0 if spell["lasts"] else self._job.age_s(spell["relief"])
        return self._job.age_s(spell["onset"]) - since_end_s >= thresholds.busy_s

    def _keep(self) -> None:
        """Tell the history of incidents that have begun, or ended."""
        if self._history is None:
            return
        entries = []
        for incident in self.incidents.documents.values():
            key = incident["id"], incident["lasts"]
            if key not in self._kept:
                self._kept.add(key)
                entries += incident_entries(incident, time.time())
        if entries:
            self._history.add(entries)
            known = self.incidents.documents
            self._kept = {(name, lasts) for name, lasts in self._kept if name in known}

    def _read_hosts(self) -> None:
        # Half of one is none, and the next comes soon.
        with suppress(OSError), os.scandir(self._job.folder) as entries:
            for entry in entries:
                if entry.name.startswith("host-") and entry.name.endswith(".telemetry"):
                    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
                        self._read_host(Path(entry.path), entry.stat().st_mtime_ns)

    def _read_host(self, path: Path, stamp: int) -> None:
        if self._stamps.get(path) != stamp:
            told = json.loads(path.read_bytes())
            self._stamps[path] = stamp
            kept = self._hosts.setdefault(str(told.pop("host")), deque(maxlen=READINGS))
            kept.append((time.monotonic(), told))
