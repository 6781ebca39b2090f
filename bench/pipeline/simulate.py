"""Simulate a plan file of `lanterne pipeline plan`: under its own problem, another one, or with blocking sends.

  lanterne pipeline simulate plan.json
  lanterne pipeline simulate plan.json problem.json --link 0=30
  lanterne pipeline simulate plan.json problem.json --in-order --queue 1 --plot blocked.png

With --in-order each rank sends one message after another, each taking its link's whole latency, and computing goes on
only while no more than --queue sends are under way (0: it waits for each): the head-of-line blocking of frameworks that
send in the order of the plan. The difference to the run without it is what blocking costs; between two latencies
without it, what dependencies cost.
"""

import argparse

from lanterne.bench.output import report
from lanterne.bench.output.units import whole
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
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.simulate.check_plan import check


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
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON ('-' for standard output)")
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
    evaluation = evaluate(check(plan, problem, memory=False), problem, in_order=args.in_order, queue=args.queue)
    if args.json:
        mode = {"in_order": args.in_order, "queue": args.queue if args.in_order else None}
        report.write_json(args.json, report.envelope(**record(evaluation), **mode, problem=described(problem, unit)))
    if args.json != "-":
        notes = [] if evaluation.fits else ["memory: the plan does not fit, see the peaks"]
        print_evaluation(evaluation, problem, unit, notes)
    write_pictures(evaluation, args, unit, unit_s)
    return 0
