"""The plot of `lanterne study topology`: what is still to wait for after the late rank's arrival, over its delay."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.bench.output.plots import COLOURS, STYLES, in_style, label_ends
from lanterne.bench.output.report import write_atomically
from lanterne.bench.output.units import format_nbytes
from lanterne.bench.topology.outcomes import judged_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Lines beyond so many say nothing.
MAX_LINES = 8
# What is worse than so many times the best is above the picture.
HIGHEST = 4.0


def plot(path: str, name: str, results: Sequence[dict[str, Any]]) -> None:
    """Draw the records of command.py into `path`, a panel for each size.

    Raises:
        InputError: the folder cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with in_style():
        size = (6.4 * len(results), 4.4)
        figure, axes = plt.subplots(1, len(results), figsize=size, squeeze=False, layout="constrained")
        for axis, result in zip(axes[0], results, strict=True):
            _panel(axis, result)
        axes[0][0].set_ylabel("from the late rank's arrival to the end, ms")
        figure.suptitle(name, x=0.01, ha="left")
        buffer = io.BytesIO()
        figure.savefig(buffer, format=Path(path).suffix[1:].lower(), dpi=120)
        plt.close(figure)
    write_atomically(path, buffer.getvalue())


def _panel(axis: Axes, result: dict[str, Any]) -> None:
    shown = sorted(result["algorithms"], key=lambda each: judged_s(each, "late"))[:MAX_LINES]
    waits_s = min((judged_s(each, "together") for each in shown if not each["ideal_delay_s"]), default=0.0)
    least_s, bound_s = min(judged_s(each, "late") for each in shown), result["late_bound_s"]
    top_s = max(1.15 * waits_s, HIGHEST * least_s if not waits_s else 0.0, 1.3 * bound_s)
    shown = [each for each in shown if judged_s(each, "late") < top_s]
    longest_s = max(judged_s(each, "together") - judged_s(each, "late") for each in shown)
    delays_s = np.linspace(0, 1.25 * max(longest_s, waits_s, 1e-9), 60)
    for style, each in zip(STYLES, shown, strict=False):
        together_s, late_s = judged_s(each, "together"), judged_s(each, "late")
        without_mark: dict[str, Any] = style | {"marker": ""}
        # Until the delay has hidden all that needs no late rank, each second of it is one second less to wait.
        exposed_s = np.maximum(together_s - delays_s, late_s) if each["ideal_delay_s"] else together_s + 0 * delays_s
        axis.plot(1e3 * delays_s, 1e3 * exposed_s, label=each["algorithm"], **without_mark)
    axis.axhline(1e3 * bound_s, color=COLOURS[-1], linestyle=":", label="bytes alone")
    axis.set_ylim(0, 1e3 * top_s)
    axis.set_xlim(0, 1e3 * delays_s[-1])
    axis.set_xlabel("delay of the late rank, ms")
    axis.set_title(format_nbytes(result["nbytes"]), loc="left")
    axis.grid(alpha=0.3)
    label_ends(axis, 7)
