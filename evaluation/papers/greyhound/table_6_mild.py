"""GREYHOUND table 6 with compute events of 1.5, 2 and 3 times: the same job and schedule, which lose less.

Beside greyhound-table-6, whose factors were chosen to lose as much as the paper's events: what is gained depends on it.
"""

from evaluation.papers.experiment import Record
from evaluation.papers.greyhound.table_6 import (
    COLUMNS,
    FIGURE_INCHES,
    NOTES,
    draw,
    findings,
    measure,
    paper_values,
    row,
    schedule,
)

FACTORS = (1.5, 2.0, 3.0)

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "findings", "paper_values", "row", "run"]


def run(quick: bool) -> list[Record]:
    """Records as those of table 6."""
    return measure(schedule(quick, FACTORS))
