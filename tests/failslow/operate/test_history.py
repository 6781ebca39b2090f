"""Which host was named across jobs: patterns, what a file keeps, and entries that are none."""

import json
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statuses import ledger_of

from lanterne.errors import InputError
from lanterne.failslow.operate import history as history_module
from lanterne.failslow.operate import page
from lanterne.failslow.operate.history import (
    FileHistory,
    IncidentFolder,
    incident_entries,
    job_entry,
    open_history,
    open_to_add,
    parse_entries,
    patterns,
    told_patterns,
)
from lanterne.failslow.record.incidents import IncidentLog
from lanterne.failslow.record.whereabouts import Whereabouts

HOUR_S = 3600.0


def named(host, job, time_s, ident=None, **more):
    about = {
        "what": "incident",
        "kind": "slow",
        "id": ident or f"{job}-{time_s}",
        "host": host,
        "job": job,
        "time_s": time_s,
    }
    return about | {"gpus": [], "nics": [], "text": "slow"} | more


@pytest.mark.parametrize(
    ("entries", "pattern"),
    [
        ([named("h", "a", 0)], "once"),
        ([named("h", "a", 0), named("h", "b", 2 * HOUR_S)], "some"),
        ([named("h", "a", t) for t in (0, 60, 120)], "burst"),
        ([named("h", "a", t) for t in (0, 60, 2 * HOUR_S)], "some"),
        # Three jobs in an hour are one bad hour.
        ([named("h", job, t) for job, t in (("a", 0), ("b", 60), ("c", 120))], "burst"),
        ([named("h", job, t * HOUR_S) for job, t in (("a", 0), ("b", 9), ("c", 20))], "chronic"),
        # Of very many jobs three are few.
        (
            [named("h", job, t * HOUR_S) for job, t in (("a", 0), ("b", 9), ("c", 20))]
            + [job_entry(f"job {i}", ["h"], i) for i in range(10)],
            "some",
        ),
        # The same incident told of twice is one.
        ([named("h", "a", 0, "x"), named("h", "a", 5, "x")], "once"),
    ],
)
def test_patterns(entries, pattern):
    (found,) = patterns(entries)
    assert found.pattern == pattern


def test_the_worst_host_comes_first_and_jobs_without_incidents_count():
    entries = [job_entry(job, ["good", "bad", "other"], 0.0) for job in "abcd"]
    entries += [named("bad", job, i * HOUR_S, gpus=[str(i)], nics=["eth0"]) for i, job in enumerate("abc")]
    entries += [named("other", "a", 1.0)]
    bad, other = patterns(entries)
    assert (bad.host, bad.pattern, bad.named_in, bad.jobs, bad.incidents) == ("bad", "chronic", 3, 4, 3)
    assert (bad.gpus, bad.nics, bad.first_s, bad.last_s) == (("0", "1", "2"), ("eth0",), 0.0, 2 * HOUR_S)
    assert (other.host, other.pattern, other.jobs) == ("other", "once", 4)


def test_an_incident_has_an_entry_for_each_host_and_one_when_it_ends(tmp_path):
    history = FileHistory(tmp_path / "h.jsonl")
    ledger = ledger_of(tmp_path / "job", history=history)
    entries, unused = history.read()
    assert unused == 0 and [(one["host"], one["ranks"], one["kind"]) for one in entries] == [("h", [3], "slow")]
    ledger.finish(ledger._job.report())
    entries, _ = history.read()
    assert entries[-1]["what"] == "job" and entries[-1]["hosts"] == ["h"]
    assert told_patterns(history)[0]["incidents"] == 1
    # What was written as a file tells the same.
    ((incident,), unused) = IncidentFolder(tmp_path / "job" / "incidents").read()
    assert unused == 0 and {k: v for k, v in incident.items() if k != "time_s"} == {
        k: v for k, v in entries[0].items() if k != "time_s"
    }


def test_several_jobs_append_whole_lines(tmp_path):
    path = tmp_path / "h.jsonl"

    def job(name):
        for i in range(50):
            FileHistory(path).add([named("h" * 3000, name, float(i))] * 2)

    threads = [threading.Thread(target=job, args=(f"{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries, unused = FileHistory(path).read()
    assert (len(entries), unused) == (400, 0)


def test_who_holds_the_file_holds_no_job(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(history_module, "LOCK_S", 0.1)
    path = tmp_path / "h.jsonl"
    holds = (
        "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", holds, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline()
        FileHistory(path).add([named("h", "a", 0.0)])
        assert "cannot write" in caplog.text
        other.kill()
    FileHistory(path).add([named("h", "a", 1.0)])
    assert FileHistory(path).read() == ([named("h", "a", 1.0)], 0)


def test_half_a_line_swallows_no_other(tmp_path):
    path = tmp_path / "h.jsonl"
    path.write_text(json.dumps(named("h", "a", 0.0))[:-5])
    FileHistory(path).add([named("h", "a", 1.0)])
    FileHistory(path).add([named("h", "a", 2.0)])
    assert FileHistory(path).read() == ([named("h", "a", 1.0), named("h", "a", 2.0)], 1)
    assert path.read_bytes().count(b"\n") == 3


JUNK = (
    *(b"\xff\xfe", b"{", b"[]", b"{}", b"null", b'{"what": "job"}', b'{"what": "incident", "time_s": "x"}'),
    *(b"[" * 5000, b"1" * 70_000, b'{"what": "job", "job": "a", "hosts": [], "time_s": 1%b}' % (b"0" * 400)),
    # In nanoseconds.
    json.dumps(named("h", "a", 1.7e18)).encode(),
)


@given(st.lists(st.sampled_from(JUNK) | st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"") or b"x")))
def test_lines_that_are_no_entries_are_counted(junk):
    good = json.dumps(named("h", "a", 1.0)).encode()
    entries, unused = parse_entries([*junk, good, b"", b"\n"])
    assert entries == [named("h", "a", 1.0)] and unused == sum(bool(line.strip()) for line in junk)


def test_any_time_that_is_one_can_be_shown():
    entries, _ = parse_entries(json.dumps(named("h", "a", at)).encode() for at in (0.0, 253_402_300_799.0, 1.7e18))
    assert "9999-12-31 23:59" in page.body([], [one.to_json() for one in patterns(entries)])


def test_an_incident_of_a_process_that_is_not_recorded(tmp_path):
    rank = Whereabouts(1, "h", 12, "stopped", (), None)
    log = IncidentLog(tmp_path, {"run": "r"}, lambda _: rank)
    log.process((1, 1.0), "stopped", "rank 1 is stopped", [rank], 0.0, lasts=True)
    (tmp_path / "other.json").write_text(
        '{"ranks": [{"host": 5, "rank": 1}], "job": {}, "id": 1, "kind": "", "text": ""}'
    )
    ((incident,), unused) = IncidentFolder(tmp_path).read()
    assert (incident["host"], incident["kind"], unused) == ("h", "process", 1) and "wait_s" not in incident


def test_a_file_that_cannot_be_written_ends_no_job(tmp_path, caplog):
    with pytest.raises(InputError, match="whose folder does not exist"):
        open_history(str(tmp_path / "none" / "h"))
    history = FileHistory(tmp_path / "h")
    assert history.read() == ([], 0)
    (tmp_path / "h").mkdir()
    for _ in range(2):
        history.add([named("h", "a", 0.0)])
    assert caplog.text.count("cannot write") == 1 and told_patterns(history) == []
    (tmp_path / "h" / "x.json").write_text("{}")
    assert open_history(str(tmp_path / "h")).read() == ([], 1)


def test_to_a_folder_nothing_is_added(tmp_path):
    """It would be lost without a word."""
    with pytest.raises(InputError, match=r"--history: got .*, a folder, expected a file"):
        open_to_add(str(tmp_path), "--history")
    open_to_add(str(tmp_path / "h.jsonl"), "--history").add([])
    assert open_history(str(tmp_path)).read() == ([], 0)


def test_an_incident_of_nobody_has_no_entry():
    incident = {"ranks": [{"rank": 1, "host": None}], "id": "1", "kind": "hang", "text": "", "call": {"wait_s": 3.0}}
    assert incident_entries(incident | {"job": {}}, 0.0) == []
