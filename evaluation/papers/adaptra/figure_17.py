"""ADAPTRA figure 17: several slow links at once, 30 ms each, GPT2-14B on eight stages.

The paper's section 4.1 says that the delays of several slow links add up: see adaptra-8.
"""

from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.setting import GPT_14B as QUIET
from evaluation.papers.adaptra.setting import SYSTEMS
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.study import COLUMNS, Point, bars, draw_bars, ratio, row, slowed, study

__all__ = ["COLUMNS", "bars", "row"]

DELAY_MS = 30
PLACES: dict[str, tuple[int, ...]] = {"adjacent": (0, 1), "skip": (0, 2), "first and last": (0, 6), "three": (0, 3, 6)}
FIGURE_INCHES = (10, 5)
PAPER_LESS = {"1F1B": 0.516, "ZB": 0.575, "ADAPTRA-CPU": 0.231}
REASONS = {"1F1B": setting.UNPRINTED, "ZB": setting.BLOCKS_MORE, "ADAPTRA-CPU": setting.UNPRINTED}
NOTES = setting.NOTES


def run(quick: bool) -> list[Record]:
    """One record per set of links and system."""
    places = dict(list(PLACES.items())[-2:] if quick else PLACES)
    points = [Point(place, QUIET, slowed(QUIET, dict.fromkeys(links, DELAY_MS))) for place, links in places.items()]
    return study(points, SYSTEMS)


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """By how much ADAPTRA's iterations are shorter, on average; the paper prints no more."""
    less = {name: 1 - ratio(records, "ADAPTRA", name) for name in PAPER_LESS}
    return [PaperValue(f"off {name}", less[name], paper, REASONS[name]) for name, paper in PAPER_LESS.items()]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdowns as bars."""
    axis = figure.subplots()
    draw_bars(axis, records)
    axis.set_ylabel("slowdown, measured")
