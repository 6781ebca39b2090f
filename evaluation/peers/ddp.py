"""Train a model of torch.nn by PyTorch's DDP over gloo and over lanterne, in turn, with a late rank and without.

  ./run evaluate ddp                                        four ranks of this host, nobody late
  ./run evaluate ddp --hosts 4 --late 0,2 --caps 1,2,25     an emulated cluster (root): one rank late by 2 s/rate
  ./run evaluate ddp --hosts 4 --late 0.5 --spread          ranks that come 0, 1/6, 1/3 and 1/2 of s/rate late
  ./run evaluate ddp --caps 1,2,25 --memory                 and what memory a job over each takes
  ./run evaluate ddp --init 5                               what init_process_group takes, nothing known from before

Both backends train the same model in the same processes, iteration by iteration; what they have learnt is compared at
the end of each case. A model of s bytes of gradients needs s/rate to pass a link once. With a late rank, x is what that
rank's backward pass takes beside its own computing, in s/rate; without one, the ratio of lanterne's iterations to those
of gloo beside them. Needs PyTorch: the Python of --python, this one, or the environment of `./run test -m torch`.
"""

import argparse
import json
import os
import sys
import tempfile
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from evaluation.peers.team import Contender, find_python
from lanterne.bench.lab.command import end_in_order, environment, wait_for_all
from lanterne.bench.lab.network import INTERFACE, Network, Undertaker, check_available, create
from lanterne.bench.output import report
from lanterne.bench.output.units import format_time, parse_rate_bytes_per_s, whole
from lanterne.errors import InputError, LanterneError, TransportError, Unavailable
from lanterne.transport.job.launch import start_child

RANK = Path(__file__).with_name("ddp_rank.py")
NEEDS = Contender("DDP", "ddp", "none", ("torch", "lanterne"), ".venv-torch")
# Of one host: what s/rate stands for there, where no link has a rate.
NO_RATE_BYTES_PER_S = 1e9
PORT = 29541
BACKENDS = "gloo", "lanterne"
# Parameters of both backends may differ by roundings, which training enlarges.
MOST_DIFFERENCE = 1e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, default=0, metavar="N", help="of an emulated cluster; 0: this host alone")
    parser.add_argument("-n", "--ranks", type=int, default=4, metavar="N", help="of this host (default 4)")
    parser.add_argument("--rate", default="200mbit", help="of every emulated link (default: %(default)s)")
    parser.add_argument("--late", default="0", metavar="D,...", help="how late one rank is, in s/rate (default 0)")
    parser.add_argument("--spread", action="store_true", help="all come spread evenly over D, in place of one late")
    parser.add_argument("--caps", default="1,25", metavar="MB,...", help="bucket_cap_mb (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="3.2 MB each (default 3)")
    parser.add_argument("--iterations", type=int, default=5, metavar="K", help="that count, of each (default 5)")
    parser.add_argument("--memory", action="store_true", help="of two more jobs on this host, one over each")
    parser.add_argument(
        "--init", type=whole(1), metavar="K", help="time init_process_group alone, of K jobs over each, without a cache"
    )
    parser.add_argument("--python", metavar="PATH", help="a Python with PyTorch and lanterne")
    parser.add_argument("--json", metavar="FILE", help="write everything")


def run(args: argparse.Namespace) -> int:
    python = find_python(NEEDS, args.python)
    if python is None:
        raise Unavailable("ddp: no Python with PyTorch and lanterne here; `./run test -m torch` makes one")
    rate = parse_rate_bytes_per_s(args.rate, "--rate") if args.hosts else NO_RATE_BYTES_PER_S
    options = {
        "caps_mb": _numbers("--caps", args.caps),
        "late": _numbers("--late", args.late),
        "spread": args.spread,
        "layers": args.layers,
        "iterations": args.iterations,
        "rate_bytes_per_s": rate,
        "memory_of": None,
        "init_of": None,
    }
    with tempfile.TemporaryDirectory(prefix="lanterne") as folder:

        def job(hosts: int, **more: object) -> Any:
            file = Path(folder) / "found.json"
            words = [python, "-P", str(RANK), json.dumps(options | more | {"out": str(file)})]
            code = _in_a_lab(words, hosts, rate) if hosts else _on_this_host(words, args.ranks)
            if code:
                raise TransportError(f"ddp: a rank ended with exit code {code}")
            return json.loads(file.read_text())

        if args.init:
            about = report.envelope(ranks=args.hosts or args.ranks, hosts=args.hosts, rate_bytes_per_s=rate)
            turns = [(name, job(args.hosts, init_of=name)) for _ in range(args.init) for name in BACKENDS]
            report.tell(args.json, about | {"results": _inits(turns)}, _show_inits)
            return 0
        found = job(args.hosts)
        if not all(isfinite(record["difference"]) for record in found["results"]):
            raise LanterneError("ddp: got parameters that are no finite numbers, expected them after training")
        if args.memory:
            found["memory_nbytes"] = {name: job(0, memory_of=name) for name in BACKENDS}
    document = report.envelope(**found, ranks=args.hosts or args.ranks, hosts=args.hosts, rate_bytes_per_s=rate)
    document["results"] = [_summed_up(record, rate) for record in found["results"]]
    report.tell(args.json, document, _show)
    return int(any(record["difference"] > MOST_DIFFERENCE for record in document["results"]))


def _inits(turns: list[tuple[str, list[float]]]) -> list[dict[str, Any]]:
    """By backend, what init took the last rank of each job: `init_s`, in order."""
    return [{"backend": name, "init_s": [max(ranks) for each, ranks in turns if each == name]} for name in BACKENDS]


def _show_inits(document: dict[str, Any], file: TextIO) -> None:
    rows = [
        (backend, len(init_s), format_time(median(init_s)), format_time(max(init_s)))
        for backend, init_s in ((record["backend"], record["init_s"]) for record in document["results"])
    ]
    columns = [("backend", ""), ("jobs", ""), ("median", ""), ("max", "")]
    notes = ["init_process_group until it returns on the last rank; the links are measured in each job"]
    report.print_table(columns, rows, notes=notes, file=file)


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 <= number < 1e4 for number in numbers):
        raise InputError(f"{option}: got {text!r}, expected numbers of at least 0, such as 0,2")
    return numbers


def _in_a_lab(words: list[str], hosts: int, rate: float) -> int:
    check_available()
    network = Network(f"ddp{os.getpid()}", (rate,) * hosts)
    undertaker = Undertaker(network.name)
    end_in_order()
    try:
        create(network)
        return _start(words, [(network.run_in(rank), environment(network, "", rank)) for rank in range(hosts)], network)
    finally:
        undertaker.close()


def _on_this_host(words: list[str], ranks: int) -> int:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return _start(words, [([], variables)] * ranks)


def _start(words: list[str], places: list[tuple[list[str], dict[str, str]]], network: Network | None = None) -> int:
    meeting = {"WORLD_SIZE": str(len(places)), "MASTER_PORT": str(PORT)}
    meeting["MASTER_ADDR"] = "127.0.0.1" if network is None else network.address(0)
    processes = []
    for rank, (prefix, variables) in enumerate(places):
        own = meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank if network is None else 0)}
        if network is not None:
            own["GLOO_SOCKET_IFNAME"] = INTERFACE
        processes.append(start_child([*prefix, *words], env=variables | own, stdout=sys.stderr))
    return wait_for_all(processes)


def _summed_up(record: dict[str, Any], rate: float) -> dict[str, Any]:
    """`record` with what its samples come to, by backend, and the ratio."""
    found: dict[str, Any] = {}
    ends = {name: [max(rank["end"] for rank in turn) for turn in turns] for name, turns in record["samples"].items()}
    for name, turns in record["samples"].items():
        late = [(turn[-1]["backward"] - record["alone_s"]) * rate / record["nbytes"] for turn in turns]
        found[name] = {"end_s": median(ends[name]), "x": median(late) if record["late"] else None}
    ratio = median(ours / theirs for ours, theirs in zip(ends["lanterne"], ends["gloo"], strict=True))
    return record | found | {"ratio": ratio}


def _show(document: dict[str, Any], file: TextIO) -> None:
    rows = []
    for record in document["results"]:
        x = [record[name]["x"] for name in BACKENDS]
        row = [f"{record['cap_mb']:g}", f"{record['nbytes'] / 1e6:.1f}", f"{record['late']:g}"]
        row += [f"{record[name]['end_s'] * 1e3:.0f}" for name in BACKENDS]
        row += [f"{record['ratio']:.3f}", *("" if each is None else f"{each:.2f}" for each in x)]
        rows.append([*row, f"{record['difference']:.1e}"])
    columns = [("cap", "MB"), ("model", "MB"), ("late", "s/rate"), ("gloo", "ms"), ("lanterne", "ms"), ("ratio", "")]
    columns += [("gloo", "x"), ("lanterne", "x"), ("differ", "")]
    notes = [f"torch {document['torch']}; init_process_group took {document['init_s']:.2f} s"]
    if "memory_nbytes" in document:
        theirs, ours = (sum(document["memory_nbytes"][name]) for name in BACKENDS)
        told = f"gloo {theirs / 1e6:.0f} MB, lanterne {ours / 1e6:.0f} MB, {ours / theirs:.3f} of it"
        notes.append(f"memory of a job: {told}")
    report.print_table(columns, rows, notes=notes, left=(), file=file)
