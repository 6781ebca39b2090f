"""ADAPTRA figure 14: GPT2-7B on four stages, 30 ms on the link between the last two: blocked, delegated, re-planned.

What the setting takes from the paper is fitted here: to its busy time and its four makespans. All is measured on
processes whose stages wait as long as those would compute, over emulated links.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.setting import GPT_7B as QUIET
from evaluation.papers.adaptra.setting import SYSTEMS
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.study import (
    COLUMNS,
    Point,
    bars,
    draw_gantt,
    draw_kinds,
    lasted_s,
    ratio,
    row,
    slowed,
    study,
)

__all__ = ["COLUMNS", "bars", "row"]

SLOW_LINK, DELAY_MS = 2, 30
FIGURE_INCHES = (13, 9)
PAPER_S = {"ZB": 0.703, "ADAPTRA-CPU": 0.579, "ADAPTRA": 0.398}
PAPER_RATIOS = {"ZB": 1.77, "ADAPTRA-CPU": 1.45}
NOTES = f"""
paper: seconds; without the slow link 0.368; ZB: zero bubble, sent in order; ADAPTRA-CPU: the same plan, delegates send
ADAPTRA: delegates and a plan for the slow link; best: ours; slowdown: over the same system without the slow link
{setting.NOTES.strip()}
"""


def run(quick: bool) -> list[Record]:
    """One record per system."""
    point = Point(f"{DELAY_MS} ms", QUIET, slowed(QUIET, {SLOW_LINK: DELAY_MS}), PAPER_S)
    return study([point], SYSTEMS, 2 if quick else 5)


def findings(records: Sequence[Record]) -> list[str]:
    """How far ours are ahead."""
    over = ", ".join(f"{name} {ratio(records, name, 'best'):.2f}" for name in PAPER_RATIOS)
    return [f"over best: {over}"]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The makespans, to which the setting is fitted, and their ratios."""
    time_s = {record["system"]: statistics.median(record["measured_s"]) for record in records}
    made = [PaperValue(f"{name} (fitted)", time_s[name], paper) for name, paper in PAPER_S.items()]
    ratios = [(f"{name} over ADAPTRA", ratio(records, name, "ADAPTRA"), paper) for name, paper in PAPER_RATIOS.items()]
    return [*made, *(PaperValue(*each) for each in ratios)]


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
