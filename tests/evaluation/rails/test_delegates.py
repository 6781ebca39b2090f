"""The benchmarks of delegates: what they write, that they find damage, what they refuse."""

import json
import subprocess
import sys

import numpy as np
import pytest

from evaluation.__main__ import EVALUATE
from evaluation.rails import delegates, failover, failover_trial
from evaluation.rails.copy_stage import CopyStage


def run_job(tmp_path, *words):
    path = tmp_path / "out.json"
    command = [sys.executable, "-m", "evaluation", *words, "--json", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())["results"], done.stdout


def test_delegate(tmp_path):
    results, table = run_job(
        tmp_path, *"delegate --bytes 64K --iterations 2 --microbatches 3 --queues auto --work 2ms".split()
    )
    assert [record["plane"] for record in results] == ["inline", "memory", "tcp"]
    assert results[0]["queues"] == 0 and all(record["queues"] >= 1 for record in results[1:])
    for record in results:
        assert len(record["iteration_s"]) == 2 and record["wrong"] == 0, record
        assert len(record["send_s"]) == len(record["send_cpu_s"]) == 2 * 3, record
        assert all(time_s > 0 for time_s in record["iteration_s"]), record
        assert record["plane"] in table, record
    assert results[0]["over_inline"] == 1


def test_failover(tmp_path):
    words = ("--path", "delegates", "--how", "silent", "--bytes", "64K", "--messages", "30", "--trials", "1")
    results, table = run_job(tmp_path, "failover", *words)
    (found,) = results
    assert (found["path"], found["how"], found["wrong"], len(found["stall_s"])) == ("delegates", "silent", 0, 1)
    assert "silent" in table


@pytest.mark.parametrize(
    ("record", "missed"),
    [
        ({"over_inline": 1.04, "send_cpu_s": [1e-5, 1e-5, 1]}, [False, False]),
        ({"over_inline": 1.06, "send_cpu_s": [1e-5]}, [True, False]),
        ({"over_inline": 1.0, "send_cpu_s": [3e-5, 3e-5, 0]}, [False, True]),
    ],
)
def test_bars(record, missed):
    bars = delegates.bars_of({"plane": "memory", "nbytes": 8} | record)
    assert [not bar.is_met for bar in bars] == missed
    assert all(str(bar).startswith(("met: memory, 8 B: ", "MISSED: memory, 8 B: ")) for bar in bars)


@pytest.mark.parametrize(
    ("found", "words", "code"),
    [
        ((2.0, 0), "", 0),
        ((2.0, 0), "--check", 1),
        ((1.0, 0), "--check", 1),
        ((0.1, 0), "--check", 0),
        ((0.1, 1), "", 1),
    ],
)
def test_a_long_stall_fails_a_check_and_a_wrong_message_always(found, words, code, monkeypatch, capsys):
    monkeypatch.setattr(failover_trial, "run_trial", lambda trial: found)
    assert EVALUATE.main(["failover", "--trials", "1", *words.split()]) == code
    bars = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# bar ")]
    cases = [f"{path}, {how}" for path in ("delegates", "mpi") for how in ("reset", "silent")] if words else []
    verdict = "MISSED" if code else "met"
    assert bars == [
        f"# bar {verdict}: {case}: longest stall, s: {found[0]:g}, expected at most 0.999" for case in cases
    ]


def test_failover_counts_what_is_wrong():
    record = failover.record("mpi", "reset", 8, 0.1, 4, ("a", "b"), [(0.2, 0), (0.1, 3)])
    assert (record["stall_s"], record["wrong"]) == ([0.2, 0.1], 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("delegate --planes fast", "--planes: got 'fast', expected some of memory, tcp"),
        ("delegate --iterations 0", "got '0', expected a whole number of at least 1"),
        ("delegate --queues auto", "--queues: got auto without --work, expected how often there is a message"),
        ("failover --how slowly", "--how: got 'slowly', expected some of reset, silent"),
        ("failover --path pigeon", "--path: got 'pigeon', expected some of delegates, mpi, ucx"),
        ("failover --rails 127.0.0.2", "--rails: got 127.0.0.2, expected at least two"),
        ("failover --messages 1", "got '1', expected a whole number of at least 4"),
    ],
)
def test_refused(words, message, capsys):
    assert EVALUATE.main([*words.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_message_of_the_iteration_before_is_wrong():
    found = []
    for _ in range(2):
        first, out = CopyStage(0, 300, 0.0), np.empty(300, np.uint8)
        found.append((first, first.forward(5, out=out)))
    (_, old), (stage, new) = found
    stage.backward_input(5, dy=new)
    assert stage.wrong == 0
    stage.backward_input(5, dy=old)
    assert stage.wrong == 1
