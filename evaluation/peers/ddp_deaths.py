"""Kill a rank (SIGKILL) amid PyTorch's DDP training over lanterne, many times, and see what the survivors are told.

  .venv-torch/bin/python -P -m evaluation.peers.ddp_deaths --runs 50
  .venv-torch/bin/python -P -m evaluation.peers.ddp_deaths --runs 10 --while starting

Every run is a job of processes of its own, forked from one that has PyTorch loaded; which rank dies, and when, is by
--seed. Each survivor must have an error that names the dead rank within 2 s, leave its process group, and end as any
program does: a crash of its interpreter is its exit code. A job that loses a rank while it starts may not know it yet:
there survivors must only end, with an error. Exit code 1 if one did not.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.units import format_time, whole
from lanterne.errors import Unavailable, need_package
from lanterne.transport.job.launch import start_child

JOB = Path(__file__).with_name("ddp_deaths_rank.py")
NAMED_S = 2.0
# So long after the last rank trains, or, while starting, after the processes are there.
MOMENTS_S = {"training": 1.0, "starting": 1.5}
# For processes to load PyTorch, to begin to train, and to end.
LIMIT_S = 60.0


class Survivor(NamedTuple):
    """What became of a survivor: exit code, what it was told (None: nothing), how long after the death; its stderr."""

    rank: int
    code: int
    told: str | None
    noticed_s: float | None
    stderr: str


class Death(NamedTuple):
    """A run: who was killed, how long after the beginning of its moment, and the survivors."""

    victim: int
    after_s: float
    survivors: tuple[Survivor, ...]

    def wrong(self, moment: str) -> list[str]:
        """What should not be, a line each."""
        found = []
        for rank, code, told, noticed_s, stderr in self.survivors:
            if code != 0:
                found.append(f"rank {rank} ended with {code}: {stderr[-2000:]}")
            elif told is None or noticed_s is None:
                found.append(f"rank {rank} was told nothing")
            elif moment == "training" and not re.search(rf"\brank {self.victim}\b", told):
                found.append(f"rank {rank} was told {told!r}")
            elif moment == "training" and noticed_s > NAMED_S:
                found.append(f"rank {rank} was told after {noticed_s:.2f} s")
        return [f"rank {self.victim} killed after {self.after_s:.3f} s: {line}" for line in found]


class Jobs:
    """Makes jobs of `ranks` processes, by one that has loaded what they need."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self._ranks = ranks
        self._folder = folder
        variables = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-P", str(JOB), str(ranks)]
        self._process = start_child(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._read("ready")

    def run(self, moment: str, chance: random.Random) -> Death:
        """One job, of which one rank is killed."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"{folder}\n")
        stdin.flush()
        pids: list[int] = self._read("pids")
        try:
            if moment == "training":
                _wait_for(lambda: all((folder / f"trains-{rank}").exists() for rank in range(self._ranks)))
            victim, after_s = chance.randrange(self._ranks), chance.uniform(0.0, MOMENTS_S[moment])
            time.sleep(after_s)
            killed_s = time.monotonic()
            os.kill(pids[victim], signal.SIGKILL)
            others = [pid for rank, pid in enumerate(pids) if rank != victim]
            _wait_for(lambda: not any(_is_alive(pid) for pid in others))
        finally:
            for pid in pids:
                if _is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
        codes: list[int] = self._read("codes")
        survivors = []
        for rank in range(self._ranks):
            if rank != victim:
                file = folder / f"told-{rank}"
                found: dict[str, Any] = {"told": None, "at_s": None}
                if file.exists():
                    found = json.loads(file.read_text())
                noticed_s = None if found["at_s"] is None else found["at_s"] - killed_s
                stderr = (folder / f"stderr-{rank}").read_text(errors="replace")
                survivors.append(Survivor(rank, codes[rank], found["told"], noticed_s, stderr))
        return Death(victim, after_s, tuple(survivors))

    def close(self) -> None:
        """End the process that makes them."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(LIMIT_S)
        finally:
            self._process.kill()

    def _read(self, name: str) -> Any:
        out: IO[str] | None = self._process.stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise Unavailable(f"{JOB.name}: ended with exit code {self._process.wait(LIMIT_S)}")
        return json.loads(line)[name]


def _wait_for(done: Callable[[], bool]) -> None:
    """Return once `done()`, or when LIMIT_S is over: what is missing then shows in the results."""
    until_s = time.monotonic() + LIMIT_S
    while not done() and time.monotonic() < until_s:
        time.sleep(2e-3)


def _is_alive(pid: int) -> bool:
    """Whether a process runs: one that has ended, though nobody has asked for its exit code, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=whole(2), default=4, metavar="N", help="the victim included (default 4)")
    parser.add_argument("--runs", type=whole(1), default=50, metavar="K", help="jobs, one death each (default 50)")
    parser.add_argument("--while", dest="moment", choices=MOMENTS_S, default="training", help="default: training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, metavar="S", help="start no job after that")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")
    args = parser.parse_args()
    need_package("torch", "ddp_deaths")
    chance, deaths, until_s = random.Random(args.seed), list[Death](), time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory(prefix="lanterne") as folder:
        jobs = Jobs(args.ranks, Path(folder))
        try:
            while len(deaths) < args.runs and time.monotonic() < until_s:
                report.progress(f"{len(deaths) + 1}/{args.runs}")
                deaths.append(jobs.run(args.moment, chance))
        finally:
            report.progress("")
            jobs.close()
    wrong = [line for death in deaths for line in death.wrong(args.moment)]
    noticed_s = [one.noticed_s for death in deaths for one in death.survivors if one.noticed_s is not None]
    records = [death._asdict() | {"survivors": [one._asdict() for one in death.survivors]} for death in deaths]
    document = report.envelope(
        results=records, ranks=args.ranks, moment=args.moment, wrong=wrong, noticed_s=sorted(noticed_s)
    )
    report.tell(args.json, document, _show)
    return int(bool(wrong))


def _show(document: dict[str, Any], file: TextIO) -> None:
    noticed_s = document["noticed_s"] or [0.0]
    rows = [
        (
            len(document["results"]),
            len(document["results"]) * (document["ranks"] - 1),
            format_time(median(noticed_s)),
            format_time(noticed_s[-1]),
            len(document["wrong"]),
        )
    ]
    columns = [("deaths", ""), ("survivors", ""), ("noticed", "median"), ("max", ""), ("#wrong", "")]
    report.print_table(columns, rows, notes=document["wrong"], left=(), file=file)


if __name__ == "__main__":
    sys.exit(main())
