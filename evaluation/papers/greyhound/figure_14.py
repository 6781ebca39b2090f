"""GREYHOUND figure 14: fewer microbatches for the copy of a slow rank (S2), by severity and number of copies.

Measured on a job that trains, of 2, 4 or 8 ranks, a copy each, 12 microbatches a copy; the paper's has 8 GPUs.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers import mitigation_study
from evaluation.papers.experiment import Figure, Record
from evaluation.papers.mitigation_study import COLUMNS, NEVER_S, SEVERITIES, row, spells

COPIES, LENGTH, QUICK_LENGTH = (2, 4, 8), 16, 12
# Of the means over the severities, which is all that the text says.
PAPER = {2: (1.7, 1.3), 4: (1.7, 1.1), 8: (1.7, 1.2)}
FIGURE_INCHES = (9, 4)
NOTES = """
slow, mitigated: iterations over a healthy one; named: iterations from its beginning; paper: means over the severities,
which it does not print; 1.3, 1.7 and 2.1 have its mean
"""

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "findings", "row", "run"]


def run(quick: bool) -> list[Record]:
    """A record per number of copies and severity."""
    cases = {name: ({"rank": 1, "slowdown": factor},) for name, factor in SEVERITIES.items()}
    settings = {"topology_s": NEVER_S, "restart_s": NEVER_S}
    length, found = QUICK_LENGTH if quick else LENGTH, []
    for copies in COPIES[:-1] if quick else COPIES:
        paper = dict.fromkeys(cases, PAPER[copies])
        found += spells(f"{copies} copies", (copies, 1, 12 * copies), cases, length, settings, paper)
    return found


def findings(records: Sequence[Record]) -> list[str]:
    """The means over the severities, as the paper has them, and the best gain."""
    lines = []
    for job in dict.fromkeys(record["job"] for record in records):
        mine = [record for record in records if record["job"] == job]
        slow, mitigated = (
            statistics.mean(record[f"{key}_s"] / record["healthy_s"] for record in mine)
            for key in ("plain", "mitigated")
        )
        paper = "{:g} to {:g}".format(*mine[0]["paper"])
        lines.append(f"{job}: {slow:.2f} to {mitigated:.2f} on average (paper {paper})")
    best = max(record["plain_s"] / record["mitigated_s"] for record in records)
    return [*lines, f"best gain {best:.2f} (paper 1.52)"]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Bars."""
    mitigation_study.draw(figure.subplots(), records, "S2: microbatches moved from the slow copy")
