"""StragglAR figures 6c, 7a and 9: all-reduce of 1 GiB on 4 to 256 GPUs: the range over the ring, the critical delay.

Simulated with 3 us and 450 GB/s, as in the paper: at best the late rank is late enough for all that can be done without
it, at worst nobody is late. Figures 6a and 6b, what must be hidden, are in stragglar-5.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.stragglar.gpu_servers import GIB, MACHINES, critical_delay_s, exposed_s
from lanterne.bench.output.units import format_time

RANKS = (4, 8, 16, 32, 64, 128, 256)
# Figure 9.
EVEN = (6, 12, 24, 48, 96, 192)
NBYTES = GIB
BASELINES = ("rhd", "late_broadcast")
OURS = ("stragglar", "late_join")
# What the authors' simulation.py gives for figures 6c and 9, times as fast as the ring: StragglAR, RHD and Broadcast.
PUBLISHED = {
    4: (1.127, 1.002, 0.753),
    8: (1.363, 1.006, 0.589),
    16: (1.565, 1.016, 0.478),
    32: (1.718, 1.036, 0.404),
    64: (1.826, 1.078, 0.356),
    128: (1.897, 1.162, 0.332),
    256: (1.941, 1.331, 0.335),
    6: (1.192, 0.670, 0.649),
    12: (1.346, 0.675, 0.519),
    24: (1.635, 0.685, 0.431),
    48: (1.617, 0.706, 0.373),
    96: (1.743, 0.748, 0.339),
    192: (1.829, 0.833, 0.330),
}
NAMES = ("stragglar", *BASELINES)
FEWER = "our schedules of even ranks have n - 2 + ceil(log2 n) rounds, the authors' more (57 of 48 ranks, ours 52)"
CEILING = "ranks that are no power of two: the authors' program broadcasts in log2 n rounds, which is no whole number"
BELOW = "the paper says less than this"
FIGURE_INCHES = (10, 4.5)
NOTES = """
times as fast as the ring, from the late rank's call; worst: nobody late; critical: the delay from which on it is faster
rhd and late_broadcast: baselines of figure 9, late_broadcast at best; ranks that are no power of two: figure 9
"""
COLUMNS: Columns = [("ranks", ""), *((name, "at best") for name in BASELINES)]
COLUMNS = [*COLUMNS, *((name, below) for name in OURS for below in ("best", "worst", "critical"))]


def run(quick: bool) -> list[Record]:
    """One record per number of ranks; `quick`: every third, at most 24 that are no power of two."""
    ranks = (*RANKS[:: 3 if quick else 1], *(each for each in EVEN if each <= 24 or not quick))
    return [_record(each) for each in ranks]


def _record(ranks: int) -> Record:
    model = MACHINES[0].stated()
    record: Record = {"ranks": ranks}
    for name in (*BASELINES, *OURS):
        best, worst = (
            exposed_s("ring", ranks, NBYTES, model, delay_s) / exposed_s(name, ranks, NBYTES, model, delay_s)
            for delay_s in (1.0, 0.0)
        )
        record[name] = {"best": best, "worst": worst, "critical_s": critical_delay_s(ranks, NBYTES, model, name)}
    return record


def row(record: Record) -> list[object]:
    """One line of the table."""
    cells: list[object] = [record["ranks"], *(f"{record[name]['best']:.2f}" for name in BASELINES)]
    for name in OURS:
        found = record[name]
        cells += [f"{found['best']:.2f}", f"{found['worst']:.2f}", format_time(max(found["critical_s"], 0.0))]
    return cells


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The points of figures 6c and 9 by the authors' program, and what the text says of 256 GPUs."""
    found = []
    for record in records:
        ranks = record["ranks"]
        reasons = (FEWER, "", CEILING) if ranks in EVEN else ("", "", "")
        for name, published, reason in zip(NAMES, PUBLISHED.get(ranks, ()), reasons, strict=False):
            found.append(PaperValue(f"{name} of {ranks}", record[name]["best"], published, reason))
        if ranks == max(RANKS):
            last = record["stragglar"]
            found.append(PaperValue("256 ranks, nobody late", last["worst"], 1.0))
            found.append(PaperValue("256 ranks, critical delay", last["critical_s"], 1e-4, BELOW))
    return found


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """The range over the ring, and the critical delay; crosses at ranks that are no power of two (figure 9)."""
    left, right = figure.subplots(1, 2)
    for style in ("-", "x"):
        own = [record for record in records if (record["ranks"] in EVEN) == (style == "x")]
        ranks = [record["ranks"] for record in own]
        for i, name in enumerate(OURS):
            best, worst, critical = ([record[name][key] for record in own] for key in ("best", "worst", "critical_s"))
            if style == "-":
                left.fill_between(ranks, worst, best, color=f"C{i}", alpha=0.25, linewidth=0)
            left.plot(ranks, best, style, color=f"C{i}", label=name if style == "-" else None)
            right.plot(ranks, [1e3 * value for value in critical], style, color=f"C{i}")
        for i, name in enumerate(BASELINES, len(OURS)):
            best = [record[name]["best"] for record in own]
            left.plot(ranks, best, style, color=f"C{i}", label=name if style == "-" else None)
    left.axhline(1, color="grey", linewidth=0.8)
    for axis, what in ((left, "times as fast as the ring"), (right, "critical delay (ms)")):
        axis.set_xscale("log", base=2)
        axis.set(xlabel="GPUs", ylabel=what)
    left.legend(frameon=False)
