"""Checks, functions of what a rank of a job has, run in all its ranks, told one by one: the ranks' side and the test's.

A check raises where something is wrong. A script's ranks write what each check found to FILE.RANK as JSON lines.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LAUNCH = (
    "import sys; from lanterne.transport.job.launch import launch; "
    "sys.exit(launch(sys.argv[3:], int(sys.argv[2]), launcher=sys.argv[1]))"
)


def verdict(check, subject):
    """None if `check(subject)` passes on this rank, else the traceback."""
    try:
        check(subject)
    except BaseException:
        return traceback.format_exc()
    return None


def write_verdicts(report, checks, subject):
    """Run `checks` on this rank's `subject` (its rank: subject.rank); whether any failed."""
    failed = False
    with Path(f"{report}.{subject.rank}").open("w") as file:
        for check in checks:
            started = time.monotonic()
            wrong = verdict(check, subject)
            failed |= wrong is not None
            line = {"check": check.__name__, "rank": subject.rank, "wrong": wrong}
            file.write(json.dumps(line | {"took_s": time.monotonic() - started}) + "\n")
            file.flush()
    return failed


def run_checks(script, arguments, report, checks, world_size, launcher="mpi", environment=None, timeout_s=280):
    """Run `script *arguments report CHECK...` on the ranks of our launcher.

    Returns:
        (exit code, None if it did not end within `timeout_s`; output; {check: its lines in rank order})
    """
    path = os.pathsep.join(filter(None, [str(HERE), str(HERE.parent / "kernels"), os.environ.get("PYTHONPATH")]))
    worker = [sys.executable, str(script), *arguments, str(report), *(check.__name__ for check in checks)]
    command = [sys.executable, "-c", LAUNCH, launcher, str(world_size), *worker]
    environment = os.environ | {"PYTHONPATH": path} | (environment or {})
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT, env=environment
        )
        code, output = result.returncode, result.stdout + result.stderr
    except subprocess.TimeoutExpired as late:
        # What was found until then counts.
        texts = [(text or b"").decode(errors="replace") for text in (late.stdout, late.stderr)]
        code, output = None, "".join([*texts, f"the job did not end within {timeout_s} s"])
    verdicts = {check.__name__: [] for check in checks}
    for rank in range(world_size):
        file = Path(f"{report}.{rank}")
        for line in file.read_text().splitlines() if file.exists() else ():
            record = json.loads(line)
            verdicts[record["check"]].append(record)
    return code, output, verdicts


def assert_right(records, world_size, output):
    """All ranks ran the check of `records`, and none found anything wrong."""
    wrong = [record["wrong"] for record in records if record["wrong"]]
    assert not wrong, wrong[0]
    assert len(records) == world_size, output
