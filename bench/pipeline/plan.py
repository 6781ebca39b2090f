"""Plan a pipeline: the order of work on every rank, for slow links, unequal stages and little memory.

  lanterne pipeline plan problem.json --scheduler zb_h1 --plot plan.svg
  lanterne pipeline plan --stages 8 --microbatches 32 --forward 10ms --backward-input 11ms --backward-weight 8ms \\
                         --link 3=20ms --memory 12 --scheduler all
  lanterne pipeline plan problem.json --json plan.json --trace trace.json
  lanterne pipeline plan problem.json --placement wave
  lanterne pipeline plan problem.json --csv plan.csv --comms      # for torch.distributed.pipelining's _load_csv
  lanterne pipeline plan --stages 8 --microbatches 24 --forward 9ms --link 6=30ms --message 10M --calibration h800.json

With --calibration the plan is made for devices as `pipeline calibrate` found them, its messages sent by delegates: each
F and B pays for them and lasts a gap longer, each message is held. Beside it stands how long 1F1B and the same plan
take over NCCL, and the plan over so many delegates. What lies beyond the runs of the calibration is said on standard
error, and marked.

--scheduler best tries one stage per rank, wave (two half-size stages per rank, there and back) and loop (two around the
loop), or what --placement names: bidirectional too, two copies of the pipeline in opposite directions. The first plan
on a machine takes some 20 s more, in which the search is compiled, unless a quick one is proved to be within 1 %.

A problem file is a JSON object with stages, microbatches, forward, backward_input, backward_weight (one number, or one
per stage), link_latency (one per link between neighbours, or a matrix), max_inflight_activations, and optionally
link_bandwidth, message_nbytes, shared_links, memory, data_parallel, recompute and unit; docs/pipelines.md shows one.
Every plan is checked, then simulated exactly. The bound is proved for the plan's placement: no order of work whatever
can be below it; what a solver proved beyond that holds for whole actions, and W in pieces may be below. Memory is in
activations of a whole rank. What a link absorbs is the delay to the next rank, mean of both ways, up to which a plan of
one stage per rank has no bubbles that cascade (ADAPTRA, equation 1).
"""

import argparse
import dataclasses
import inspect
import sys
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.output.units import whole
from lanterne.bench.pipeline.input import add_problem_arguments, problem_from
from lanterne.bench.pipeline.plan_report import (
    Evaluation,
    add_picture_arguments,
    described,
    evaluate,
    parse_options,
    print_evaluation,
    record,
    write_pictures,
)
from lanterne.bench.pipeline.predict import EXTRAPOLATED, read_calibration, warn
from lanterne.errors import InputError, ScheduleError, Unavailable, one_of
from lanterne.pipeline.calibrate.cluster import Cluster
from lanterne.pipeline.plan.placement import PLACEMENTS
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.torch_csv import to_text, to_torch_csv
from lanterne.pipeline.planners.schedulers import ANY, SCHEDULERS, load
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.torch_messages import check_rows, place_messages

ALL = "all"
# Whose files with messages can be written: those of 2.15 say where sends are waited for.
TORCHES = ("2.13", "2.14", "2.15")
# Per scheduler, when all are compared without a limit of the user's.
COMPARE_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    width = max(map(len, SCHEDULERS)) + 2
    parser.epilog = "schedulers:\n" + "".join(
        f"  {name.ljust(width)}{scheduler.summary}\n" for name, scheduler in SCHEDULERS.items()
    )
    default = "best" if "best" in SCHEDULERS else ALL
    add_problem_arguments(parser)
    parser.add_argument(
        "--scheduler", default=default, metavar="NAME", help=f"one of those below, or all (default {default})"
    )
    parser.add_argument(
        "--placement",
        metavar="NAME",
        help=f"for schedulers that can choose: {', '.join(PLACEMENTS)} (default of best: any but the last)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the scheduler, such as stages_per_rank=4",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help=f"for schedulers that search (default: their own; {COMPARE_S:g} with all)",
    )
    devices = parser.add_argument_group("devices", "Of the ranks, with --calibration.")
    devices.add_argument("--calibration", metavar="FILE", help="file of `pipeline calibrate`")
    devices.add_argument("--gpu", metavar="NAME", help="kind of GPU (default: the one with most runs)")
    devices.add_argument("--ranks-per-host", type=whole(1), default=1, metavar="N", help="of a host (default 1)")
    devices.add_argument("--delegates", type=whole(1), default=6, metavar="N", help="per direction (default 6)")
    add_json(parser, "the plan")
    parser.add_argument(
        "--csv", metavar="FILE", help="write it for torch.distributed.pipelining, computing alone ('-' as with --json)"
    )
    parser.add_argument(
        "--comms",
        nargs="?",
        const=TORCHES[-1],
        choices=TORCHES,
        metavar="TORCH",
        help="with --csv: with its messages, in torch's form compute_comms, of that torch "
        f"({', '.join(TORCHES)}; default the last)",
    )
    add_picture_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, check, simulate and print; exit code 0."""
    problem, unit, unit_s = problem_from(args)
    given, cluster, beyond = problem, None, list[str]()
    if args.calibration:
        cluster, beyond = _cluster(args, given, unit_s)
        warn(beyond)
        problem = cluster.delegated(given)
    if args.json == args.csv == "-":
        raise InputError("--csv: got '-' beside --json -, expected one of them on standard output")
    if args.scheduler == ALL:
        if args.csv:
            raise InputError(f"--csv: got it beside --scheduler {ALL}, expected one scheduler")
        return _compare(args, problem, unit, unit_s)
    options = parse_options(args.option)
    if args.placement and "placement" not in inspect.signature(load(args.scheduler)).parameters:
        raise InputError(f"--placement: got {args.placement!r}, expected none: {args.scheduler} has one of its own")
    if args.placement or args.scheduler == "best":
        options.setdefault("placement", args.placement or ANY)
    if args.csv and args.scheduler == "best":
        options.setdefault("whole", True)
    evaluation = make(args.scheduler, problem, limit_s(args, args.scheduler), options, memory=True)
    iterations = cluster.iterations(evaluation.checked, given) if cluster else {}
    if args.json:
        marked = {"extrapolated": bool(beyond), "beyond": beyond}
        devices = {"devices": {**cluster._asdict(), "iterations": iterations, **marked}} if cluster else {}
        document = record(evaluation) | devices | {"problem": described(problem, unit)}
        report.write_json(args.json, report.envelope(**document))
    if args.csv:
        text = _torch_csv(evaluation.checked.plan, problem, args.comms)
        if args.csv == "-":
            report.write_text(text)
        else:
            report.write_atomically(args.csv, text.encode())
    if "-" not in (args.json, args.csv):
        print_evaluation(evaluation, problem, unit)
        if iterations:
            rows = [[name.replace("_", " "), f"{time:.6g}"] for name, time in iterations.items()]
            notes = EXTRAPOLATED if beyond else []
            report.print_table([("on devices", ""), ("iteration", unit)], rows, notes=notes)
    write_pictures(evaluation, args, unit, unit_s)
    return 0


def _torch_csv(plan: Plan, problem: Problem, torch: str | None) -> str:
    """The plan as torch reads it; with messages for that `torch`, proved as `pipeline check` does."""
    if torch is None:
        return to_torch_csv(plan)
    major, minor = map(int, torch.split("."))
    rows = place_messages(plan, problem, (major, minor))
    check_rows(rows, problem)  # It raises where a proof is missing.
    return to_text(rows)


def _cluster(args: argparse.Namespace, problem: Problem, unit_s: float | None) -> tuple[Cluster, list[str]]:
    """What --calibration and the options beside it say of the ranks, and what lies beyond the calibration's runs."""
    gpus = read_calibration(args.calibration).gpus
    name = args.gpu or max(gpus, key=lambda gpu: gpus[gpu].runs)
    if name not in gpus:
        raise InputError(f"--gpu: {one_of(name, gpus)}")
    if unit_s is None:
        raise InputError('--calibration: got times without a unit, expected 10ms, or a problem file with "unit"')
    unit_ms = unit_s * 1e3
    links = [(a, b) for a in range(problem.stages) for b in (a - 1, a + 1) if 0 <= b < problem.stages]
    beyond = gpus[name].beyond(
        {
            "ranks_per_host": [args.ranks_per_host],
            "message_bytes": problem.message_nbytes,
            "stages": [problem.stages],
            "delegates": [args.delegates],
            "delay_ms": [problem.latency(*link) * unit_ms for link in links],
        }
    )
    return Cluster(gpus[name].parameters, args.ranks_per_host, args.delegates, unit_ms), beyond


def limit_s(args: argparse.Namespace, scheduler: str) -> float | None:
    """Return --time-limit, or None where `scheduler` does not search; it is read for one that does."""
    if "time_limit_s" not in inspect.signature(load(scheduler)).parameters:
        return None
    limit: float | None = args.time_limit
    if limit is not None and not 0 < limit < inf:
        raise InputError(f"--time-limit: got {limit:g}, expected more than 0 seconds")
    return limit


def make(
    name: str,
    problem: Problem,
    time_limit_s: float | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    memory: bool = False,
) -> Evaluation:
    """The Evaluation of the plan that scheduler `name` makes; a time limit is for those that have one.

    Raises:
        InputError: no such scheduler or option, the problem is not for it, or its plan does not fit (only if `memory`).
    """
    function = load(name)
    known = inspect.signature(function).parameters
    given = options or {}
    _check_options(name, given, known)
    options = dict(given)
    if time_limit_s is not None and "time_limit_s" in known:
        options["time_limit_s"] = time_limit_s
    if name == "best":
        options = {"wait": False} | options
    if name in ("best", "optimal"):
        from lanterne.pipeline.planners.loops import are_compiled

        if not are_compiled():
            print("note: the search is compiled, once on this machine, which may take 20 s more", file=sys.stderr)
    if "progress" in known:
        options["progress"] = lambda found: report.progress(
            f"{name}: {found.elapsed_s:.1f} s, makespan {found.makespan:.6g}, at least {found.lower_bound:.6g}"
        )
    start = time.perf_counter()
    try:
        plan = function(problem, **options)
    except TypeError as error:
        if not given:
            raise
        text = ", ".join(f"{option}={value!r}" for option, value in given.items())
        raise InputError(f"--option: {name} cannot take {text}: {error}") from error
    planning_s = time.perf_counter() - start
    plan = dataclasses.replace(plan, scheduler=name)
    report.progress("")
    evaluation = evaluate(check(plan, problem, memory=memory), problem, planning_s)
    return evaluation._replace(lower_bound=max(evaluation.lower_bound, plan.proved_bound))


def _check_options(name: str, options: Mapping[str, Any], known: Mapping[str, inspect.Parameter]) -> None:
    names = [option for option in list(known)[1:] if option != "progress"]
    for option, value in options.items():
        if option not in names:
            expected = f"one of {', '.join(names)}" if names else "none"
            raise InputError(f"--option: got {option!r}, expected {expected} for {name}")
        default = known[option].default
        if default is not None and not isinstance(value, (int, float) if isinstance(default, float) else type(default)):
            raise InputError(f"--option: got {option}={value!r}, expected a value such as {default!r}")


def _compare(args: argparse.Namespace, problem: Problem, unit: str, unit_s: float | None) -> int:
    if args.placement:
        raise InputError(f"--placement: got {args.placement!r} with all schedulers, expected it with one")
    if args.option:
        raise InputError(f"--option: got {args.option[0]!r} with all schedulers, expected it with one")
    made, notes = [], []
    for name in SCHEDULERS:
        report.progress(f"planning with {name}")
        try:
            made.append(make(name, problem, limit_s(args, name) or COMPARE_S))
        except ScheduleError:
            raise
        except (InputError, Unavailable) as error:
            notes.append(f"{name}: {error}")
    report.progress("")
    if not made:
        raise InputError(f"scheduler: got no plan from any, the first said: {notes[0]}")
    made.sort(key=lambda evaluation: (not evaluation.fits, evaluation.timeline.makespan))
    records = [record(evaluation) for evaluation in made]
    if args.json:
        report.write_json(args.json, report.envelope(results=records, problem=described(problem, unit)))
    if args.json != "-":
        columns = [("scheduler", ""), ("placement", ""), ("makespan", unit), ("over first", ""), ("over bound", "")]
        columns += [("bubbles", ""), ("peak memory", ""), ("fits", ""), ("planned in", "s")]
        rows = [_row(values, records[0]) for values in records]
        report.print_table(columns, rows, notes=[*_verdict(records), *notes])
    limit = max(evaluation.timeline.makespan for evaluation in made)
    for evaluation in made:
        write_pictures(evaluation, args, unit, unit_s, limit, evaluation.checked.plan.scheduler)
    return 0


def _verdict(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which of `records`, in the order of the table, is fastest, and what each placement allows."""
    fastest: dict[str, tuple[str, float]] = {}
    for values in records:
        if values["fits_memory"]:
            fastest.setdefault(values["placement"], (values["scheduler"], values["makespan"]))
    if not fastest:
        return ["no plan fits the memory that the ranks have"]
    named = ", ".join(f"{name} ({makespan:.6g}) with placement {where}" for where, (name, makespan) in fastest.items())
    said = [f"fastest that fits: {named}"]
    if len(fastest) > 1:
        said.append("placement: unidirectional has one stage on each rank; wave and loop cut the model into more and")
        said.append("smaller ones, several on each rank")
    return said


def _row(values: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    return [
        values["scheduler"],
        values["placement"],
        f"{values['makespan']:.6g}",
        f"{values['makespan'] / first['makespan'] - 1:.2%}",
        f"{values['gap']:.2%}" if values["fits_memory"] else "-",
        f"{values['bubble_rate']:.1%}",
        f"{max(values['peak_inflight']):.4g}",
        "yes" if values["fits_memory"] else "NO",
        f"{values['planning_s']:.3g}",
    ]
