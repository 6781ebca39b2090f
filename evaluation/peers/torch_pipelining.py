"""Train a model of torch.nn by torch.distributed.pipelining and by lanterne, the same plans in turn, in one run.

  ./run evaluate torch-pipelining                                    2 and 4 ranks of this host
  ./run evaluate torch-pipelining --ranks 2 --schedulers 1f1b,best --json pipelining.json

Both train the same blocks in the same processes, iteration by iteration, torch over gloo; it runs the plan from the
files that `pipeline plan --csv` writes, without messages and with them (--comms), and, where it has a class of its own,
by that too. ratio: lanterne's throughput over the best of torch's; comms ratio: the time of torch with our messages
over lanterne's; each the median of the iterations' own. After the last iteration losses are compared. Needs PyTorch:
the Python of --python, this one, or the environment of `./run test -m torch`.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from evaluation.peers.team import Contender, find_python
from lanterne.bench.lab.command import wait_for_all
from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.errors import InputError, LanterneError, TransportError, Unavailable
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.transport.job.launch import start_child

RANK = Path(__file__).with_name("torch_pipelining_rank.py")
NEEDS = Contender("pipelining", "pipelining", "none", ("torch", "lanterne"), ".venv-torch")
PORTS = 29551, 29552
# Losses of both after the same iterations: their Adams round differently.
MOST_DIFFERENCE = 1e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--ranks", default="2,4", metavar="N,...", help="of this host (default 2,4)")
    parser.add_argument("--schedulers", default="1f1b,zb_h1", metavar="A,...", help="of plans (default %(default)s)")
    parser.add_argument("--microbatches", type=whole(1), default=8, metavar="M", help="(default 8)")
    parser.add_argument("--width", type=whole(4), default=256, help="of the model (default 256)")
    parser.add_argument("--blocks", type=whole(1), default=2, help="of a stage (default 2)")
    parser.add_argument("--iterations", type=whole(1), default=10, metavar="K", help="that count, of each (default 10)")
    parser.add_argument("--python", metavar="PATH", help="a Python with PyTorch and lanterne")
    parser.add_argument("--json", metavar="FILE", help="write everything")


def run(args: argparse.Namespace) -> int:
    """Run, print and write; exit code 1 if losses differ."""
    python = find_python(NEEDS, args.python)
    if python is None:
        raise Unavailable("torch-pipelining: no Python here has PyTorch and lanterne; see `./run test -m torch`")
    try:
        sizes = [int(text) for text in args.ranks.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(2 <= size <= 16 for size in sizes):
        raise InputError(f"--ranks: got {args.ranks!r}, expected numbers from 2 to 16, such as 2,4")
    results: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for ranks in sizes:
        # B and W of a block take about as long as its F.
        problem = Problem(ranks, args.microbatches, 1.0, 1.0, 1.0)
        options = {
            "plans": [plan(problem, name).to_dict() | {"scheduler": name} for name in args.schedulers.split(",")],
            "port": PORTS[1],
            **{key: getattr(args, key) for key in ("microbatches", "width", "blocks", "iterations")},
        }
        found = _on_this_host(python, ranks, options)
        results += [{"ranks": ranks, **_summed_up(record)} for record in found["results"]]
    document = report.envelope(torch=found["torch"], results=results)
    report.tell(args.json, document, _show)
    return int(any(record["difference"] > MOST_DIFFERENCE for record in results))


def _on_this_host(python: str, ranks: int, options: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lanterne") as folder:
        options = {**options, "out": str(Path(folder) / "samples.json")}
        file = Path(folder) / "options.json"
        file.write_text(json.dumps(options))
        meeting = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORTS[0])}
        usual = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"} | meeting
        words = [python, "-P", str(RANK), str(file)]
        processes = [
            start_child(words, env=usual | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=sys.stderr)
            for rank in range(ranks)
        ]
        code = wait_for_all(processes)
        if code:
            raise TransportError(f"torch-pipelining: a rank ended with exit code {code}")
        found: dict[str, Any] = json.loads(Path(options["out"]).read_text())
        return found


def _summed_up(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with the medians of its samples, and the ratio."""
    samples = record["samples_s"]
    theirs = [name for name in samples if name != "lanterne"]
    pairs = zip(samples["lanterne"], *(samples[name] for name in theirs), strict=True)
    ratio = median(min(others) / ours for ours, *others in pairs)
    comms = median(a / b for a, b in zip(samples["comms"], samples["lanterne"], strict=True))
    losses = record["losses"]
    if not all(map(isfinite, losses.values())):
        raise LanterneError(f"torch-pipelining: got losses {losses}, expected finite numbers")
    worst = max(abs(losses[name] / losses["lanterne"] - 1) for name in theirs)
    medians = {name: median(each) for name, each in samples.items()}
    return record | {"median_s": medians, "ratio": ratio, "comms_ratio": comms, "difference": worst}


def _show(document: dict[str, Any], file: TextIO) -> None:
    columns = [
        ("ranks", ""),
        ("plan", ""),
        ("torch, own class", "ms"),
        ("torch, from CSV", "ms"),
        ("with messages", "ms"),
    ]
    columns += [("lanterne", "ms"), ("ratio", ""), ("comms ratio", ""), ("losses differ", "")]
    rows = []
    for record in document["results"]:
        took = [record["median_s"].get(name) for name in ("own", "csv", "comms", "lanterne")]
        row = [record["ranks"], record["scheduler"], *("-" if each is None else f"{1e3 * each:.1f}" for each in took)]
        row += [f"{record['ratio']:.3f}", f"{record['comms_ratio']:.3f}", f"{record['difference']:.1e}"]
        rows.append(row)
    notes = [f"torch {document['torch']} over gloo; an iteration, Adam's step included; ratio: of throughputs"]
    report.print_table(columns, rows, notes=notes, left=(1,), file=file)
