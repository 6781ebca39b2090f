"""Watch an hour of healthy work beside busy processes: `lanterne watch --fail-on incident` is to find nothing.

A job of mpi4py computes and all-reduces for so long; every few minutes one of its ranks writes a checkpoint for 20 s,
for which the others wait in a collective, or all evaluate for 20 s without one. It is right where no hang is an
incident, nor slow iterations, and nobody is named but the rank that writes, in lines that say for whom others wait.
Where still other work has the cores for some seconds, lines may say that the host is busy: that is no incident.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.beside import busy
from lanterne.bench.output import report
from lanterne.bench.output.units import whole

# What is over the time of the work itself: starts, the last pause, and a report.
EXTRA_S = 300.0
PAUSE_S, WRITER = 20.0, 0
PROGRAM = """
import sys, time
import numpy as np
from mpi4py import MPI
seconds, every_s, pause_s, writer = map(float, sys.argv[1:])
comm, x = MPI.COMM_WORLD, np.ones((200, 200), np.float32)
gradients = [np.ones(4096 * (k + 1), np.float32) for k in range(4)]
ON, CHECKPOINT, EVALUATION, END = range(4)
began_s, pauses, now = time.monotonic(), 0, np.zeros(1)
while now[0] != END:
    now[0] = ON
    if comm.rank == 0:
        spent_s = time.monotonic() - began_s
        if spent_s > seconds:
            now[0] = END
        elif spent_s > every_s * (pauses + 1):
            now[0] = EVALUATION if pauses % 2 else CHECKPOINT
            pauses += 1
    for gradient in gradients:
        until_s = time.thread_time() + 0.003
        while time.thread_time() < until_s:
            x @ x
        comm.Allreduce(MPI.IN_PLACE, gradient)
    comm.Bcast(now)
    if now[0] == EVALUATION or now[0] == CHECKPOINT and comm.rank == writer:
        time.sleep(pause_s)
    time.sleep(0.01)
"""
SAYS = "lanterne watch: "
WAITS = re.compile(r"waiting for .*?(?:not|but) (?P<ranks>ranks? [0-9, to]+)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if there was an incident, another rank than the writer was waited for, or no iteration was recorded."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate operators.healthy_hour",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=whole(1), default=3600, metavar="N", help="of work (default 3600)")
    parser.add_argument("--every", type=whole(1), default=240, metavar="N", help="seconds to a pause (default 240)")
    parser.add_argument("-n", "--ranks", type=whole(2), default=4, metavar="N", help="of the job (default 4)")
    parser.add_argument("--beside", type=whole(0), default=8, metavar="N", help="busy processes beside (default 8)")
    parser.add_argument("--json", metavar="FILE", help="write what was found ('-' for standard output)")
    args = parser.parse_args(arguments)
    report.progress(f"{args.seconds} s of healthy work")
    with busy(args.beside):
        found = watched(args.ranks, args.seconds, args.every)
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(beside=args.beside, results=[found]))
    if args.json != "-":
        words = ("iterations", "median_s", "p90_s", "longest_s", "pauses", "hangs", "incidents", "slow_spells", "lines")
        print(", ".join(f"{word} {found[word]}" for word in (*words, "code")))
        print(*found["said"], sep="\n")
    return int(not found["right"])


def watched(ranks: int, seconds: float, every_s: float) -> dict[str, Any]:
    """What `lanterne watch` found in a job of so many ranks, of so many `seconds`, that pauses every `every_s`."""
    with tempfile.TemporaryDirectory() as folder:
        script, told = Path(folder, "job.py"), Path(folder, "report.json")
        script.write_text(PROGRAM)
        incidents = Path(folder, "incidents")
        command = [sys.executable, "-m", "lanterne", "watch", "-n", str(ranks), "--fail-on", "incident"]
        command += ["--incidents", str(incidents), "--json", str(told), "--", sys.executable, str(script)]
        numbers = [str(number) for number in (seconds, every_s, PAUSE_S, WRITER)]
        result = subprocess.run(
            [*command, *numbers], capture_output=True, text=True, timeout=seconds + EXTRA_S, check=False
        )
        if not told.exists():
            raise RuntimeError(f"watch: code {result.returncode}: {result.stderr[-2000:]}")
        document = json.loads(told.read_text())
        texts = [json.loads(path.read_text())["text"] for path in sorted(incidents.glob("*.json"))]
    said = [line for line in result.stderr.splitlines() if line.startswith(SAYS)]
    waited_for = {match["ranks"].strip(" ,") for line in said if (match := WAITS.search(line))}
    hangs, spells, times = document["hangs"], document["incidents"], document["iterations"]
    return {
        "right": result.returncode == 0
        and times["count"] > 0
        and not (hangs or texts)
        and waited_for <= {f"rank {WRITER}"},
        "code": result.returncode,
        "iterations": times["count"],
        "median_s": times["median_s"],
        "p90_s": times["p90_s"],
        "longest_s": max(times["time_s"], default=None),
        "pauses": sum(time_s > PAUSE_S / 2 for time_s in times["time_s"]),
        "hangs": len(hangs),
        "incidents": len(texts),
        "slow_spells": len(spells),
        "lines": len(said),
        "texts": texts,
        "found": [*hangs, *spells],
        "said": said,
    }


if __name__ == "__main__":
    sys.exit(main())
