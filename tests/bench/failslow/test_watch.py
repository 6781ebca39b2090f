"""lanterne watch: the program runs as it would alone; its exit code passes; the report names who was slow."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import free_port

from lanterne.bench import cli
from lanterne.bench.failslow.watch import LiveTeller

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
WATCH = [sys.executable, "-m", "lanterne", "watch"]
LOOP = """
import sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
x = np.ones(1000, np.float32)
for i in range(80):
    time.sleep(12e-3 + (60e-3 if 40 <= i < 60 and comm.rank == 1 else 0))
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Barrier()
"""


def watch(tmp_path, program, *options, before=(), **kwargs):
    """(the finished command, its report) of a program that is watched."""
    (tmp_path / "program.py").write_text(program)
    report = tmp_path / "report.json"
    words = [*options, "--incidents", str(tmp_path / "incidents"), "--json", str(report)]
    command = [*before, *WATCH, *words, "--", "python", str(tmp_path / "program.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **kwargs)
    return result, json.loads(report.read_text()) if report.exists() else None


LOOKS = """
import time, urllib.request
from urllib.error import URLError
deadline_s = time.monotonic() + 20
while comm.rank == 0 and time.monotonic() < deadline_s:
    try:
        found = urllib.request.urlopen("http://127.0.0.1:PORT/metrics").read().decode()
    except URLError:
        found = ""
    if "lanterne_reported{" in found and "} 3" in found.partition("lanterne_reported{")[2].partition("\\n")[0]:
        print(found)
        break
    time.sleep(0.1)
comm.Barrier()
"""


def test_a_job_that_it_starts_itself_and_its_metrics_while_it_runs(tmp_path):
    port, kept = free_port(), tmp_path / "hosts.jsonl"
    program = LOOP.replace("range(80)", "range(5)") + LOOKS.replace("PORT", str(port))
    result, report = watch(tmp_path, program, "-n", "3", "--listen", str(port), "--history", str(kept))
    assert result.returncode == 0, result.stderr
    assert report["reported"] == [0, 1, 2] and report["incidents"] == []
    assert "lanterne_slow{" in result.stdout and f"page at http://127.0.0.1:{port}/" in result.stderr
    (entry,) = map(json.loads, kept.read_text().splitlines())
    assert entry["what"] == "job" and entry["hosts"] == [socket.gethostname()]


def test_the_slow_rank_of_a_job_is_named(tmp_path):
    result, report = watch(tmp_path, LOOP, before=(MPIEXEC, "-n", "3"))
    assert result.returncode == 0, result.stderr
    assert report["schema_version"] == 1 and report["reported"] == [0, 1, 2]
    assert report["iterations"]["calls"] == 2 and len(report["iterations"]["time_s"]) > 65
    # On a busy machine there may be smaller incidents of its own.
    named = {incident["cause"]["rank"] for incident in report["incidents"] if incident["ratio"] > 2}
    assert named == {1}, result.stderr
    assert "SLOW from iteration" in result.stderr and "onset" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("code", [0, 7])
def test_exit_code_and_output_pass(tmp_path, code):
    result, report = watch(tmp_path, f"import sys\nprint(sys.argv[1:])\nsys.exit({code})", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (code, "[]\n")
    assert report["notes"] == ["rank 0 reported nothing: no call that is recorded before the end"]
    assert report["exit_code"] == code and ("ended with exit code 7" in result.stderr) == (code == 7)


def test_a_killed_program_and_its_traceback(tmp_path):
    result, _ = watch(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert result.returncode == 128 + signal.SIGKILL
    result, _ = watch(tmp_path, "raise ValueError('the own error')")
    assert result.returncode == 1 and "ValueError: the own error" in result.stderr


def test_the_programs_own_sitecustomize_runs(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 5\n")
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    result, _ = watch(tmp_path, "import sys\nprint(mine, sum('lanterne-watch' in p for p in sys.path))", env=variables)
    assert result.stdout == "5 0\n", result.stderr


def test_a_folder_may_be_relative_and_a_watch_watched(tmp_path):
    """Neither records a call twice, nor what lanterne calls by itself."""
    (tmp_path / "logs").mkdir()
    program = """
import numpy as np, lanterne
x = np.ones(1000, np.float32)
with lanterne.init() as comm:
    for _ in range(5):
        comm.all_reduce(x, x, op="max")
"""
    result, report = watch(tmp_path, program, "--folder", "logs", before=[*WATCH, "--"], cwd=tmp_path)
    assert result.returncode == 0 and "sitecustomize" not in result.stderr, result.stderr
    assert [(call["name"], call["count"]) for call in report["calls"]] == [("all_reduce", 5)]
    assert list((tmp_path / "logs").iterdir()) == []


def test_signals_reach_the_program_and_nothing_is_left(tmp_path):
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
print("ready", flush=True)
time.sleep(60)
"""
    (tmp_path / "program.py").write_text(program)
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*WATCH, "--", "python", str(tmp_path / "program.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 42
    process.stdout.close()
    deadline = time.monotonic() + 10
    while list(tmp_path.glob("lanterne-watch-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.glob("lanterne-watch-*")) == []


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "0", "--", "python", "x.py"],
        ["--", "no-such-program-here"],
        ["--json", "/no/such/folder/x.json", "--", "python", "x.py"],
        [],
        ["--attach", "1", "--", "python", "x.py"],
        ["--attach", str(os.getpid())],
        ["--attach", "99999999"],
        ["--patience", "soon", "--", "python", "x.py"],
        ["--incidents", __file__, "--", "python", "x.py"],
    ],
)
def test_bad_input_is_one_line_and_code_2(words, capsys):
    assert cli.main(["watch", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("./data", "which may not be executed"),
        ("{here}/data", "which may not be executed"),
        ("./", "a folder"),
        ("./none", "which does not exist"),
        ("none", "which is not on PATH"),
    ],
)
def test_what_is_no_program_is_called_what_it_is(tmp_path, monkeypatch, capsys, program, why):
    monkeypatch.chdir(tmp_path)
    Path("data").write_text("data")
    program = program.format(here=tmp_path)
    assert cli.main(["watch", "--", program]) == 2
    err = capsys.readouterr().err
    assert f"got {program!r}, {why}" in err and err.count("\n") == 1


HANG = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
comm, x, kind = MPI.COMM_WORLD, np.ones(100, np.float32), "KIND"
for i in range(60):
    time.sleep(5e-3)
    if i == 30 and comm.rank == 1:
        if kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(4 if kind == "runs" else 0)
        if kind == "order":
            comm.Barrier()
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Barrier()
"""


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["runs", "stopped", "order"])
def test_a_hang_is_told_while_it_lasts_and_the_same_at_the_end(tmp_path, kind):
    (tmp_path / "program.py").write_text(HANG.replace("KIND", kind))
    (tmp_path / "soon.json").write_text('{"status_s": 0.3}')
    # Of two ranks that call different things neither is the odd one.
    words = ["-n", "3" if kind == "order" else "2", "--patience", "2.5s", "--thresholds", "soon.json"]
    words += ["--fail-on", "incident", "--json", "report.json"]
    command = [*WATCH, *words, "--", "python", "program.py"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "HANGS for" in line and kind != "runs":
            process.terminate()
    code = process.wait(60)
    assert code == 1 if kind == "runs" else code != 0
    (document,) = (json.loads(path.read_text()) for path in (tmp_path / "lanterne-incidents").glob("*-hang-*.json"))
    (hang,) = json.loads((tmp_path / "report.json").read_text())["hangs"]
    assert [one["rank"] for one in document["ranks"]] == [1] == [one["rank"] for one in hang["culprits"]]
    assert (document["schema_version"], document["call"]["name"], document["kind"]) == (1, "Allreduce", "hang")
    assert document["remedy"] and document["evidence"]
    if kind == "runs":
        (number,) = (number for number, line in enumerate(HANG.splitlines(), 1) if "time.sleep(4 " in line)
        assert any("waiting for" in line and f"program.py:{number} in <module>" in line for line in lines), lines
        assert hang["ended_after_s"] is not None and not document["lasts"]
    else:
        assert hang["ended_after_s"] is None and document["lasts"]


@pytest.mark.parametrize("whose", ["of the program", "of the watch"])
def test_a_job_that_runs_is_joined(tmp_path, whose):
    (tmp_path / "program.py").write_text(LOOP.replace("range(80)", "range(150)"))
    job = subprocess.Popen([*WATCH, "--", "python", "program.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (found := [pid for pid in children_of(job.pid) if b"program.py" in words_of(pid)]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
        command = [*WATCH, "--attach", str(found[0] if whose == "of the program" else job.pid), "--json", "joined.json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
        assert result.returncode == 0, result.stderr
        assert json.loads((tmp_path / "joined.json").read_text())["iterations"]["count"] > 80
    finally:
        job.terminate()
        job.wait()


def children_of(pid):
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def words_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_job_that_is_not_recorded_is_looked_at_from_outside(tmp_path, capsys):
    program, variables = "import time; time.sleep(1.2)", {"MASTER_PORT": str(os.getpid())}
    ranks = [
        subprocess.Popen([sys.executable, "-S", "-c", program], env={**os.environ, **variables, "RANK": str(rank)})
        for rank in range(2)
    ]
    words = ["watch", "--attach", str(ranks[1].pid), "--incidents", "none", "--json", str(tmp_path / "out.json")]
    assert cli.main([*words, "--listen", "0"]) == 2
    assert "--listen needs its calls: start it as `lanterne watch -- COMMAND`" in capsys.readouterr().err
    assert cli.main(words) == 0
    for rank in ranks:
        rank.wait(30)
    document = json.loads((tmp_path / "out.json").read_text())
    assert [(one["rank"], one["pid"]) for one in document["ranks"]] == [(i, rank.pid) for i, rank in enumerate(ranks)]
    assert document["recorded"] is False and "is not recorded" in capsys.readouterr().err


def test_what_is_an_incident_since_it_lasts_is_said(capsys):
    files = [[], [Path("slow-1.json")]]
    teller = LiveTeller(SimpleNamespace(look=files.pop))
    teller.look()
    (first, second) = capsys.readouterr().err.splitlines()
    assert first.endswith("it lasts: an incident by now") and second == "lanterne watch:   written to slow-1.json"
    teller.look()
    assert capsys.readouterr().err == ""


def test_calls_that_are_kept_can_be_located(tmp_path, capsys):
    """Of ranks of which one is late in every iteration; nothing else is left in the folder."""
    shared = tmp_path / "shared"
    shared.mkdir()
    result, _ = watch(tmp_path, LOOP, "-n", "3", "--folder", str(shared), "--keep")
    assert result.returncode == 0, result.stderr
    (kept,) = shared.iterdir()
    assert f"the calls are left in {kept}" in result.stderr
    assert len([*kept.glob("rank-*.calls")]) == 3
    assert cli.main(["locate", str(shared), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--keep",), "--keep: expected --folder"),
        (("--folder", "{}/none"), "expected a folder that is there"),
        (("--incidents", "{}/file/incidents"), "which cannot be made there"),
    ],
)
def test_folders_that_cannot_be_are_refused_before_anything_starts(tmp_path, capsys, options, told):
    (tmp_path / "file").write_text("")
    words = [word.format(tmp_path) for word in options]
    assert cli.main(["watch", *words, "--", "touch", str(tmp_path / "started")]) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "started").exists()
