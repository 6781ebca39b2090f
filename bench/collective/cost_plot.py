"""The plot of `lanterne cost`: a row of panels per buffer size, after the StragglAR paper's figures 6c, 9, 7 and 2b."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.bench.output.plots import COLOURS, STYLES, label_ends
from lanterne.bench.output.report import write_atomically
from lanterne.bench.output.units import format_nbytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHARES = [i / 100 for i in range(0, 101, 2)]
# The records of cost.study by algorithm.
ByName: TypeAlias = dict[str, list[dict[str, Any]]]


def plot(path: str, results: Sequence[dict[str, Any]]) -> None:
    """Draw the records of cost.study into `path`.

    Raises:
        InputError: the folder cannot be written.
    """
    kind = Path(path).suffix[1:].lower()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    sizes = sorted({record["nbytes"] for record in results})
    # Only with a late rank is there more to show than times.
    panels = _PANELS if any(record["ideal_delay_s"] for record in results) else _PANELS[:1]
    size = (6 * len(panels), 4.6 * len(sizes))
    figure, axes = plt.subplots(len(sizes), len(panels), figsize=size, squeeze=False, layout="constrained")
    for row, nbytes in zip(axes, sizes, strict=True):
        by_name: ByName = {}
        for record in results:
            if record["nbytes"] == nbytes:
                by_name.setdefault(record["algorithm"], []).append(record)
        for draw, axis in zip(panels, row, strict=True):
            draw(axis, by_name)
            axis.grid(alpha=0.3)
            label_ends(axis, 7)
        row[0].set_title(f"{results[0]['collective']}, {format_nbytes(nbytes)}: late rank's arrival to end")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=120)
    plt.close(figure)
    write_atomically(path, buffer.getvalue())


def _rank_axis(axis: Axes, by_name: ByName) -> None:
    ranks = sorted({record["ranks"] for records in by_name.values() for record in records})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ranks, [str(n) for n in ranks], minor=False)
    axis.set_xlabel("ranks")


def _times(axis: Axes, by_name: ByName) -> None:
    """Figure 6c (and 9): time over ranks; a late-rank algorithm has a band from its best to its worst case."""
    late = _late(by_name)
    for style, (name, records) in zip(STYLES, by_name.items(), strict=False):
        ranks = [record["ranks"] for record in records]
        ideal, worst = ([1e3 * record[key] for record in records] for key in ("ideal_s", "time_s"))
        axis.plot(ranks, ideal, label=name, markersize=3, **style)
        if name in late:
            axis.plot(ranks, worst, ":", color=style["color"], linewidth=0.8)
            if name in ("stragglar", "late_join"):
                axis.fill_between(ranks, ideal, worst, color=style["color"], alpha=0.12)
    _rank_axis(axis, by_name)
    axis.set_ylabel("ms; dotted: without any delay")
    ring = [record["time_s"] for record in by_name.get("ring", next(iter(by_name.values())))]
    axis.set_ylim(0, 1.5e3 * max(ring) or None)


def _late(by_name: ByName) -> ByName:
    return {name: records for name, records in by_name.items() if any(record["ideal_delay_s"] for record in records)}


def _critical_delays(axis: Axes, by_name: ByName) -> None:
    """Figure 7a: the delay from which on an algorithm beats the ring."""
    axis.set_title("delay from which on it beats the ring (fig. 7a)")
    late = _late(by_name)
    for style, (name, records) in zip(STYLES, by_name.items(), strict=False):
        points = [(r["ranks"], 1e3 * r["critical_delay_s"]) for r in records if r["critical_delay_s"] is not None]
        if name in late and points:
            axis.plot(*zip(*points, strict=True), label=name, markersize=3, **style)
    _rank_axis(axis, by_name)
    axis.set_ylabel("critical delay, ms")


def _ratios(axis: Axes, by_name: ByName) -> None:
    """Figure 7b: the beta part of StragglAR's critical delay, log2(p) / p, beside what its schedules give."""
    axis.set_title("beta part of the critical delay, log2(p) / p (fig. 7b)")
    ranks = sorted({record["ranks"] for records in by_name.values() for record in records if record["ranks"] > 1})
    if ranks:
        axis.plot(ranks, [math.log2(n) / n for n in ranks], "k--", label="log2(p) / p", linewidth=1)
    ring = {record["ranks"]: record["load"] for record in by_name.get("ring", [])}
    points = [(r["ranks"], r["load"] - ring[r["ranks"]]) for r in by_name.get("stragglar", []) if r["ranks"] in ring]
    if points:
        axis.plot(
            *zip(*points, strict=True), "o-", color=COLOURS[2], label="stragglar: load\nless the ring's", markersize=3
        )
    _rank_axis(axis, by_name)
    axis.set_ylabel("multiples of s beta")


def _end_to_end(axis: Axes, by_name: ByName) -> None:
    """Figure 2b: gain of a whole job over the ring, by the share of its time in the collective."""
    name = next((name for name in ("stragglar", "late_join") if name in by_name), None)
    axis.set_title(f"gain of a job over the ring{', ' + name if name else ''} (fig. 2b)")
    ring = {record["ranks"]: record["time_s"] for record in by_name.get("ring", [])}
    for colour, record in zip(COLOURS * 4, by_name[name] if name else [], strict=False):
        if ring.get(record["ranks"]):
            ideal, worst = (record[key] / ring[record["ranks"]] for key in ("ideal_s", "time_s"))
            gains = [[100 * (1 / (1 - share + share * ratio) - 1) for share in _SHARES] for ratio in (ideal, worst)]
            axis.plot(
                [100 * s for s in _SHARES],
                gains[0],
                color=colour,
                label=f"{record['ranks']} ranks",
                linewidth=1,
            )
            axis.fill_between([100 * s for s in _SHARES], gains[0], gains[1], color=colour, alpha=0.1)
    axis.set_xlabel("share of the job's time in the collective, %")
    axis.set_ylabel("gain, % (band: no delay to ideal delay)")


_PANELS = (_times, _critical_delays, _ratios, _end_to_end)
