"""All-reduces with a late rank on one server, by buffer size and by delay: the rows and panels of figures 5 and 10."""

from collections.abc import Sequence
from statistics import mean

from evaluation.papers.experiment import Axes, Columns, PaperValue, Record
from evaluation.papers.stragglar.gpu_servers import BASELINES, GpuServer, exposed_s, reduce_scatter_s
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.collectives.schedule.cost import CostModel, LinkCosts

# Buffers from which on the paper's text speaks of large ones.
LARGE = 1 << 30
# Of figures 5c, 5f and 10c.
DELAYS_S = tuple(1e-3 * delay for delay in (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25))
# Longer than all that can be done without the late rank.
IDEAL_S = 1.0


def columns(algorithms: Sequence[str]) -> Columns:
    """Return the header of `row`."""
    first: Columns = [("machine", ""), ("links", ""), ("bytes", ""), ("delay", "")]
    return [*first, *((name, "GB/s") for name in algorithms), ("stragglar", "over best")]


def records_of(
    server: GpuServer,
    links: str,
    model: LinkCosts,
    algorithms: Sequence[str],
    sizes: Sequence[int],
    delays_s: Sequence[float],
) -> list[Record]:
    """Return a record per buffer size, late enough and late on average, then one per delay of the largest buffer."""
    points = [(nbytes, kind, late) for nbytes in sizes for kind, late in _kinds(server)]
    points += [(max(sizes), "swept", delay) for delay in delays_s]
    return [_point(server, links, model, algorithms, *point) for point in points]


def _kinds(server: GpuServer) -> tuple[tuple[str, float], ...]:
    return ("ideal", IDEAL_S), ("average", server.average_s)


def _point(
    server: GpuServer,
    links: str,
    model: LinkCosts,
    algorithms: Sequence[str],
    nbytes: int,
    kind: str,
    delay_s: float,
) -> Record:
    times = {name: exposed_s(name, server.ranks, nbytes, model, delay_s) for name in algorithms}
    alone_s = reduce_scatter_s(server.ranks, nbytes, model) if isinstance(model, CostModel) else None
    return {
        "machine": server.name,
        "links": links,
        "nbytes": nbytes,
        "delay": kind,
        "delay_s": delay_s,
        "exposed_s": times,
        "over_best": min(times[name] for name in BASELINES) / times["stragglar"],
        "reduce_scatter_s": alone_s,
    }


def row(record: Record) -> list[object]:
    """One line of the table."""
    times, kind = record["exposed_s"], record["delay"]
    rates = [f"{record['nbytes'] / time_s / 1e9:.4g}" for time_s in times.values()]
    delay = format_time(record["delay_s"]) if kind == "swept" else kind
    return [
        *(record["machine"], record["links"], format_nbytes(record["nbytes"]), delay),
        *rates,
        f"{record['over_best']:.2f}",
    ]


def select(records: Sequence[Record], server: GpuServer, links: str, kind: str) -> list[Record]:
    """Return those of one machine, its links and a kind of delay: ideal, average or swept."""
    return [r for r in records if (r["machine"], r["links"], r["delay"]) == (server.name, links, kind)]


def gain(records: Sequence[Record], server: GpuServer, links: str, reason: str) -> PaperValue:
    """Return how much faster than the best baseline StragglAR is where the delay hides all that it can."""
    large = [r["over_best"] - 1 for r in select(records, server, links, "ideal") if r["nbytes"] >= LARGE]
    return PaperValue(
        f"{server.name}, large buffers, faster than the best baseline", mean(large), server.faster, reason
    )


def crossing_s(records: Sequence[Record]) -> float | None:
    """Return the first swept delay from which on StragglAR is never behind the best baseline; None: no such delay."""
    behind = [r["delay_s"] for r in records if r["over_best"] < 1]
    ahead = [r["delay_s"] for r in records if r["delay_s"] > max(behind, default=-1.0)]
    return min(ahead, default=None)


def draw_sizes(axis: Axes, records: Sequence[Record], title: str) -> None:
    """Algorithmic bandwidth over the buffer size."""
    for name in records[0]["exposed_s"]:
        x, y = [r["nbytes"] for r in records], [r["nbytes"] / r["exposed_s"][name] / 1e9 for r in records]
        axis.plot(x, y, marker="o", markersize=3, label=name)
    axis.set_xscale("log", base=2)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set(xlabel="buffer (bytes)", ylabel="bytes / exposed time (GB/s)")


def draw_delays(axis: Axes, records: Sequence[Record], title: str) -> None:
    """Time from the first call to the end over the delay."""
    for name in records[0]["exposed_s"]:
        x = [1e3 * r["delay_s"] for r in records]
        axis.plot(x, [1e3 * (r["delay_s"] + r["exposed_s"][name]) for r in records], label=name)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set(xlabel="delay (ms)", ylabel="from the first call to the end (ms)")
