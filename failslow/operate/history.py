"""What happened on which host, across jobs: kept in a file, and whether a host is bad or had a bad hour.

An entry is a JSON object: `schema_version`, `what` ("job": it has ended, on `hosts`; "incident": of one host; "sweep"
of one: admission.py; "probe": census.py), `time_s` of the Unix clock, `job`, and of an incident `id`, `host`, `kind`,
`ratio` or `wait_s`, `ranks`, `gpus`, `nics`, `text`. More keys may be added. Of several entries of one incident and
host the latest counts.
"""

import fcntl
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from lanterne.errors import InputError, shown

SCHEMA_VERSION = 1
# A longer line is no entry.
MAX_ENTRY_NBYTES = 1 << 16
# A time beyond the year 9999, such as one in ms or ns, is none.
END_S = 253_402_300_800.0
# How long to wait for others that hold a history's file, and until the next try: whoever waits reads a job's calls.
LOCK_S, TRY_S = 2.0, 0.01
# A host is bad if it was named in so many jobs, and in this share of those it took part in.
CHRONIC_JOBS, CHRONIC_SHARE = 3, 0.25
# It had a bad time if so many incidents of it, all that there are, lie within so long.
BURST_INCIDENTS, BURST_S = 3, 3600.0

log: logging.Logger = logging.getLogger(__name__)


class History(Protocol):
    """Keeps entries."""

    def add(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Keep them. What cannot be kept is logged, once: a job goes on."""

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """All entries, the oldest first, and how many lines could not be used."""
        ...


def open_history(where: str) -> History:
    """Return the History at `where`: a file of JSON lines, which the first entry makes, or a folder of incidents.

    Raises:
        InputError: no such place.
    """
    if where.startswith(("redis://", "rediss://")):
        raise InputError("history: got a Redis, which keeps none any more, expected a file that the jobs share")
    if Path(where).is_dir():
        return IncidentFolder(where)
    return FileHistory(where)


def open_to_add(where: str, option: str) -> History:
    """Return the History at `where`, to which entries are to be added; `option` names it in errors.

    Raises:
        InputError: also of a folder, whose incidents can only be read.
    """
    if Path(where).is_dir():
        raise InputError(f"{option}: got {shown(where)}, a folder, expected a file")
    return open_history(where)


class FileHistory:
    """A file of JSON lines that several jobs append to."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._failed = False
        if not self._path.absolute().parent.is_dir():
            raise InputError(f"history: got {str(path)!r}, whose folder does not exist")

    def add(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """As History."""
        data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        try:
            # Of several jobs, also over NFS: whole lines.
            with open(self._path, "a+b") as file:
                _lock(file)
                # Who died while writing has left half a line, which must not swallow this one.
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    data = data if file.read(1) == b"\n" else b"\n" + data
                file.write(data)
        except OSError as error:
            if not self._failed:
                log.warning("history: cannot write %s: %s", self._path, error.strerror)
            self._failed = True

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """As History."""
        try:
            with open(self._path, "rb") as file:
                return parse_entries(file)
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise InputError(f"history: cannot read {self._path}: {error.strerror}") from None


def _lock(file: IO[bytes]) -> None:
    """Lock it, or raise BlockingIOError (PermissionError on some systems) where others hold it for LOCK_S."""
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= until_s:
                raise
        time.sleep(TRY_S)


class IncidentFolder:
    """The incidents of jobs in a folder, as `watch` writes them; nothing is added here."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def add(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """The files are there already."""

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """As History; a file that is no incident is one that could not be used."""
        found, unused = [], 0
        for path in sorted(self._path.glob("*.json")):
            try:
                document = json.loads(path.read_bytes()[:MAX_ENTRY_NBYTES])
                entries = incident_entries(document, path.stat().st_mtime)
                for entry in entries:
                    _check_entry(entry)
                found += entries
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                unused += 1
        return sorted(found, key=lambda entry: entry["time_s"]), unused


def parse_entries(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    """The entries that JSON lines hold, by time, and how many lines were none."""
    found, unused = [], 0
    for line in lines:
        try:
            if len(line) > MAX_ENTRY_NBYTES:
                raise ValueError("too long")
            entry = json.loads(line)
            entry["time_s"] = float(entry["time_s"])
            _check_entry(entry)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            unused += bool(line.strip())
            continue
        found.append(entry)
    return sorted(found, key=lambda entry: entry["time_s"]), unused


def _check_entry(entry: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError if it is none that the functions below can use."""
    kinds: dict[str, dict[str, type]] = {
        "job": {"hosts": list},
        "incident": {"id": str, "host": str, "kind": str, "text": str},
        "sweep": {"host": str, "values": dict},
        "probe": {"hosts": list, "slow": dict},
    }
    for name, kind in {"job": str, **kinds[entry["what"]]}.items():
        if not isinstance(entry[name], kind):
            raise TypeError(name)
    for name in ("hosts", "gpus", "nics"):
        if not all(isinstance(one, str) for one in entry.get(name, ())):
            raise TypeError(name)
    if not 0.0 <= entry["time_s"] < END_S:
        raise ValueError("time_s")
    if entry["what"] == "probe":
        numbers = (entry["every_s"], *entry["slow"].values())
        if not entry["hosts"] or not all(type(one) in (int, float) and 0.0 <= one < END_S for one in numbers):
            raise ValueError("every_s, slow")


def incident_entries(incident: Mapping[str, Any], time_s: float) -> list[dict[str, Any]]:
    """The entries of an incident's document, one for each host that it names."""
    hosts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in incident["ranks"]:
        if one["host"]:
            hosts[one["host"]].append(one)
    about = {"schema_version": SCHEMA_VERSION, "what": "incident", "time_s": time_s}
    about |= {"job": incident["job"].get("run", ""), **{key: incident[key] for key in ("id", "kind", "text")}}
    if incident["kind"] == "slow":
        about["ratio"] = incident["iterations"]["ratio"]
    elif incident["kind"] == "hang":
        about["wait_s"] = incident["call"]["wait_s"]
    return [
        about
        | {"host": host, "ranks": [one["rank"] for one in ranks]}
        | {f"{key}s": sorted({one[key] for one in ranks if one.get(key)}) for key in ("gpu", "nic")}
        for host, ranks in hosts.items()
    ]


def job_entry(job: str, hosts: Iterable[str], time_s: float) -> dict[str, Any]:
    """The entry of a job that has ended."""
    about = {"schema_version": SCHEMA_VERSION, "what": "job", "time_s": time_s}
    return about | {"job": job, "hosts": sorted(set(hosts))}


@dataclass(frozen=True)
class HostPattern:
    """What a host's history says.

    Attributes: `pattern`: "chronic" (named in several jobs, and in a good part of its jobs), "burst" (several incidents
    within an hour, none else), "once" (one incident), or "some"; `incidents`, `named_in` (jobs), `jobs` it took part in
    as far as known; `first_s`, `last_s` of the Unix clock; `gpus`, `nics` that were named; `text` of the last incident.
    """

    host: str
    pattern: str
    incidents: int
    named_in: int
    jobs: int
    first_s: float
    last_s: float
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    text: str

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        return {**vars(self), "gpus": list(self.gpus), "nics": list(self.nics)}


def patterns(entries: Iterable[Mapping[str, Any]]) -> list[HostPattern]:
    """The HostPatterns of all hosts that were named, the worst first."""
    jobs: dict[str, set[str]] = defaultdict(set)
    latest: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    first_s: dict[tuple[str, str], float] = {}
    for entry in entries:
        if entry["what"] == "job":
            for host in entry["hosts"]:
                jobs[host].add(entry["job"])
        elif entry["what"] == "incident":
            jobs[entry["host"]].add(entry["job"])
            latest[entry["host"]][entry["id"]] = entry
            first_s.setdefault((entry["host"], entry["id"]), entry["time_s"])
    found = []
    for host, named in latest.items():
        times_s = sorted(first_s[host, key] for key in named)
        named_in = len({entry["job"] for entry in named.values()})
        pattern = _pattern(times_s, named_in, len(jobs[host]))
        parts = (tuple(sorted({p for one in named.values() for p in one.get(key, ())})) for key in ("gpus", "nics"))
        last = max(named.values(), key=lambda entry: entry["time_s"])
        gpus, nics = parts
        text = str(last.get("text", ""))
        found.append(
            HostPattern(host, pattern, len(named), named_in, len(jobs[host]), times_s[0], times_s[-1], gpus, nics, text)
        )
    order = ("chronic", "burst", "some", "once")
    return sorted(found, key=lambda one: (order.index(one.pattern), -one.incidents, one.host))


def _pattern(times_s: list[float], named_in: int, jobs: int) -> str:
    if named_in >= CHRONIC_JOBS and named_in >= CHRONIC_SHARE * jobs and times_s[-1] - times_s[0] > BURST_S:
        return "chronic"
    if len(times_s) == 1:
        return "once"
    if len(times_s) >= BURST_INCIDENTS and times_s[-1] - times_s[0] <= BURST_S:
        return "burst"
    return "some"


def told_patterns(history: History | None) -> list[dict[str, Any]]:
    """The HostPatterns of a history as documents; none where it cannot be read now."""
    try:
        return [] if history is None else [one.to_json() for one in patterns(history.read()[0])]
    except InputError as error:
        log.debug("%s", error)
        return []
