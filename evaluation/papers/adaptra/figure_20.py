"""ADAPTRA figure 20: what delegates cost when no link is slow: every message through them, against sending inline.

Four processes, eight microbatches, 20 ms for each of F, B and W, messages of real bytes. Delegates are processes that
send over TCP, and their CPU time is counted.
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.papers.adaptra import setting
from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.study import UNIT_S
from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.bench.pipeline.measure import PipelineCase, Planes, on_ranks, run_once
from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.data_plane import DataPlane
from lanterne.pipeline.planes.delegate import DelegatePlane
from lanterne.pipeline.planes.plane_makers import predict
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check

OF_30B_NBYTES = 16 << 20
SIZES = (1 << 20, 4 << 20, OF_30B_NBYTES, 64 << 20)
# Stages, microbatches, and ms of F, B and W.
SHAPE = (4, 8, 20, 20, 20)
SCHEDULERS = {"1F1B": "1f1b", "ZB": setting.ZERO_BUBBLE}
PLANES = {"inline": setting.IN_ORDER, "delegate": setting.DELEGATES}
FIGURE_INCHES = (8, 4.5)
NOTES = """
paper: below 5 % for models to 30B, 17 % at 60B; its baselines send from GPU memory, past the CPU
delegates' CPU: of all delegates, an iteration; they share this machine's cores with the ranks and one another
"""
COLUMNS: Columns = [
    ("message", ""),
    ("schedule", ""),
    ("simulated", ""),
    ("inline", ""),
    ("delegate", ""),
    ("overhead", "median"),
    ("delegates' CPU", ""),
]


def run(quick: bool) -> list[Record]:
    """One record per size of a message and schedule."""
    cases = {}
    for nbytes in SIZES[:2] if quick else SIZES:
        problem = Problem(*SHAPE, message_nbytes=nbytes)
        for name, scheduler in SCHEDULERS.items():
            for plane, options in PLANES.items():
                checked = check(plan(problem, scheduler), problem)
                cases[nbytes, name, plane] = PipelineCase(checked, problem, UNIT_S, plane, options)
    work = {"cases": [case.to_dict() for case in cases.values()], "rounds": 2 if quick else 5}
    found = dict(zip(cases, on_ranks(observe, work, SHAPE[0], "mpi", 60.0), strict=True))
    records = []
    for nbytes, name in dict.fromkeys(key[:2] for key in cases):
        (inline_s, _), (delegate_s, cpu_s) = (zip(*found[nbytes, name, plane], strict=True) for plane in PLANES)
        case = cases[nbytes, name, "inline"]
        records.append(
            {
                "nbytes": nbytes,
                "schedule": name,
                "predicted_s": predict("inline", case.checked, case.problem, **case.options).makespan * UNIT_S,
                "inline_s": list(inline_s),
                "delegate_s": list(delegate_s),
                "delegates_cpu_s": statistics.median(cpu_s),
                "overhead": statistics.median(a / b for a, b in zip(delegate_s, inline_s, strict=True)) - 1,
            }
        )
    return records


def observe(comm: Communicator, work: dict[str, Any]) -> list[list[tuple[float, float]]] | None:
    """Of each case and round (seconds, CPU seconds of all delegates), on rank 0; every rank calls it."""
    cases, planes = [PipelineCase.from_dict(document) for document in work["cases"]], Planes(comm)
    found: list[list[tuple[float, float]]] = [[] for _ in cases]
    for number in range(work["rounds"] + 1):
        for index, case in enumerate(cases):
            report.progress(f"{case.checked.plan.scheduler} over {case.plane}: {max(number, 1)}")
            plane, _ = planes.take(case)
            before_s = _cpu_s(plane)
            columns = run_once(comm, case, plane)
            # Once all have their messages; what delegates still do belongs to the next look.
            comm.barrier()
            cpu_s = np.array([_cpu_s(plane) - before_s])
            comm.all_reduce(cpu_s, cpu_s)
            if number:  # In the first all pages and connections are new.
                found[index].append((float(columns["end_s"].max() - columns["start_s"].min()), float(cpu_s[0])))
    planes.close()
    return found if comm.rank == 0 else None


def _cpu_s(plane: DataPlane) -> float:
    """CPU seconds so far of the delegates of this rank."""
    pids = plane.delegates.pids if isinstance(plane, DelegatePlane) else ()
    # Behind the name: user and system time are the 12th and the 13th field, in ticks.
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def row(record: Record) -> list[object]:
    """One line of the table."""
    times = (statistics.median(record[f"{plane}_s"]) for plane in PLANES)
    return [
        format_nbytes(record["nbytes"]),
        record["schedule"],
        format_time(record["predicted_s"]),
        *map(format_time, times),
        f"{record['overhead']:+.1%}",
        format_time(record["delegates_cpu_s"]),
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The most that delegates may cost, by the paper: messages of its models up to 30B have 10 MiB."""
    small = [record["overhead"] for record in records if record["nbytes"] <= OF_30B_NBYTES]
    return [at_most(f"overhead of delegates, to {format_nbytes(OF_30B_NBYTES)}", max(small), 0.05, "{:.1%}")]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Overhead over the size."""
    axis = figure.subplots()
    for name in SCHEDULERS:
        mine = [record for record in records if record["schedule"] == name]
        axis.plot([r["nbytes"] >> 20 for r in mine], [100 * r["overhead"] for r in mine], "o-", label=name)
    axis.axhline(5, color="0.7", linewidth=0.8, label="the paper's are below, to 30B")
    axis.set_xscale("log", base=2)
    sizes = dict.fromkeys(record["nbytes"] for record in records)
    axis.set_xticks([nbytes >> 20 for nbytes in sizes], [format_nbytes(nbytes) for nbytes in sizes])
    axis.minorticks_off()
    axis.set_xlabel("message")
    axis.set_ylabel("delegates over inline (%)")
    axis.legend(frameon=False)
