"""The picture of `lanterne pipeline sweep`."""

from collections.abc import Mapping
from typing import Any

from lanterne.bench.output.plots import COLOURS, label_ends
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.gantt import save

DASHES = ("-", "--", "-.", ":")
# Where lines lie on each other the first ones show as the wider ones beneath.
WIDEST, NARROWEST = 6.0, 1.2
MARKERS = "osD^vP*Xdph"


def draw(path: str, content: Mapping[str, Any], problem: Problem, unit: str) -> None:
    """Draw the lines of `content` (see sweep.run), of `problem` changed in one thing, into file `path`.

    Plans that do not fit have hollow markers.

    Raises:
        InputError: the file cannot be written or its ending names no picture format.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 5), layout="constrained")
    narrower = (WIDEST - NARROWEST) / max(1, len(content["results"]) - 2)
    for i, result in enumerate(content["results"]):
        points = [point for point in result["points"] if point["makespan"] is not None]
        x, y = [point["value"] for point in points], [point["relative"] for point in points]
        if result is content["results"][-1]:
            axis.plot(x, y, color="black", linewidth=0.8, linestyle=":", label=result["line"])
            continue
        line: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[i // len(COLOURS) % len(DASHES)],
            "marker": MARKERS[i % len(MARKERS)],
            "markersize": 4 + (WIDEST - i * narrower) / 2,
        }
        axis.plot(x, y, linewidth=WIDEST - i * narrower, alpha=0.85, label=result["line"], **line)
        over = [(a, b) for a, b, point in zip(x, y, points, strict=True) if not point["fits_memory"]]
        if over:
            axis.plot(*zip(*over, strict=True), **{**line, "linestyle": "none", "markerfacecolor": "white"})
    microbatches = "" if content["over"] == "microbatches" else f", {problem.microbatches} microbatches"
    axis.set_title(f"{problem.stages} stages{microbatches}")
    axis.set_xlabel(_axis(content["over"], unit))
    axis.set_ylabel(
        f"makespan / {content['relative_to']} at the first value"
        if content["relative_to"]
        else _with_unit("makespan", unit)
    )
    axis.grid(color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    hollow = any(point["fits_memory"] is False for result in content["results"] for point in result["points"])
    if hollow:
        axis.set_xlabel(f"{axis.get_xlabel()}; hollow: over memory")
    label_ends(axis, 9)
    save(figure, path)


def _axis(over: str, unit: str) -> str:
    return {
        "latency": _with_unit("link latency", unit),
        "bandwidth": _with_unit("time of a message on its link", unit),
        "memory": "memory per rank (activations)",
        "microbatches": "microbatches",
    }[over]


def _with_unit(text: str, unit: str) -> str:
    return f"{text} ({unit})" if unit else text
