"""Draw makespan over link delay, bandwidth or memory, one line per scheduler.

  lanterne pipeline sweep --stages 4 --microbatches 30 --forward 10ms --over latency --on 0 --at 0ms,20ms,40ms,60ms \\
                          --scheduler alternating:slack=1 --scheduler alternating:slack=3 --plot adaptra8.png
  lanterne pipeline sweep --stages 8 --microbatches 32 --forward 10ms --over latency --on 6 --at 0ms,20ms,40ms,60ms \\
                          --scheduler 1f1b+in-order --scheduler zb_h2+in-order --scheduler zb_h2 \\
                          --scheduler adaptra --plot adaptra15.png
  lanterne pipeline sweep --stages 4 --microbatches 8 --forward 100 --memory 4 --over bandwidth --on 1 \\
                          --at 0,50,100,200 --relative-to zb_v --plot crosspipe8.png
  lanterne pipeline sweep problem.json --over memory --at 4,6,8,12,16 --scheduler crosspipe --scheduler zb_v

A line is NAME[:OPTION=VALUE...][+in-order][+frozen]. in-order: sends block computing (see `lanterne pipeline
simulate`). frozen: planned once, at the first value, and then kept, where the others plan again at every value. The
first three commands are figures 8 and 15 of ADAPTRA and 8 of CrossPipe. Bandwidth is swept by the time that a message
keeps the link. A star marks plans that do not fit in memory, a dash a value that the scheduler cannot plan for.
"""

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json, add_plot
from lanterne.bench.output.units import whole
from lanterne.bench.pipeline.input import add_problem_arguments, one_time, problem_from, set_links
from lanterne.bench.pipeline.plan import limit_s, make
from lanterne.bench.pipeline.plan_report import described, evaluate, parse_options
from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.planners.schedulers import SCHEDULERS, load
from lanterne.pipeline.simulate.check_plan import check

OVER = ("latency", "bandwidth", "memory", "microbatches")
MODES = ("in-order", "frozen")
BOUND = "bound, one stage per rank"


class Line(NamedTuple):
    """One line of the figure: the scheduler and how its plans are run."""

    label: str
    scheduler: str
    options: dict[str, Any]
    in_order: bool
    frozen: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_problem_arguments(parser)
    parser.add_argument("--over", choices=OVER, default="latency", help="what changes (default latency)")
    parser.add_argument(
        "--at", required=True, metavar="V1,V2,...", help="its values: times, activations or microbatches"
    )
    parser.add_argument("--on", metavar="I[,J...]", help="links whose latency or bandwidth changes (default: all)")
    parser.add_argument(
        "--scheduler",
        action="append",
        metavar="LINE,...",
        help=f"repeatable; of {', '.join(SCHEDULERS)} (default: all)",
    )
    parser.add_argument("--queue", type=whole(0), default=1, metavar="N", help="send queue of +in-order (default 1)")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="per plan, for schedulers that search")
    parser.add_argument(
        "--relative-to", metavar="NAME", help="divide all by the makespan of this scheduler at the first value"
    )
    add_json(parser, "the points")
    add_plot(parser, "the lines")


def run(args: argparse.Namespace) -> int:
    """Sweep and print; exit code 0."""
    texts, over_time = args.at.split(","), args.over in OVER[:2]
    problem, unit, unit_s = problem_from(args, texts if over_time else ())
    _refuse_replaced(args)
    lines = [parse_line(text) for texts in args.scheduler or SCHEDULERS for text in texts.split(",")]
    values = [one_time(text, "--at", unit_s if over_time else None) for text in texts]
    swept = [changed(problem, args.over, value, args.on) for value in values]
    results: list[dict[str, Any]] = []
    for line in lines:
        report.progress(f"sweeping {line.label}")
        results.append({"line": line.label, "points": sweep_line(line, swept, args)})
    bounds = [lower_bound(each, unidirectional(each.stages)) for each in swept]
    results.append({"line": BOUND, "points": [{"makespan": bound, "fits_memory": True} for bound in bounds]})
    report.progress("")
    base = _base(args, swept[0])
    for result in results:
        for point, value in zip(result["points"], values, strict=True):
            point |= {"value": value, "relative": None if point["makespan"] is None else point["makespan"] / base}
    content = {"over": args.over, "values": values, "relative_to": args.relative_to, "results": results}
    if args.json:
        report.write_json(args.json, report.envelope(**content, problem=described(problem, unit)))
    if args.json != "-":
        of_values = unit if over_time else ""
        columns = [
            (args.over, of_values),
            *((result["line"], "" if args.relative_to else unit) for result in results),
        ]
        names = [f"{value:g}" for value in values] if of_values else texts
        rows = [[name, *(_cell(result["points"][i], args) for result in results)] for i, name in enumerate(names)]
        report.print_table(columns, rows)
    if args.plot:
        from lanterne.bench.pipeline.sweep_plot import draw

        draw(args.plot, content, problem, unit)
    return 0


def _refuse_replaced(args: argparse.Namespace) -> None:
    """Refuse options of the problem whose values the sweep replaces on every link and rank."""
    if args.on is not None:
        if args.over in ("memory", "microbatches"):
            raise InputError(f"--on: got {args.on} with --over {args.over}, which has no links, expected none")
        return
    replaced = {"latency": ("latency", "link"), "bandwidth": ("bandwidth",), "memory": ("memory",)}
    for option in replaced.get(args.over, ()):
        if getattr(args, option):
            raise InputError(f"--{option}: got it with --over {args.over}, whose values replace it, expected --on")


def parse_line(text: str) -> Line:
    """The Line that `text` describes.

    Raises:
        InputError: an unknown scheduler or mode.
    """
    name, *modes = text.split("+")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise InputError(f"--scheduler {text}: got +{unknown[0]}, expected +in-order or +frozen")
    scheduler, *options = name.split(":")
    load(scheduler)
    return Line(text, scheduler, parse_options(options), "in-order" in modes, "frozen" in modes)


def changed(problem: Problem, over: str, value: float, on: str | None = None) -> Problem:
    """`problem` with what is swept set to `value`, on the links of text `on` or all.

    Raises:
        InputError: no such link, or a value that cannot be.
    """
    if over in ("memory", "microbatches"):
        # One number stands for all ranks; what it may be, Problem says.
        changes: dict[str, Any] = {"microbatches": value}
        if over == "memory":
            changes = {"max_inflight_activations": value, "memory": None}
        return dataclasses.replace(problem, **changes)
    links = on.split(",") if on else [str(i) for i in range(problem.stages - 1)]
    if over == "latency":
        return dataclasses.replace(
            problem, link_latency=set_links(problem, "link_latency", dict.fromkeys(links, value))
        )
    nbytes = problem.message_nbytes if any(problem.message_nbytes) else (1.0, 1.0)
    bandwidth = set_links(problem, "link_bandwidth", dict.fromkeys(links, max(nbytes) / value if value else None))
    return dataclasses.replace(problem, link_bandwidth=bandwidth, message_nbytes=nbytes)


def sweep_line(line: Line, swept: Iterable[Problem], args: argparse.Namespace) -> list[dict[str, Any]]:
    """One point per problem: {makespan, fits_memory}, the makespan None where there is no plan."""
    points: list[dict[str, Any]] = []
    kept = None
    for problem in swept:
        try:
            if kept is None or not line.frozen:
                kept = make(line.scheduler, problem, limit_s(args, line.scheduler), line.options).checked.plan
            queue = args.queue if line.in_order else None
            evaluation = evaluate(check(kept, problem, memory=False), problem, queue=queue)
            points.append({"makespan": evaluation.timeline.makespan, "fits_memory": evaluation.fits})
        except ScheduleError:
            raise
        except InputError:
            points.append({"makespan": None, "fits_memory": None})
    return points


def _base(args: argparse.Namespace, first: Problem) -> float:
    name = args.relative_to
    return make(name, first, limit_s(args, name)).timeline.makespan if name else 1.0


def _cell(point: Mapping[str, Any], args: argparse.Namespace) -> str:
    if point["makespan"] is None:
        return "-"
    text = f"{point['relative']:.3f}" if args.relative_to else f"{point['makespan']:.6g}"
    return text if point["fits_memory"] else f"{text}*"
