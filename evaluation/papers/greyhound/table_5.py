"""GREYHOUND table 5: seconds to find the optimal distribution of microbatches over so many copies.

The paper's is a quadratic program; ours is exact by bisection. Times of copies are drawn, a tenth of them slow.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.output.units import format_time
from lanterne.failslow.mitigate.rebalance import rebalance

BARS_MS = {512: 0.3, 4096: 1.0}
PAPER_S: dict[int, float | None] = {16: 0.01, 32: 0.01, 64: 0.01, 128: 0.11, 256: 6.78, 512: 35.93, 4096: None}
EACH, SLOWDOWN, REPETITIONS, QUICK_REPETITIONS = 16, 2.0, 51, 11
COLUMNS: Columns = [
    ("copies", ""), ("microbatches", ""), ("median", ""), ("slowest", ""), ("paper", ""), ("over the bound", "%"),
]  # fmt: skip
FIGURE_INCHES = (6, 4)
NOTES = """
over the bound: of the slowest copy, over what it would be if microbatches could be cut
"""


def run(quick: bool) -> list[Record]:
    """A record per number of copies."""
    return [_record(copies, QUICK_REPETITIONS if quick else REPETITIONS) for copies in PAPER_S]


def _record(copies: int, repetitions: int) -> Record:
    rng, total, solve_s, over = np.random.default_rng(copies), EACH * copies, [], []
    for _ in range(repetitions):
        times = rng.normal(1.0, 0.02, copies) * np.where(rng.random(copies) < 0.1, SLOWDOWN, 1.0)
        began_s = time.perf_counter()
        found = rebalance(times, total)
        solve_s.append(time.perf_counter() - began_s)
        if sum(found.microbatches) != total:
            raise ValueError(f"rebalance: got {sum(found.microbatches)} microbatches, expected {total}")
        over.append(found.makespan / (total / float(np.sum(1 / times))) - 1)
    record = {"copies": copies, "microbatches": total, "solve_s": solve_s, "paper_s": PAPER_S[copies]}
    return record | {"over_bound": statistics.median(over)}


def row(record: Record) -> list[object]:
    """One line of the table."""
    paper_s = record["paper_s"]
    return [
        record["copies"],
        record["microbatches"],
        format_time(statistics.median(record["solve_s"])),
        format_time(max(record["solve_s"])),
        format_time(paper_s) if paper_s else "-",
        f"{100 * record['over_bound']:.1f}",
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Seconds of every size that the paper prints."""
    reason = "ours is exact by bisection, the paper's a quadratic program of a general solver"
    return [
        PaperValue(f"{record['copies']} copies, s", statistics.median(record["solve_s"]), record["paper_s"], reason)
        for record in records
        if record["paper_s"]
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """Seconds, for the sizes that have a bar."""
    solve_s = {record["copies"]: statistics.median(record["solve_s"]) for record in records}
    return [
        at_most(f"{copies} copies, milliseconds", 1e3 * solve_s[copies], limit)
        for copies, limit in BARS_MS.items()
        if copies in solve_s
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Seconds over copies."""
    axes = figure.subplots()
    copies = [record["copies"] for record in records]
    axes.loglog(copies, [statistics.median(record["solve_s"]) for record in records], "o-", label="ours")
    told = [record for record in records if record["paper_s"]]
    axes.loglog([r["copies"] for r in told], [r["paper_s"] for r in told], "kx--", label="paper")
    axes.set(xlabel="copies", ylabel="seconds")
    axes.legend(frameon=False)
