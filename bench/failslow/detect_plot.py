"""The picture of `lanterne detect`: each series with its incidents."""

from pathlib import Path

from lanterne.pipeline.simulate.draw import save


def draw(path, found):
    """Draw `found`, a list of (file, tracker, seconds), one panel each, into file `path`.

    Raises:
        InputError: the file cannot be written or its ending names no picture format.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(found), 1, figsize=(12, 3.2 * len(found)), squeeze=False, layout="constrained")
    for axis, (file, tracker, seconds) in zip(axes[:, 0], found, strict=True):
        _panel(axis, "standard input" if file == "-" else Path(file).name, tracker, seconds)
    axes[-1, 0].set_xlabel("row")
    save(figure, path)


def _panel(axis, name, tracker, seconds):
    ordered = sorted(seconds)
    bottom, top = ordered[0] * 0.9, max(ordered[int(0.99 * (len(ordered) - 1))] * 1.3, ordered[len(ordered) // 2] * 1.5)
    hidden = sum(value > top for value in seconds)
    axis.plot(seconds, color="0.35", linewidth=0.6, marker=".", markersize=2)
    for incident in tracker.incidents:
        end = len(seconds) if incident.relief is None else incident.relief
        axis.axvspan(incident.onset - 0.5, end - 0.5, color="tab:red", alpha=0.22, linewidth=0)
        until = "on" if incident.relief is None else f"to {incident.relief - 1}"
        label = f" x{incident.ratio:.2f}, rows {incident.onset} {until}"
        axis.annotate(
            label, (incident.onset, top), (0, -4), textcoords="offset points", va="top", fontsize=8, color="tab:red"
        )
    for event in tracker.events:
        if event.kind == "change":
            axis.axvline(event.index, color="tab:blue", linewidth=0.9, linestyle="--")
            text = f" x{event.ratio:.2f}"
            axis.annotate(text, (event.index, bottom), (0, 4), textcoords="offset points", fontsize=8, color="tab:blue")
    axis.set_ylim(bottom, top)
    axis.set_xlim(-1, len(seconds))
    axis.set_ylabel("iteration time (s)")
    count = len(tracker.incidents)
    above = f"; {hidden} row{'' if hidden == 1 else 's'} above the frame" if hidden else ""
    axis.set_title(f"{name}: {count} incident{'' if count == 1 else 's'}{above}", loc="left", fontsize=10)
