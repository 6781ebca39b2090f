"""StragglAR figures 5, 6a and 6b: all-reduce with a late rank on eight H100 or A100 GPUs, by buffer size and delay.

Simulated. Links are fitted to the one delay that the paper prints of each machine, from which on StragglAR is faster
than the ring with 4 GiB (5c, 5f), and beside that taken as they are said to be; all else is judged.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.stragglar.gpu_servers import ALGORITHMS, GIB, MACHINES, critical_delay_s
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
from lanterne.bench.output.bars import Bar, at_least, at_most
from lanterne.bench.output.units import format_nbytes, format_time

SIZES = tuple(1 << power for power in (20, 22, 24, 26, 28, 30, 31, 32))
FIGURE_INCHES = (14, 8)
NOTES = """
exposed: from the late rank's call; ideal: late enough for all that can be done without it; average: as late as the
machine's late ranks are when fine-tuning Llama-3.2-3B (4.48 and 9.46 ms); stragglar: the paper's algorithm, run by ours
stated: links of 450 and 300 GB/s; fitted: to the critical delay, which is therefore judged with the stated ones
"""
COLUMNS = columns(ALGORITHMS)
MORE_THAN = "the paper prints more than 25 % as measured; the model has no cost but alpha and beta"
CRITICAL = "the paper's is measured; NCCL's messages take longer than the stated rates say"

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "bars", "draw", "findings", "paper_values", "row", "run"]


def run(quick: bool) -> list[Record]:
    """Records by machine and links; `quick`: every other size, the largest too, and every third delay."""
    step = (2, 3) if quick else (1, 1)
    found = []
    for machine in MACHINES:
        for links, model in (("stated", machine.stated()), ("fitted", machine.fitted())):
            sizes, delays = SIZES[step[0] - 1 :: step[0]], DELAYS_S[:: step[1]]
            found += records_of(machine, links, model, ALGORITHMS, sizes, delays)
    return found


def findings(records: Sequence[Record]) -> list[str]:
    """The critical delays, the paper's and ours, the curves over the delay, and what the others take alone."""
    lines = []
    for machine in MACHINES:
        stated, fitted = machine.stated(), machine.fitted()
        critical = [
            format_time(critical_delay_s(machine.ranks, 4 * GIB, model, name))
            for model, name in ((stated, "stragglar"), (fitted, "late_join"))
        ]
        lines.append(
            f"{machine.name}, 4 GiB: critical delay {format_time(machine.critical_s)} in the paper, {critical[0]} with "
            f"the stated links: {1e-9 / fitted.beta_s_per_byte:.0f} GB/s are fitted; with late_join {critical[1]}"
        )
        for links in ("stated", "fitted"):
            from_s = crossing_s(select(records, machine, links, "swept"))
            when = "at no delay" if from_s is None else f"from {format_time(from_s)} on"
            lines.append(f"  curve over the delay, {links} links: not behind any baseline {when}")
        own = select(records, machine, "fitted", "average")
        times = ", ".join(f"{format_nbytes(r['nbytes'])} {format_time(r['reduce_scatter_s'])}" for r in own)
        late = format_time(machine.average_s)
        lines.append(f"  figure 6: reduce-scatter of the others: {times}; average delay {late}")
    return lines


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Critical delays with the stated links, and how much faster large buffers are with the fitted ones."""
    found = []
    for machine in MACHINES:
        ours_s = critical_delay_s(machine.ranks, 4 * GIB, machine.stated())
        found.append(PaperValue(f"{machine.name}, critical delay", ours_s, machine.critical_s, CRITICAL))
        found.append(gain(records, machine, "fitted", MORE_THAN))
    return found


def bars(records: Sequence[Record]) -> list[Bar]:
    """Up to which size the average delay hides all of the reduce-scatter, with the fitted links."""
    found = []
    for machine in MACHINES:
        own = select(records, machine, "fitted", "average")
        hidden = [r["reduce_scatter_s"] / machine.average_s for r in own if r["nbytes"] <= machine.ideal_below]
        found.append(at_most(f"{machine.name}, reduce-scatter over average delay, small", max(hidden), 1.0))
        shown = [r["reduce_scatter_s"] / machine.average_s for r in own if r["nbytes"] >= 2 * machine.ideal_below]
        found.append(at_least(f"{machine.name}, reduce-scatter over average delay, large", min(shown), 1.0))
    return found


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """By buffer size with an ideal and the average delay, and over the delay; a line for each machine, fitted links."""
    axes = figure.subplots(len(MACHINES), 3, squeeze=False)
    for line, machine in zip(axes, MACHINES, strict=True):
        for axis, kind in zip(line, ("ideal", "average", "swept"), strict=True):
            panel = draw_delays if kind == "swept" else draw_sizes
            title = f"{machine.name}, {'4 GiB' if kind == 'swept' else f'{kind} delay'}"
            panel(axis, select(records, machine, "fitted", kind), title)
    axes[0][0].legend(frameon=False)
