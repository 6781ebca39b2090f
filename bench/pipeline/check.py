"""Check a schedule file of torch.distributed.pipelining: completeness, deadlock, messages that block each other.

  lanterne pipeline check theirs.csv
  lanterne pipeline check theirs.csv problem.json --link 1=20ms --json -
  lanterne pipeline check theirs.csv --forward 10ms --latency 1ms --bandwidth 1=10gbit --message 64MiB

It reads both forms of torch's `_load_csv`: computing alone, and computing with messages (SEND, RECV and, since torch
2.15, waits for sends). Proved is that each microbatch passes each stage once and in order, that each SEND has its RECV,
and that ranks never wait for each other in a circle. Over NCCL that depends on the process group: with a `device_id` in
`init_process_group` all messages of a rank move one after the other, in the order of its line; without, those of each
pair of ranks. A file that ends only without it has a note. `blocked` are messages that could move but stand behind one
that cannot. Times are those of the problem; without one, F, B and W of a rank take 1 each and messages nothing. Exit
code 2: the file is wrong.
"""

import argparse

from lanterne.bench.output import report
from lanterne.bench.output.options import add_json
from lanterne.bench.pipeline.input import add_problem_arguments, of_file, problem_from
from lanterne.pipeline.plan.torch_csv import parse_rows, plan_of
from lanterne.pipeline.simulate.torch_messages import check_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "schedule", metavar="SCHEDULE.csv", help="a line for each rank, of actions such as 0F0,0SEND_F0"
    )
    add_problem_arguments(parser)
    add_json(parser, "what was found")


def run(args: argparse.Namespace) -> int:
    """Read, prove and print; exit code 0."""
    text = report.read_text(args.schedule)
    with of_file(args.schedule):
        rows = parse_rows(text)
        plan = plan_of(rows)
    problem, unit = None, ""
    if args.problem or args.forward:
        # Options alone need not repeat what the file says.
        if not args.problem:
            args.stages, args.microbatches = args.stages or len(rows), args.microbatches or plan.microbatches
        problem, unit, _ = problem_from(args)
    with of_file(args.schedule):
        found = check_rows(rows, problem)
    document = {
        "ranks": len(rows),
        "stages": plan.placement.num_stages,
        "stage_to_rank": list(plan.placement.stage_to_rank),
        "microbatches": plan.microbatches,
        "messages": found.messages,
        "waits_for_sends": found.waits,
        "one_queue": found.one_queue,
        "blocked": found.blocked,
        "blocked_time": found.blocked_time,
        "makespan": found.makespan,
        "makespan_unqueued": found.free,
        "notes": found.notes,
    }
    if args.json:
        report.write_json(args.json, report.envelope(**document))
    if args.json != "-":
        form = "computing alone" if not found.messages else "torch 2.15" if found.waits else "torch 2.13, 2.14"
        columns = [("form", ""), ("ranks", ""), ("stages", ""), ("microbatches", ""), ("messages", ""), ("queues", "")]
        columns += [("blocked", ""), ("blocked for", unit), ("makespan", unit), ("unqueued", unit)]
        cells = [form, str(len(rows)), str(plan.placement.num_stages), str(plan.microbatches), str(found.messages)]
        cells += [
            "of ranks" if found.one_queue else "of pairs",
            str(found.blocked),
            *(f"{each:.6g}" for each in (found.blocked_time, found.makespan, found.free)),
        ]
        report.print_table(columns, [cells], notes=["it can run to its end", *found.notes], left=(0,))
    return 0
