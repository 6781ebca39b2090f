"""The plot of `lanterne bench`: what a late rank still costs, over size and over delay, and who came last."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.bench.collective.arrivals_report import draw as draw_arrivals
from lanterne.bench.output.plots import STYLES, label_ends
from lanterne.bench.output.report import write_atomically
from lanterne.bench.output.units import format_nbytes, format_rate, format_time
from lanterne.collectives.late.arrivals import Arrivals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record: TypeAlias = dict[str, Any]


def plot(path: str, parts: Sequence[dict[str, Any]], arrivals: Arrivals | None = None) -> None:
    """Draw the parts of a bench document into `path`, and below them `arrivals`, if there are any.

    Raises:
        InputError: `path` cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = len(parts) + (arrivals is not None)
    figure, axes = plt.subplots(rows, 2, figsize=(11, 4.4 * rows), squeeze=False, layout="constrained")
    for row, part in zip(axes, parts, strict=False):
        draw(row[0], row[1], part)
    if arrivals is not None:
        draw_arrivals(axes[-1, 0], axes[-1, 1], arrivals)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix[1:].lower(), dpi=120)
    plt.close(figure)
    write_atomically(path, buffer.getvalue())


def draw(over_size: Axes, over_delay: Axes, document: dict[str, Any]) -> None:
    """Draw a part of a bench document on two axes: a line for each algorithm, medians with the range of the samples."""
    results, rate = document["results"], document.get("rate_bytes_per_s")
    longest_s = max(record["delay_s"] for record in results)
    largest = max(record["nbytes"] for record in results)
    styles = dict(zip(dict.fromkeys(record["algorithm"] for record in results), STYLES, strict=False))
    what = "late rank's call to the end" if longest_s else "common call to the end"
    unit = "multiples of s/rate" if rate else "ms"

    _lines(over_size, [r for r in results if r["delay_s"] == longest_s], lambda r: r["nbytes"], styles, rate)
    links = results[0]["emulated_bytes_per_s"]
    over = f", emulated links, {format_rate(links)}" if links else ""
    at = f", {format_time(longest_s)} late" if longest_s else ""
    over_size.set_title(f"{results[0]['collective']}, {results[0]['ranks']} ranks{at}{over}", fontsize=10)
    sizes = sorted({record["nbytes"] for record in results})
    over_size.set_xscale("log", base=2)
    over_size.set_xticks(sizes, [format_nbytes(nbytes) for nbytes in sizes])
    over_size.minorticks_off()
    if len(sizes) == 1:
        over_size.set_xlim(sizes[0] / 2, sizes[0] * 1.2)
    over_size.set(xlabel="size (line: median, band: least to most)", ylabel=f"{what}, {unit}")

    def delay(record: dict[str, Any]) -> float:
        return record["delay_s"] * rate / record["nbytes"] if rate else 1e3 * record["delay_s"]

    _lines(over_delay, [r for r in results if r["nbytes"] == largest], delay, styles, rate)
    of = f"{results[0]['collective']}, {results[0]['ranks']} ranks"
    over_delay.set_title(f"{of}, {format_nbytes(largest)}{over}", fontsize=10)
    over_delay.set(xlabel=f"delay of the late rank, {unit}", ylabel=f"{what}, {unit}")
    for axis in (over_size, over_delay):
        if not rate:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:g}")
        else:
            axis.axhline(1, color="#888888", linewidth=0.8, linestyle=":")
            axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        label_ends(axis)


def _lines(
    axis: Axes,
    records: Iterable[Record],
    place: Callable[[Record], float],
    styles: dict[str, Record],
    rate: float | None,
) -> None:
    """A line per algorithm over `place(record)`; a record without a late rank counts from the common call."""
    for name, style in styles.items():
        mine = sorted((record for record in records if record["algorithm"] == name), key=place)
        factors = [rate / record["nbytes"] if rate else 1e3 for record in mine]
        samples = [
            [s * factor for s in record["late_s"] or record["time_s"]]
            for record, factor in zip(mine, factors, strict=True)
        ]
        x = [place(record) for record in mine]
        axis.plot(x, list(map(statistics.median, samples)), label=name, markersize=4, **style)
        axis.fill_between(
            x, list(map(min, samples)), list(map(max, samples)), color=style["color"], alpha=0.1, linewidth=0
        )
