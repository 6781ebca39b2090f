"""Score `lanterne watch` on programs that hang, and on healthy ones with long pauses.

Every job is a small mpi4py program with a seed: after some iterations one of its ranks leaves a collective out, calls
another one first, is stopped, dies without a word, or sleeps. A hanging job is right if a line names the rank, and only
it, and an incident file with the call does, within the patience; the report at the end says the same. A healthy job
has a checkpoint of one rank and an evaluation of all; it is right without an incident.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evaluation.beside import score_jobs
from lanterne.transport.job.launch import start_child

RANKS, PATIENCE_S, LIMIT_S = 3, 4.0, 25.0
NAP_S = 12.0
PROGRAM = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
comm, x = MPI.COMM_WORLD, np.ones(1000, np.float32)
kind, at, who, nap_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
for i in range(at + 40):
    time.sleep(0.01)
    if i == at and comm.rank == who:
        if kind in ("sleep", "checkpoint"):
            time.sleep(nap_s)
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "die":
            os._exit(0)
        elif kind == "order":
            comm.Barrier()
    if i == at and kind == "checkpoint":
        comm.Barrier()
        time.sleep(nap_s)
    if not (i == at and comm.rank == who and kind == "skip"):
        comm.Allreduce(MPI.IN_PLACE, x)
    comm.Barrier()
"""
HANGS = ("skip", "order", "stop", "die", "sleep")
KINDS = (*HANGS, "checkpoint")
TOLD = re.compile(r"(?P<word>waiting|HANGS) for (?P<wait_s>[0-9.]+) s.*?(?:not|but) rank (?P<rank>\d+)")


def main() -> int:
    """The exit code: 1 if a job was not right."""
    columns = [("kind", ""), ("jobs", ""), ("right", ""), ("first line after", "s"), ("incident after", "s")]
    title = "hanging programs"
    return score_jobs("operators.hang_score", __doc__, KINDS, _score, columns, _row, title, seeded=True)


def _score(kind: str, seed: int) -> dict[str, Any]:
    """Run one job of `kind`; its record."""
    draw = random.Random(seed)
    at, who = draw.randrange(5, 60), draw.randrange(RANKS)
    with tempfile.TemporaryDirectory() as folder:
        script, found = Path(folder, "job.py"), Path(folder, "report.json")
        script.write_text(PROGRAM)
        words = ["--patience", f"{PATIENCE_S if kind in HANGS else 30.0}s", "--incidents", f"{folder}/incidents"]
        command = [sys.executable, "-m", "lanterne", "watch", "-n", str(RANKS), *words, "--json", str(found)]
        nap_s = NAP_S if kind in HANGS else draw.uniform(15.0, 20.0)
        command += ["--", sys.executable, str(script), kind, str(at), str(who), str(nap_s)]
        lines = _lines(command, LIMIT_S if kind in HANGS else 120.0)
        documents = [json.loads(path.read_text()) for path in Path(folder, "incidents").glob("*-hang-*.json")]
        report = json.loads(found.read_text())
    told = [match for text in lines if (match := TOLD.search(text))]
    ranks = {int(match["rank"]) for match in told}
    waits_s = [float(match["wait_s"]) for match in told]
    hangs_s = [float(match["wait_s"]) for match in told if match["word"] == "HANGS"]
    final = [[one["rank"] for one in hang["culprits"]] for hang in report["hangs"]]
    if kind in HANGS:
        written = [[one["rank"] for one in document["ranks"]] for document in documents]
        right = ranks == {who} and final == [[who]] == written and bool(hangs_s) and hangs_s[0] <= PATIENCE_S + 1.5
    else:
        right = not final and not documents and not hangs_s and ranks <= {who}
    found_s = {"first_s": min(waits_s, default=None), "incident_s": min(hangs_s, default=None)}
    return {
        "kind": kind,
        "seed": seed,
        "right": right,
        "rank": who,
        "at": at,
        **found_s,
        "lines": lines,
        "final": final,
    }


def _lines(command: list[str], limit_s: float) -> list[str]:
    """What the command says on standard error; it is ended at its limit, or when it has told enough."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    process = start_child(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    ends_s = time.monotonic() + limit_s
    while process.poll() is None:
        for line in process.stderr.readlines():
            lines.append(line.rstrip())
            if "HANGS for" in line:
                # What the report makes of it is known soon.
                ends_s = min(ends_s, time.monotonic() + 1.5)
        if time.monotonic() > ends_s:
            process.terminate()
            break
        time.sleep(0.05)
    try:
        process.wait(20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    lines += [line.rstrip() for line in process.stderr.readlines()]
    process.stderr.close()
    return [text for text in lines if text.startswith("lanterne watch: ")]


def _row(kind: str, records: list[dict[str, Any]]) -> list[object]:
    def middle(key: str) -> str:
        known = sorted(one[key] for one in records if one[key] is not None)
        return f"{known[len(known) // 2]:.1f}" if known else "-"

    right = sum(one["right"] for one in records)
    return [kind, len(records), right, middle("first_s"), middle("incident_s")]


if __name__ == "__main__":
    sys.exit(main())
