"""The one style of plots: colours that colour-blind readers can tell apart, names at the lines or above the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's palette without yellow, then Tol's muted one: each colour once.
COLOURS: list[str] = [
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B6914"),
    *("#332288", "#882255", "#117733", "#AA4499", "#999933", "#CC6677", "#44AA99", "#666666"),
]
STYLES: list[dict[str, Any]] = [
    {"color": colour, "linestyle": dash, "marker": mark}
    for dash, mark, colours in (("-", "o", COLOURS[:8]), ("--", "s", COLOURS[8:]))
    for colour in colours
]
# Between names, of the height of the axes, for each inch of it.
GAP_INCHES = 0.16
# Of the width of a figure, for a name in a legend above it.
NAME_INCHES = 1.5


@contextmanager
def in_style() -> Iterator[None]:
    """A block in which Matplotlib has this style: its colours as C0, C1 and so on, and no frame around the data."""
    import matplotlib
    from cycler import cycler

    colours = cycler(color=COLOURS)
    with matplotlib.rc_context({"axes.prop_cycle": colours, "axes.spines.top": False, "axes.spines.right": False}):
        yield


def lift_legends(figure: Figure) -> None:
    """Make one legend, above all axes of `figure`, of those inside its axes, where they may lie over data."""
    entries: dict[str, Artist | None] = {}
    for axis in figure.axes:
        if (legend := axis.get_legend()) is not None:
            for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
                entries.setdefault(text.get_text(), handle)
            legend.remove()
    if entries:
        columns = max(1, min(len(entries), int(figure.get_figwidth() / NAME_INCHES)))
        handles = [handle for handle in entries.values() if handle is not None]
        figure.legend(handles, list(entries), loc="outside upper left", ncols=columns, frameon=False, fontsize=8)


def label_ends(axis: Axes, fontsize: float = 8) -> None:
    """Write the label of each line of `axis` beside its right end, in its colour; last, when the limits are final."""
    limits = axis.get_xlim(), axis.get_ylim()
    ends = sorted((_height(axis, line), index, line) for index, line in enumerate(axis.get_lines()) if _is_named(line))
    gap = min(GAP_INCHES / axis.get_window_extent().height * axis.figure.dpi, 1 / max(1, len(ends)))
    for (end, _, line), height in zip(ends, _spread([end for end, *_ in ends], gap), strict=True):
        axis.annotate(
            str(line.get_label()),
            (1, end),
            (1.03, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=line.get_color(),
            fontsize=fontsize,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.5, "relpos": (0, 0.5)},
        )
    axis.set(xlim=limits[0], ylim=limits[1])
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _is_named(line: Line2D) -> bool:
    return not str(line.get_label()).startswith("_") and len(np.asarray(line.get_xdata())) > 0


def _height(axis: Axes, line: Line2D) -> float:
    """Where a line ends, as a share of the height of the axes."""
    end = axis.transData.transform([np.asarray(line.get_xdata())[-1], np.asarray(line.get_ydata())[-1]])
    return min(1.0, max(0.0, float(axis.transAxes.inverted().transform(end)[1])))


def _spread(heights: list[float], gap: float) -> list[float]:
    """`heights`, ascending, moved apart to at least `gap`, each as little as its neighbours allow; from 0 to 1."""
    # Of neighbours that touch: (where the first would best be, how many).
    blocks: list[tuple[float, int]] = []
    for height in heights:
        start, count = height, 1
        while blocks and start < blocks[-1][0] + blocks[-1][1] * gap:
            before, number = blocks.pop()
            start = (before * number + (start - number * gap) * count) / (number + count)
            count += number
        start = max(0.0, min(start, 1.0 - (count - 1) * gap))
        blocks.append((start, count))
    placed = [start + index * gap for start, count in blocks for index in range(count)]
    # What the upper limit has pushed down may touch what is below.
    most = 1.0
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], most)
        most = placed[index] - gap
    return placed
