"""ADAPTRA figure 14: GPT2-7B on four stages, 30 ms on the link between the last two: blocked, delegated, re-planned.

The paper prints neither microbatches nor durations; these are fitted to its busy time and its four makespans. All is
measured on processes whose stages wait as long as those would compute, over emulated links.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers import study
from evaluation.papers.experiment import Figure, Record
from evaluation.papers.study import (
    COLUMNS,
    Point,
    adaptra_systems,
    draw_gantt,
    draw_kinds,
    lasted_s,
    ratio,
    row,
    slowed,
)
from lanterne.bench.output.bars import Bar, at_least
from lanterne.pipeline.plan.problem import Problem

__all__ = ["COLUMNS", "row"]

QUIET = Problem(4, 12, 8.8, 10.4, 5.6, [7.5, 7.5, 7.5])
SLOW_LINK, DELAY_MS = 2, 30
SYSTEMS = adaptra_systems(queue=1)
FIGURE_INCHES = (13, 9)
PAPER_S = {"ZB": 0.703, "ADAPTRA-CPU": 0.579, "ADAPTRA": 0.398}
PAPER_RATIOS = {"ZB": 1.77, "ADAPTRA-CPU": 1.45}
NOTES = """
paper: seconds; without the slow link 0.368; ZB: zero bubble, sent in order; ADAPTRA-CPU: the same plan, delegates send
ADAPTRA: delegates and a plan for the slow link; best: ours; slowdown: over the same system without the slow link
"""


def run(quick: bool) -> list[Record]:
    """One record per system."""
    point = Point(f"{DELAY_MS} ms", QUIET, slowed(QUIET, {SLOW_LINK: DELAY_MS}), PAPER_S)
    return study.study([point], SYSTEMS, 2 if quick else 5)


def findings(records: Sequence[Record]) -> list[str]:
    """The two ratios of the paper, and ours."""
    return [
        f"over ADAPTRA: ZB {ratio(records, 'ZB', 'ADAPTRA'):.2f} (paper 1.77), "
        f"ADAPTRA-CPU {ratio(records, 'ADAPTRA-CPU', 'ADAPTRA'):.2f} (paper 1.45); "
        f"over best: ZB {ratio(records, 'ZB', 'best'):.2f}, ADAPTRA-CPU {ratio(records, 'ADAPTRA-CPU', 'best'):.2f}"
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The paper's ratios."""
    ratios = {name: ratio(records, name, "ADAPTRA") for name in PAPER_RATIOS}
    told = [at_least(f"{name} over ADAPTRA", ratios[name], PAPER_RATIOS[name]) for name in PAPER_RATIOS]
    return [*told, *study.bars(records)]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """The measured timelines, one below the other."""
    limit_s = max(end_s for record in records for *_, end_s in record["actions"])
    axes, kinds = figure.subplots(len(records), sharex=True), set()
    for axis, record in zip(axes, records, strict=True):
        told = f", paper {1e3 * record['paper']:.0f} ms" if record["paper"] else ""
        # Of the iteration that is drawn, the one nearest to the median.
        drawn_ms, median_ms = 1e3 * lasted_s(record), 1e3 * statistics.median(record["measured_s"])
        measured = f"{drawn_ms:.0f} ms (median of {len(record['measured_s'])} runs: {median_ms:.0f} ms)"
        axis.set_title(f"{record['system']}: {measured}{told}", loc="left", fontsize=10)
        kinds |= draw_gantt(axis, record, limit_s)
        axis.set_ylabel("rank")
    axes[-1].set_xlabel("time (ms)")
    draw_kinds(figure, kinds)
