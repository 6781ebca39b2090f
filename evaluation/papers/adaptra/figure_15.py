"""ADAPTRA figure 15: GPT2-14B on eight stages, 0 to 60 ms on the link between the last two.

The setting is that of figure 14, since a stage is as large.
"""

from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.setting import GPT_14B as QUIET
from evaluation.papers.adaptra.setting import SYSTEMS
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.study import COLUMNS, Point, bars, ratio, row, slowed, study

__all__ = ["COLUMNS", "bars", "row"]

SLOW_LINK = 6
DELAYS_MS = (10, 20, 30, 40, 50, 60)
FIGURE_INCHES = (8, 5)
PAPER = {60: {"1F1B": 2.70, "ZB": 4.24, "ADAPTRA-CPU": 2.15, "ADAPTRA": 1.13}}
NOTES = f"""
paper: times as long as without delay; its 48.1 % and 24.6 % are not what its own slowdowns give, 49 % and 47 %
{setting.NOTES.strip()}
"""


def run(quick: bool) -> list[Record]:
    """One record per delay and system."""
    delays = DELAYS_MS[1::2] if quick else DELAYS_MS
    points = [Point(f"{delay} ms", QUIET, slowed(QUIET, {SLOW_LINK: delay}), PAPER.get(delay, {})) for delay in delays]
    return study(points, SYSTEMS)


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Slowdowns, and what delegates and then the new plan take off, at the longest delay."""
    last = records[-1]["point"]
    at_last = {record["system"]: record["slowdown"] for record in records if record["point"] == last}
    reasons = {"ZB": setting.BLOCKS_MORE}
    told = [
        PaperValue(name, at_last[name], paper, reasons.get(name, setting.UNPRINTED))
        for name, paper in PAPER[60].items()
    ]
    delegated = 1 - ratio(records, "ADAPTRA-CPU", "ZB", last)
    adapted = 1 - ratio(records, "ADAPTRA", "ADAPTRA-CPU", last)
    return [
        *told,
        PaperValue("off ZB by delegates", delegated, 0.481, setting.BLOCKS_MORE),
        PaperValue("off that by the new plan", adapted, 0.246, "the paper's own slowdowns, 2.15 and 1.13, give 0.47"),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdown over the delay: measured lines, simulated dots, crosses of the paper."""
    axis = figure.subplots()
    for i, system in enumerate(dict.fromkeys(record["system"] for record in records)):
        mine = [record for record in records if record["system"] == system]
        x = [float(record["point"].split()[0]) for record in mine]
        axis.plot([0, *x], [1, *(record["slowdown"] for record in mine)], color=f"C{i}", label=system)
        axis.plot(x, [record["predicted_slowdown"] for record in mine], "o", color=f"C{i}", markersize=4)
        told = [(at, record["paper"]) for at, record in zip(x, mine, strict=True) if record["paper"] is not None]
        axis.plot([at for at, _ in told], [value for _, value in told], "x", color=f"C{i}", markersize=9)
    axis.set_xlabel("delay between the last two stages (ms)")
    axis.set_ylabel("slowdown (line: measured, dot: simulated, cross: paper)")
    axis.legend(frameon=False, fontsize=8)
