"""ADAPTRA figure 1: what dependency bubbles and what head-of-line blocking add to an iteration, 1F1B and zero bubble.

GPT2-14B on eight stages as in figure 15. A plan that sends in order, the same plan over delegates, and it again without
the slow link: the first difference is blocking, the second dependencies.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.figure_15 import SLOW_LINK
from evaluation.papers.adaptra.setting import GPT_14B as QUIET
from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.study import Point, System, slowed, study
from lanterne.bench.output.bars import Bar, near_simulator
from lanterne.bench.output.units import format_time

DELAYS_MS = (10, 20, 30, 40, 50, 60)
SCHEDULERS = {"1F1B": "1f1b", "ZB": setting.ZERO_BUBBLE}
SYSTEMS = {
    (name, plane): System(scheduler, plane, options=options)
    for name, scheduler in SCHEDULERS.items()
    for plane, options in (("inline", setting.IN_ORDER), ("delegate", setting.DELEGATES))
}
PARTS = {"normal_s": "no slow link", "dependencies_s": "dependencies", "blocking_s": "blocking"}
FIGURE_INCHES = (10, 4.5)
NOTES = f"""
paper: the figure prints no values; section 7.2: over its settings dependencies are 39 % of the slowdown, blocking 23 %
{setting.NOTES.strip()}
"""
COLUMNS: Columns = [
    ("delay", ""),
    ("system", ""),
    ("no slow link", ""),
    ("dependencies", "+"),
    ("blocking", "+"),
    ("measured", "="),
    ("simulated", ""),
]


def run(quick: bool) -> list[Record]:
    """One record per delay and schedule."""
    delays = DELAYS_MS[2::3] if quick else DELAYS_MS
    points = [Point(f"{delay} ms", QUIET, slowed(QUIET, {SLOW_LINK: delay})) for delay in delays]
    found = {(each["point"], each["system"]): each for each in study(points, SYSTEMS)}
    records = []
    for point in points:
        for name in SCHEDULERS:
            inline, delegate = found[point.label, (name, "inline")], found[point.label, (name, "delegate")]
            total_s, free_s = (statistics.median(each["measured_s"]) for each in (inline, delegate))
            records.append(
                {
                    "point": point.label,
                    "system": name,
                    "normal_s": delegate["normal_s"],
                    "dependencies_s": free_s - delegate["normal_s"],
                    "blocking_s": total_s - free_s,
                    "measured_s": total_s,
                    "predicted_s": inline["predicted_s"],
                }
            )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    keys = ("normal_s", "dependencies_s", "blocking_s", "measured_s", "predicted_s")
    return [record["point"], record["system"], *(format_time(record[key]) for key in keys)]


def bars(records: Sequence[Record]) -> list[Bar]:
    """How near the simulator's in-order mode is."""
    return [near_simulator(records, 0.05)]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Stacked bars, a panel per schedule."""
    axes = figure.subplots(1, len(SCHEDULERS), sharey=True)
    for axis, name in zip(axes, SCHEDULERS, strict=True):
        mine = [record for record in records if record["system"] == name]
        bottom = [0.0] * len(mine)
        for key, label in PARTS.items():
            height = [1e3 * record[key] for record in mine]
            axis.bar([record["point"] for record in mine], height, 0.7, bottom, label=label)
            bottom = [a + b for a, b in zip(bottom, height, strict=True)]
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_xlabel("delay between the last two stages")
    axes[0].set_ylabel("iteration (ms), measured")
    axes[0].legend(frameon=False, fontsize=8)
