"""Simulate a plan file of `lanterne pipeline plan`: under its own problem, another one, or with blocking sends.

  lanterne pipeline simulate plan.json
  lanterne pipeline simulate plan.json problem.json --link 0=30
  lanterne pipeline simulate plan.json problem.json --in-order --queue 1 --plot blocked.png
  lanterne pipeline simulate plan.json --jitter 0.02=10 --seeds 100

With --in-order each rank sends one message after another, each taking its link's whole latency, and computing goes on
only while no more than --queue sends are under way (0: it waits for each): the head-of-line blocking of frameworks that
send in the order of the plan. The difference to the run without it is what blocking costs; between two latencies
without it, what dependencies cost.

With --jitter that share of the actions takes so many times as long (SHARE=FACTOR), or all a Gaussian share more or less
(a number such as 0.2), drawn anew for each seed: printed is the mean makespan of the plan in its order, of ranks that
run what is ready with the plan as a hint, and what no order of work can be below.
"""

import argparse
from collections.abc import Callable

import numpy as np

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.output.units import is_number, whole
from lanterne.bench.pipeline.input import add_problem_arguments, of_file, problem_from
from lanterne.bench.pipeline.plan_report import (
    add_picture_arguments,
    described,
    evaluate,
    print_evaluation,
    record,
    write_pictures,
)
from lanterne.errors import InputError
from lanterne.pipeline.plan.costs import Floats
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.ready_first import simulate_ready_first, work_bound
from lanterne.pipeline.simulate.simulate import simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("plan", metavar="PLAN.json", help="plan file")
    add_problem_arguments(parser)
    parser.add_argument(
        "--in-order", action="store_true", help="sends go out in order and block computing when the queue is full"
    )
    parser.add_argument(
        "--queue",
        type=whole(0),
        default=1,
        metavar="N",
        help="with --in-order: sends under way while computing goes on; 0: none (default 1)",
    )
    parser.add_argument("--jitter", metavar="J", help="SHARE=FACTOR such as 0.02=10, or a deviation such as 0.2")
    parser.add_argument("--seeds", type=whole(1), default=100, metavar="N", help="iterations drawn (default 100)")
    add_json(parser, "the result")
    add_picture_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Check, simulate and print; exit code 0."""
    document = report.read_json(args.plan)
    with of_file(args.plan):
        plan = Plan.from_dict(document)
    if args.problem is None and args.stages is None:
        if "problem" not in document:
            raise InputError(f"{args.plan}: names no problem, expected a problem file as the second argument")
        args.problem = args.plan
    problem, unit, unit_s = problem_from(args)
    if args.jitter is not None:
        if args.in_order:
            raise InputError("--in-order: got it beside --jitter, expected one of them")
        for option in ("plot", "trace"):
            if getattr(args, option):
                raise InputError(f"--{option}: got it beside --jitter, which draws many runs, expected one of them")
        return _jittered(args, plan, problem, unit)
    queue = args.queue if args.in_order else None
    evaluation = evaluate(check(plan, problem, memory=False), problem, queue=queue)
    if args.json:
        mode = {"in_order": args.in_order, "queue": queue}
        report.write_json(args.json, report.envelope(**record(evaluation), **mode, problem=described(problem, unit)))
    if args.json != "-":
        notes = [] if evaluation.fits else ["memory: the plan does not fit, see the peaks"]
        print_evaluation(evaluation, problem, unit, notes)
    write_pictures(evaluation, args, unit, unit_s)
    return 0


def _jittered(args: argparse.Namespace, plan: Plan, problem: Problem, unit: str) -> int:
    draw, checked = _drawn(args.jitter), check(plan, problem, memory=False)
    usual = simulate(checked, problem)
    usual_durations = usual.end - usual.start
    made = []
    for seed in range(args.seeds):
        durations = usual_durations * draw(np.random.default_rng(seed), len(usual_durations))
        runs = (simulate(checked, problem, durations=durations), simulate_ready_first(checked, problem, durations))
        made.append([*(each.makespan for each in runs), work_bound(checked, problem, durations)])
    names: list[str] = ["in_order", "ready_first", "work_bound"]
    means = dict(zip(names, np.mean(made, axis=0).tolist(), strict=True))
    if args.json:
        document = {"jitter": args.jitter, "seeds": args.seeds, "makespan": usual.makespan, "mean_makespan": means}
        report.write_json(args.json, report.envelope(**document, makespans=made, problem=described(problem, unit)))
    if args.json != "-":
        columns = [("run", ""), ("mean makespan", unit), ("in order over it", "")]
        ratios = {name: means["in_order"] / mean for name, mean in means.items()}
        rows = [[name.replace("_", " "), f"{means[name]:.6g}", f"{ratio:.3f}"] for name, ratio in ratios.items()]
        report.print_table(columns, rows, notes=[f"{usual.makespan:.6g} {unit} without jitter, {args.seeds} seeds"])
    return 0


def _drawn(text: str) -> Callable[[np.random.Generator, int], Floats]:
    """What a number of durations is multiplied by, drawn as --jitter says."""
    share, equals, factor = text.partition("=")
    if not is_number(share) or not 0 <= float(share) <= 1 or (equals and not (is_number(factor) and float(factor) > 0)):
        raise InputError(f"--jitter: got {text!r}, expected SHARE=FACTOR such as 0.02=10, or a deviation such as 0.2")
    if equals:
        return lambda random, count: np.where(random.random(count) < float(share), float(factor), 1.0)
    return lambda random, count: np.maximum(random.normal(1.0, float(share), count), 0.05)
