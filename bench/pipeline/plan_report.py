"""How the `lanterne pipeline` commands report a simulated plan: records, tables, pictures, traces."""

import argparse
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lanterne.bench.output import report
from lanterne.bench.output.options import add_plot
from lanterne.errors import InputError
from lanterne.pipeline.adapt.findings import pair_tolerances
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.simulate.analysis import bubble_rate, busy_time
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.chrome_trace import chrome_trace
from lanterne.pipeline.simulate.gantt import draw
from lanterne.pipeline.simulate.simulate import Timeline, simulate


class Evaluation(NamedTuple):
    """A checked plan, its simulation and its placement's proved bound; `planning_s` is None for one from a file."""

    checked: CheckedPlan
    timeline: Timeline
    lower_bound: float
    planning_s: float | None = None

    @property
    def gap(self) -> float:
        """How far the makespan is above the bound, as a share of it."""
        return self.timeline.makespan / self.lower_bound - 1.0

    @property
    def fits(self) -> bool:
        """Whether every rank's memory suffices."""
        capacity = self.checked.problem.limits.capacity
        return all(peak <= limit * (1 + 1e-9) for peak, limit in zip(self.checked.peak_memory, capacity, strict=True))

    @property
    def link_tolerance(self) -> list[float]:
        """Per link to the next rank, the delay that the plan absorbs (ADAPTRA, equation 1); none for several stages a
        rank."""
        return list(pair_tolerances(self.checked, self.timeline.problem).values())


def evaluate(
    checked: CheckedPlan, problem: Problem, planning_s: float | None = None, *, queue: int | None = None
) -> Evaluation:
    """Return the Evaluation of a checked plan under `problem`; with a send queue of `queue`, sends go out in order."""
    timeline = simulate(checked, problem) if queue is None else simulate(checked, problem, in_order=True, queue=queue)
    return Evaluation(checked, timeline, lower_bound(problem, checked.plan.placement), planning_s)


def record(evaluation: Evaluation) -> dict[str, Any]:
    """What a plan file holds besides its envelope; times are in the problem's unit."""
    plan, timeline = evaluation.checked.plan, evaluation.timeline
    return {
        "makespan": timeline.makespan,
        "lower_bound": evaluation.lower_bound,
        "gap": evaluation.gap,
        "bubble_rate": bubble_rate(timeline),
        "link_tolerance": evaluation.link_tolerance,
        "peak_inflight": list(evaluation.checked.peak_memory),
        "fits_memory": evaluation.fits,
        "planning_s": evaluation.planning_s,
        **plan.to_dict(),
    }


def described(problem: Problem, unit: str) -> dict[str, Any]:
    """The problem as a plan file holds it."""
    return problem.to_dict() | ({"unit": unit} if unit else {})


def print_evaluation(evaluation: Evaluation, problem: Problem, unit: str, notes: Iterable[str] = ()) -> None:
    """One row per rank, then the figures of the whole."""
    plan, timeline = evaluation.checked.plan, evaluation.timeline
    busy, capacity, tolerance = busy_time(timeline), problem.limits.capacity, evaluation.link_tolerance
    ends = [
        timeline.end[start:stop].max(initial=0.0)
        for start, stop in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)
    ]
    rows = [
        [
            f"rank {rank}",
            ",".join(map(str, plan.placement.stages_of(rank))),
            f"{busy[rank]:.6g}",
            f"{1 - busy[rank] / timeline.makespan:.1%}",
            f"{ends[rank]:.6g}",
            f"{peak:.4g}",
            f"{capacity[rank]:.4g}",
            f"{tolerance[rank]:.4g}" if rank < len(tolerance) else "-",
        ]
        for rank, peak in enumerate(evaluation.checked.peak_memory)
    ]
    columns = [
        ("rank", ""),
        ("stages", ""),
        ("busy", unit),
        ("bubbles", ""),
        ("ends", unit),
        ("peak memory", ""),
        ("capacity", ""),
        ("link absorbs", unit),
    ]
    report.print_table(columns, rows, notes=notes)
    suffix = f" {unit}" if unit else ""
    planned = f", planned in {evaluation.planning_s:.3g} s" if evaluation.planning_s is not None else ""
    print(
        f"{plan.scheduler or 'plan'}: makespan {timeline.makespan:.6g}{suffix}, {evaluation.gap:.2%} over the proved "
        f"bound "
        f"{evaluation.lower_bound:.6g}{suffix}, bubble rate {bubble_rate(timeline):.1%}{planned}"
    )


def write_pictures(
    evaluation: Evaluation,
    args: argparse.Namespace,
    unit: str,
    unit_s: float | None,
    limit: float | None = None,
    label: str = "",
) -> None:
    """The files that --plot and --trace ask for; `label` goes into their names."""
    plan = evaluation.checked.plan
    if args.plot:
        draw(evaluation.timeline, labelled(args.plot, label), plan.scheduler, unit, limit)
    if args.trace:
        document = chrome_trace(evaluation.timeline, 1.0 if unit_s is None else unit_s * 1e6)
        report.write_atomically(labelled(args.trace, label), json.dumps(document).encode())


def labelled(path: str | Path, label: str) -> Path:
    """`path` with `-label` before its ending."""
    path = Path(path)
    return path.with_name(f"{path.stem}-{label}{path.suffix}") if label else path


def add_picture_arguments(parser: argparse.ArgumentParser) -> None:
    """--plot and --trace."""
    add_plot(parser, "the Gantt chart")
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace for ui.perfetto.dev; without a known unit a unit is 1 us"
    )


def parse_options(words: Iterable[str]) -> dict[str, Any]:
    """{name: value} of words such as stages_per_rank=4; values are JSON, a list without brackets, or else text.

    Raises:
        InputError: a word without "=".
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--option: got {word!r}, expected NAME=VALUE such as stages_per_rank=4")
        options[name] = value
        for text in (value, f"[{value}]" if "," in value else value):
            with suppress(ValueError):
                options[name] = json.loads(text)
                break
    return options
