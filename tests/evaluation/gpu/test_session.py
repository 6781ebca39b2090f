"""The session on a lent GPU, without one: steps end in time, their verdicts are read, and nothing outlives them."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from evaluation.gpu import session as gpu_session
from evaluation.gpu.session import SessionStep
from evaluation.speed.kernels import KernelComparison

ROOT = gpu_session.ROOT


def run(tmp_path, *steps, budget_s=60.0):
    outcomes = gpu_session.run(tmp_path, budget_s, steps)
    document = json.loads((tmp_path / "session.json").read_text())
    assert [step["name"] for step in document["steps"]] == [outcome.name for outcome in outcomes]
    return outcomes, (tmp_path / "session.md").read_text(), (tmp_path / "session.log").read_text()


def test_each_step_has_its_verdict(tmp_path, capsys):
    (right, wrong), text, log = run(
        tmp_path, SessionStep("right", ("-c", "print('all is well')"), 30), SessionStep("wrong", ("-c", "1 / 0"), 30)
    )
    assert (right.code, right.last, wrong.code) == (0, "all is well", 1)
    assert wrong.last == "ZeroDivisionError: division by zero"
    assert "| right | ok |" in text and "| wrong | code 1 |" in text
    assert log.index("all is well") < log.index("===== wrong") < log.index("ZeroDivisionError")
    assert re.search(r"^wrong: code 1, \d+ s: ZeroDivisionError", capsys.readouterr().out, re.MULTILINE)


@pytest.fixture
def over_when_it_hangs(monkeypatch, tmp_path):
    """The time of a step is over as soon as its output has "hangs", however long it takes to come there."""
    wait = subprocess.Popen.wait

    def watched_wait(process, timeout=None):
        while timeout and process.poll() is None:
            if b"hangs" in (tmp_path / "session.log").read_bytes().rpartition(b"=====")[2]:
                raise subprocess.TimeoutExpired(process.args, timeout)
            time.sleep(0.01)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", watched_wait)


HANGS = ("-c", "import time; print('it hangs', flush=True); time.sleep(600)")


def test_a_step_that_hangs_is_killed_with_its_children_and_the_next_one_runs(tmp_path, over_when_it_hangs, capsys):
    start = "import subprocess, sys; child = subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)"
    code = f"{start}; print(child.pid, 'hangs', flush=True); child.wait()"
    (hung, after), text, _ = run(tmp_path, SessionStep("hung", ("-c", code, *HANGS), 60), STEP)
    assert (hung.code, after.code) == (None, 0)
    assert "| hung | time was over |" in text
    pid = next(int(line.split()[0]) for line in hung.lines if line.split()[0].isdigit())
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


STEP = SessionStep("after", ("-c", ""), 30)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


KEPT = """
import json, os, sys, time
from pathlib import Path
from evaluation.gpu import session
from evaluation.gpu.session import SessionStep
folder = Path(sys.argv[1])
found = [{"name": "found", "value": 2e-6, "unit": "s", "bar": "-", "ok": True, "samples": []}]
ends = f"import json, time; json.dump({found}, open({str(folder / 'gpu-x.groups.json')!r}, 'w'));" + sys.argv[2]
count = f"open({str(folder / 'runs')!r}, 'a').write('1'); print('all is well')"
session.run(folder, 60.0, [SessionStep("first", ("-c", count), 30), SessionStep("second", ("-c", ends), 50)])
"""


def test_a_session_that_is_killed_has_lost_nothing_and_goes_on(tmp_path):
    """Killed in its second step: the first one's verdict is kept, and what the second had found; then both end."""
    command = [sys.executable, "-c", KEPT, str(tmp_path)]
    process = subprocess.Popen([*command, "time.sleep(600)"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    file, deadline = tmp_path / "gpu-x.groups.json", time.monotonic() + 50
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    below = gpu_session._descendants(process.pid)
    for pid in (process.pid, *below):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    (step,) = json.loads((tmp_path / "session.json").read_text())["steps"]
    assert (step["name"], step["code"], step["lines"]) == ("first", 0, ["all is well"])
    assert "| first | ok |" in (tmp_path / "session.md").read_text()
    assert gpu_session.figure_lines(tmp_path) == ["found: 2 us (-)"]
    subprocess.run([*command, ""], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    steps = json.loads((tmp_path / "session.json").read_text())["steps"]
    assert [(step["name"], step["code"]) for step in steps] == [("first", 0), ("second", 0)]
    assert (tmp_path / "runs").read_text() == "1"


def test_steps_of_another_choice_stay(tmp_path, capsys):
    """As with --only in a folder of a whole session."""
    run(tmp_path, SessionStep("first", ("-c", "print('of before')"), 30))
    (first, after), text, log = run(tmp_path, STEP)
    assert (first.name, first.last, after.name) == ("first", "of before", "after")
    assert "| first | ok |" in text and "of before" in log


def test_output_that_is_the_result_is_in_the_report(tmp_path, capsys):
    code = "print('algorithm busbw'); print('ring 300')"
    _, text, _ = run(tmp_path, SessionStep("a late rank", ("-c", code), 30, shown=True), STEP)
    assert "## a late rank\n\n    algorithm busbw\n    ring 300\n" in text and "## after" not in text


def test_ranks_share_a_gpu_where_there_are_fewer(tmp_path, monkeypatch):
    found = {}
    for devices in (1, 8):
        monkeypatch.setattr(gpu_session, "num_devices", lambda devices=devices: devices)
        steps = {step.name: step for step in gpu_session.steps("x", tmp_path)}
        arguments = steps["a late rank"].arguments
        shared = gpu_session.environment(60.0).get("NCCL_MULTI_RANK_GPU_ENABLE")
        found[devices] = arguments[arguments.index("-n") + 1], arguments[arguments.index("--late-rank") + 1], shared
    assert found == {1: ("3", "2", "1"), 8: ("8", "7", None)}


def test_what_tells_most_comes_first(tmp_path):
    names = [step.name for step in gpu_session.steps("x", tmp_path)]
    expected = ["environment", "torch", "figures of schedules", "figures of groups", "figures of launches"]
    assert names[: len(expected)] == expected


def test_the_budget_bounds_all(tmp_path, capsys):
    (step,), text, _ = run(tmp_path, STEP, budget_s=1.0)
    assert step.code is None and "not begun" in step.last
    assert "| after | left out |" in text


def test_tests_that_fail_are_named(tmp_path, capsys):
    file = tmp_path / "test_it.py"
    file.write_text("def test_right():\n    pass\n\n\ndef test_wrong():\n    assert 1 == 2\n")
    (step,), text, _ = run(tmp_path, SessionStep("tests", (str(file),), 50, tests=50))
    assert step.code == 1 and len(step.failed) == 1
    assert "test_wrong" in text and "test_right" not in text


def test_tests_that_failed_alike_are_told_together_and_skips_are_told_too(tmp_path, capsys):
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest\n\n\n@pytest.mark.parametrize('x', range(50))\ndef test_wrong(x):\n"
        "    assert False, 'the same'\n\n\ndef test_other():\n    raise ValueError('another')\n\n\n"
        "def test_skipped():\n    pytest.skip('no reason')\n"
    )
    (step,), text, _ = run(tmp_path, SessionStep("tests", (str(file),), 50, tests=50))
    assert len(step.failed) == 51
    assert "- 50: AssertionError: the same" in text and "- 1: ValueError: another (test_other)" in text
    assert "no reason" in text and len(text) < 1500


def test_what_had_failed_before_a_test_hung_is_told(tmp_path, over_when_it_hangs, capsys):
    file = tmp_path / "test_it.py"
    file.write_text("import time\n\n\ndef test_wrong():\n    assert False\n\n\ndef test_hangs():\n    time.sleep(60)\n")
    (step,), text, _ = run(tmp_path, SessionStep("tests", (str(file),), 60, tests=100))
    assert step.code is None and [test.rpartition("::")[2] for test, _ in step.failed] == ["test_wrong"]
    assert "test_hangs" in step.last
    assert 'test_it.py", line 9 in test_hangs' in " ".join(step.where) and "was in " in text


def test_what_cannot_be_killed_is_left_behind(tmp_path, monkeypatch, over_when_it_hangs, capsys):
    """A process that the driver holds does not end; the session does."""
    sent = []
    monkeypatch.setattr(gpu_session, "KILL_S", 0.1)
    monkeypatch.setattr(gpu_session, "_send", lambda pids, number: sent.append((pids, number)))
    hung, after = run(tmp_path, SessionStep("hung", HANGS, 60), STEP)[0]
    for pid in {pid for pids, _ in sent for pid in pids if is_alive(pid)}:
        os.kill(pid, signal.SIGKILL)
    assert (hung.ended, after.ended) == ("time was over", "ok")
    assert [number for _, number in sent] == [signal.SIGABRT, signal.SIGKILL, signal.SIGKILL]


def test_the_environment_is_told_however_it_ends(tmp_path, monkeypatch, capsys):
    """Where there is no GPU each part says what it lacks, and the others are told."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    environment = gpu_session.steps("x", tmp_path)[0]
    (step,), text, _ = run(tmp_path, environment)
    expected = r"failed: (nvidia-smi )?NCCL device kernels in cuda-c kernels in numba$"
    assert step.code == 1 and re.match(expected, step.last), step.lines
    assert re.search(r"^numpy \d", text, re.MULTILINE) and "\nNCCL: Unavailable: " in text
    assert re.search(r"^kernels in cuda-c: Unavailable: ", text, re.MULTILINE)


def test_what_needs_a_step_that_hung_is_left_out(tmp_path, over_when_it_hangs, capsys):
    hung, after, other = run(
        tmp_path,
        SessionStep("first", HANGS, 60),
        SessionStep("second", ("-c", ""), 30, needs="first"),
        SessionStep("third", ("-c", ""), 30, needs="second"),
    )[0]
    assert (hung.ended, after.ended, other.ended) == ("time was over", "left out", "left out")
    assert after.last == "not begun: needs first, which hung"


def test_missed_figures_come_first_and_the_report_fits_a_screen(tmp_path, capsys):
    right = {"name": "right", "value": 2e-6, "unit": "s", "bar": "<= 5 us", "ok": True, "samples": []}
    wrong = right | {"name": "wrong", "value": 7e-6, "ok": False}
    results = [vars(COMPARISON), vars(COMPARISON) | {"wrong": 3}]
    document = {"results": results, "figures": [right, wrong] * 200, "failures": {"gemm": "no such luck"}}
    (tmp_path / "gpu-x.json").write_text(json.dumps(document))
    _, text, _ = run(tmp_path, SessionStep("right", ("-c", ""), 30))
    assert text.index("gpu-x gemm: no such luck") < text.index("MISSED wrong: 7 us (<= 5 us)")
    assert "0.950 (>= 0.9), 3 wrong" in text and "## Figures: 202 missed of 403" in text
    assert len(text) < gpu_session.MAX_CHARS and "lines more" in text


COMPARISON = KernelComparison("reduce / copy", "cuda-c", "float32", 1 << 30, 2, (1e-3,), (1e-3,), 4000.0, 0.95, 0.9, 0)


def test_steps_name_tests_that_are_there():
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", "tests/gpu", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for step in filter(lambda step: step.tests, gpu_session.steps("x", ROOT / "out")):
        files = [argument for argument in step.arguments if argument.startswith("tests/")]
        words = step.arguments[step.arguments.index("-k") + 1].split() if "-k" in step.arguments else []
        wanted = [word for word in words if word not in ("and", "not")]
        assert files and all(text in result.stdout for text in [*files, *wanted]), step


def test_all_steps_fit_the_budget():
    limits_s = [step.limit_s for step in gpu_session.steps("x", ROOT / "out")]
    assert sum(limits_s) < 1.3 * gpu_session.BUDGET_S
    assert max(limits_s) <= 120


def test_unknown_steps_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        gpu_session.main(["--out", str(tmp_path), "--only", "speed"])
    assert caught.value.code == 2
    assert "--only: got 'speed', expected part of one of: environment" in capsys.readouterr().err


def test_help():
    result = subprocess.run(
        [sys.executable, "-m", "evaluation.gpu.session", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0 and "session.md" in result.stdout
