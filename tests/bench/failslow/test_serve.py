"""lanterne serve and history: what jobs that are watched here say, and what is kept of hosts across jobs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from statuses import ledger_of

from lanterne.bench import cli
from lanterne.bench.failslow.serve import WatchedJobs
from lanterne.bench.failslow.watch import STATUS_FILE
from lanterne.failslow.operate import status_file
from lanterne.failslow.operate.history import FileHistory, job_entry
from lanterne.failslow.operate.publisher import Publisher
from lanterne.failslow.operate.status_file import StatusAsker, StatusFile


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """The folder of a job that is watched here, its Publisher, and its ledger, which is told to look all the time."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"lanterne-watch-{os.getuid()}-1"
    folder.mkdir()
    publisher = Publisher(file=folder / STATUS_FILE)
    ledger = ledger_of(tmp_path / "job", publisher=publisher)
    ended = threading.Event()

    def looks():
        while not ended.wait(0.01):
            ledger.look()

    thread = threading.Thread(target=looks)
    thread.start()
    yield folder, publisher, ledger
    ended.set()
    thread.join()


def test_jobs_that_are_watched_here(watched, monkeypatch):
    folder, _publisher, ledger = watched
    jobs = WatchedJobs(None)
    (found,) = jobs.look()
    assert found == ledger.status() | {"time": found["time"]} and not found["ended"]
    # A second one, older; one that was killed; one that is no status.
    others = (("2", json.dumps(found | {"run": "b"}), 5), ("3", json.dumps(found | {"run": "c"}), 99), ("4", "{", 0))
    for name, text, age_s in others:
        other = folder.with_name(f"lanterne-watch-{os.getuid()}-{name}")
        other.mkdir()
        (other / STATUS_FILE).write_text(text)
        os.utime(other / STATUS_FILE, (os.stat(folder / STATUS_FILE).st_mtime - age_s,) * 2)
    assert [(one["run"], one["ended"]) for one in jobs.look()] == [(found["run"], False), ("b", False), ("c", True)]
    # Nobody else's.
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert WatchedJobs(None).look() == []
    monkeypatch.undo()


def test_a_status_is_made_while_somebody_asks(tmp_path, monkeypatch):
    path, made = tmp_path / STATUS_FILE, []
    file, asker = StatusFile(path), StatusAsker()

    def look():
        file.look(lambda: made.append(len(made)) or {"number": len(made)})
        return json.loads(path.read_text())["number"]

    file.begin({"number": 0})
    os.utime(path, (1, 1))
    # That the job lives is told, no more.
    assert look() == 0 and path.stat().st_mtime > 1
    monkeypatch.setattr(status_file, "ANSWER_S", 0.0)
    asker.ask([path])
    assert [look(), look()] == [1, 2]
    monkeypatch.setattr(status_file, "ASKED_S", 0.0)
    asker.ask([path])
    assert [look(), look()] == [3, 3]
    # It may be gone at any time.
    shutil.rmtree(tmp_path)
    asker.ask([path])
    file.look(lambda: {})
    file.write({})
    file.begin({})


def test_of_a_job_that_has_ended_the_last_word_stays(watched, tmp_path):
    folder, _publisher, _ledger = watched
    jobs = WatchedJobs(tmp_path)
    running = jobs.look()
    (folder / STATUS_FILE).unlink()
    assert jobs.look() == [running[0] | {"ended": True}]


def test_serve_as_a_command(watched, tmp_path):
    _folder, _publisher, _ledger = watched
    history = FileHistory(tmp_path / "hosts.jsonl")
    history.add([job_entry("x", ["h"], 0.0)])
    words = ["serve", "--listen", "127.0.0.1:0", "--history", str(tmp_path / "hosts.jsonl")]
    process = subprocess.Popen(
        [sys.executable, "-m", "lanterne", *words], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert "rank 3" in answer.read().decode()
        with urllib.request.urlopen(f"{url}metrics", timeout=20) as answer:
            assert b"lanterne_slow_ratio{" in answer.read()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stdout.close()


def test_history_as_a_command(tmp_path, capsys):
    path = tmp_path / "hosts.jsonl"
    entry = {"what": "incident", "host": "node17", "ranks": [3], "kind": "slow", "gpus": ["2"], "nics": []}
    incidents = [
        entry | {"id": str(i), "job": f"job {i}", "time_s": 86400.0 * i, "text": f"the {i}th"} for i in range(3)
    ]
    FileHistory(path).add([*incidents, job_entry("job 0", ["node17", "node18"], 0.0)])
    with open(path, "a") as file:
        file.write("junk\n")
    assert cli.main(["history", str(path), "--fail-on", "chronic"]) == 1
    shown = capsys.readouterr().out
    assert "# 1 entries could not be used" in shown
    assert re.search(r"node17 +chronic +3 +3 of 3 +1970-01-01", shown) and "node18" not in shown
    assert cli.main(["history", str(path), "--host", "node17", "--fail-on", "burst"]) == 0
    assert "the 2th" in capsys.readouterr().out
    assert cli.main(["history", str(path), "--host", "node18", "--json", "-"]) == 0
    out = capsys.readouterr()
    assert "no incident of it" in out.err
    document = json.loads(out.out)
    assert document["hosts"] == [] and document["entries"] == [] and document["unused"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("history none", "history: got 'none', expected a file, a folder, or redis"),
        ("history redis://", "history: got 'redis://', expected redis://HOST:PORT/KEY"),
        ("serve --listen x", "--listen: got 'x', expected PORT or HOST:PORT"),
        ("serve --folder none", "--folder: got none, expected a folder"),
        ("watch --listen 1:2:x -- true", "--listen: got '1:2:x'"),
        ("watch --thresholds none -- true", "--thresholds: cannot read none: No such file"),
        ("watch --history none/h -- true", "history: got 'none/h', whose folder does not exist"),
        ("watch --patience 0s -- true", "--patience: got 0s, expected more than 0"),
    ],
)
def test_bad_input_is_one_line_and_code_2(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and not list(tmp_path.iterdir())
