"""Incidents as files: one versioned JSON document each, rewritten when more is known of it.

Schema 1: `schema_version`, `kind` ("hang", "slow", or "process", of a job that is not recorded), `id`, `time` (UTC, ISO
8601), `lasts`, `text`, `job` (`program`, `host`, `run`, `began`), `call` (of a hang: `name`, `number`, `communicator`,
`nbytes`, `came`, `unknown`, `wait_s`), `iterations` (of a slow spell: `onset`, `relief`, `ratio`), `ranks` (of those to
look at: `rank`, `host`, `pid`, `gpu`, `nic`, `state`, `frames`: file, line and function, the innermost first),
`evidence` and `telemetry` (texts: what calls show, and what the hosts tell of themselves), `remedy`. More keys may be
added.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lanterne.failslow.record.bounds import KEPT, OPEN
from lanterne.failslow.record.hangs import Hang
from lanterne.failslow.record.whereabouts import Whereabouts

SCHEMA_VERSION = 1
# By the state of the rank that has not come; and by the kind of what happened, where that says nothing.
REMEDIES = {
    "silent": "see whether the rank was started, and what its own output says: it made no call that is recorded",
    "ended": "see why the rank's program ended before others had made their calls: its steps, or its data, differ",
    "gone": "the rank has died (out of memory? see its host's kernel log): restart the job from its last checkpoint",
    "stopped": "let it go on (kill -CONT), or end the job",
    "unresponsive": "see its host: a stuck driver or file system, or no processor time; drain the host if it stays so",
    "runs": "see what the line does that the rank is at: a lock, a file, data that does not come",
    "stuck": "see its host: a disk, a file system of a network or a driver does not answer (kernel log); drain it",
    "idle": "see what it waits for (py-spy dump --pid): data, a file, a lock, a host without processor time",
    "busy": "see what it computes (py-spy dump --pid), and test its host beside others (`lanterne validate`)",
    "elsewhere": "see what it waits for (py-spy dump --pid): a lock, a file, data, or its own sleep",
    "order": "make all ranks call the same collectives in the same order: the lines named differ",
    "call": "test the links between these ranks (`lanterne validate`), and see the network's counters",
    "rank": "test the rank's host beside others (`lanterne validate`), take it out or give it less work (`rebalance`)",
    "calls": "test the links (`lanterne validate`); take the slow one out of the busiest group",
    "host": "see what else runs on the hosts of the ranks (top), and whether these have cores of their own (taskset)",
    "outside": "see the rank's own output and its host's kernel log; `lanterne locate` reads what it has dumped",
    "unknown": "record all ranks (`--folder` on a shared one), or trace some steps (`lanterne locate`)",
}

log: logging.Logger = logging.getLogger(__name__)


class IncidentLog:
    """Writes incidents into `folder`, which is made with the first; None: they are only counted.

    Args:
        job: what names the job, of job_ledger.about_run.
        where: tells where a rank is.
        troubles: tells what telemetry of `hosts` (none: all) speaks for trouble, beside that of so many seconds ago.

    What fails, a file or telemetry, is logged once for each reason; the documents are here all the same.

    Attributes: `counts`, of incidents by kind; `documents`, the latest by id.
    """

    def __init__(
        self,
        folder: str | Path | None,
        job: Mapping[str, Any],
        where: Callable[[int], Whereabouts],
        troubles: Callable[[Sequence[str], float], list[str]] = lambda hosts, ago_s: [],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.documents: dict[str, dict[str, Any]] = {}
        self._troubles = troubles
        self._folder = None if folder is None else Path(folder)
        self._job = dict(job)
        self._where = where
        # Why files could not be written, or telemetry not be asked: what is logged already.
        self._warned: set[str] = set()
        # (kind, what it is of) -> (id, time) of those that may be said more of.
        self._ids: dict[tuple[str, Any], tuple[str, str]] = {}

    @property
    def count(self) -> int:
        """Incidents of all kinds."""
        return self.counts.total()

    def hang(self, hang: Hang) -> Path | None:
        """Write a Hang that is an incident; its file."""
        state = hang.culprits[0].state if hang.culprits else "unknown"
        call = {"name": hang.name, "number": hang.number, "communicator": hang.communicator, "nbytes": hang.nbytes}
        about = {
            "lasts": hang.ended_after_s is None,
            "call": call | {"came": list(hang.came), "unknown": hang.unknown, "wait_s": hang.wait_s},
            "ranks": [one.record() for one in hang.culprits],
            "evidence": [f"rank {one.rank}: {one}" for one in hang.culprits] or [hang.text],
            "remedy": REMEDIES[hang.kind if hang.kind == "order" or not hang.culprits else state],
        }
        return self._write("hang", (hang.communicator, hang.number), hang.story, about, hang.wait_s)

    def slow(self, incident: Mapping[str, Any], ago_s: float = 0.0) -> Path | None:
        """Write a slow spell of JobLog.incidents() that began `ago_s` ago, or what has become of it; its file."""
        causes = incident["causes"]
        iterations = {name: incident[name] for name in ("onset", "relief", "ratio")}
        evidence = [cause["evidence"] for cause in causes]
        if (known := self._ids.get(("slow", incident["onset"]))) is not None and not incident["lasts"]:
            told = self.documents.get(known[0])
            if told is None or (told["iterations"], told["evidence"]) == (iterations, evidence):
                # Nothing is new of one that is over.
                return None if self._folder is None else self._folder / f"{known[0]}.json"
        named = dict.fromkeys(rank for cause in causes for rank in cause["ranks"])
        lasts = "lasts" if incident["lasts"] else f"ended at {incident['relief']}"
        text = f"slow since iteration {incident['onset']}, {lasts}: {incident['ratio']:.2f} times the usual time"
        about = {
            "lasts": incident["lasts"],
            "iterations": iterations,
            "ranks": [self._where(rank).record() for rank in named],
            "evidence": evidence,
            "remedy": REMEDIES.get(causes[-1]["kind"], REMEDIES["unknown"]),
        }
        return self._write("slow", incident["onset"], text, about, ago_s)

    def process(
        self, key: object, kind: str, text: str, ranks: Sequence[Whereabouts], ago_s: float, *, lasts: bool
    ) -> Path | None:
        """Write that ranks of a job that is not recorded are in trouble, or are so no more; return the file.

        Args:
            kind: of REMEDIES.
        """
        records = [where.record() for where in ranks]
        about = {"lasts": lasts, "ranks": records, "evidence": [text], "remedy": REMEDIES[kind]}
        return self._write("process", key, text, about, ago_s)

    def update(self, kind: str, key: object, text: str, about: Mapping[str, Any], ago_s: float = 0.0) -> dict[str, Any]:
        """Return the document of the incident `key`, as it is known now: `about` has what is of its kind."""
        if (kind, key) not in self._ids:
            self.counts[kind] += 1
            now = time.gmtime()
            name = f"{time.strftime('%Y%m%dT%H%M%SZ', now)}-{os.getpid()}-{kind}-{self.count}"
            self._ids[kind, key] = name, time.strftime("%Y-%m-%dT%H:%M:%SZ", now)
            if len(self._ids) > OPEN:
                del self._ids[next(iter(self._ids))]
        name, began = self._ids[kind, key]
        document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "kind": kind, "id": name, "time": began}
        document |= {"text": text, "job": self._job, **about}
        # What the hosts told while it lasted: at its end all may be well.
        told = self.documents.get(name, {}).get("telemetry", [])
        if document["lasts"]:
            hosts = [one["host"] for one in document["ranks"] if one["host"]]
            told = self._ask(list(dict.fromkeys(hosts)), ago_s) or told
        document["telemetry"] = told
        self.documents[name] = document
        if len(self.documents) > KEPT:
            del self.documents[next(iter(self.documents))]
        return document

    def _write(self, kind: str, key: object, text: str, about: Mapping[str, Any], ago_s: float) -> Path | None:
        document = self.update(kind, key, text, about, ago_s)
        if self._folder is None:
            return None
        path = self._folder / f"{document['id']}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".new")
            partial.write_text(json.dumps(document, indent=1) + "\n")
            partial.replace(path)
        except OSError as error:
            self._warn(f"cannot be written: {error.strerror}", str(path))
            return None
        return path

    def _ask(self, hosts: Sequence[str], ago_s: float) -> list[str]:
        """What `troubles` tells; nothing where it fails, since hosts write what they like: the incident counts more."""
        try:
            return self._troubles(hosts, ago_s)
        except Exception as error:
            self._warn(f"telemetry cannot be judged: {type(error).__name__}", str(error))
            return []

    def _warn(self, why: str, of: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            log.warning("incidents: %s (%s)", why, of)
