"""GREYHOUND figure 18: what being recorded and read costs a job, by parallelism.

Blocks of iterations of the jobs of figure 13, in turn with and without; the reader is a thread of rank 0.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.watched_training import BLOCK, records
from lanterne.bench.output.units import format_time

PAPER_MEAN, PAPER_MOST = 0.39, 1.1
COLUMNS: Columns = [
    ("job", ""), ("iteration", ""), ("overhead", "median %"), ("quartiles", "%"), ("reader", "%"), ("paper", "%"),
]  # fmt: skip
FIGURE_INCHES = (7, 4)
NOTES = """
overhead: of a block's time over the next's; reader: its core time over the iterations'; paper: 0.39 % on average
"""


def run(quick: bool) -> list[Record]:
    """A record per parallelism."""
    return records(quick, alternates=True)


def row(record: Record) -> list[object]:
    """One line of the table."""
    low, middle, high = statistics.quantiles(record["overheads"], n=4)
    return [
        record["setting"],
        format_time(record["iteration_s"]),
        f"{100 * middle:+.2f}",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
        f"{100 * reader_share(record):.2f}",
        f"at most {PAPER_MOST}",
    ]


def reader_share(record: Record) -> float:
    """The reader's core time over the time of the recorded iterations, those that warm up included."""
    recorded = BLOCK * (len(record["overheads"]) + 1)
    return record["reader_s"] / (recorded * record["iteration_s"])


def findings(records: Sequence[Record]) -> list[str]:
    """The mean, as the paper has it."""
    return [f"mean overhead {_mean(records):+.2f} % (paper {PAPER_MEAN} %)"]


def _mean(records: Sequence[Record]) -> float:
    """Return the mean of the overheads, %."""
    return 100 * statistics.mean(statistics.median(record["overheads"]) for record in records)


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The mean overhead, and the most."""
    most = 100 * max(statistics.median(record["overheads"]) for record in records)
    reason = "blocks of one job differ by several percent; see the quartiles"
    return [
        PaperValue("mean overhead, %", _mean(records), PAPER_MEAN, reason),
        PaperValue("most overhead, %", most, PAPER_MOST, reason),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """The overheads of all blocks, and the paper's mean."""
    axes = figure.subplots()
    axes.boxplot([[100 * value for value in record["overheads"]] for record in records])
    axes.set_xticks(range(1, len(records) + 1), [record["setting"] for record in records], fontsize=8, rotation=15)
    axes.axhline(PAPER_MEAN, color="k", ls="--", lw=0.8, label="paper, mean")
    axes.set_ylabel("overhead of a block, %")
    axes.legend(frameon=False)
