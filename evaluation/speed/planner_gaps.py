"""How far plans of `best` are from the optimum, and how long planning takes, on seeded random problems.

  ./run evaluate planner
  ./run evaluate planner --problems 40 --solver 20 --json gaps.json
  ./run evaluate planner --kind shared,wave,loop,bidirectional --problems 4 --solver 60

Problems: 4 to 16 stages, 8 to 32 microbatches, memory from little more than any schedule needs to as many activations
as stages, stages of equal or of unequal durations (1 to 3), links that are free but for some slow ones. The optimum is
between the makespan of the best plan known and the proved bound; --solver lets the constraint solver improve on both,
from the plan of `best`. Other kinds: links that take time and that several ranks share (shared), or another placement;
4 to 6 stages and 6 to 12 microbatches, which the solver can improve. Planning is timed as processor time of this
process.
"""

import argparse
import random
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from lanterne.bench.output import report
from lanterne.errors import InputError, one_of
from lanterne.pipeline.plan.placement import PLACEMENTS
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.planners.solver import is_whole, polish
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

# The first has one stage on each rank, and links of their own.
KINDS = ("unidirectional", "shared", "wave", "loop", "bidirectional")
COLUMNS = [("problem", ""), ("problem", "seed"), ("stages", ""), ("microbatches", ""), ("memory", "activations")]
COLUMNS += [("makespan", "")]
COLUMNS += [("best known", ""), ("bound", ""), ("gap", "%"), ("to bound", "%"), ("planned in", "s")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--problems", type=int, default=24, metavar="N", help="how many, seeds from 0 (default 24)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (default 0)")
    parser.add_argument(
        "--kind", default=KINDS[0], metavar="A,...", help=f"of problems: {', '.join(KINDS)} (default {KINDS[0]})"
    )
    parser.add_argument("--effort", type=float, metavar="X", help="of best (default: its own)")
    parser.add_argument("--solver", type=float, metavar="SECONDS", help="let the solver go on for so long on each")
    parser.add_argument("--json", metavar="FILE", help="write the records as JSON ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Plan, print and write; exit code 0."""
    if args.problems < 1 or args.seed < 0:
        raise InputError(f"--problems, --seed: got {args.problems}, {args.seed}, expected at least 1, 0")
    if args.solver is not None and args.solver <= 0:
        raise InputError(f"--solver: got {args.solver:g}, expected more than 0 seconds")
    kinds = args.kind.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"--kind: {one_of(kind, KINDS)}")
    # Compiling, once per machine, and loading are not planning.
    plan(random_problem(3), "best", effort=0.1)
    records = []
    for kind in kinds:
        for seed in range(args.seed, args.seed + args.problems):
            report.progress(f"{kind}, problem {seed}")
            records.append(measure(seed, args.effort, args.solver, kind))
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(results=records))
    if args.json != "-":
        report.print_table(COLUMNS, [_row(record) for record in records], notes=_notes(records))
    return 0


def random_problem(seed: int, kind: str = KINDS[0]) -> Problem:
    """One problem; times are whole numbers, F of a stage about 100."""
    source = random.Random(seed)
    sizes = ((4, 6, 8, 12, 16), (8, 12, 16, 24, 32)) if kind == KINDS[0] else ((4, 5, 6), (6, 8, 12))
    stages, microbatches = map(source.choice, sizes)
    scales = [source.choice((1, 1, 1.5, 2, 3)) for _ in range(stages)] if source.random() < 0.4 else [1] * stages
    ratios = source.choice(((1, 1, 1), (1, 1.1, 0.8), (1, 1.3, 0.7), (1, 2, 1)))
    times = [[round(100 * scale * ratio * source.uniform(0.95, 1.05)) for scale in scales] for ratio in ratios]
    if source.random() < 0.5:
        times = [[round(100 * scale * ratio) for scale in scales] for ratio in ratios]
    slow = source.choice((0.15, 0.3, 1.0))
    delays = [source.choice((25, 50, 100, 200, 400)) if source.random() < slow else 0 for _ in range(stages - 1)]
    delays[source.randrange(stages - 1)] = source.choice((100, 200, 300))
    memory = source.randint(max(2, stages // 2), stages + stages // 4)
    forward, backward_input, backward_weight = times
    # In a bidirectional placement a rank holds a microbatch of either direction.
    options: dict[str, Any] = {"max_inflight_activations": memory + 2 * (kind == "bidirectional")}
    if kind == "shared":
        first = source.randrange(stages - 2)
        pairs = [[first, first + 1], [first + 1, first + 2]]
        options["link_bandwidth"], options["message_nbytes"] = 1.0, source.choice((20, 40, 70))
        options["shared_links"] = [pairs, [pair[::-1] for pair in pairs]]
    return Problem(stages, microbatches, forward, backward_input, backward_weight, delays, **options)


def measure(
    seed: int, effort: float | None = None, solver_s: float | None = None, kind: str = KINDS[0]
) -> dict[str, Any]:
    """The record of one problem."""
    problem = random_problem(seed, kind)
    placement = kind if kind in PLACEMENTS else KINDS[0]
    begin = time.process_time()
    made = plan(problem, "best", effort=effort, placement=placement)
    planning_s = time.process_time() - begin
    makespan = known = simulate(check(made, problem), problem).makespan
    bound = made.proved_bound
    if solver_s and makespan > bound * (1 + 1e-9):
        start = made if is_whole(made) else plan(problem, "best", placement=placement, whole=True)
        solution = polish(start, problem, time_limit_s=solver_s)
        known, bound = min(known, solution.makespan), max(bound, solution.lower_bound)
    return {
        "kind": kind,
        "seed": seed,
        "stages": problem.stages,
        "microbatches": problem.microbatches,
        "max_inflight_activations": problem.limits.capacity[0],
        "makespan": makespan,
        "best_known": known,
        "lower_bound": bound,
        "planning_cpu_s": planning_s,
    }


def _row(record: dict[str, Any]) -> list[str]:
    values = [record[key] for key in ("seed", "stages", "microbatches", "max_inflight_activations")]
    values += [record[key] for key in ("makespan", "best_known", "lower_bound")]
    gaps = _gaps(record)
    texts = [f"{value:g}" for value in values] + [f"{100 * gap:.2f}" for gap in gaps]
    return [record["kind"], *texts, f"{record['planning_cpu_s']:.2f}"]


def _gaps(record: dict[str, Any]) -> tuple[float, float]:
    return record["makespan"] / record["best_known"] - 1, record["makespan"] / record["lower_bound"] - 1


def _notes(records: Sequence[dict[str, Any]]) -> list[str]:
    kinds = list(dict.fromkeys(record["kind"] for record in records))
    lines = []
    for kind in kinds:
        said = _notes_of([record for record in records if record["kind"] == kind])
        lines += [f"{kind}: {line}" if len(kinds) > 1 else line for line in said]
    return lines


def _notes_of(records: Sequence[dict[str, Any]]) -> list[str]:
    to_known, to_bound = zip(*map(_gaps, records), strict=True)
    times = [record["planning_cpu_s"] for record in records]
    proved = sum(gap <= 1e-9 for gap in to_bound)
    return [
        f"gap to the best known: mean {mean(to_known):.2%}, worst {max(to_known):.2%}",
        f"gap to the proved bound: mean {mean(to_bound):.2%}, worst {max(to_bound):.2%}; {proved} proved optimal",
        f"planning: mean {mean(times):.2f} s, longest {max(times):.2f} s of processor time",
    ]
