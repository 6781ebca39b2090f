"""GREYHOUND figure 14: fewer microbatches for the copy of a slow rank (S2), by severity and number of copies.

Measured on a job that trains, of 2, 4 or 8 ranks, a copy each, 12 microbatches a copy; the paper's has 8 GPUs.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers import mitigation_study
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.mitigation_study import COLUMNS, NEVER_S, SEVERITIES, row, spells

COPIES, LENGTH, QUICK_LENGTH = (2, 4, 8), 16, 12
# Of the means over the severities, which is all that the text says.
PAPER = {2: (1.7, 1.3), 4: (1.7, 1.1), 8: (1.7, 1.2)}
PAPER_BEST = 1.52
OWN_SEVERITIES = "severities are our own, with the paper's mean: it prints none, nor its microbatches"
FIGURE_INCHES = (9, 4)
NOTES = """
slow, mitigated: iterations over a healthy one; named: iterations from its beginning; paper: means over the severities,
which it does not print; 1.3, 1.7 and 2.1 have its mean
"""

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "findings", "paper_values", "row", "run"]


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
    lines = [
        f"{job}: {slow:.2f} to {mitigated:.2f} on average (paper {paper[0]:g} to {paper[1]:g})"
        for job, (slow, mitigated), paper in _means(records)
    ]
    return [*lines, f"best gain {_best(records):.2f} (paper {PAPER_BEST})"]


def _means(records: Sequence[Record]) -> list[tuple[str, tuple[float, float], tuple[float, float]]]:
    """Return each job with its means over the severities, slow and mitigated, and the paper's."""
    found = []
    for job in dict.fromkeys(record["job"] for record in records):
        own = [record for record in records if record["job"] == job]
        slow, mitigated = (
            statistics.mean(record[f"{key}_s"] / record["healthy_s"] for record in own)
            for key in ("plain", "mitigated")
        )
        found.append((job, (slow, mitigated), own[0]["paper"]))
    return found


def _best(records: Sequence[Record]) -> float:
    return max(record["plain_s"] / record["mitigated_s"] for record in records)


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The means over the severities, and the best gain."""
    values = [
        PaperValue(f"{job}, {name}", ours, paper, OWN_SEVERITIES)
        for job, means, papers in _means(records)
        for name, ours, paper in zip(("slow", "mitigated"), means, papers, strict=True)
    ]
    return [*values, PaperValue("best gain", _best(records), PAPER_BEST, OWN_SEVERITIES)]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Bars."""
    mitigation_study.draw(figure.subplots(), records, "S2: microbatches moved from the slow copy")
