"""ADAPTRA figure 20: what delegates cost when no link is slow: every message through them, against sending inline.

Four processes, eight microbatches, 20 ms for each of F, B and W, messages of real bytes.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.study import UNIT_S, measured
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.bench.pipeline.measure import PipelineCase
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check

SIZES = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
# Stages, microbatches, and ms of F, B and W.
SHAPE = (4, 8, 20, 20, 20)
SCHEDULERS = {"1F1B": "1f1b", "ZB": "zb_h2"}
PLANES = ("inline", "delegate")
FIGURE_INCHES = (8, 4.5)
NOTES = """
paper: below 5 % for models to 30B, 17 % at 60B; its baselines send from GPU memory, past the CPU
"""
COLUMNS: Columns = [
    ("message", ""),
    ("schedule", ""),
    ("simulated", ""),
    ("inline", ""),
    ("delegate", ""),
    ("overhead", "median"),
]


def run(quick: bool) -> list[Record]:
    """One record per size of a message and schedule."""
    cases = {}
    for nbytes in SIZES[:2] if quick else SIZES:
        problem = Problem(*SHAPE, message_nbytes=nbytes)
        for name, scheduler in SCHEDULERS.items():
            for plane in PLANES:
                cases[nbytes, name, plane] = PipelineCase(
                    check(plan(problem, scheduler), problem), problem, UNIT_S, plane
                )
    found = measured(cases, 2 if quick else 5)
    records = []
    for nbytes, name in dict.fromkeys(key[:2] for key in cases):
        inline, delegate = (found[nbytes, name, plane] for plane in PLANES)
        ratios = [a / b for a, b in zip(delegate["measured_s"], inline["measured_s"], strict=True)]
        records.append(
            {
                "nbytes": nbytes,
                "schedule": name,
                "predicted_s": inline["predicted_s"],
                "inline_s": inline["measured_s"],
                "delegate_s": delegate["measured_s"],
                "overhead": statistics.median(ratios) - 1,
            }
        )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    times = (statistics.median(record[f"{plane}_s"]) for plane in PLANES)
    return [
        format_nbytes(record["nbytes"]),
        record["schedule"],
        format_time(record["predicted_s"]),
        *map(format_time, times),
        f"{record['overhead']:+.1%}",
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The most that delegates may cost."""
    return [at_most("overhead of delegates", max(record["overhead"] for record in records), 0.05, "{:.1%}")]


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
