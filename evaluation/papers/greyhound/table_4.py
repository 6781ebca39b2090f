"""GREYHOUND table 4: detectors on 107 multi-node jobs, 43 of which have a congested link.

Drawn as those of table 3; congestion lasts longer, comes again, in steps, or adds up from steps below 10 %.
"""

from evaluation.papers.experiment import Record
from evaluation.papers.greyhound.table_3 import COLUMNS, FIGURE_INCHES, NOTES, draw, evaluate, paper_values, row

JOBS, SLOW = 107, 43
SLOW_KINDS = ("step", "permanent", "repeated", "ladder", "noisy", "adding_up")
FIRST_SEED = 6_000_000
PAPER = {
    "sliding median of 9": (93.5, 1.5, 12.2),
    "BOCD": (69.2, 34.0, 0.0),
    "BOCD+V": (99.1, 0.0, 2.3),
    "breakpoints": (99.1, 0.0, 2.3),
}

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "paper_values", "row", "run"]


def run(quick: bool) -> list[Record]:
    """A record per detector."""
    return evaluate(JOBS, SLOW, SLOW_KINDS, FIRST_SEED, PAPER, quick)
