"""Score who `lanterne watch` names while seeded jobs run, and whether its report says the same at the end.

A job is a data-parallel loop of 4 to 8 ranks over mpi4py, lanterne, or torch's gloo (DistributedDataParallel; where
PyTorch is installed): its ranks sleep for data, forward, backward and optimizer, and all-reduce between. One or two
ranks become 1.3 to 3 times as slow in one of these, or another one takes over (moving), or a rank is slow from the
start until it recovers, or none is (healthy); over lanterne also messages between two ranks become slow (link). Only
where it is asked for, for it takes a quiet machine, a rank becomes 1.1 times as slow (tenth). A job is right when
exactly the slow ranks, or the link, are named within 6 iterations of each change, nobody and nothing else ever, and the
report names the same.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.beside import score_jobs

BACKENDS = {"mpi4py": "mpi4py", "lanterne": "lanterne", "gloo": "torch"}
PATTERNS = ("one", "two", "moving", "start", "healthy")
LINK, TENTH = "lanterne-link", "tenth"
PHASES = ("data", "forward", "backward", "optimizer")
WITHIN, STEP_S, LIMIT_S = 6, 0.04, 180.0
ITERATIONS, SLOWEST = 130, 3.0
PROGRAM = """
import json, os, sys, time
import numpy as np
job = json.loads(sys.argv[1])
SHARES = {"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}
now = 0

def work(phase, part=1.0):
    extra = sum(s["factor"] - 1 for s in job["slow"]
                if s["rank"] == rank and s["phase"] == phase and s["first"] <= now < s["last"])
    time.sleep(job["step_s"] * (SHARES[phase] + extra) * part)

if job["backend"] == "gloo":
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), None

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            work("forward", 0.25)
            return x.view_as(x)

        @staticmethod
        def backward(context, gradient):
            work("backward", 0.25)
            return gradient

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return super().forward(Slow.apply(x))

    torch.set_num_threads(1)
    net = DistributedDataParallel(torch.nn.Sequential(*[Layer(64, 64) for _ in range(4)]), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for now in range(job["iterations"]):
        work("data")
        optimizer.zero_grad()
        net(torch.ones(4, 64, requires_grad=True)).sum().backward()
        work("optimizer")
        optimizer.step()
    dist.destroy_process_group()
else:
    if job["backend"] == "mpi4py":
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        all_reduce = lambda x: comm.Allreduce(MPI.IN_PLACE, x)
    else:
        import lanterne
        comm = whole = lanterne.init()
        if job["links"]:
            from lanterne.transport.shaped import Link, ShapedTransport
            shaped = ShapedTransport(whole.transport, {})
            comm = whole.split(0, whole.rank, shaped)
        algorithm = "ring" if job["links"] else "auto"
        all_reduce = lambda x: comm.all_reduce(x, x, algorithm=algorithm)
    rank, buckets = comm.rank, [np.zeros(4096 * (k + 1), np.float32) for k in range(4)]
    for now in range(job["iterations"]):
        for link in job["links"]:
            if now == link["first"]:
                for ends in (link["ends"], link["ends"][::-1]):
                    shaped.set_link(*ends, Link(link["latency_s"]))
        work("data")
        work("forward")
        for bucket in buckets:
            work("backward", 0.25)
            all_reduce(bucket)
        work("optimizer")
    if job["backend"] == "lanterne":
        for made in {comm, whole}:
            made.close()
"""
NOTICE = re.compile(r"lanterne watch: .*?iteration (?P<index>\d+): (?!perhaps)(?P<text>.*)")
NAMED = re.compile(r"rank (\d+) by [0-9.e+-]+ ms")
CALLS = "nobody comes late, the calls themselves take"


class LiveChange(NamedTuple):
    """From iteration `at` on, `ranks` are to be named, and nobody else; without any, a link."""

    at: int
    ranks: frozenset[int]


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if a job was not right."""
    kinds = [f"{name}-{what}" for name, module in BACKENDS.items() if find_spec(module) for what in PATTERNS]
    kinds.append(LINK)
    if absent := [name for name, module in BACKENDS.items() if not find_spec(module)]:
        where = "" if absent != ["gloo"] else "; `./run test -m torch` makes an environment with PyTorch, .venv-torch"
        print(f"left out: {', '.join(absent)}, whose library this Python has not{where}", file=sys.stderr)
    columns = [("kind", ""), ("jobs", ""), ("right", ""), ("healthy blamed", ""), ("report differs", ""), ("after", "")]
    title = "watched jobs"
    tenths = [f"{name}-{TENTH}" for name, module in BACKENDS.items() if find_spec(module)]
    name = "operators.live_score"
    return score_jobs(name, __doc__, kinds, _score, columns, _row, title, arguments, seeded=True, asked=tenths)


def make_job(kind: str, seed: int) -> tuple[dict[str, Any], int, list[LiveChange]]:
    """(what PROGRAM is told, its ranks, what is to be named), a pure function of both."""
    draw = random.Random(f"{kind} {seed}")
    backend, pattern = kind.split("-")
    links: list[dict[str, Any]] = []
    ranks = draw.randint(4, 8)
    first, second = draw.sample(range(ranks), 2)
    at = draw.randrange(45, 60)
    moved = at + draw.randrange(25, 35)

    def slow(rank: int, begin: int, end: int) -> dict[str, Any]:
        factor = 1.1 if pattern == TENTH else draw.uniform(1.3, SLOWEST)
        about = {"factor": factor, "phase": draw.choice(PHASES)}
        return {"rank": rank, "first": begin, "last": end, **about}

    if pattern in ("one", TENTH):
        slowed, changes = [slow(first, at, ITERATIONS)], [LiveChange(at, frozenset({first}))]
    elif pattern == "two":
        slowed = [slow(first, at, ITERATIONS)]
        # Two are to be named where each is late by a fair part of what the other is.
        slowed.append({**slowed[0], "rank": second, "phase": draw.choice(PHASES)})
        changes = [LiveChange(at, frozenset({first, second}))]
    elif pattern == "moving":
        slowed = [slow(first, at, moved), slow(second, moved, ITERATIONS)]
        changes = [LiveChange(at, frozenset({first})), LiveChange(moved, frozenset({second}))]
    elif pattern == "start":
        slowed, changes = [slow(first, 0, at)], [LiveChange(at, frozenset({first}))]
    elif pattern == "link":
        # All of a call wait for its latency twice: as the ring reduces, and as it gathers.
        latency_s = (draw.uniform(1.3, SLOWEST) - 1) * STEP_S / (2 * 4)
        links = [{"ends": [first, (first + 1) % ranks], "first": at, "latency_s": latency_s}]
        slowed, changes = [], [LiveChange(at, frozenset())]
    else:
        slowed, changes = [], []
    job = {"backend": backend, "iterations": ITERATIONS, "step_s": STEP_S, "slow": slowed, "links": links}
    return job, ranks, changes


def _score(kind: str, seed: int) -> dict[str, Any]:
    """Run one job of `kind`; its record."""
    job, ranks, changes = make_job(kind, seed)
    with tempfile.TemporaryDirectory() as folder:
        script, found = Path(folder, "job.py"), Path(folder, "report.json")
        script.write_text(PROGRAM)
        program = [str(script), json.dumps(job)]
        launch = ["-n", str(ranks), "--", sys.executable, *program]
        if job["backend"] == "gloo":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            launch = ["--", *torchrun, *program]
        watch = [sys.executable, "-m", "lanterne", "watch", "--incidents", "none", "--json", str(found)]
        result = subprocess.run([*watch, *launch], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if result.returncode or not found.exists():
            raise RuntimeError(f"{kind}, job {seed}: code {result.returncode}: {result.stderr[-2000:]}")
        report = json.loads(found.read_text())
    live = _named(result.stderr.splitlines())
    causes = [cause for incident in report["incidents"] for cause in incident["causes"]]
    final = [frozenset(cause["ranks"]) for cause in causes if cause["ranks"] or cause["kind"] == "calls"]
    told = [ranks for _, ranks in live]
    after = [index - change.at for (index, _), change in zip(live, changes, strict=False)]
    slow = frozenset(one["rank"] for one in job["slow"])
    expected = [change.ranks for change in changes]
    return {
        "kind": kind,
        "seed": seed,
        "right": told == final == expected and all(0 <= rows <= WITHIN for rows in after),
        "blamed": bool(frozenset().union(*told, *final) - slow) or (frozenset() in final and not job["links"]),
        "agree": told == final,
        "after": after,
        "live": [[index, sorted(ranks)] for index, ranks in live],
        "final": [sorted(ranks) for ranks in final],
        "causes": [cause["kind"] for cause in causes],
        "job": job,
        "ranks": ranks,
    }


def _named(lines: list[str]) -> list[tuple[int, frozenset[int]]]:
    """(iteration in which they were named, ranks, none of a link) of what was said while the job ran."""
    found: list[tuple[int, frozenset[int]]] = []
    index = 0
    for line in lines:
        if notice := NOTICE.match(line):
            index = int(notice["index"])
        elif line.startswith("lanterne watch:   ") and ((ranks := NAMED.findall(line)) or CALLS in line):
            found.append((index, frozenset(map(int, ranks))))
    return found


def _row(kind: str, records: list[dict[str, Any]]) -> list[object]:
    after = sorted(rows for one in records for rows in one["after"])
    right = sum(one["right"] for one in records)
    blamed, differ = sum(one["blamed"] for one in records), sum(not one["agree"] for one in records)
    return [kind, len(records), right, blamed, differ, after[len(after) // 2] if after else "-"]


if __name__ == "__main__":
    sys.exit(main())
