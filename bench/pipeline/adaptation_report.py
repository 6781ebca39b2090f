"""What a run with events gave: a table of modes, one of changes, JSON records, and a plot of time over iterations."""

import statistics
import sys
from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, at_least, at_most, print_bars
from lanterne.bench.output.plots import COLOURS, label_ends
from lanterne.bench.output.units import format_time
from lanterne.bench.pipeline.adaptation import ADAPT, FIXED, KNOWN, Mode, outcomes, run_modes
from lanterne.bench.pipeline.measure import Document
from lanterne.pipeline.adapt.injection import InjectedEvent
from lanterne.pipeline.simulate.check_plan import CheckedPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Iterations behind the last event, to see that all is as before.
REST = 15
MODE_COLUMNS = [("mode", ""), ("total", ""), ("mean", "iteration"), ("undisturbed", "median"), ("disturbed", "median")]
EVENT_COLUMNS = [
    ("mode", ""),
    ("slow", ""),
    ("from", ""),
    ("to", ""),
    ("new plan at", "iteration"),
    ("after", "iterations"),
    ("by", ""),
    ("predicted", ""),
    ("before", "measured"),
    ("then", "measured"),
    ("full knowledge", "measured"),
    ("share of it", ""),
]


def iterations_of(events: Iterable[InjectedEvent], given: int | None) -> int:
    """How many to run: those asked for, or until REST behind the last event."""
    ends = [event.last if event.last < float("inf") else event.first + REST for event in events]
    return given if given is not None else int(max(ends, default=0)) + REST


def side_by_side(checked: CheckedPlan, plane: str, *, adapts: bool, **options: Any) -> list[Mode]:
    """The Modes to compare for a CheckedPlan on a data plane: as it is, and adapting beside full knowledge."""
    name = f"{checked.plan.scheduler} {plane}"
    kinds = {name: FIXED} | ({f"{name} adapt": ADAPT, f"{name} full knowledge": KNOWN} if adapts else {})
    return [Mode(label, kind, checked, plane, **options) for label, kind in kinds.items()]


def run_with_events(
    modes: Sequence[Mode], events: Sequence[InjectedEvent], iterations: int, transport: str, timeout_s: float
) -> Document | None:
    """The records of `run_modes`, a dict for JSON; None on the ranks of a job but its first."""
    found = run_modes(modes, events, iterations, transport, timeout_s)
    if found is None:
        return None
    records, disturbed = [], [any(event.holds(i) for event in events) for i in range(iterations)]
    for index, (mode, ran) in enumerate(zip(modes, found, strict=True)):
        known = next((ran for mode, ran in zip(modes[index:], found[index:], strict=True) if mode.kind == KNOWN), None)
        records.append(
            {
                "mode": mode.label,
                "kind": mode.kind,
                "scheduler": mode.checked.plan.scheduler,
                "data_plane": mode.plane,
                "total_s": ran.total_s,
                "iteration_s": ran.iteration_s,
                "settle_s": ran.settle_s,
                "undisturbed_s": _median(ran.iteration_s, disturbed, False),
                "disturbed_s": _median(ran.iteration_s, disturbed, True),
                "changes": ran.changes,
                "outcomes": outcomes(events, mode, ran, known, iterations) if mode.kind == ADAPT else [],
            }
        )
    return {"iterations": iterations, "events": [event.to_dict() for event in events], "results": records}


def _median(values_s: Sequence[float], disturbed: Sequence[bool], which: bool) -> float | None:
    """The median of the iterations that are `disturbed` or not; None if there is none."""
    chosen = [value_s for value_s, is_so in zip(values_s, disturbed, strict=True) if is_so == which]
    return statistics.median(chosen) if chosen else None


def print_document(document: Document, file: TextIO | None = None, *, with_bars: bool = False) -> None:
    """The tables of what `run_with_events` gave, and `with_bars` what it has to reach."""
    file = file or sys.stdout
    count = document["iterations"]
    rows = [
        [
            record["mode"],
            format_time(record["total_s"]),
            format_time(record["total_s"] / count),
            format_time(record["undisturbed_s"]),
            format_time(record["disturbed_s"]),
        ]
        for record in document["results"]
    ]
    notes = [f"{count} iterations, all modes in turn; total: with agreeing, planning and starting delegates"]
    if any(event["down"] and event["first"] < count for event in document["events"]):
        notes.append(
            "a path that is down: a plan that stays would end there; its times are as if the path still worked"
        )
    report.print_table(MODE_COLUMNS, rows, notes=notes, file=file)
    rows = [_event_row(outcome) for record in document["results"] for outcome in record["outcomes"]]
    if rows:
        print(file=file)
        report.print_table(EVENT_COLUMNS, rows, left=(0, 1), file=file)
    if with_bars:
        print_bars(bars(document["results"]), file)


def bars(records: Iterable[Document], *, must_change: bool = False) -> list[Bar]:
    """How soon a new plan runs, and what it reaches: Bars of the records of modes, none where no event was met.

    `must_change`: whether it is a miss that no event was answered with a new plan; else they may all be absorbed.
    """
    found = [outcome for record in records for outcome in record["outcomes"]]
    lags, shares = [each["lag"] for each in found if each["change"]], [each["share_of_known"] for each in found]
    lag = max(lags, default=inf)
    most = [at_most("iterations until a new plan runs", lag, 5)] if lags or must_change else []
    what = "throughput with it, over that of full knowledge, least"
    return most + ([at_least(what, min(shares), 0.9, "{:.1%}")] if shares else [])


def _event_row(outcome: Document) -> list[object]:
    change = outcome["change"]
    links = ", ".join(f"link {link}" for link in outcome["links"])
    return [
        outcome["mode"],
        links or f"rank {outcome['rank']}",
        outcome["first"],
        outcome["last"],
        outcome["running_from"] if change else "-",
        outcome["lag"] if change else "-",
        (change["scheduler"] or "same plan") if change else "no change is worth it",
        format_time(change and change["predicted_s"]),
        format_time(outcome["before_s"]),
        format_time(outcome["after_s"]),
        format_time(outcome["known_s"]),
        f"{outcome['share_of_known']:.1%}" if outcome["share_of_known"] else "-",
    ]


def draw(axes: "Axes", document: Document, unit_s: float = 1e-3, unit: str = "ms") -> None:
    """Seconds of each iteration by mode, events shaded, changes marked, on matplotlib axes."""
    axes.set_title(_title(document["events"]), loc="left", fontsize=10)
    for event in document["events"]:
        if event["first"] >= document["iterations"]:
            continue
        last = min(event["last"] or document["iterations"], document["iterations"])
        axes.axvspan(event["first"] - 0.5, last - 0.5, color="0.92", zorder=0)
    for index, record in enumerate(document["results"]):
        times = [value_s / unit_s for value_s in record["iteration_s"]]
        style = {ADAPT: "-", KNOWN: ":", FIXED: "--"}[record["kind"]]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(range(len(times)), times, style, color=colour, linewidth=1.3, label=record["mode"])
        marks = [change["running_from"] for change in record["changes"] if change["running_from"] < len(times)]
        axes.plot(marks, [times[mark] for mark in marks], "v", color=colour, markersize=7)
    axes.set_xlabel("iteration (shaded: something is slow; triangle: a new plan or path)")
    axes.set_ylabel(f"time of the iteration ({unit})")
    axes.set_ylim(bottom=0)
    label_ends(axes)


def _title(events: Sequence[Document]) -> str:
    """What was slow, in words."""
    if len(events) > 3:
        return f"Time of an iteration while {len(events)} events slow links and ranks, by what is done about them"
    pairs = [(link, link + 1) if isinstance(link, int) else link for event in events for link in event["links"]]
    links = ["{}-{}".format(*pair) for pair in pairs]
    ranks = [str(event["rank"]) for event in events if event["rank"] is not None]
    told = [f"{what} {', '.join(dict.fromkeys(names))}" for what, names in (("link", links), ("rank", ranks)) if names]
    return f"Time of an iteration while {' and '.join(told) or 'nothing'} is slow, by what is done about it"


def plot(path: str, document: Document) -> None:
    """Draw a document into a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from lanterne.pipeline.simulate.gantt import save

    figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
    draw(axes, document)
    save(figure, path)
