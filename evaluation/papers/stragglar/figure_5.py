"""StragglAR figures 5, 6a and 6b: all-reduce with a late rank on eight H100 or A100 GPUs, by buffer size and delay.

Simulated. Links are fitted to the one delay that the paper prints of each machine, from which on StragglAR is faster
than the ring with 4 GiB (5c, 5f), and beside that taken as they are said to be; all else is judged.
"""

from collections.abc import Sequence

from evaluation.papers.experiment import Columns, Figure, Record
from evaluation.papers.stragglar.gpu_servers import (
    ALGORITHMS,
    BASELINES,
    GIB,
    MACHINES,
    critical_delay_s,
    exposed_s,
    reduce_scatter_s,
)
from lanterne.bench.output.bars import Bar, at_least, at_most
from lanterne.bench.output.units import format_nbytes, format_time

RANKS = 8
SIZES = tuple(1 << power for power in (20, 22, 24, 26, 28, 30, 31, 32))
# "more than 25 % faster" than all baselines, for the larger buffers.
FASTER, LARGE = 1.25, GIB
FIGURE_INCHES = (11, 8)
NOTES = """
exposed: from the late rank's call; ideal: late enough for all that can be done without it; average: as late as the
machine's late ranks are when fine-tuning Llama-3.2-3B (4.48 and 9.46 ms); stragglar: the paper's algorithm, run by ours
"""
COLUMNS: Columns = [("machine", ""), ("links", "GB/s"), ("bytes", ""), ("delay", "")]
COLUMNS = [*COLUMNS, *((name, "GB/s") for name in ALGORITHMS), ("stragglar", "over best")]


def run(quick: bool) -> list[Record]:
    """One record per machine, links, buffer size and kind of delay; `quick`: every other size, the largest too."""
    records: list[Record] = []
    for machine in MACHINES:
        for links, model in (("stated", machine.stated()), ("fitted", machine.fitted())):
            for nbytes in SIZES[1::2] if quick else SIZES:
                for kind, delay_s in (("ideal", None), ("average", machine.average_s)):
                    late_s = 10 * nbytes * model.beta_s_per_byte + 1e-3 if delay_s is None else delay_s
                    times = {name: exposed_s(name, RANKS, nbytes, model, late_s) for name in ALGORITHMS}
                    records.append(
                        {
                            "machine": machine.name,
                            "links": links,
                            "bytes_per_s": 1 / model.beta_s_per_byte,
                            "nbytes": nbytes,
                            "delay": kind,
                            "exposed_s": times,
                            "over_best": min(times[name] for name in BASELINES) / times["stragglar"],
                            "critical_s": critical_delay_s(RANKS, 4 * GIB, model),
                            "late_join_critical_s": critical_delay_s(RANKS, 4 * GIB, model, "late_join"),
                            "reduce_scatter_s": reduce_scatter_s(RANKS, nbytes, model),
                        }
                    )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    rates = [f"{record['nbytes'] / record['exposed_s'][name] / 1e9:.4g}" for name in ALGORITHMS]
    first = [record["machine"], f"{record['bytes_per_s'] / 1e9:.0f}", format_nbytes(record["nbytes"]), record["delay"]]
    return [*first, *rates, f"{record['over_best']:.2f}"]


def findings(records: Sequence[Record]) -> list[str]:
    """The critical delays, the paper's and ours."""
    lines = []
    for machine in MACHINES:
        stated, fitted = (
            next(each for each in records if (each["machine"], each["links"]) == (machine.name, links))
            for links in ("stated", "fitted")
        )
        lines.append(
            f"{machine.name}, 4 GiB: critical delay {format_time(machine.critical_s)} in the paper, "
            f"{format_time(stated['critical_s'])} with the stated links: {fitted['bytes_per_s'] / 1e9:.0f} GB/s are "
            f"fitted; with late_join {format_time(fitted['late_join_critical_s'])}"
        )
        own = [r for r in records if (r["machine"], r["links"], r["delay"]) == (machine.name, "fitted", "average")]
        times = ", ".join(f"{format_nbytes(r['nbytes'])} {format_time(r['reduce_scatter_s'])}" for r in own)
        late = format_time(machine.average_s)
        lines.append(f"  figure 6: reduce-scatter of the others: {times}; average delay {late}")
    return lines


def bars(records: Sequence[Record]) -> list[Bar]:
    """What the paper says of large buffers, with the fitted links."""
    found = []
    for machine in MACHINES:
        own = [r for r in records if (r["machine"], r["links"]) == (machine.name, "fitted")]
        large = [r["over_best"] for r in own if r["nbytes"] >= LARGE and r["delay"] == "ideal"]
        found.append(at_least(f"{machine.name}, ideal, times as fast as the best baseline", min(large), FASTER))
        # Up to some size all of the reduce-scatter is hidden by the average delay, beyond it is not.
        hidden = [r["reduce_scatter_s"] / machine.average_s for r in own if r["nbytes"] <= machine.ideal_below]
        found.append(at_most(f"{machine.name}, reduce-scatter over average delay, small", max(hidden), 1.0))
        shown = [r["reduce_scatter_s"] / machine.average_s for r in own if r["nbytes"] >= 2 * machine.ideal_below]
        found.append(at_least(f"{machine.name}, reduce-scatter over average delay, large", min(shown), 1.0))
    return found


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Algorithmic bandwidth over the buffer size, a panel for each machine and kind of delay, with fitted links."""
    axes = figure.subplots(len(MACHINES), 2, sharex=True, sharey="row", squeeze=False)
    for line, machine in zip(axes, MACHINES, strict=True):
        for axis, kind in zip(line, ("ideal", "average"), strict=True):
            own = [r for r in records if (r["machine"], r["links"], r["delay"]) == (machine.name, "fitted", kind)]
            for name in ALGORITHMS:
                x, y = [r["nbytes"] for r in own], [r["nbytes"] / r["exposed_s"][name] / 1e9 for r in own]
                axis.plot(x, y, marker="o", markersize=3, label=name)
            axis.set_xscale("log", base=2)
            axis.set_title(f"{machine.name}, {kind} delay", loc="left", fontsize=10)
        line[0].set_ylabel("bytes / exposed time (GB/s)")
    for axis in axes[-1]:
        axis.set_xlabel("buffer (bytes)")
    axes[0][0].legend(frameon=False)
