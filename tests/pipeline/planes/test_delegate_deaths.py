"""Whatever is killed, a rank, a delegate or the launcher: every survivor says what died, and nothing is left."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import MARK, PATIENCE_S, assert_none_left, marked

HERE = Path(__file__).resolve().parents[1]

RANKS = 3
JOB = (
    "import sys; from lanterne.transport.job.launch import launch; "
    f"sys.exit(launch([sys.executable, {str(HERE / 'delegate_job.py')!r}, *sys.argv[1:]], {RANKS}))"
)


@pytest.mark.parametrize(
    ("victim", "rail"),
    [pytest.param("rank", "tcp", marks=pytest.mark.slow), ("delegate", "tcp"), ("launcher", "tcp"), ("rank", "memory")],
)
def test_nothing_is_left(mark, victim, rail):
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, rail],
        env=os.environ | {MARK: mark, "LANTERNE_GRACE_S": "5"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
    )
    ready = sorted(job.stdout.readline().split() for _ in range(RANKS))
    assert [line[:2] for line in ready] == [["ready", str(rank)] for rank in range(RANKS)], job.communicate()
    pids = {"rank": ready[1][2], "delegate": ready[1][-1], "launcher": job.pid}
    assert len(marked(mark, "delegate_process")) == RANKS * (rail != "memory")
    os.kill(int(pids[victim]), signal.SIGKILL)
    output, errors = job.communicate(timeout=2 * PATIENCE_S)
    assert_none_left(mark)
    assert job.returncode != 0
    assert not [name for name in os.listdir("/dev/shm") if "lanterne" in name]
    seen = dict(re.findall(r"rank (\d) sees: (.*)", output))
    if victim == "rank":
        assert sorted(seen) == ["0", "2"] and all("rank 1 failed" in text for text in seen.values()), (seen, errors)
    if victim == "delegate":
        assert sorted(seen) == ["0", "1", "2"], (seen, errors)
        assert "its delegate 0 was killed by signal 9 (SIGKILL)" in seen["1"]
        assert all("rank 1" in text and "delegate" in text for text in seen.values()), seen
