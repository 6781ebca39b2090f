"""Gantt charts of simulated timelines, as SVG, PNG or PDF."""

import io
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.errors import InputError, Unavailable, need_package
from lanterne.pipeline.plan.action import KINDS
from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.analysis import bubble_rate, critical_path, senders
from lanterne.pipeline.simulate.simulate import Timeline, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour per kind, told apart by colour-blind readers too; later stages of a rank are lighter.
COLOURS = {
    "F": "#5b8fc9",
    "B": "#e39a3b",
    "W": "#7fb069",
    "BW": "#c9764a",
    "AR": "#9a86b8",
    "RS": "#9a86b8",
    "AG": "#9a86b8",
}
MEANING = {
    "F": "forward",
    "B": "input gradient",
    "W": "weight gradient",
    "BW": "backward",
    "AR": "all-reduce",
    "RS": "reduce-scatter",
    "AG": "all-gather",
}
WIDTH_INCHES = 16.0
# Charts with more columns than this get no numbers, borders or messages: they would cover everything.
MOST_LABELLED = 4000


def draw(
    timeline: Timeline, path: str | PathLike[str], title: str = "", unit: str = "", limit: float | None = None
) -> None:
    """Draw `timeline` into file `path`; its ending chooses the format.

    Microbatch numbers stand in the cells; messages that take time are thin lines from sender to receiver; the critical
    path has a dark border, unless communication was in order.

    Args:
        title: first line of the heading; makespan and bubble rate follow.
        unit: of the times, for the axis.
        limit: right end of the time axis, to give several charts one scale.

    Raises:
        InputError: the file cannot be written or its ending names no picture format.
        Unavailable: Matplotlib is missing.
    """
    draw_all([(title, timeline, not timeline.in_order)], path, unit, limit)


def draw_all(
    charts: Sequence[tuple[str, Timeline, bool]], path: str | PathLike[str], unit: str = "", limit: float | None = None
) -> None:
    """Draw several charts, one below the other, on one time axis.

    Args:
        charts: (title, timeline, whether its critical path is marked); one that was measured has none.
        path, unit, limit: as draw has them.

    Raises:
        InputError, Unavailable: as draw.
    """
    save(_figure(charts, unit, limit), path)


def to_svg(timeline: Timeline, title: str = "") -> str:
    """`timeline` as an SVG document.

    Raises:
        Unavailable: Matplotlib is missing.
    """
    text = io.StringIO()
    _figure([(title or timeline.plan.scheduler, timeline, not timeline.in_order)]).savefig(text, format="svg")
    return text.getvalue()


def plan_to_svg(plan: Plan) -> str | None:
    """`plan` as an SVG document, each action as long as the others; None without Matplotlib, or if it cannot run."""
    problem = Problem(plan.placement.num_ranks, plan.microbatches, 1, 1, 1)
    try:
        return to_svg(simulate(plan, problem), f"{plan.scheduler}, actions of one length")
    except (InputError, Unavailable):
        return None


def _figure(charts: Sequence[tuple[str, Timeline, bool]], unit: str = "", limit: float | None = None) -> "Figure":
    need_package("matplotlib", "drawing a timeline")
    # Without pyplot, whose backend is the user's, in a notebook above all.
    from matplotlib.figure import Figure

    heights = [1.4 + min(0.42 * timeline.plan.placement.num_ranks, 10) for _, timeline, _ in charts]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    axes = figure.subplots(len(charts), height_ratios=heights, squeeze=False)
    limit = limit or max(timeline.makespan for _, timeline, _ in charts)
    for axis, (title, timeline, critical) in zip(axes[:, 0], charts, strict=True):
        _chart(axis, timeline, title, unit, limit, critical)
    return figure


def _chart(axis: "Axes", timeline: Timeline, title: str, unit: str, limit: float, critical: bool) -> None:
    ranks = timeline.plan.placement.num_ranks
    axis.set_xlim(0, limit)
    axis.set_ylim(ranks - 0.4, -0.6)
    axis.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=8)
    axis.set_xlabel(f"time ({unit})" if unit else "time")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(axis="y", length=0)
    few = len(timeline.start) <= MOST_LABELLED
    _bars(axis, timeline, few, few and critical)
    _lanes(axis, timeline)
    if few:
        _messages(axis, timeline)
        _labels(axis, timeline, limit)
    heading = f"makespan {timeline.makespan:.6g}{' ' + unit if unit else ''}, bubble rate {bubble_rate(timeline):.1%}"
    axis.set_title(f"{title}: {heading}" if title else heading, loc="left", fontsize=10)
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=8, frameon=False, fontsize=8, borderaxespad=0.2)


def save(figure: "Figure", path: str | PathLike[str]) -> None:
    """Write a Matplotlib figure to `path`, whose ending says how, and close it.

    Raises:
        InputError: it cannot be written, or not with that ending.
    """
    from matplotlib import pyplot as plt

    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot draw {path}: {error}") from error
    finally:
        plt.close(figure)


def _bars(axis: "Axes", timeline: Timeline, bordered: bool, critical: bool) -> None:
    from matplotlib.collections import PolyCollection

    plan = timeline.plan
    kind, stage = plan.columns[0], plan.columns[1]
    leg = _legs(plan.placement)[stage]
    for index, name in enumerate(KINDS):
        for turn in np.unique(leg[kind == index]):
            at = np.flatnonzero((kind == index) & (leg == turn))
            boxes = _boxes(timeline.start[at], timeline.end[at], plan.rank_of[at], 0.38)
            axis.add_collection(
                PolyCollection(
                    boxes,
                    facecolors=_lighter(COLOURS[name], 0.45 * min(turn, 1.6)),
                    edgecolors="white" if bordered else "none",
                    linewidths=0.4 if bordered else 0,
                    label=MEANING[name] if turn == 0 else None,
                )
            )
    if critical:
        at = np.array(critical_path(timeline), np.int64)
        boxes = _boxes(timeline.start[at], timeline.end[at], plan.rank_of[at], 0.38)
        outline: dict[str, Any] = {"facecolors": "none", "edgecolors": "black", "linewidths": 0.9, "zorder": 4}
        axis.add_collection(PolyCollection(boxes, label="critical path", **outline))


def _boxes(start: Floats, end: Floats, rank: Ints, half: float) -> Any:
    """(n, 4, 2) float64, corners as Matplotlib draws them; its annotations ask for a list of arrays."""
    top, bottom = rank - half, rank + half
    return np.stack(
        [np.stack(pair, axis=-1) for pair in ((start, top), (end, top), (end, bottom), (start, bottom))], axis=1
    )


def _legs(placement: Placement) -> Ints:
    """(num_stages,) which of its rank's stages each is, from 0."""
    seen: dict[int, int] = {}
    legs = []
    for rank in placement.stage_to_rank:
        legs.append(seen.get(rank, 0))
        seen[rank] = legs[-1] + 1
    return np.array(legs)


def _lighter(colour: str, share: float) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(value + (1 - value) * min(share, 0.8) for value in to_rgb(colour))


def _lanes(axis: "Axes", timeline: Timeline) -> None:
    """Data-parallel communication as a thin bar under its rank."""
    shown: set[str] = set()
    for rank, action, start, end in timeline.data_parallel:
        label = MEANING[action.kind] if action.kind not in shown else None
        shown.add(action.kind)
        axis.broken_barh([(start, end - start)], (rank + 0.39, 0.09), facecolors=COLOURS[action.kind], label=label)


def _messages(axis: "Axes", timeline: Timeline) -> None:
    from matplotlib.collections import LineCollection

    sender = senders(timeline)
    receiver = np.flatnonzero(sender >= 0)
    sender = sender[receiver]
    slow = ~np.isnan(timeline.sent[sender])
    receiver, sender = receiver[slow], sender[slow]
    rank = timeline.plan.rank_of
    down = np.where(rank[receiver] > rank[sender], 0.38, -0.38)
    begins = np.stack([timeline.sent[sender], rank[sender] + down], axis=-1)
    ends = np.stack([timeline.arrival[receiver], rank[receiver] - down], axis=-1)
    lines: Any = np.stack([begins, ends], axis=1)
    axis.add_collection(LineCollection(lines, colors="0.35", linewidths=0.5, alpha=0.6, zorder=3))


def _labels(axis: "Axes", timeline: Timeline, limit: float) -> None:
    """Microbatch numbers, as large as they fit."""
    plan = timeline.plan
    pixels = (timeline.end - timeline.start) / limit * WIDTH_INCHES * 72 * 0.93
    digits = np.char.str_len(plan.columns[2].astype(str))
    size = np.minimum(pixels / (0.62 * digits + 0.2), 8.0)
    for i in np.flatnonzero(size >= 3.5).tolist():
        middle = (timeline.start[i] + timeline.end[i]) / 2
        text = str(plan.columns[2, i])
        axis.text(middle, plan.rank_of[i], text, fontsize=size[i], ha="center", va="center_baseline", clip_on=True)
