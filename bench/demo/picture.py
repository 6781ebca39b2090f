"""The picture of a demo: throughput and link delays over its iterations, with what happened when."""

from lanterne.bench.demo.screen import MARKS
from lanterne.pipeline.simulate.draw import save

NAMES = {
    "slowed": "link slowed",
    "noticed": "noticed",
    "located": "found",
    "swapped": "plan swapped",
    "healed": "link heals",
    "reverted": "went back",
}


def plot(path, document):
    """Draw a document of command.py into a file.

    Raises:
        InputError: it cannot be written, or its ending names no picture format.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, 6), sharex=True, layout="constrained", height_ratios=(3, 2))
    results = document["results"]
    numbers = [record["iteration"] for record in results]
    top.plot(numbers, [record["tokens_per_s"] for record in results], color="0.3", linewidth=0.9)
    for phase in document["phases"]:
        rate = phase["tokens_per_s"]
        top.hlines(rate, phase["first"], phase["last"] - 1, color="tab:blue", linewidth=2.5, alpha=0.7)
        if phase["last"] - phase["first"] < len(results) / 20:
            continue  # No room for a number.
        middle = (phase["first"] + phase["last"] - 1) / 2
        top.annotate(f"{rate:.0f}", (middle, rate), (0, 7), textcoords="offset points", ha="center", color="tab:blue")
    # The upper third is for the names of the steps.
    top.set_ylim(0, 1.5 * max(record["tokens_per_s"] for record in results))
    top.set_ylabel("tokens/s (blue: median)")
    for name in results[-1]["link_delay_s"]:
        delays = [record["link_delay_s"].get(name, float("nan")) * 1e3 for record in results]
        bottom.plot(numbers, delays, linewidth=1.2, label=f"link {name}")
    bottom.set_ylabel("delay of messages (ms)")
    bottom.set_xlabel("iteration (shaded: the link is slow)")
    bottom.set_ylim(bottom=0)
    bottom.legend(frameon=False, fontsize=8, loc="upper left")
    _mark(top, bottom, document)
    about = document["about"]
    top.set_title(f"lanterne demo: {about['ranks']} ranks train; {about['disturbance']}", loc="left", fontsize=10)
    save(figure, path)


def _mark(top, bottom, document):
    """The slow stretch, and a line for each iteration with steps, with their names."""
    for axes in (top, bottom):
        axes.axvspan(document["about"]["first"] - 0.5, document["about"]["last"] - 0.5, color="0.93", zorder=0)
    names = {}
    for step in document["steps"]:
        if step["name"] in MARKS and not any(step["name"] in known for known in names.values()):
            names.setdefault(step["iteration"], []).append(step["name"])
    for iteration, some in names.items():
        for axes in (top, bottom):
            axes.axvline(iteration, color="0.5", linewidth=0.7, linestyle=":")
        words = f"{iteration} {', '.join(NAMES[name] for name in some)}"
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "rotation": 90, "va": "top"}
        top.annotate(words, (iteration, 1), (2, -4), fontsize=7, **place)
