"""ADAPTRA figure 15: GPT2-14B on eight stages, 0 to 60 ms on the link between the last two.

Durations as for figure 14, since a stage is as large; microbatches and queue are those that come nearest to the four
slowdowns that the paper prints.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Figure, Record
from evaluation.papers.study import COLUMNS, Point, adaptra_systems, bars, ratio, row, slowed, study
from lanterne.pipeline.plan.problem import Problem

__all__ = ["COLUMNS", "bars", "row"]

QUIET = Problem(8, 24, 8.8, 10.4, 5.6, 0)
SLOW_LINK = 6
DELAYS_MS = (10, 20, 30, 40, 50, 60)
SYSTEMS = adaptra_systems(queue=0)
FIGURE_INCHES = (8, 5)
PAPER = {60: {"1F1B": 2.70, "ZB": 4.24, "ADAPTRA-CPU": 2.15, "ADAPTRA": 1.13}}
NOTES = """
paper: times as long as without delay; it prints neither durations nor microbatches nor how many sends may be under way
its ZB takes 1.97 times as long as its ADAPTRA-CPU, the same plan not blocked: in 294 settings (8 to 64 microbatches, 7
proportions of F, B and W, ZB-H1 and -H2, 0 to 2 sends under way) simulated sends in order give at most 1.53; and its
48.1 % and 24.6 % are not what its slowdowns give, 49 % and 47 %
"""


def run(quick: bool) -> list[Record]:
    """One record per delay and system."""
    delays = DELAYS_MS[1::2] if quick else DELAYS_MS
    points = [Point(f"{delay} ms", QUIET, slowed(QUIET, {SLOW_LINK: delay}), PAPER.get(delay, {})) for delay in delays]
    return study(points, SYSTEMS)


def findings(records: Sequence[Record]) -> list[str]:
    """What delegates and what re-planning take away at the longest delay."""
    last = records[-1]["point"]
    delegated = 1 - ratio(records, "ADAPTRA-CPU", "ZB", last)
    adapted = 1 - ratio(records, "ADAPTRA", "ADAPTRA-CPU", last)
    return [
        f"at {last}: delegates take {delegated:.1%} off ZB (paper, 60 ms: 48.1 %), the new plan another {adapted:.1%} "
        "off (paper: 24.6 %)"
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
