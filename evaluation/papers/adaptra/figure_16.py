"""ADAPTRA figure 16: one slow link between the first or the last two stages, 30 or 60 ms, models of 7B and 14B.

By table 2 of the paper, tensor parallelism keeps the stages of its 30B and 60B models as long as those of the 14B one:
these would be the same here, and are left out.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.setting import GPT_7B, GPT_14B, SYSTEMS
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.study import COLUMNS, Point, bars, draw_bars, ratio, row, slowed, study

__all__ = ["COLUMNS", "bars", "row"]

MODELS = {"7B": GPT_7B, "14B": GPT_14B}
DELAYS_MS = (30, 60)
FIGURE_INCHES = (12, 5)
PAPER_GROWTH = {"1F1B": 1.49, "ZB": 1.69, "ADAPTRA-CPU": 1.30, "ADAPTRA": 1.07}
NOTES = setting.NOTES


def run(quick: bool) -> list[Record]:
    """One record per model, place, delay and system."""
    points = [
        Point(f"{model}\n{place}\n{delay} ms", quiet, slowed(quiet, {link: delay}))
        for model, quiet in (list(MODELS.items())[:1] if quick else MODELS.items())
        for place, link in (("first", 0), ("last", quiet.stages - 2))
        for delay in DELAYS_MS
    ]
    found = study(points, SYSTEMS)
    return [record | {"point": record["point"].replace("\n", " ")} for record in found]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The values that the paper's text has, of the models that were run."""
    time_s = {(r["point"], r["system"]): statistics.median(r["measured_s"]) for r in records}
    pairs = [(point, point.replace(" 30 ms", " 60 ms")) for point, _ in time_s if point.endswith(" 30 ms")]
    growth = {name: statistics.mean(time_s[b, name] / time_s[a, name] for a, b in pairs) for name in SYSTEMS}
    values = [
        PaperValue(f"{name}, 60 ms over 30 ms", growth[name], paper, setting.UNPRINTED)
        for name, paper in PAPER_GROWTH.items()
    ]
    for other, at, paper in (("1F1B", "7B last 60 ms", 3.71), ("ZB", "14B last 60 ms", 3.49)):
        if (at, other) in time_s:
            gain = ratio(records, other, "ADAPTRA", at)
            values.append(PaperValue(f"{other} over ADAPTRA, {at}", gain, paper, setting.BLOCKS_MORE))
    for place, paper in (("first", 0.193), ("last", 0.384)):
        points = [point for point in dict.fromkeys(point for point, _ in time_s) if point.endswith(f"{place} 60 ms")]
        less = statistics.mean(1 - ratio(records, "ADAPTRA", "ADAPTRA-CPU", point) for point in points)
        values.append(PaperValue(f"off ADAPTRA-CPU, {place}, 60 ms", less, paper, setting.UNPRINTED))
    return values


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdowns as bars."""
    axis = figure.subplots()
    draw_bars(axis, [record | {"point": record["point"].replace(" ", "\n", 2)} for record in records])
    axis.set_ylabel("slowdown, measured")
