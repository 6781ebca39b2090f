"""Benchmark planning, checking, simulating and bounding of pipelines, by size.

  ./run evaluate pipeline
  ./run evaluate pipeline --shape 64x256 --scheduler zb_h1 --scheduler crosspipe --repeat 9

Each shape is STAGESxMICROBATCHES, with F, B, W = 100, 110, 80, a slow link of 200 in the middle and memory for as many
activations as there are stages. Every plan is checked, and its makespan compared with its bound, in the run that is
timed; all steps are repeated in turn, and medians shown.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import bounds
from lanterne.pipeline.planners.schedulers import load
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

Value = TypeVar("Value")
STEPS = ("planned", "checked", "simulated", "bounded")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    shapes, schedulers = "8x32, 64x256 and 128x512", "1f1b and zb_h1"
    parser.add_argument("--shape", action="append", metavar="SxM", help=f"repeatable (default {shapes})")
    parser.add_argument("--scheduler", action="append", metavar="NAME", help=f"repeatable (default {schedulers})")
    parser.add_argument("--repeat", type=whole(1), default=5, metavar="N", help="repetitions (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write the samples as JSON ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Time and print; exit code 0."""
    names = args.scheduler or ["1f1b", "zb_h1"]
    problems = [parse_shape(text) for text in args.shape or ("8x32", "64x256", "128x512")]
    schedulers = {name: load(name) for name in names}
    results = [measure(problem, name, schedulers[name], args.repeat) for problem in problems for name in names]
    if args.json:
        report.write_json(args.json, report.envelope(results=results))
    if args.json != "-":
        columns = [("scheduler", ""), ("stages", ""), ("microbatches", ""), ("actions", ""), ("over bound", "")]
        columns += [(step, "ms") for step in STEPS]
        report.print_table(columns, [_row(result) for result in results])
    return 0


def parse_shape(text: str) -> Problem:
    """The benchmark's Problem of a shape such as 64x256.

    Raises:
        InputError: another text, or less than one stage or microbatch.
    """
    stages, x, microbatches = text.partition("x")
    if not (x and stages.isdecimal() and microbatches.isdecimal()):
        raise InputError(f"--shape: got {text!r}, expected STAGESxMICROBATCHES such as 64x256")
    p = int(stages)
    latency = [200 if i == (p - 1) // 2 else 0 for i in range(p - 1)]
    return Problem(p, int(microbatches), 100, 110, 80, latency, max_inflight_activations=max(p, 1))


def measure(problem: Problem, name: str, scheduler: Callable[[Problem], Plan], repeat: int) -> dict[str, Any]:
    """Samples of every step in seconds, of one scheduler on one problem.

    Raises:
        LanterneError: the makespan is below the bound.
    """
    record: dict[str, Any] = {"scheduler": name, "stages": problem.stages, "microbatches": problem.microbatches}
    samples: dict[str, list[float]] = {f"{step}_s": [] for step in STEPS}
    for _ in range(repeat + 1):
        plan, planned_s = _timed(scheduler, problem)
        checked, checked_s = _timed(check, plan, problem, memory=False)
        timeline, simulated_s = _timed(simulate, checked, problem)
        bounds.cache_clear()
        found, bounded_s = _timed(bounds, problem, plan.placement)
        if timeline.makespan < found.lower_bound * (1 - 1e-9):
            raise LanterneError(f"{name}: got makespan {timeline.makespan}, expected at least {found.lower_bound}")
        taken = planned_s, checked_s, simulated_s, bounded_s
        for step, time_s in zip(STEPS, taken, strict=True):
            samples[f"{step}_s"].append(time_s)
        record |= {"actions": len(plan.ids), "gap": timeline.makespan / found.lower_bound - 1}
    # The first round warmed the caches.
    return record | {key: values[1:] for key, values in samples.items()}


def _timed(function: Callable[..., Value], *arguments: Any, **options: Any) -> tuple[Value, float]:
    start = time.perf_counter()
    value = function(*arguments, **options)
    return value, time.perf_counter() - start


def _row(result: dict[str, Any]) -> list[object]:
    medians = [statistics.median(result[f"{step}_s"]) for step in STEPS]
    shape = [result["scheduler"], result["stages"], result["microbatches"], result["actions"], f"{result['gap']:.2%}"]
    return [*shape, *(f"{value * 1e3:.2f}" for value in medians)]
