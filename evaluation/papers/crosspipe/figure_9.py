"""CrossPipe figure 9: Llama 3 405B in two datacenters, by a pipeline across their link or data parallelism across it.

What the model of the paper's section 5.2 and appendix E gives; see evaluation/papers/crosspipe/performance_model.py.
"""

from collections.abc import Sequence
from math import log2

from evaluation.papers.crosspipe.performance_model import TwoDatacenters, compare
from evaluation.papers.crosspipe.solved import over_bound
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from lanterne.bench.output import report

LATENCIES_S = (4e-3, 8e-3, 16e-3, 32e-3, 64e-3, 128e-3)
BANDWIDTHS = tuple(4e9 * 2**power for power in range(9))
SOLVER_S = (10.0, 3.0)
# (printed value, bandwidth in GB/s, the paper's) at 4 ms of latency: why ours may differ.
PAPER = {
    ("speedup", 4, 3.05): "by the printed setting 137 s of activations go through the link, or 203 s of gradients",
    ("slowdown", 64, 1.3): "printed to one decimal; the plan across is shorter here",
    ("speedup", 1024, 1.0): "printed as about 1; data parallelism waits for its gradients",
}
FIGURE_INCHES = (13, 4.6)
NOTES = """
pipeline, plan: the solver's shorter plan, UD with one stage on each rank or Wave with two; over bound: of both's least
speedup: data parallelism's time over the pipeline's; slowdown: the pipeline's time over that in one datacenter
paper: speedup up to 3.05 at 4 GB/s, about 1 from 1024 GB/s; slowdown 1.3 at 64 GB/s; latency hardly matters
the printed setting gives 1.5 at 4 GB/s: 32 microbatches of 17 GB against 2 x 406 GB of gradients through one link
"""
COLUMNS: Columns = [
    ("latency", "ms"),
    ("bandwidth", "GB/s"),
    ("pipeline", "s"),
    ("data parallel", "s"),
    ("one datacenter", "s"),
    ("speedup", ""),
    ("slowdown", ""),
    ("plan", ""),
    ("over bound", ""),
]


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per latency and bandwidth."""
    records = []
    for latency_s in LATENCIES_S[::5] if quick else LATENCIES_S:
        for bandwidth in BANDWIDTHS[::2] if quick else BANDWIDTHS:
            report.progress(f"{1e3 * latency_s:g} ms, {bandwidth / 1e9:g} GB/s")
            found = compare(TwoDatacenters(latency_s, bandwidth), limit_s)
            records.append(
                {"latency_s": latency_s, "bandwidth_bytes_per_s": bandwidth}
                | found._asdict()
                | {"speedup": found.speedup, "slowdown": found.slowdown}
            )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    times = [f"{record[key]:.2f}" for key in ("pipeline_s", "data_parallel_s", "single_s", "speedup", "slowdown")]
    place = [f"{1e3 * record['latency_s']:g}", f"{record['bandwidth_bytes_per_s'] / 1e9:g}"]
    return [*place, *times, record["scheduler"], over_bound(record["pipeline_s"], record["bound_s"])]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Return what the text prints of the figure."""
    found = {round(record["bandwidth_bytes_per_s"] / 1e9): record for record in records if record["latency_s"] == 4e-3}
    return [
        PaperValue(f"{what} at {bandwidth} GB/s", found[bandwidth][what], printed, reason)
        for (what, bandwidth, printed), reason in PAPER.items()
        if bandwidth in found
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Two maps over latency and bandwidth: speedup over data parallelism; slowdown against one datacenter, and plan.

    Slowdowns, which differ by ten times, are coloured by their logarithms.
    """
    latencies = sorted({record["latency_s"] for record in records})
    bandwidths = sorted({record["bandwidth_bytes_per_s"] for record in records})
    by_place = {(record["latency_s"], record["bandwidth_bytes_per_s"]): record for record in records}
    titles = {"speedup": "speedup over data parallelism", "slowdown": "slowdown against one datacenter"}
    for axis, key in zip(figure.subplots(1, 2), titles, strict=True):
        cells = [[by_place[latency, bandwidth] for bandwidth in bandwidths] for latency in latencies]
        shades = [[log2(cell[key]) if key == "slowdown" else cell[key] for cell in line] for line in cells]
        axis.imshow(shades, aspect="auto", cmap="Blues" if key == "speedup" else "Oranges", vmin=0)
        darkest = max(map(max, shades))
        for y, line in enumerate(cells):
            for x, cell in enumerate(line):
                plan = cell["scheduler"].replace("_", "\n") if key == "slowdown" else ""
                color = "white" if shades[y][x] > 0.7 * darkest else "black"
                axis.text(x, y, f"{cell[key]:.2f}\n{plan}".strip(), ha="center", va="center", fontsize=7, color=color)
        axis.set_xticks(range(len(bandwidths)), [f"{bandwidth / 1e9:g}" for bandwidth in bandwidths])
        axis.set_yticks(range(len(latencies)), [f"{1e3 * latency:g}" for latency in latencies])
        axis.set_xlabel("bandwidth (GB/s)")
        axis.set_ylabel("latency (ms)")
        axis.set_title(titles[key], loc="left", fontsize=10)
