"""StragglAR figures 6c and 7a: all-reduce of 1 GiB on 4 to 256 GPUs: the range over the ring, and the critical delay.

Simulated with 3 us and 450 GB/s, as in the paper: at best the late rank is late enough for all that can be done without
it, at worst nobody is late. Figures 6a and 6b, what must be hidden, are in stragglar-5.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.stragglar.gpu_servers import GIB, MACHINES, critical_delay_s, exposed_s
from lanterne.bench.output.bars import Bar, at_least, at_most
from lanterne.bench.output.units import format_time

RANKS = (4, 8, 16, 32, 64, 128, 256)
NBYTES = GIB
OURS = ("stragglar", "late_join")
FIGURE_INCHES = (10, 4.5)
NOTES = """
times as fast as the ring, from the late rank's call; worst: nobody late; critical: the delay from which on it is faster
"""
COLUMNS: Columns = [("ranks", "")]
COLUMNS = [*COLUMNS, *((name, below) for name in OURS for below in ("best", "worst", "critical"))]


def run(quick: bool) -> list[Record]:
    """One record per number of ranks; `quick`: every third."""
    model = MACHINES[0].stated()
    records: list[Record] = []
    for ranks in RANKS[:: 3 if quick else 1]:
        record: Record = {"ranks": ranks}
        for name in OURS:
            best, worst = (
                exposed_s("ring", ranks, NBYTES, model, delay_s) / exposed_s(name, ranks, NBYTES, model, delay_s)
                for delay_s in (1.0, 0.0)
            )
            record[name] = {"best": best, "worst": worst, "critical_s": critical_delay_s(ranks, NBYTES, model, name)}
        records.append(record)
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    cells: list[object] = [record["ranks"]]
    for name in OURS:
        found = record[name]
        cells += [f"{found['best']:.2f}", f"{found['worst']:.2f}", format_time(max(found["critical_s"], 0.0))]
    return cells


def bars(records: Sequence[Record]) -> list[Bar]:
    """What the paper says of 256 GPUs: nearly twice as fast, no worse when nobody is late, critical below 0.1 ms."""
    last = records[-1]["stragglar"]
    return [
        at_least("largest, best, times as fast as the ring", last["best"], 1.9, "{:.2f}"),
        at_least("largest, nobody late, times as fast as the ring", last["worst"], 0.97, "{:.2f}"),
        at_most("largest, critical delay, ms", 1e3 * last["critical_s"], 0.1),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """The range over the ring, and the critical delay."""
    left, right = figure.subplots(1, 2)
    ranks = [record["ranks"] for record in records]
    for i, name in enumerate(OURS):
        best, worst, critical = ([record[name][key] for record in records] for key in ("best", "worst", "critical_s"))
        left.fill_between(ranks, worst, best, color=f"C{i}", alpha=0.25, linewidth=0)
        left.plot(ranks, best, color=f"C{i}", label=name)
        right.plot(ranks, [1e3 * value for value in critical], color=f"C{i}", label=name)
    left.axhline(1, color="grey", linewidth=0.8)
    for axis, what in ((left, "times as fast as the ring"), (right, "critical delay (ms)")):
        axis.set_xscale("log", base=2)
        axis.set(xlabel="GPUs", ylabel=what)
        axis.legend(frameon=False)
