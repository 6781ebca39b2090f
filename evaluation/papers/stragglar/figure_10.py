"""StragglAR figure 10 and appendix G: all-reduce with a late rank on four A100 GPUs, each linked to each by 100 GB/s.

Simulated, twice: as if a GPU used one of its three links at a time, which the baselines of the paper do, and on the
mesh as it is, where allpairs and late_join_allpairs use all three.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.stragglar.gpu_servers import ALGORITHMS, PERLMUTTER, critical_delay_s
from evaluation.papers.stragglar.server_table import (
    DELAYS_S,
    columns,
    crossing_s,
    draw_delays,
    draw_sizes,
    gain,
    records_of,
    row,
    select,
)
from lanterne.bench.output.units import format_time
from lanterne.collectives.schedule.cost import LinkCosts
from lanterne.collectives.topology.presets import find_preset

SIZES = tuple(1 << power for power in (20, 22, 24, 26, 28, 30))
NAMES = (*ALGORITHMS, "late_join_allpairs")
# Figure 10a, average delay of 10b, 1 GiB of 10c.
PANELS = ("ideal", "average", "swept")
FIGURE_INCHES = (14, 8)
NOTES = """
one link: a GPU sends over one link at a time; mesh: over all three at once; average: late by 9.45 ms
"""
COLUMNS = columns(NAMES)
FOUR = "the paper's is measured; alpha-beta says (3 / 2) / (4 / 3) of four ranks, a gain of 12.5 %"

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "findings", "paper_values", "row", "run"]


def run(quick: bool) -> list[Record]:
    """Records by links; `quick`: every other size, the largest too, and every third delay."""
    step = (2, 3) if quick else (1, 1)
    sizes, delays = SIZES[step[0] - 1 :: step[0]], DELAYS_S[:: step[1]]
    models: dict[str, LinkCosts] = {"one link": PERLMUTTER.stated(), "mesh": find_preset(f"mesh-1x{PERLMUTTER.ranks}")}
    return [
        record
        for links, model in models.items()
        for record in records_of(PERLMUTTER, links, model, NAMES, sizes, delays)
    ]


def findings(records: Sequence[Record]) -> list[str]:
    """The critical delay, and what the mesh gives to those that use all of it."""
    nbytes = max(SIZES)
    critical = format_time(critical_delay_s(PERLMUTTER.ranks, nbytes, PERLMUTTER.stated()))
    from_s = crossing_s(select(records, PERLMUTTER, "one link", "swept"))
    when = "at no delay" if from_s is None else f"from {format_time(from_s)} on"
    (large,) = (r for r in select(records, PERLMUTTER, "mesh", "ideal") if r["nbytes"] == nbytes)
    times = large["exposed_s"]
    shown = ", ".join(f"{name} {format_time(times[name])}" for name in ("stragglar", "allpairs", "late_join_allpairs"))
    return [
        f"one link, 1 GiB: critical delay {critical}; not behind any baseline {when}",
        f"mesh, 1 GiB, ideal delay: {shown}: algorithms that use one link at a time are behind allpairs there",
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The 8.3 % of section 4.1."""
    return [gain(records, PERLMUTTER, "one link", FOUR)]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """By buffer size with an ideal and the average delay, and over the delay; a line for each kind of links."""
    axes = figure.subplots(2, len(PANELS))
    for line, links in zip(axes, ("one link", "mesh"), strict=True):
        for axis, kind in zip(line, PANELS, strict=True):
            panel = draw_delays if kind == "swept" else draw_sizes
            title = f"{links}, {'1 GiB' if kind == 'swept' else f'{kind} delay'}"
            panel(axis, select(records, PERLMUTTER, links, kind), title)
    axes[0][0].legend(frameon=False)
