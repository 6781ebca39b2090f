"""Benchmark the data plane of delegates against the inline one, two ranks on fast links, over sizes of activations.

Both ranks run real iterations of a pipeline of two stages: F copies what it received into what it sends, B likewise, so
memory is all that the stages need; --work adds time to each action that leaves the core free, as a GPU does. The planes
take turns, iteration by iteration; `over inline` is the median of the ratios of neighbours, and every message is
checked. `send, CPU` is what a send costs the computing rank; `send` how long the call lasted, which where there are
fewer cores than processes includes the turn of a delegate that it woke. Both with the caches as the stage left them;
only the clocks were read before, so that what they miss is not counted.

  ./run evaluate delegate                                 1, 4, 16 and 64 MiB
  ./run evaluate delegate --bytes 1M,64M --work 20ms --json delegate.json
  ./run evaluate delegate --queues auto --work 5ms        delegates as ADAPTRA, section 5.2, counts them
  ./run evaluate delegate --over tcp --planes tcp         both over TCP, as between hosts
  ./run evaluate delegate --check                         exit code 1 if a bar is missed: 5 % over inline, 20 us a send

The planes: `inline`, over MPI or over UCX on TCP; `memory`: of one host, a message is read in its sender's memory, and
no delegate stands between; `tcp`: delegates over TCP on loopback, as between hosts, which costs a copy into the kernel
and one out of it. The bars are for the plane whose link is also inline's.
"""

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, at_most, print_bars
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.units import chosen, format_time, parse_sizes, parse_time_s, whole
from lanterne.errors import InputError

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.execute.stage import StageArray
    from lanterne.pipeline.planes.data_plane import DataPlane
    from lanterne.pipeline.simulate.check_plan import CheckedPlan

RAILS = {"memory": ("memory",), "tcp": ("tcp",)}
# What `inline` goes over -> its transport, and the plane on the same link.
OVER = {"mpi": ("mpi", "memory"), "tcp": ("ucx", "tcp")}
BASE = "inline"
BAR_RATIO, BAR_SEND_US = 1.05, 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes", default="1M,4M,16M,64M", metavar="SIZE,...", help="default 1M,4M,16M,64M")
    parser.add_argument("--planes", default="memory,tcp", metavar="A,B", help="besides inline (default memory,tcp)")
    parser.add_argument("--over", choices=OVER, default="mpi", help="what inline goes over (default mpi)")
    parser.add_argument("--work", default="0ms", metavar="T", help="of each action besides copying (default 0ms)")
    parser.add_argument(
        "--queues",
        type=_queues,
        default=1,
        metavar="N",
        help="delegates of a rank (default 1); auto: as many as carry a message every --work, one being measured first",
    )
    parser.add_argument("--microbatches", type=whole(1), default=8, metavar="M", help="of an iteration (default 8)")
    parser.add_argument("--iterations", type=whole(1), default=15, metavar="K", help="of each, in turn (default 15)")
    parser.add_argument("--check", action="store_true", help="print the bars; exit code 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def _queues(text: str) -> int | str:
    return text if text == "auto" else whole(1)(text)


def run(args: GivenOptions) -> int:
    sizes = parse_sizes(args.bytes, "--bytes", copies=16)
    names, work_s = chosen(args.planes, "--planes", RAILS), parse_time_s(args.work, "--work")
    if min(sizes) < 1:
        raise InputError(f"--bytes: got {args.bytes}, expected at least 1")
    if args.queues == "auto" and not work_s:
        raise InputError("--queues: got auto without --work, expected how often there is a message")
    from lanterne.transport.job.bootstrap import in_a_job

    if not in_a_job():
        from lanterne.transport.job.launch import launch

        return launch(args.own_command(), 2, launcher="mpi")

    import lanterne

    transport, judged = OVER[args.over]
    if args.over == "tcp":
        from evaluation.rails.failover_trial import UCX_TCP

        os.environ.update(UCX_TCP)
    with lanterne.init(transport) as comm:
        if comm.world_size != 2:
            raise InputError(f"delegate: got {comm.world_size} ranks, expected 2")
        records = []
        for nbytes in sizes:
            records += compare(comm, nbytes, names, work_s, args)
    report.progress("")
    bars = [bar for record in records if record["plane"] == judged for bar in bars_of(record)] if args.check else []
    if comm.rank == 0:
        document = report.envelope(work_s=work_s, over=args.over, results=records)
        report.tell(args.json, document, partial(print_records, bars=bars))
    return int(any(record["wrong"] for record in records) or not all(bar.is_met for bar in bars))


def bars_of(record: Mapping[str, Any]) -> list[Bar]:
    """What a record of delegates has to reach: its iterations over inline's, and what a send costs its rank."""
    name, send_us = f"{record['plane']}, {record['nbytes']} B", 1e6 * statistics.median(record["send_cpu_s"])
    return [
        at_most(f"{name}: iterations over inline's", record["over_inline"], BAR_RATIO),
        at_most(f"{name}: CPU of a send, us", send_us, BAR_SEND_US),
    ]


def compare(
    comm: "Communicator", nbytes: int, names: Sequence[str], work_s: float, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time iterations of every plane in turn; the records, the same on both ranks."""
    from lanterne.pipeline.plan.problem import Problem
    from lanterne.pipeline.planes.delegate import measured_queues
    from lanterne.pipeline.planes.inline import Inline
    from lanterne.pipeline.planes.plane_makers import make_plane
    from lanterne.pipeline.planners.schedulers import plan
    from lanterne.pipeline.simulate.check_plan import check

    problem = Problem(2, args.microbatches, 1, 1, 1)
    checked = check(plan(problem, "1f1b"), problem)
    planes: dict[str, DataPlane] = {BASE: Inline(comm.split(0, comm.rank), owned=True)}
    queues = dict.fromkeys(names, args.queues)
    if args.queues == "auto":
        queues = {name: measured_queues(comm, nbytes / work_s, nbytes, RAILS[name]) for name in names}
    planes |= {name: make_plane("delegate", comm, rails=RAILS[name], queues=queues[name]) for name in names}
    times_s: dict[str, list[float]] = {name: [] for name in planes}
    sends_s: dict[str, list[float]] = {name: [] for name in planes}
    cpu_s: dict[str, list[float]] = {name: [] for name in planes}
    wrong: dict[str, list[int]] = {name: [] for name in planes}
    try:
        for iteration in range(-2, args.iterations):
            for name, plane in planes.items():
                report.progress(f"{nbytes} bytes, {name} {max(iteration, 0) + 1}/{args.iterations}")
                timed = TimedDelegate(plane)
                time_s, bad = run_iteration(comm, checked, timed, nbytes, work_s)
                wrong[name].append(bad)
                if iteration >= 0:
                    times_s[name].append(time_s)
                    sends_s[name] += timed.sends_s
                    cpu_s[name] += timed.cpu_s
    finally:
        for plane in planes.values():
            plane.close()
    return [
        {
            "nbytes": nbytes,
            "plane": name,
            "queues": queues.get(name, 0),
            "iteration_s": times_s[name],
            "over_inline": statistics.median(a / b for a, b in zip(times_s[name], times_s[BASE], strict=True)),
            "send_s": sends_s[name],
            "send_cpu_s": cpu_s[name],
            "wrong": sum(wrong[name]),
        }
        for name in planes
    ]


class TimedDelegate:
    """A data plane whose sends are timed: `sends_s`, and what of it this thread itself computed, `cpu_s`."""

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self.sends_s: list[float] = []
        self.cpu_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def send(self, buffer: "StageArray", peer: int, timeout_s: float | None = None) -> bool:
        """As DataPlane.send."""
        time.perf_counter()
        time.thread_time()
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        waited = self._plane.send(buffer, peer, timeout_s)
        self.cpu_s.append(time.thread_time() - start_cpu_s)
        self.sends_s.append(time.perf_counter() - start_s)
        return waited


def run_iteration(
    comm: "Communicator", checked: "CheckedPlan", plane: Any, nbytes: int, work_s: float
) -> tuple[float, int]:
    """One iteration over `plane`, a TimedDelegate one: (its time on the slower rank, wrong messages on both ranks)."""
    import numpy as np

    from evaluation.rails.copy_stage import CopyStage
    from lanterne.pipeline.execute.execute import execute

    stage = CopyStage(comm.rank, nbytes, work_s)
    comm.barrier()
    start_s = time.perf_counter()
    execute(checked, {comm.rank: stage}, comm, plane=plane)
    mine = np.array([time.perf_counter() - start_s, stage.wrong])
    every = np.empty((2, 2))
    comm.all_gather(mine, every.reshape(-1))
    return float(every[:, 0].max()), int(every[:, 1].sum())


def print_records(document: dict[str, Any], file: TextIO, *, bars: Sequence[Bar] = ()) -> None:
    """The table of a delegate document, and a line for each of `bars`."""
    columns = [("size", "B"), ("plane", ""), ("queues", "")]
    columns += [("iteration", "median"), ("least", ""), ("most", "")]
    columns += [("over inline", "median")]
    columns += [("send, CPU", "median"), ("send", "median"), ("send", "p99"), ("#wrong", "")]
    rows = []
    for record in document["results"]:
        times_s, sends_s = record["iteration_s"], sorted(record["send_s"])
        cpu_s = statistics.median(record["send_cpu_s"])
        rows.append(
            (
                record["nbytes"],
                record["plane"],
                record["queues"],
                *map(format_time, (statistics.median(times_s), min(times_s), max(times_s))),
                f"{record['over_inline']:.3f}",
                *map(format_time, (cpu_s, statistics.median(sends_s), sends_s[len(sends_s) * 99 // 100])),
                record["wrong"],
            )
        )
    work = f"work {format_time(document['work_s'])} an action, inline over {document['over']}"
    notes = [f"{document['environment']['cpus']} cores, {work}"]
    report.print_table(columns, rows, notes=notes, left=(1,), file=file)
    print_bars(bars, file)
