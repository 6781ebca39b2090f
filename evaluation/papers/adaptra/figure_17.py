"""ADAPTRA figure 17: several slow links at once, 30 ms each, GPT2-14B on eight stages.

The problem is that of figure 15.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.adaptra.figure_15 import QUIET
from evaluation.papers.experiment import Figure, Record
from evaluation.papers.study import COLUMNS, Point, adaptra_systems, bars, draw_bars, ratio, row, slowed, study

__all__ = ["COLUMNS", "bars", "row"]

SYSTEMS = adaptra_systems(queue=1)
DELAY_MS = 30
PLACES: dict[str, tuple[int, ...]] = {"adjacent": (0, 1), "skip": (0, 2), "first and last": (0, 6), "three": (0, 3, 6)}
FIGURE_INCHES = (10, 5)
NOTES = """
paper, no figures printed but averages: see the last line
"""


def run(quick: bool) -> list[Record]:
    """One record per set of links and system."""
    places = dict(list(PLACES.items())[-2:] if quick else PLACES)
    points = [Point(place, QUIET, slowed(QUIET, dict.fromkeys(links, DELAY_MS))) for place, links in places.items()]
    return study(points, SYSTEMS)


def findings(records: Sequence[Record]) -> list[str]:
    """The paper's averages, and ours."""
    paper = {"1F1B": 51.6, "ZB": 57.5, "ADAPTRA-CPU": 23.1}
    less = {name: 100 * statistics.mean([1 - ratio(records, "ADAPTRA", name)]) for name in paper}
    told = ", ".join(f"{name} by {less[name]:.1f} % (paper {value} %)" for name, value in paper.items())
    return [f"ADAPTRA is shorter on average than {told}"]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdowns as bars."""
    axis = figure.subplots()
    draw_bars(axis, records)
    axis.set_ylabel("slowdown, measured")
