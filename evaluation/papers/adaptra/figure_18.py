"""ADAPTRA figure 18: a slow link of the gradients' all-reduces, moved into the pipeline, which is adapted to it.

As figure 3. Falcon only moves the link; ADAPTRA also sends by delegates and plans for it; best is our plan for it.
"""

from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.figure_3 import COLUMNS, FIGURE_INCHES, NOTES, ZB, bars, draw, records_of, row
from evaluation.papers.experiment import PaperValue, Record

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "bars", "draw", "row"]

SYSTEMS = {
    "all-reduce": ZB,
    "Falcon": ZB,
    "ADAPTRA": setting.SYSTEMS["ADAPTRA"],
    "best": setting.SYSTEMS["best"],
}


def run(quick: bool) -> list[Record]:
    """One record per packet delay and system."""
    return records_of(SYSTEMS, "all-reduce", quick)


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """What each step gains at the longest delay."""
    longest = max(record["packet_delay_s"] for record in records)
    time_s = {r["system"]: r["measured_s"] for r in records if r["packet_delay_s"] == longest}
    moved, adapted = time_s["all-reduce"] / time_s["Falcon"], time_s["Falcon"] / time_s["ADAPTRA"]
    return [
        PaperValue(
            "all-reduce over Falcon", moved, 3.6, "the paper's two slowdowns of figure 3, 8.04 and 2.24, give it"
        ),
        PaperValue("Falcon over ADAPTRA", adapted, 1.96, setting.BLOCKS_MORE),
    ]
