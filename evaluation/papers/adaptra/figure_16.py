"""ADAPTRA figure 16: one slow link between the first or the last two stages, 30 or 60 ms, models of 7B and 14B.

Problems as for figures 14 and 15. By table 2 of the paper, tensor parallelism keeps the stages of its 30B and 60B
models as long as those of the 14B one, so these would be the same here.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.adaptra.figure_14 import QUIET as GPT_7B
from evaluation.papers.adaptra.figure_15 import QUIET as GPT_14B
from evaluation.papers.experiment import Figure, Record
from evaluation.papers.study import COLUMNS, Point, adaptra_systems, bars, draw_bars, ratio, row, slowed, study

__all__ = ["COLUMNS", "bars", "row"]

SYSTEMS = adaptra_systems(queue=1)
MODELS = {"7B": GPT_7B, "14B": GPT_14B}
DELAYS_MS = (30, 60)
FIGURE_INCHES = (12, 5)
NOTES = """
paper, few figures printed: up to 3.71 times faster than 1F1B (7B, 60 ms, last) and 3.49 than ZB (14B, 60 ms, last)
"""


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


def findings(records: Sequence[Record]) -> list[str]:
    """The paper's averages, and ours."""
    time_s = {(r["point"], r["system"]): statistics.median(r["measured_s"]) for r in records}
    pairs = [(point, point.replace(" 30 ms", " 60 ms")) for point, _ in time_s if point.endswith(" 30 ms")]
    paper = {"1F1B": 1.49, "ZB": 1.69, "ADAPTRA-CPU": 1.30, "ADAPTRA": 1.07}
    growth = {name: statistics.mean(time_s[b, name] / time_s[a, name] for a, b in pairs) for name in SYSTEMS}
    told = ", ".join(f"{name} {growth[name]:.2f} (paper {value:.2f})" for name, value in paper.items())
    last = [point for point in dict.fromkeys(record["point"] for record in records) if point.endswith("last 60 ms")]
    most = "; ".join(
        f"{at}: {ratio(records, '1F1B', 'ADAPTRA', at):.2f} times faster than 1F1B, "
        f"{ratio(records, 'ZB', 'ADAPTRA', at):.2f} than ZB"
        for at in last
    )
    return [f"60 ms over 30 ms, mean: {told}", most]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdowns as bars."""
    axis = figure.subplots()
    draw_bars(axis, [record | {"point": record["point"].replace(" ", "\n", 2)} for record in records])
    axis.set_ylabel("slowdown, measured")
