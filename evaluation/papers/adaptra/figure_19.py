"""ADAPTRA figure 19: how far its plans are from the optimum, and how long planning takes, by the size of time steps.

Random profiles: F, B, W of each stage and every link's delay differ. The paper discretises time, with steps of t / r
for the longest action t; that is redone by planning with durations rounded up to steps. Ours is event-driven: no steps.
The optimum is the solver's, or its proved bound where it does not finish. The last rows plan in the memory of 1F1B,
which the paper leaves open.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, at_most
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import adaptra
from lanterne.pipeline.planners.optimal import solve
from lanterne.pipeline.planners.solver import Solution
from lanterne.pipeline.simulate.simulate import simulate

SIZES = ((3, 6), (4, 12), (6, 24), (8, 32))
STEPS = (1, 3, 10, 30, None)
SOLVER_S = (5.0, 2.0)
FIGURE_INCHES = (11, 4.2)
NOTES = """
gap: makespan over the proved lower bound, less 1
paper, without a memory limit: below 1 % at 30 steps, in less than 100 ms
steps: time steps per longest action; `events` is this library's planner
"""
COLUMNS: Columns = [
    ("stages", ""),
    ("microbatches", ""),
    ("memory", "activations"),
    ("steps", ""),
    ("gap mean", "%"),
    ("gap worst", "%"),
    ("planning mean", "ms"),
    ("proved", ""),
]


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per size, memory limit and step."""
    profiles = 3 if quick else 10
    records = []
    for memory in (False, True):
        for stages, microbatches in SIZES:
            report.progress(f"{stages} stages, {microbatches} microbatches")
            cases = [random_problem(random.Random(seed), stages, microbatches, memory) for seed in range(profiles)]
            solutions = [solve(problem, time_limit_s=limit_s) for problem in cases]
            for steps in STEPS:
                records.append(_record(cases, solutions, steps) | {"stages": stages, "microbatches": microbatches})
    return records


def random_problem(source: random.Random, stages: int, microbatches: int, memory: bool) -> Problem:
    """A random profile: actions of 6 to 14 ms, two thirds of the links free, the others delayed by up to 40 ms."""

    def times() -> list[float]:
        return [source.randint(60, 140) / 10 for _ in range(stages)]

    delays = [source.choice((0, 0, source.randint(1, 400) / 10)) for _ in range(stages - 1)]
    return Problem(
        stages, microbatches, times(), times(), times(), delays, max_inflight_activations=stages if memory else None
    )


def _record(cases: Sequence[Problem], solutions: Sequence[Solution], steps: int | None) -> Record:
    gaps, planning_s = [], []
    for problem, solution in zip(cases, solutions, strict=True):
        planned = problem if steps is None else discretised(problem, steps)
        begin = time.perf_counter()
        plan = adaptra(planned)
        planning_s.append(time.perf_counter() - begin)
        gaps.append(simulate(plan, problem).makespan / solution.lower_bound - 1)
    capacity = cases[0].max_inflight_activations
    return {
        "max_inflight_activations": None if capacity is None else capacity[0],
        "steps_per_action": steps,
        "gaps": gaps,
        "planning_s": planning_s,
        "proved": sum(solution.is_optimal for solution in solutions),
    }


def discretised(problem: Problem, steps: int) -> Problem:
    """`problem` with every time rounded up to whole steps, `steps` of which make the longest action."""
    step = max(*problem.forward, *problem.backward_input, *problem.backward_weight) / steps

    def up(times: Sequence[float]) -> list[float]:
        return [step * math.ceil(value / step * (1 - 1e-12)) for value in times]

    keys = ("forward", "backward_input", "backward_weight", "link_latency")
    changes: dict[str, Any] = {key: up(getattr(problem, key)) for key in keys}
    return replace(problem, **changes)


def row(record: Record) -> list[object]:
    """One line of the table."""
    gaps, memory = record["gaps"], record["max_inflight_activations"]
    return [
        record["stages"],
        record["microbatches"],
        "-" if memory is None else f"{memory:g}",
        record["steps_per_action"] or "events",
        f"{100 * mean(gaps):.2f}",
        f"{100 * max(gaps):.2f}",
        f"{1e3 * mean(record['planning_s']):.2f}",
        f"{record['proved']}/{len(gaps)}",
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """Without a memory limit, at the paper's time step or finer."""
    free = [r for r in records if r["max_inflight_activations"] is None and (r["steps_per_action"] or 30) >= 30]
    return [at_most("mean gap", max(mean(record["gaps"]) for record in free), 0.01, "{:.2%}")]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """The gap over the time step, without and with a memory limit."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, memory in zip(axes, (False, True), strict=True):
        for size in SIZES:
            mine = [
                r
                for r in records
                if (r["stages"], r["microbatches"]) == size and (r["max_inflight_activations"] is not None) == memory
            ]
            label = f"{size[0]} stages, {size[1]} microbatches"
            axis.plot(
                [str(r["steps_per_action"] or "events") for r in mine],
                [100 * mean(r["gaps"]) for r in mine],
                marker="o",
                label=label,
            )
        axis.axhline(1, color="0.6", linewidth=0.8, linestyle="--")
        axis.set_title("in the memory of 1F1B" if memory else "no memory limit", loc="left", fontsize=10)
        axis.set_xlabel("time steps per longest action")
    axes[0].set_ylabel("mean gap to the proved bound (%)")
    axes[0].legend(frameon=False, fontsize=8)
