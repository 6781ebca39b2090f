"""ADAPTRA figure 17: several slow links at once, 30 ms each, GPT2-14B on eight stages.

The paper's section 4.1 says that the delays of several slow links add up. Simulated, they hide one another: the table
has both.
"""

from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.setting import GPT_14B as QUIET
from evaluation.papers.adaptra.setting import SYSTEMS
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.study import COLUMNS, Point, bars, draw_bars, ratio, row, slowed, study
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.schedules.alternating import alternating
from lanterne.pipeline.simulate.simulate import simulate

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


def findings(records: Sequence[Record]) -> list[str]:
    """What two slow links cost together, against the paper's sum."""
    quiet, first, third, both = (_slack_1_ms(links) for links in ((), (0,), (2,), (0, 2)))
    total = first + third - quiet
    return [
        f"contradicts section 4.1, 'the delay is the sum': 4 stages, slack 1, 30 ms on links 0 and 2: {first:g} and "
        f"{third:g} ms alone, so {total:g} by the sum; together {both:g} simulated"
    ]


def _slack_1_ms(links: Sequence[int]) -> float:
    """An iteration of figure 8's plan with a slack of 1 and 30 ms on each of `links`."""
    quiet = Problem(4, 30, 10, 10, 10)
    return simulate(alternating(quiet, slack=1), slowed(quiet, dict.fromkeys(links, DELAY_MS))).makespan


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdowns as bars."""
    axis = figure.subplots()
    draw_bars(axis, records)
    axis.set_ylabel("slowdown, measured")
