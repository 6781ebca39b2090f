"""Run pipeline plans on real processes that wait instead of computing, over emulated slow links, against the simulator.

  lanterne pipeline run --stages 4 --microbatches 12 --forward 10ms --backward-input 10ms --backward-weight 10ms \\
                        --link 2=30ms --scheduler zb_h1,adaptra,best --data-plane inline,delegate
  lanterne pipeline run problem.json --scheduler best --data-plane delegate --plot run.png --trace run.json
  lanterne pipeline run plan.json --scheduler plan.json,best
  lanterne pipeline run --stages 4 --microbatches 12 --forward 10ms --scheduler zb_h2 --slow-link 1=20ms@10:40 --adapt
  lanterne pipeline run --stages 4 --microbatches 12 --forward 10ms --data-plane delegate --ready-first --jitter 0.02=10
  lanterne pipeline run --stages 4 --microbatches 12 --forward 10ms --link 2=30ms --device cuda --transport nccl

Each stage is a process; F, B and W take the time that the problem gives them; messages are real, and held back until
the problem's link would have let them through. Every scheduler runs over every data plane, all in turn, --iterations
times. Columns:

  predicted     makespan of the simulator, told how the data plane sends
  measured      median over the iterations: first start to last end
  no delay      makespan of the same plan over links without delay, simulated
  dependencies  what slow links add because work waits for messages, simulated
  blocking      what is left of the measured time: sends that kept a rank from computing (head-of-line blocking)

With --device cuda actions are delays on a GPU's stream, and times those of its clock. Over nccl messages then go from
GPU to GPU (data plane streams), and links take their time on the streams that carry them, without the CPU; messages of
other data planes are copied through pinned memory.

With --ready-first every plan also runs with its order as a hint: a rank that waits longer than planned does meanwhile
what is ready, within its memory. --jitter SHARE=FACTOR makes that share of the actions so much longer, others in each
iteration; predicted is then the median of as many simulated iterations whose sends never block.

Links that several pairs of ranks share (shared_links) take their messages as they come, whatever order a plan has for
them; over the data planes delegate and unbounded, ranks of one host.

With --record FILE each plan also runs over links without delay, and FILE holds what `pipeline calibrate` reads: for the
data planes delegate and streams, one stage per rank.

With --slow-link, --slow-rank or --events the links and ranks change while all runs: a table of the time by mode, and
with --adapt, per event, which iteration ran the first new plan, beside a run that knows all in advance. --adapt watches
the delay of messages; a link slower than the plan tolerates gets delegates and a new plan, until it is well again.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, near_simulator_by_plane, print_bars
from lanterne.bench.output.options import add_device, add_json, add_timeout, add_transport
from lanterne.bench.output.units import format_count, format_time, is_number, parse_time_s, whole
from lanterne.bench.pipeline.events_input import add_event_arguments, events_from
from lanterne.bench.pipeline.input import add_problem_arguments, of_file, problem_from
from lanterne.bench.pipeline.measure import MeasuredIterations, PipelineCase, check_case, measure
from lanterne.bench.pipeline.plan import make
from lanterne.bench.pipeline.plan_report import described, labelled
from lanterne.bench.pipeline.recording import healthy_of, recorded, undelayed
from lanterne.errors import InputError
from lanterne.pipeline.execute.stage_timed import NO_JITTER, Jitter
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.plane_makers import PLANES, find_plane, predict
from lanterne.pipeline.planners.schedulers import load
from lanterne.pipeline.simulate.analysis import bubble_rate
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.chrome_trace import chrome_trace
from lanterne.pipeline.simulate.gantt import draw_all
from lanterne.pipeline.simulate.ready_first import simulate_ready_first
from lanterne.pipeline.simulate.simulate import Timeline, simulate
from lanterne.transport.rails.rail_names import check_rail

PLAN_FILE = ".json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.epilog = "data planes:\n" + "".join(f"  {name.ljust(14)}{maker.about}\n" for name, maker in PLANES.items())
    add_problem_arguments(parser)
    parser.add_argument("--unit", metavar="T", help="a unit of the times of a problem that names none, such as 1ms")
    parser.add_argument(
        "--scheduler",
        default="best",
        metavar="A,B,...",
        help="those of `pipeline plan --help`, or its plan files (.json), edited or not (default best)",
    )
    parser.add_argument(
        "--data-plane", metavar="A,B,...", help="those below (default inline; on GPUs over nccl streams)"
    )
    add_device(parser, "stages wait")
    parser.add_argument(
        "--queue", type=whole(0), default=1, metavar="N", help="inline: sends under way at once (default 1)"
    )
    parser.add_argument(
        "--rails", metavar="A,B,...", help="delegate: memory, tcp, addresses or interfaces (default memory,tcp)"
    )
    parser.add_argument(
        "--iterations", type=int, metavar="K", help="of each, in turn (default 5, or beyond all events)"
    )
    parser.add_argument(
        "--warmup", type=int, default=1, metavar="K", help="untimed ones before (default 1; none beside events)"
    )
    parser.add_argument("--ready-first", action="store_true", help="run plans as a hint too, beside their order")
    parser.add_argument("--jitter", metavar="SHARE=FACTOR", help="actions that take longer, such as 0.02=10")
    parser.add_argument("--adapt", action="store_true", help="measure delays, plan anew, swap plans and paths")
    add_event_arguments(parser)
    add_transport(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="print the bars; exit 1 if measured is off predicted by over 2 %% (inline: 5 %%); with --adapt, if a new "
        "plan runs after over 5 iterations, or below 90 %% of the throughput with full knowledge",
    )
    add_timeout(parser)
    parser.add_argument("--record", metavar="FILE", help="write runs for `pipeline calibrate`; they run healthy too")
    add_json(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="draw Gantt charts, predicted and measured; of several: run-zb_v-inline.png, ..."
    )
    parser.add_argument("--trace", metavar="FILE", help="write the measured run for ui.perfetto.dev; likewise")


def run(args: argparse.Namespace) -> int:
    """Plan, run, print; exit code 0, or 1 for a bar missed."""
    cases, unit = cases_of(args)
    timeout_s = parse_time_s(args.timeout, "--timeout")
    if timeout_s <= 0:
        raise InputError(f"--timeout: got {args.timeout}, expected more than 0")
    if args.adapt or args.slow_link or args.slow_rank or args.events:
        return run_events(args, cases, timeout_s)
    twins = [healthy_of(case) for case in cases] if args.record else []
    outcomes = measure([*cases, *twins], args.iterations, args.warmup, args.transport, timeout_s, args.device)
    if outcomes is None:
        return 0
    outcomes, healthy = outcomes[: len(cases)], outcomes[len(cases) :]
    if args.record:
        runs = [recorded(*each) for each in zip(cases, healthy, outcomes, strict=True)]
        report.write_json(args.record, report.envelope(runs=runs))
    predicted = [predicted_of(case, args.iterations) for case in cases]
    records = [record(*each) for each in zip(cases, predicted, outcomes, strict=True)]
    document = report.envelope(**records[0], results=records, problem=described(cases[0].problem, unit))
    report.tell(args.json, document, partial(print_records, with_bars=args.check))
    for each in zip(cases, predicted, outcomes, strict=True):
        write_pictures(args, *each, several=len(cases) > 1)
    return int(args.check and not all(bar.is_met for bar in bars(records)))


def cases_of(args: argparse.Namespace) -> tuple[list[PipelineCase], str]:
    """(cases, unit of the problem's times) of a command line.

    Raises:
        InputError: an option that cannot be.
    """
    problem, unit, unit_s = problem_from(args)
    if args.unit is not None:
        unit, unit_s = args.unit, parse_time_s(args.unit, "--unit")
    if not unit_s:
        raise InputError("--unit: got none and a problem without one, expected what its times are in, such as 1ms")
    events = args.adapt or args.slow_link or args.slow_rank or args.events
    if args.iterations is None and not events:
        args.iterations = 5
    if (args.iterations is not None and args.iterations < 1) or args.warmup < 0:
        raise InputError(f"--iterations, --warmup: got {args.iterations} and {args.warmup}, expected at least 1 and 0")
    if problem.message_nbytes[0] != problem.message_nbytes[1]:
        raise InputError(f"message_nbytes: got {problem.message_nbytes}, expected one size both ways")
    schedulers, planes = args.scheduler.split(","), planes_of(args)
    for name in schedulers:
        if not name.endswith(PLAN_FILE):
            load(name)
    rails = args.rails.split(",") if args.rails else []
    for rail in rails:
        check_rail(rail)
    jitter = _jitter(args.jitter)
    if args.record and (events or args.ready_first or jitter.share):
        raise InputError("--record: got it beside events, --adapt, --ready-first or --jitter, expected none of them")
    if problem.shared_links and (args.record or args.ready_first or jitter.share):
        raise InputError("shared_links: got some beside --record, --ready-first or --jitter, expected none of them")
    if (args.ready_first or jitter.share) and (events or args.device == "cuda"):
        raise InputError("--ready-first, --jitter: got one beside events, --adapt or --device cuda, expected none")
    cases: list[PipelineCase] = []
    for name in schedulers:
        report.progress(f"planning with {name}")
        checked = _as_they_come(read_plan(name, problem) if name.endswith(PLAN_FILE) else make(name, problem).checked)
        for plane in planes:
            options: dict[str, Any] = {"queue": args.queue} if "queue" in find_plane(plane).simulated else {}
            if rails and plane == "delegate":
                options["rails"] = rails
            case = PipelineCase(checked, problem, unit_s, plane, options, jitter=jitter)
            cases += [case._replace(ready_first=ready) for ready in (False, *([True] if args.ready_first else []))]
            check_case(case)
    report.progress("")
    return cases, unit


def _as_they_come(checked: CheckedPlan) -> CheckedPlan:
    """The same plan without an order of its messages on shared links: these take them as they come."""
    plan = checked.plan
    if not plan.message_order:
        return checked
    return check(dataclasses.replace(plan, message_order=()), checked.problem, memory=False)


def _jitter(text: str | None) -> Jitter:
    if text is None:
        return NO_JITTER
    share, equals, factor = text.partition("=")
    if not (equals and is_number(share) and is_number(factor) and 0 <= float(share) <= 1 and float(factor) > 0):
        raise InputError(f"--jitter: got {text!r}, expected SHARE=FACTOR such as 0.02=10")
    return Jitter(float(share), float(factor))


def predicted_of(case: PipelineCase, iterations: int) -> Timeline:
    """What the simulator says of a case: the iteration of the median makespan, where they differ."""
    if not (case.ready_first or case.jitter.share):
        return predict(case.plane, case.checked, case.problem, **case.options)
    plan, usual = case.checked.plan, simulate(case.checked, case.problem)
    actions = [action for rank in plan.ranks for action in rank]
    simulated = []
    for seed in range(iterations):
        jitter = case.jitter._replace(seed=seed)
        # Both halves of a fused backward draw for themselves, as its stage does.
        factors = [jitter.of(each.kind[0], each.stage, each.microbatch) for each in actions]
        run = simulate_ready_first if case.ready_first else simulate
        simulated.append(run(case.checked, case.problem, durations=(usual.end - usual.start) * np.array(factors)))
    return sorted(simulated, key=lambda timeline: timeline.makespan)[(iterations - 1) // 2]


def planes_of(args: argparse.Namespace) -> list[str]:
    """The names of the data planes.

    Raises:
        InputError: one that is not known, or not on this device and transport; or a device that cannot be.
    """
    streams = args.device == "cuda" and args.transport == "nccl"
    names = str(args.data_plane or ("streams" if streams else "inline")).split(",")
    for name in names:
        find_plane(name)
    if "streams" in names and not streams:
        raise InputError("--data-plane: got streams, expected it with --device cuda --transport nccl")
    if args.device == "cuda":
        for name in ("adapt", "slow_link", "slow_rank", "events"):
            if getattr(args, name):
                raise InputError(f"--device: got cuda beside --{name.replace('_', '-')}, expected it without")
        from lanterne.kernels.arrays import require_device

        require_device()
    return names


def read_plan(path: str, problem: Problem) -> CheckedPlan:
    """The plan of a file that `pipeline plan --json` wrote, checked; named like the file.

    Raises:
        InputError: no such file, or no plan.
        ScheduleError: a plan that is wrong, or not of this problem.
    """
    document = report.read_json(path)
    with of_file(path):
        plan = dataclasses.replace(Plan.from_dict(document), scheduler=Path(path).stem)
        return check(plan, problem, memory=False)


def run_events(args: argparse.Namespace, cases: Sequence[PipelineCase], timeout_s: float) -> int:
    """Run the cases while links and ranks change; exit code 0, or 1 for a bar missed."""
    from lanterne.bench.pipeline.adaptation import in_seconds
    from lanterne.bench.pipeline.adaptation_report import (
        bars,
        iterations_of,
        plot,
        print_document,
        run_with_events,
        side_by_side,
    )

    for name in ("data_parallel", "shared_links"):
        if getattr(cases[0].problem, name):
            raise InputError(f"{name}: got some beside --adapt or events, expected none")
    if args.trace:
        raise InputError("--trace: got it beside --adapt or events, expected it without: it is of one iteration")
    if args.check and not args.adapt:
        raise InputError("--check: got it beside events, expected --adapt too: its bars are of that")
    events = events_from(args, cases[0].ranks)
    delegates = {"rails": args.rails.split(",")} if args.rails else {}
    modes = []
    for case in cases:
        checked = check(case.checked.plan, in_seconds(case.problem, case.unit_s), memory=False)
        modes += side_by_side(checked, case.plane, adapts=args.adapt, options=case.options, delegates=delegates)
    document = run_with_events(modes, events, iterations_of(events, args.iterations), args.transport, timeout_s)
    if document is None:
        return 0
    report.tell(args.json, report.envelope(**document), partial(print_document, with_bars=args.check))
    if args.plot:
        plot(args.plot, document)
    return int(args.check and not all(bar.is_met for bar in bars(document["results"])))


def bars(records: Iterable[dict[str, Any]]) -> list[Bar]:
    """How far from the simulator's the measured times may be: a Bar for each data plane."""
    times = {"measured_s": "measured_makespan_s", "predicted_s": "predicted_makespan_s"}
    return near_simulator_by_plane([each | {key: each[name] for key, name in times.items()} for each in records])


def record(case: PipelineCase, predicted: Timeline, outcome: MeasuredIterations) -> dict[str, Any]:
    """What the JSON file and the table say of a case."""
    plan, unit_s = case.checked.plan, case.unit_s
    no_delay_s = simulate(plan, undelayed(case.problem)).makespan * unit_s
    free_s = simulate(case.checked, case.problem).makespan * unit_s
    measured = outcome.timeline
    starts, ends = (measured.start * unit_s).tolist(), (measured.end * unit_s).tolist()
    actions = [action for rank in plan.ranks for action in rank]
    return {
        "scheduler": plan.scheduler,
        "data_plane": case.plane,
        "ready_first": case.ready_first,
        "data_plane_options": case.options,
        "predicted_makespan_s": predicted.makespan * unit_s,
        "measured_makespan_s": outcome.makespan_s,
        "no_delay_makespan_s": no_delay_s,
        "dependencies_s": free_s - no_delay_s,
        "blocking_s": outcome.median_s - free_s,
        "predicted_bubble_rate": bubble_rate(predicted),
        "measured_bubble_rate": bubble_rate(measured),
        "actions": [
            {"rank": rank, "action": str(action), "start_s": start, "end_s": end}
            for rank, action, start, end in zip(plan.rank_of.tolist(), actions, starts, ends, strict=True)
        ],
    }


COLUMNS = [
    ("scheduler", ""),
    ("data plane", ""),
    ("predicted", ""),
    ("measured", "median"),
    ("off by", ""),
    ("least", ""),
    ("most", ""),
    ("bubbles", "measured"),
    ("no delay", "simulated"),
    ("dependencies", "+"),
    ("blocking", "+"),
]


def print_records(document: dict[str, Any], file: TextIO, *, with_bars: bool = False) -> None:
    """The table of a document of `run`, and `with_bars` what it has to reach."""
    results, problem = document["results"], document["problem"]
    iterations = format_count(len(results[0]["measured_makespan_s"]), "iteration")
    notes = [
        f"{problem['stages']} processes, {problem['microbatches']} microbatches, {iterations} of each in turn, "
        f"{document['environment']['cpus']} cores"
    ]
    report.print_table(COLUMNS, [row(result) for result in results], notes=notes, left=(0, 1), file=file)
    if with_bars:
        print_bars(bars(results), file)


def row(result: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    measured = result["measured_makespan_s"]
    median_s, predicted_s = statistics.median(measured), result["predicted_makespan_s"]
    return [
        result["scheduler"],
        result["data_plane"] + (", ready first" if result["ready_first"] else ""),
        format_time(predicted_s),
        format_time(median_s),
        f"{median_s / predicted_s - 1:+.2%}",
        format_time(min(measured)),
        format_time(max(measured)),
        f"{result['measured_bubble_rate']:.1%}",
        format_time(result["no_delay_makespan_s"]),
        format_time(result["dependencies_s"]),
        format_time(result["blocking_s"]),
    ]


def write_pictures(
    args: argparse.Namespace, case: PipelineCase, predicted: Timeline, outcome: MeasuredIterations, *, several: bool
) -> None:
    """The files that --plot and --trace ask for, of one case."""
    name = case.checked.plan.scheduler
    label = f"{name}-{case.plane}{'-ready-first' if case.ready_first else ''}" if several else ""
    unit_s = case.unit_s
    if args.plot:
        charts = [
            (f"{name}, {case.plane}, predicted", predicted, not predicted.in_order),
            (f"{name}, {case.plane}, measured", outcome.timeline, False),
        ]
        draw_all(charts, labelled(args.plot, label), "ms" if unit_s == 1e-3 else f"{unit_s:g} s")
    if args.trace:
        document = chrome_trace(outcome.timeline, unit_s * 1e6)
        report.write_atomically(labelled(args.trace, label), json.dumps(document).encode())
