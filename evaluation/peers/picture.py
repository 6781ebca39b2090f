"""The README's picture: `./run evaluate peers.picture evaluation/results/lab.json docs/late_rank.svg`."""

from __future__ import annotations

import argparse
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.peers.peer_case import PeerCase, case_of
from lanterne.bench.output.plots import COLOURS
from lanterne.bench.output.report import write_atomically
from lanterne.bench.output.units import format_nbytes

OURS, RING, PEER = COLOURS[0], COLOURS[4], "#666666"
HOSTS, NBYTES = 8, 16 << 20


def medians(results: list[dict[str, Any]]) -> dict[str, dict[float, float]]:
    """`lab-peers`' results of NBYTES on HOSTS hosts of a rank as {name: {delay: median x}}, of the peers the best."""
    ours: dict[str, dict[float, float]] = {"auto": {}, "ring": {}}
    peers: dict[float, float] = {}
    for record in results:
        if case_of(record)._replace(delay=0.0) != PeerCase(HOSTS, NBYTES, 0.0):
            continue
        delay, x = record["delay"] or 0.0, statistics.median(record["x"])
        if record["contender"] != "lanterne":
            peers[delay] = min(x, peers.get(delay, x))
        elif record["algorithm"] in ours:
            ours[record["algorithm"]][delay] = x
    return {**ours, "best peer": peers}


def draw(document: dict[str, Any]) -> bytes:
    """The SVG: a line each, labelled at its end."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "lanterne"
    from matplotlib import pyplot as plt

    lines = medians(document["results"])
    styles = {
        "ring": (RING, "--", "its own ring", 7),
        "best peer": (PEER, "-", "best of MPICH, Open MPI, Gloo", -15),
        "auto": (OURS, "-", "lanterne, auto", 0),
    }
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for name, (color, line, label, above) in styles.items():
        delays = sorted(lines[name])
        values = [lines[name][delay] for delay in delays]
        axis.plot(delays, values, color=color, linestyle=line, marker="o", markersize=4, linewidth=2)
        text = f"{label}: {values[-1]:.2f}"
        end, offset = (delays[-1], values[-1]), (9, above)
        axis.annotate(text, end, offset, textcoords="offset points", color=color, va="center", weight="bold")
    axis.axhline(1, color="#444444", linewidth=0.8, linestyle=":")
    axis.text(0, 0.96, "the late host's own buffer leaves it: nothing is faster", fontsize=8, color="#444444", va="top")
    rate = document["rate_bytes_per_s"] * 8e-6
    axis.set(xlim=(-0.03, 1.62), ylim=(0, 2.1), xticks=[0, 0.45, 0.7, 0.9, 1.1])
    axis.set_xlabel("how late the host is: 1 is the time that a link takes for the whole buffer")
    axis.set_ylabel("from its arrival to the end")
    what = f"All-reduce of {format_nbytes(NBYTES)}, one of {HOSTS} hosts late"
    axis.set_title(f"{what}; emulated links, {rate:g} Mbit/s", fontsize=10)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return buffer.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", metavar="LAB.json", help="what `evaluate lab-peers --json` wrote")
    parser.add_argument("picture", metavar="FILE.svg")
    args = parser.parse_args(argv)
    write_atomically(args.picture, draw(json.loads(Path(args.results).read_text())))


if __name__ == "__main__":
    main()
