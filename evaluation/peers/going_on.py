"""Kill a rank (SIGKILL) of a DDP job that goes on, over lanterne and torchft in turn: when is the next step done?

  .venv-torch/bin/python -P -m evaluation.peers.going_on --runs 5
  .venv-torch/bin/python -P -m evaluation.peers.going_on --contenders lanterne --json going_on.json

Every run is a job of its own on this host, of a small model; its rank is killed at the beginning of a step and started
again at once. "next step": from the kill until the last survivor has done a step without it. "back": from then that it
was started again, until it has done a step with all others. torchft (pip install torchft, beside PyTorch) runs with its
lighthouse as its README starts it and Gloo's 5 s; each of its replicas is one process. Over "torchft-lanterne" torchft
says who is in the group, and that is lanterne.torch.ReconfigurableGroup. Exit code 1 if a job failed.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.units import chosen, format_time, whole
from lanterne.errors import Unavailable, need_package
from lanterne.transport.job.launch import start_child

RANK = Path(__file__).with_name("going_on_rank.py")
CONTENDERS = {"lanterne": "", "torchft": "", "torchft-lanterne": ""}
# Of a job; and the step in which a rank is killed.
JOB_S, STEPS = 180.0, (10, 30)
# What starts a process again that was killed.
AGAIN = '"$@"; code=$?; [ $code -ne 137 ] || exec "$@"; exit $code'
LIGHTHOUSE = ("torchft_lighthouse", "--min_replicas", "2", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")


def run_job(contender: str, ranks: int, chance: random.Random) -> dict[str, Any]:
    """One job: when its ranks did what, seconds, and what was wrong with it."""
    victim, step = chance.randrange(ranks), chance.randint(*STEPS)
    with tempfile.TemporaryDirectory(prefix="lanterne") as folder:
        words = [sys.executable, "-P", str(RANK), contender, folder, str(victim), str(step)]
        problem = (_over_lanterne if contender == "lanterne" else _over_torchft)(words, ranks)
        times = times_of(Path(folder), victim, ranks)
    record: dict[str, Any] = {"contender": contender, "ranks": ranks, "victim": victim, "step": step}
    record["problem"] = problem
    if problem is None and None in times.values():
        record["problem"] = f"no {' and no '.join(name for name, time_s in times.items() if time_s is None)}"
    return record | times


def times_of(folder: Path, victim: int, ranks: int) -> dict[str, float | None]:
    """{"next_step_s", "back_s"} of what the processes of a job wrote; None for what never was."""
    with suppress(OSError, ValueError):
        killed_s = float((folder / "killed").read_text())
        told = [path.read_text().splitlines() for path in sorted(folder.glob("told-*"))]
        heads = [(int(rank), float(began_s)) for rank, began_s in (lines[0].split() for lines in told if lines)]
        steps = [[(float(at), int(of)) for at, of in map(str.split, lines[1:])] for lines in told if lines]
        without = [
            next((at for at, of in done if of < ranks and at > killed_s), None)
            for (rank, _), done in zip(heads, steps, strict=True)
            if rank != victim
        ]
        found = [at for at in without if at is not None]
        back = [
            at - began_s
            for (rank, began_s), done in zip(heads, steps, strict=True)
            if rank == victim and began_s > killed_s
            for at, of in done
            if of == ranks
        ]
        complete = len(found) == ranks - 1
        return {"next_step_s": max(found) - killed_s if complete else None, "back_s": min(back, default=None)}
    return {"next_step_s": None, "back_s": None}


def _over_lanterne(words: list[str], ranks: int) -> str | None:
    """Run a job of `words`; what went wrong with it, None: nothing."""
    launch = [sys.executable, "-P", "-m", "lanterne", "launch", "-n", str(ranks), "--restarts", "1", "--", *words]
    return _done([launch], [{"LANTERNE_TRANSPORT": "tcp"}])


def _over_torchft(words: list[str], ranks: int) -> str | None:
    """As `_over_lanterne`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    about = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    lighthouse = [str(Path(sys.executable).with_name(LIGHTHOUSE[0])), *LIGHTHOUSE[1:], "--bind", f"127.0.0.1:{port}"]
    with start_child(lighthouse, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as store:
        try:
            return _done([["sh", "-c", AGAIN, "sh", *words]] * ranks, [about | {"RANK": str(r)} for r in range(ranks)])
        finally:
            store.kill()


def _done(commands: list[list[str]], about: list[dict[str, str]]) -> str | None:
    """Run all `commands` at once, with these variables; what went wrong, None: nothing."""
    with tempfile.TemporaryFile("w+") as said:
        jobs = [
            start_child(command, env=os.environ | own, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
            for command, own in zip(commands, about, strict=True)
        ]
        until_s = time.monotonic() + JOB_S
        try:
            codes = [job.wait(max(0.0, until_s - time.monotonic())) for job in jobs]
        except subprocess.TimeoutExpired:
            return f"not done after {JOB_S:g} s"
        finally:
            for job in jobs:
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        said.seek(0)
        return None if not any(codes) else f"exit codes {codes}: {said.read()[-500:]}"


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=whole(3), default=4, metavar="N", help="of a job (default 4)")
    parser.add_argument("--runs", type=whole(1), default=5, metavar="K", help="jobs of each (default 5)")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), metavar="A,B", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")
    args = parser.parse_args()
    names = chosen(args.contenders, "--contenders", CONTENDERS)
    need_package("torch", "going_on")
    if set(names) - {"lanterne"} and find_spec("torchft") is None:
        raise Unavailable("going_on: torchft is not installed; pip install torchft, or --contenders lanterne")
    chances = {name: random.Random(args.seed) for name in names}
    results = []
    for number in range(args.runs):
        for name in names:
            report.progress(f"{name}, {number + 1} of {args.runs}")
            results.append(run_job(name, args.ranks, chances[name]))
    report.progress("")
    report.tell(args.json, report.envelope(results=results), print_results)
    return int(any(one["problem"] for one in results))


def print_results(document: dict[str, Any], file: TextIO) -> None:
    """A line of each contender, and all problems."""
    rows = []
    for name in dict.fromkeys(one["contender"] for one in document["results"]):
        own = [one for one in document["results"] if one["contender"] == name]
        row = [name, str(len(own)), str(sum(one["problem"] is not None for one in own))]
        for key in ("next_step_s", "back_s"):
            times_s = [one[key] for one in own if one[key] is not None]
            row += [format_time(median(times_s)), format_time(max(times_s))] if times_s else ["-", "-"]
        rows.append(row)
    columns = [("over", ""), ("jobs", ""), ("fail", ""), ("next step", "median"), ("", "max"), ("back", "median")]
    failed = [one for one in document["results"] if one["problem"]]
    notes = [f"{one['contender']}, rank {one['victim']}: {one['problem']}" for one in failed]
    report.print_table([*columns, ("", "max")], rows, notes=notes, left=(0,), file=file)


if __name__ == "__main__":
    sys.exit(main())
