"""What the experiments on slow links share: systems that are compared, on processes, under problems with and without.

A system is a scheduler and a data plane. It plans for the links as they were, or, if it adapts, for the slow ones.
"""

import dataclasses
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from evaluation.papers.experiment import Axes, Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.bench.output.bars import BLOCKED_LIMIT, LIMIT, Bar, near_simulator
from lanterne.bench.output.plots import COLOURS
from lanterne.bench.output.units import format_time
from lanterne.bench.pipeline.measure import MeasuredIterations, PipelineCase, measure
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.plane_makers import predict
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

Key = TypeVar("Key", bound=Hashable)
UNIT_S = 1e-3
# Of each case, whose median counts: some 2 % of them are disturbed by 2 % or more.
ITERATIONS = 3


def best_of_placements(problem: Problem) -> Plan:
    """The better of our plans with one stage on each rank and with two, there and back."""
    plans = [plan(problem, "best", placement=placement) for placement in ("unidirectional", "wave")]
    return min(plans, key=lambda made: simulate(made, problem).makespan)


class System(NamedTuple):
    """How a system plans and sends."""

    scheduler: str
    plane: str
    adapts: bool = False
    options: dict[str, Any] = {}  # noqa: RUF012


class Point(NamedTuple):
    """A place on the figure: the links before and after one got slow, times in ms, and what the paper prints of it.

    `paper`: {system: its seconds, or how many times as long as without slow links}.
    """

    label: str
    quiet: Problem
    slow: Problem
    paper: dict[str, float] = {}  # noqa: RUF012


def slowed(problem: Problem, links: Mapping[int, float]) -> Problem:
    """The problem with `links`, {link: ms more latency}."""
    latency = tuple(problem.latency(i, i + 1) + links.get(i, 0) for i in range(problem.stages - 1))
    return dataclasses.replace(problem, link_latency=latency)


def case_of(system: System, quiet: Problem, slow: Problem) -> PipelineCase:
    """The PipelineCase of `system` under `slow`."""
    known = slow if system.adapts else quiet
    checked = check(plan(known, system.scheduler), slow, memory=False)
    return PipelineCase(checked, slow, UNIT_S, system.plane, system.options)


def study(points: Sequence[Point], systems: Mapping[Any, System], iterations: int = ITERATIONS) -> list[Record]:
    """One record per point and system: predicted and measured seconds, and both times as long as without slow links.

    All that run on as many ranks run in turn, `iterations` times.
    """
    report.progress("planning")
    wanted = [
        (name, quiet, slow)
        for point in points
        for name in systems
        for quiet, slow in ((point.quiet, point.quiet), (point.quiet, point.slow))
    ]
    cases = {key: case_of(systems[key[0]], *key[1:]) for key in dict.fromkeys(wanted)}
    found = measured(cases, iterations)
    records = []
    for point in points:
        for name in systems:
            normal, slow = found[name, point.quiet, point.quiet], found[name, point.quiet, point.slow]
            records.append(
                {
                    "point": point.label,
                    "system": name,
                    "normal_s": statistics.median(normal["measured_s"]),
                    "predicted_s": slow["predicted_s"],
                    "measured_s": slow["measured_s"],
                    "predicted_slowdown": slow["predicted_s"] / normal["predicted_s"],
                    "slowdown": statistics.median(slow["measured_s"]) / statistics.median(normal["measured_s"]),
                    "paper": point.paper.get(name),
                    "actions": slow["actions"],
                }
            )
    return records


def measured(cases: Mapping[Key, PipelineCase], iterations: int, warmup: int = 0) -> dict[Key, Record]:
    """{key: predicted_s, measured_s and actions} of {key: PipelineCase}; those of as many ranks run in turn."""
    found: dict[Key, Record] = {}
    for ranks in sorted({case.ranks for case in cases.values()}):
        own = {key: case for key, case in cases.items() if case.ranks == ranks}
        outcomes = measure(list(own.values()), iterations, warmup)
        assert outcomes is not None
        for (key, case), outcome in zip(own.items(), outcomes, strict=True):
            predicted = predict(case.plane, case.checked, case.problem, **case.options)
            found[key] = {
                "predicted_s": predicted.makespan * case.unit_s,
                "measured_s": outcome.makespan_s,
                "actions": actions_of(case, outcome),
            }
    return found


def actions_of(case: PipelineCase, outcome: MeasuredIterations) -> list[list[Any]]:
    """[rank, action, start_s, end_s] of each action of the median iteration."""
    plan, timeline = case.checked.plan, outcome.timeline
    words = [word for rank in plan.words() for word in rank]
    starts, ends = ((times * case.unit_s).round(6).tolist() for times in (timeline.start, timeline.end))
    return [list(each) for each in zip(plan.rank_of.tolist(), words, starts, ends, strict=True)]


def lasted_s(record: Record) -> float:
    """From the first start to the last end of the actions of a record, seconds."""
    return float(max(action[3] for action in record["actions"]) - min(action[2] for action in record["actions"]))


COLUMNS: Columns = [
    ("point", ""),
    ("system", ""),
    ("no slow link", "measured"),
    ("predicted", ""),
    ("measured", ""),
    ("off by", ""),
    ("slowdown", "predicted"),
    ("slowdown", "measured"),
    ("paper", ""),
]


def row(record: Record) -> list[object]:
    """One line of the table."""
    median_s = statistics.median(record["measured_s"])
    return [
        record["point"],
        record["system"],
        format_time(record["normal_s"]),
        format_time(record["predicted_s"]),
        format_time(median_s),
        f"{median_s / record['predicted_s'] - 1:+.1%}",
        f"{record['predicted_slowdown']:.2f}",
        f"{record['slowdown']:.2f}",
        "-" if record["paper"] is None else f"{record['paper']:g}",
    ]


# Systems whose sends block, by their names in ADAPTRA.
BLOCKED = ("1F1B", "ZB")


def bars(records: Sequence[Record]) -> list[Bar]:
    """How far from the simulator's the measured times may be."""
    by_system: dict[str, list[Record]] = {}
    for record in records:
        by_system.setdefault(record["system"], []).append(record)
    return [
        near_simulator(own, BLOCKED_LIMIT if name in BLOCKED else LIMIT, f"{name}, measured off simulated")
        for name, own in by_system.items()
    ]


def ratio(records: Sequence[Record], one: str, other: str, point: str | None = None) -> float:
    """Measured time of system `one` over that of `other`, the mean over the points or at one."""
    time_s = {(r["point"], r["system"]): statistics.median(r["measured_s"]) for r in records}
    points = [point] if point is not None else dict.fromkeys(r["point"] for r in records)
    return statistics.mean(time_s[at, one] / time_s[at, other] for at in points)


def draw_bars(
    axis: Axes, records: Sequence[Record], value: str = "slowdown", predicted: str = "predicted_slowdown"
) -> None:
    """Grouped bars of what was measured; a line where the simulator is, a cross where the paper is."""
    points = list(dict.fromkeys(record["point"] for record in records))
    systems = list(dict.fromkeys(record["system"] for record in records))
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        mine = [record for record in records if record["system"] == system]
        x = [points.index(record["point"]) + (i + 0.5) * width - 0.4 for record in mine]
        colour = COLOURS[i % len(COLOURS)]
        axis.bar(x, [record[value] for record in mine], width * 0.92, label=system, color=colour, alpha=0.85)
        marks: dict[str, Any] = {"color": "black", "linestyle": "none", "markersize": 9}
        last = i == len(systems) - 1
        axis.plot(x, [r[predicted] for r in mine], marker="_", label="simulated" if last else None, **marks)
        told = [(at, record["paper"]) for at, record in zip(x, mine, strict=True) if record["paper"] is not None]
        values = [value for _, value in told]
        axis.plot([at for at, _ in told], values, marker="x", label="paper" if last and told else None, **marks)
    axis.set_xticks(range(len(points)), points, fontsize=8)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8, ncols=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def draw_gantt(axis: Axes, record: Record, limit_s: float) -> set[str]:
    """The measured actions of a record, one row per rank; returns the kinds that there are."""
    from lanterne.pipeline.simulate.gantt import COLOURS as KIND_COLOURS

    kinds = set()
    for rank, word, start_s, end_s in record["actions"]:
        kind = word.rstrip("0123456789./")
        kinds.add(kind)
        bar = (1e3 * start_s, 1e3 * (end_s - start_s))
        axis.broken_barh([bar], (rank - 0.4, 0.8), facecolors=KIND_COLOURS[kind], edgecolor="white", linewidth=0.4)
    axis.invert_yaxis()
    axis.set_yticks(sorted({rank for rank, *_ in record["actions"]}))
    axis.set_xlim(0, 1e3 * limit_s)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return kinds


def draw_kinds(figure: Figure, kinds: Collection[str]) -> None:
    """The legend of Gantt charts, below them."""
    from matplotlib.patches import Patch

    from lanterne.pipeline.simulate.gantt import COLOURS as KIND_COLOURS
    from lanterne.pipeline.simulate.gantt import MEANING

    patches = [Patch(color=KIND_COLOURS[kind], label=f"{kind}: {MEANING[kind]}") for kind in MEANING if kind in kinds]
    figure.legend(handles=patches, loc="outside lower right", ncols=len(patches), frameon=False, fontsize=9)
