"""The benchmark of deaths and returns: its bars, its table, and, slow, a job on emulated hosts."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluation import rejoins
from evaluation.rejoins import HOSTS_SURVIVE_S, REJOIN_S, SURVIVE_S, missed, print_results


def result(survive_s=0.2, rejoin_s=1.0, hosts=None, problems=()):
    about = {"seed": 3, "transport": "tcp", "hosts": hosts, "ranks": 4, "victim": 1, "killed_after_s": 0.1}
    return about | {"survive_s": survive_s, "rejoin_s": rejoin_s, "problems": list(problems)}


@pytest.mark.parametrize(
    ("of_job", "named"),
    [
        (result(), []),
        (result(None, None), []),
        (result(survive_s=SURVIVE_S + 0.1), ["survive_s"]),
        (result(survive_s=SURVIVE_S + 0.1, hosts=8), []),
        (result(HOSTS_SURVIVE_S + 0.1, REJOIN_S + 0.1, 8), ["survive_s", "rejoin_s"]),
    ],
)
def test_bars_of_time(of_job, named):
    assert [line.split()[1] for line in missed(of_job)] == named


def test_the_table_has_a_line_for_each_transport_and_all_problems():
    file = io.StringIO()
    print_results({"results": [result(), result(0.4, 2.0, problems=["hang: not done after 90 s"])]}, file)
    lines = file.getvalue().splitlines()
    (row,) = [line for line in lines if line.startswith("tcp")]
    assert row.split()[1:3] == ["2", "1"] and "400 ms" in row and "2 s" in row
    assert lines[-1] == "seed 3 (tcp, 4 ranks): hang: not done after 90 s"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root")
def test_killed_and_back_on_emulated_hosts():
    words = ["bench", "rejoins", "--seeds", "2", "--hosts", "3", "--no-bars", "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "evaluation", *words], check=False, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["results"]
    assert [one["transport"] for one in found] == ["tcp", "ucx"]
    assert all(one["ranks"] == one["hosts"] == 3 and one["survive_s"] and one["rejoin_s"] for one in found), found


def test_a_job_that_no_kill_reached_is_a_problem(monkeypatch):
    def ends(words, ranks, transport):
        for rank in range(ranks):
            found = {"rank": rank, "wrong": 0, "is_new": False, "named": [int(words[1])], "went_on_s": 1.0}
            Path(words[-1], f"{rank}-end").write_text(json.dumps(found))
        return []

    monkeypatch.setattr(rejoins, "_on_this_host", ends)
    monkeypatch.setattr(rejoins, "STORE_SHARE", 0.0)
    assert rejoins.run_job(3, "tcp")["problems"] == ["kill: nothing was killed"]
