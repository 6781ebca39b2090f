"""How a demo is shown: live, on a terminal or in a pipe (PictureView); then as a picture (plot) and a trace (trace).

The job writes records to a file while it runs, which the PictureView reads.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.bench.demo.screen import BLOCKS, MARKS, plain_line, screen
from lanterne.bench.output.plots import label_ends
from lanterne.pipeline.execute.measured import timeline
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.chrome_trace import chrome_trace
from lanterne.pipeline.simulate.gantt import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The plan of an iteration, and what all ranks measured of it (pipeline.execute.measured.gather).
Gathered: TypeAlias = tuple[CheckedPlan, Mapping[str, NDArray[np.float64]]]
# Between looks at the file.
LOOK_S = 0.1
EVERY = 10
# Another screen, no cursor; and back.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
NAMES = {
    "slowed": "link slowed",
    "noticed": "noticed",
    "located": "found",
    "swapped": "plan swapped",
    "healed": "link heals",
    "reverted": "went back",
}


class PictureView:
    """Follows a feed in a thread of its own, as a context.

    Args:
        path: the file with the records; it exists.
        about: as `screen` takes it.
        file: where to show.
    """

    def __init__(self, path: Path, about: dict[str, Any], file: TextIO) -> None:
        self.about = about
        self.file = file
        self.records: list[dict[str, Any]] = []
        self.is_screen: bool = file.isatty() and os.environ.get("TERM") != "dumb" and _can_show(BLOCKS, file.encoding)
        self.colour: bool = self.is_screen and not os.environ.get("NO_COLOR")
        self._feed = open(path, encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._began_s = time.monotonic()
        self._rest = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> PictureView:
        if self.is_screen:
            self.file.write(ENTER)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        self._feed.close()
        if self.is_screen:
            self.file.write(LEAVE)
            if self.records:
                # What was on the screen stays above the summary.
                self.file.write("\n".join(self._lines()) + "\n\n")
        self.file.flush()

    def _follow(self) -> None:
        ended = False
        try:
            while not ended:
                ended = self._ended.wait(LOOK_S)
                self._show(self._read())
        except BrokenPipeError:
            # Nobody looks any more: the job ends as `kill` would end it.
            os.kill(os.getpid(), signal.SIGTERM)

    def _read(self) -> list[dict[str, Any]]:
        """The records that have come."""
        *lines, self._rest = (self._rest + self._feed.read()).split("\n")
        return [json.loads(line) for line in lines]

    def _show(self, came: list[dict[str, Any]]) -> None:
        self.records += came
        if self.is_screen:
            # Every line to its end, and what is below: no flicker, nothing left of the screen before.
            self.file.write("\x1b[H" + "\n".join(line + "\x1b[K" for line in self._lines()) + "\x1b[J")
        else:
            for record in came:
                if line := plain_line(record, EVERY):
                    self.file.write(line + "\n")
        self.file.flush()

    def _lines(self) -> list[str]:
        width, height = shutil.get_terminal_size()
        elapsed_s = time.monotonic() - self._began_s
        return screen(self.about, self.records, width, height - 1, colour=self.colour, elapsed_s=elapsed_s)


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def plot(path: str, document: dict[str, Any]) -> None:
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
    label_ends(bottom)
    _mark(top, bottom, document)
    about = document["about"]
    top.set_title(f"lanterne demo: {about['ranks']} ranks train; {about['disturbance']}", loc="left", fontsize=10)
    save(figure, path)


def _mark(top: Axes, bottom: Axes, document: dict[str, Any]) -> None:
    """The slow stretch, and a line for each iteration with steps, with their names."""
    for axes in (top, bottom):
        axes.axvspan(document["about"]["first"] - 0.5, document["about"]["last"] - 0.5, color="0.93", zorder=0)
    names: dict[int, list[str]] = {}
    for step in document["steps"]:
        if step["name"] in MARKS and not any(step["name"] in known for known in names.values()):
            names.setdefault(step["iteration"], []).append(step["name"])
    for iteration, some in names.items():
        for axes in (top, bottom):
            axes.axvline(iteration, color="0.5", linewidth=0.7, linestyle=":")
        words = f"{iteration} {', '.join(NAMES[name] for name in some)}"
        place: dict[str, Any] = {
            "xycoords": ("data", "axes fraction"),
            "textcoords": "offset points",
            "rotation": 90,
            "va": "top",
        }
        top.annotate(words, (iteration, 1), (2, -4), fontsize=7, **place)


def trace(
    timelines: Sequence[Gathered], records: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The whole run in the Chrome trace format: actions and messages of all ranks, steps, throughput and delays."""
    start_s = min(float(gathered["start_s"].min()) for _, gathered in timelines)
    events: list[dict[str, Any]] = []
    arrows = 0
    for number, (checked, gathered) in enumerate(timelines):
        shift_us = (float(gathered["start_s"].min()) - start_s) * 1e6
        ids = 0
        shown = chrome_trace(timeline(gathered, checked, checked.problem, 1.0), 1e6)
        for event in shown["traceEvents"]:
            if event["ph"] == "C" or (event["ph"] == "M" and number):
                continue
            moved = event | ({"ts": round(event["ts"] + shift_us, 1)} if "ts" in event else {})
            if "id" in event:
                moved["id"] += arrows
                ids = max(ids, event["id"] + 1)
            events.append(moved)
        arrows += ids
    for record in records:
        at_us = (record["ended_s"] - start_s) * 1e6
        values = {"tokens/s": record["tokens_per_s"]}
        values |= {f"link {link} ms": delay_s * 1e3 for link, delay_s in record["link_delay_s"].items()}
        events += [
            {"ph": "C", "name": name, "pid": 0, "tid": 0, "ts": at_us, "args": {name: value}}
            for name, value in values.items()
        ]
    for step in steps:
        at_us = max(step["at_s"] - start_s, 0.0) * 1e6
        name = f"{step['name']}: {step['text']}"
        events.append({"ph": "i", "s": "g", "name": name, "pid": 0, "tid": 0, "ts": at_us})
    return {"displayTimeUnit": "ms", "traceEvents": events}
