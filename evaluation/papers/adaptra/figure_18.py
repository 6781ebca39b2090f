"""ADAPTRA figure 18: a slow link of the gradients' all-reduces, moved into the pipeline, which is adapted to it.

As figure 3. Falcon only moves the link; ADAPTRA also sends by delegates and plans for it; best is our plan for it.
"""

from collections.abc import Sequence

from evaluation.papers.adaptra.figure_3 import COLUMNS, FIGURE_INCHES, NOTES, ZB, bars, draw, records_of, row
from evaluation.papers.experiment import Record
from evaluation.papers.study import System

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "bars", "draw", "row"]

SYSTEMS = {
    "all-reduce": ZB,
    "Falcon": ZB,
    "ADAPTRA": System("adaptra", "delegate", adapts=True),
    "best": System("best", "delegate", adapts=True),
}


def run(quick: bool) -> list[Record]:
    """One record per packet delay and system."""
    return records_of(SYSTEMS, "all-reduce", quick)


def findings(records: Sequence[Record]) -> list[str]:
    """What each step gains at the longest delay, and in the paper."""
    longest = max(record["packet_delay_s"] for record in records)
    time_s = {r["system"]: r["measured_s"] for r in records if r["packet_delay_s"] == longest}
    return [
        f"at {1e3 * longest:g} ms: Falcon is {time_s['all-reduce'] / time_s['Falcon']:.2f} times faster (paper 3.6), "
        f"ADAPTRA {time_s['Falcon'] / time_s['ADAPTRA']:.2f} times faster than Falcon (paper 1.96), best "
        f"{time_s['Falcon'] / time_s['best']:.2f}"
    ]
