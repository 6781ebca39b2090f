"""GREYHOUND figure 13: the iteration time by the call log alone, over what it is, by parallelism.

Measured: a small GPT, paced, that trains on 4 or 8 ranks with tensor, data and pipeline parallelism; the log is that of
its collectives, as `lanterne watch` records them.
"""

from collections.abc import Sequence
from math import inf

from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.watched_training import records
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.output.units import format_time

PAPER = {"S": 1.2, "2T2D2P (M)": 0.7, "2T4D1P (M)": 0.1}
COLUMNS: Columns = [
    ("job", ""), ("iteration", ""), ("by its calls", ""), ("calls", "an iteration"), ("error", "%"), ("paper", "%"),
]  # fmt: skip
FIGURE_INCHES = (7, 4)
NOTES = """
job: xTyDzP has x tensor-parallel ranks, y copies, z stages; paper: at most 1.2 % on one node (S)
"""


def run(quick: bool) -> list[Record]:
    """A record per parallelism."""
    return [record | {"paper": paper(record["setting"])} for record in records(quick, alternates=False)]


def paper(setting: str) -> float:
    """What the paper prints, %."""
    return PAPER.get(setting, PAPER["S"])


def row(record: Record) -> list[object]:
    """One line of the table."""
    error = record["error"]
    return [
        record["setting"],
        format_time(record["iteration_s"]),
        format_time(record["estimated_s"]) if record["estimated_s"] else "-",
        record["calls"] or "-",
        f"{100 * error:.2f}" if error is not None else "not found",
        record["paper"],
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The errors are at most those that the paper prints."""
    return [
        at_most(
            f"{record['setting']}, error",
            inf if record["error"] is None else record["error"],
            record["paper"] / 100,
            "{:.2%}",
        )
        for record in records
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Bars, crosses where the paper's are."""
    axes = figure.subplots()
    at = range(len(records))
    axes.bar(list(at), [100 * (record["error"] or 0) for record in records])
    axes.plot(list(at), [record["paper"] for record in records], "kx", label="paper")
    axes.set_xticks(list(at), [record["setting"] for record in records], fontsize=8, rotation=15)
    axes.set_ylabel("error of the iteration time, %")
    axes.legend(frameon=False)
