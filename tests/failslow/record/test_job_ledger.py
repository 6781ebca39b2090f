"""What a ledger keeps of a job: its status, its incidents with telemetry, what it hands on, thresholds that change."""

import json
import os
import socket
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from call_logs import job_calls, write_logs
from statuses import HOST, PROGRAM, ledger_of

from lanterne.failslow.detect.events import LevelEvent
from lanterne.failslow.operate.publisher import Pace, Publisher
from lanterne.failslow.operate.thresholds import ThresholdFile, Thresholds
from lanterne.failslow.record import recorder
from lanterne.failslow.record.bounds import KEPT
from lanterne.failslow.record.call_ring import RingReader
from lanterne.failslow.record.incidents import IncidentLog
from lanterne.failslow.record.iteration_log import Notice
from lanterne.failslow.record.job_ledger import JobLedger, about_run
from lanterne.failslow.record.job_log import JobLog
from lanterne.failslow.record.recorder import Recorder


def test_the_status_of_a_slow_job(tmp_path):
    status = ledger_of(tmp_path).status()
    assert json.loads(json.dumps(status)) == status
    times = status["iterations"]
    assert times["slow"] and times["recent"][-1][1] == times["last_s"] and times["median_s"] > 2 * times["usual_s"]
    # Until it is known what an iteration is, some are timed twice.
    assert times["total_s"] == pytest.approx(sum(value for _, value in times["recent"]), rel=0.05)
    late = {one["rank"]: one["late_s"] for one in status["late"]}
    assert max(late, key=late.get) == 3 and late[3] > 5e-3 and max(v for k, v in late.items() if k != 3) < 1e-3
    (incident,) = status["incidents"]
    assert incident["lasts"] and status["counts"] == {"slow": 1}
    assert [(one["rank"], one["host"]) for one in incident["ranks"]] == [(3, "h")]
    # While it runs nothing is said of its end.
    assert not any("end" in note for note in status["notes"])
    assert (status["ended"], status["ranks"], status["reported"]) == (False, 8, 8)
    assert status["telemetry"]["h"]["pressure"] == {"cpu": 0.4}


def test_incidents_have_what_the_hosts_of_the_late_ranks_tell(tmp_path):
    (incident,) = ledger_of(tmp_path).status()["incidents"]
    assert incident["telemetry"] == [
        "h: work waits for cpu in 40% of the time",
        "h: GPU 0 (GPU-1) is throttled: heat (hardware); 990 MHz, 91 degrees",
    ]
    (written,) = (tmp_path / "incidents").glob("*-slow-1.json")
    assert json.loads(written.read_text()) == incident
    assert ledger_of(tmp_path / "silent", tell_host=False).status()["incidents"][0]["telemetry"] == []


def test_what_a_host_told_in_health_is_what_it_is_compared_with(tmp_path, monkeypatch):
    ledger = ledger_of(tmp_path, 40)
    worse = HOST | {"nics": {"eth0": {"state": "up", "errors": 9, "rx_bytes": 8}}, "gpus": []}
    (tmp_path / "host-h.telemetry").write_text(json.dumps(worse))
    (tmp_path / "host-i.telemetry").write_text('{"host": "i", "nics"')  # half of one
    ledger.look()
    assert ledger.troubles(["h"], 0.0) == ["h: eth0: 6 more errors and drops"]
    assert ledger.troubles(["h"], 99.0) == ["h: work waits for cpu in 40% of the time"]
    now_s = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now_s + 100.0)
    ledger._hosts["h"][0] = (now_s - 50.0, ledger._hosts["h"][0][1])
    assert ledger.troubles([], 120.0) == ["h: eth0: 6 more errors and drops"]


@dataclass
class SlowJob:
    """Stands for a JobLog that has found a slow spell from iteration 10 on; an iteration takes 1 s."""

    folder: Path
    kinds: list[str]
    now: int = 10
    relief: int | None = None
    thresholds: Thresholds = field(default_factory=lambda: Thresholds(busy_s=60.0))
    lock: Any = field(default_factory=threading.RLock)
    where: Any = None

    def age_s(self, index):
        return float(self.now - index)

    def incidents(self):
        causes = [{"kind": kind, "ranks": [], "evidence": kind} for kind in self.kinds]
        lasts = self.relief is None
        return [{"onset": 10, "relief": self.relief, "ratio": 1.4, "lasts": lasts, "causes": causes}]


def certain(index):
    event = LevelEvent("onset", index, 1.4, index, index)
    return Notice(event, "", None)


def test_a_busy_host_is_an_incident_only_once_it_has_lasted(tmp_path):
    job = SlowJob(tmp_path, ["host"])
    ledger = JobLedger(job, about_run(PROGRAM), tmp_path / "incidents")
    assert ledger.notice(certain(10)) == [] and ledger.look() == [] and ledger.incidents.count == 0
    job.now = 69
    assert ledger.look() == []
    job.now = 70
    (written,) = ledger.look()
    assert json.loads(written.read_text())["evidence"] == ["host"] and ledger.look() == []
    job.relief = 90
    assert ledger.notice(certain(90)) == [written] and not json.loads(written.read_text())["lasts"]


def test_what_is_no_incident_has_no_file_beside_one_that_was(tmp_path):
    job = SlowJob(tmp_path, ["rank"], now=20)
    ledger = JobLedger(job, about_run(PROGRAM), tmp_path / "incidents")
    assert len(ledger.notice(certain(10))) == 1
    before, job.kinds, job.now = job.incidents(), ["host"], 50
    busy = job.incidents()[0] | {"onset": 40}
    job.incidents = lambda: [*before, busy]
    assert ledger.notice(certain(40)) == [] and ledger.incidents.count == 1


def test_a_busy_host_that_is_soon_over_is_no_incident(tmp_path):
    job = SlowJob(tmp_path, ["host"], now=65, relief=60)
    ledger = JobLedger(job, about_run(PROGRAM), tmp_path / "incidents")
    ledger.notice(certain(60))
    job.now = 300
    assert ledger.look() == [] and ledger.incidents.count == 0
    ledger.finish({"incidents": job.incidents()})
    assert ledger.incidents.count == 0


@pytest.mark.parametrize("kinds", [["rank"], ["host", "rank"], ["calls", "host"], ["unknown"]])
def test_what_is_not_the_hosts_alone_is_an_incident_at_once(tmp_path, kinds):
    ledger = JobLedger(SlowJob(tmp_path, kinds), about_run(PROGRAM), None)
    ledger.notice(certain(10))
    assert ledger.incidents.count == 1


def test_thresholds_change_while_it_is_read(tmp_path):
    path = tmp_path / "thresholds.json"
    path.write_text('{"slow_ratio": 9}')
    ledger = ledger_of(tmp_path / "job", thresholds=ThresholdFile(path, Thresholds()))
    assert ledger.incidents.count == 0 and ledger.status()["thresholds"]["slow_ratio"] == 9
    path.write_text('{"slow_ratio": 1.1, "patience_s": 3}')
    ledger.look()
    assert ledger._job.thresholds == Thresholds(patience_s=3.0, slow_ratio=1.1)
    ledger.finish(ledger._job.report())
    assert ledger.incidents.count == 1


def test_a_status_is_made_when_somebody_asks(tmp_path, caplog):
    publisher = Publisher(listen="127.0.0.1:0")
    ledger = ledger_of(tmp_path / "job", publisher=publisher)
    asked = []

    def make():
        asked.append(threading.current_thread())
        if len(asked) > 1:
            raise ValueError("a log was cut short")
        return ledger.status()

    def shown():
        with urllib.request.urlopen(f"{publisher.server.url}status.json", timeout=20) as answer:
            return json.loads(answer.read())["jobs"][0]

    publisher._pace = Pace(3600.0)
    publisher.offer(make)
    publisher.look()
    assert not asked
    # Not in the reader's thread, and not twice within a moment.
    first = shown()
    assert first["iterations"]["slow"] and first == shown()
    assert len(asked) == 1 and asked[0] is not threading.current_thread()
    # What cannot be made any more is not asked for again, and the last word stays.
    publisher._pace = Pace(0.0)
    assert shown() == shown() == first and len(asked) == 2
    assert caplog.text.count("it could not be made") == 1
    publisher.publish(ledger.status(ended=True))
    assert shown()["ended"]
    publisher.close()


def test_a_disk_that_is_full_ends_no_job(tmp_path):
    write_logs(tmp_path, job_calls(2, 20))
    publisher = Publisher(file=tmp_path / "none" / "status.json")
    JobLedger(JobLog(tmp_path, 2), about_run(["x"]), None, publisher=publisher).look()
    publisher.close()


def test_one_process_of_a_host_tells_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "BEAT_S", 0.01)
    both = [Recorder(tmp_path), Recorder(tmp_path)]
    for rank, one in enumerate(both):
        one.channel(rank, "all_reduce", 2, 0)(8, 1.0, 2.0)
    path = tmp_path / f"host-{socket.gethostname()}.telemetry"
    deadline_s = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    told = json.loads(path.read_text())
    for one in both:
        one.end()
    assert told["host"] == socket.gethostname() and "absent" in told
    assert len(list(tmp_path.glob("host-*.owner"))) == 1
    header = RingReader(next(tmp_path.glob("rank-1-*.calls"))).header
    assert {"gpu", "nic"} <= set(header)


SPELL = {"onset": 40, "relief": None, "ratio": 2.0, "lasts": True}
SPELL["causes"] = [{"kind": "calls", "evidence": "long", "ranks": []}]


def test_an_incident_that_cannot_be_written_is_kept_and_said_once(tmp_path, caplog):
    def fail(hosts, ago_s):
        raise KeyError("mhz")

    (tmp_path / "incidents").write_text("a file")
    log = IncidentLog(tmp_path / "incidents", {"program": "x"}, lambda rank: None, fail)
    assert log.slow(SPELL) is None and log.slow(SPELL | {"onset": 90}) is None
    assert [one["telemetry"] for one in log.documents.values()] == [[], []] and log.counts == {"slow": 2}
    assert caplog.text.count("cannot be written: File exists") == caplog.text.count("telemetry cannot be judged") == 1


def test_what_is_over_is_written_once_and_counted_once(tmp_path):
    log = IncidentLog(tmp_path / "incidents", {"program": "x"}, lambda rank: None)
    spell = SPELL
    path = log.slow(spell)
    over = spell | {"relief": 60, "lasts": False}
    assert log.slow(over) == path and json.loads(path.read_text())["iterations"]["relief"] == 60
    path.write_text("as it is")
    assert log.slow(over) == path and path.read_text() == "as it is"
    # It goes on after all.
    assert log.slow(spell) == path and json.loads(path.read_text())["lasts"]
    for onset in range(100, 100 + KEPT):
        log.slow(over | {"onset": onset})
    assert log.slow(over) == path and log.counts == {"slow": 1 + KEPT}


def test_who_tells_of_a_host_is_followed_once_its_process_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "TELEMETRY_S", 0.01)
    (tmp_path / f"host-{socket.gethostname()}.owner").write_text(json.dumps([2**22 + 1, 1]))
    one = Recorder(tmp_path)
    one.channel(0, "all_reduce", 2, 0)(8, 1.0, 2.0)
    path = tmp_path / f"host-{socket.gethostname()}.telemetry"
    deadline_s = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    one.end()
    assert path.exists()
    (owner,) = tmp_path.glob("host-*.owner*")
    assert json.loads(owner.read_text())[0] == os.getpid()
