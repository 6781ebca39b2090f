"""Real iteration times, with their labels: what a detector says of them, and backgrounds for drawn jobs.

A folder of them holds `labels.json`, {name: {"events": [{"onset_step", "relief_step"} or {"small_step": [first, end]},
...]}}, and for each name a CSV of columns `step` and `seconds`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lanterne.bench.failslow.iteration_times import read_column
from lanterne.errors import InputError
from lanterne.failslow.detect.events import LevelEvent

# Logged steps in which a job warms up, and rows on either side of an incident that belong to neither.
WARM_UP_STEPS = 300
MARGIN_ROWS = 12
# The shortest healthy part that serves as a background.
BACKGROUND_ROWS = 400


@dataclass(frozen=True)
class RealSeries:
    """Attributes: `incidents`: their rows, [first, end); `warm`: the first row that is no warm-up."""

    name: str
    seconds: tuple[float, ...]
    incidents: tuple[tuple[int, int], ...]
    warm: int


@dataclass(frozen=True)
class RealVerdict:
    """What a detector said of real series: incidents found, and alarms outside of them and of warm-ups."""

    rows: int
    incidents: int
    found: int
    alarms: int


def read_folder(folder: str | Path) -> list[RealSeries]:
    """The labelled series of `folder`.

    Raises:
        InputError: no `labels.json` there, or a series that cannot be read.
    """
    labels = Path(folder) / "labels.json"
    try:
        known = json.loads(labels.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: got no labels of real series ({error}), expected labels.json") from error
    return [_read(Path(folder) / f"{name}.csv", label["events"]) for name, label in sorted(known.items())]


def _read(path: Path, events: Iterable[dict[str, list[int]]]) -> RealSeries:
    steps = list(read_column(path, "step"))
    incidents = []
    for event in events:
        first, end = event.get("small_step") or (event["onset_step"], event["relief_step"])
        rows = [row for row, step in enumerate(steps) if first <= step < end]  # type: ignore[operator]
        incidents.append((rows[0], rows[-1] + 1))
    warm = next((row for row, step in enumerate(steps) if step > WARM_UP_STEPS), len(steps))
    return RealSeries(path.stem, tuple(read_column(path, "seconds")), tuple(incidents), warm)


def backgrounds(series: Iterable[RealSeries]) -> list[tuple[float, ...]]:
    """The long healthy parts of `series`, in seconds."""
    found = []
    for one in series:
        edges = [one.warm - MARGIN_ROWS, *(row for pair in one.incidents for row in pair), len(one.seconds)]
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            part = one.seconds[first + MARGIN_ROWS : end - MARGIN_ROWS]
            found += [part] if len(part) >= BACKGROUND_ROWS else []
    return found


def judge(series: Iterable[RealSeries], detect: Callable[[Iterable[float]], Iterable[LevelEvent]]) -> RealVerdict:
    """What `detect`, which gives the confirmed events of a series, says of `series`; a warm-up is not judged."""
    rows = incidents = found = alarms = 0
    for one in series:
        onsets = [event.index for event in detect(one.seconds) if event.ratio > 1]
        near = [[i for i in onsets if first - MARGIN_ROWS <= i < end] for first, end in one.incidents]
        rows += len(one.seconds)
        incidents += len(one.incidents)
        found += sum(bool(inside) for inside in near)
        told = {i for inside in near for i in inside}
        alarms += sum(i >= one.warm and i not in told for i in onsets)
    return RealVerdict(rows, incidents, found, alarms)
