"""Benchmark training by a pipeline against training in one process: how much faster are N stages than one?

One process, then the pipeline train on the same batch, in turns, so that what disturbs one disturbs both; while one
process trains, the other ranks sleep. Each rank computes with one thread.

  ./run evaluate train                                  a GPT, 2 stages, 16 microbatches
  ./run evaluate train -n 4 --scheduler zb_v --blocks 8 --check

A pipeline of p stages and m microbatches cannot be faster than p times one process; without filling and draining hidden
it is m / (m + p - 1) of that. --check exits 1 below 0.8 of the latter, the losses being compared in any case.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lanterne.bench.output import report
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.units import format_time, parse_time_s, whole
from lanterne.bench.train.job import TOLERANCES, Setup, add_model_arguments, check_finite, make_setup, planned
from lanterne.errors import InputError
from lanterne.transport.job.bootstrap import in_a_job

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.model.text import Text

BAR = 0.8
# Sleeping ranks look so often whether it is their turn.
LOOK_S = 1e-3
# The tag of the message that tells so.
TURN = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("-n", "--ranks", type=whole(1), default=2, metavar="N", help="start N ranks here (default 2)")
    parser.add_argument("--transport", default="mpi", help="mpi (default) or ucx")
    parser.add_argument("--iterations", type=whole(1), default=7, metavar="K", help="timed, of each (default 7)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of weights and batches (default 0)")
    add_model_arguments(parser, "16")
    parser.add_argument("--check", action="store_true", help="print the bar; exit 1 below it")
    parser.add_argument("--timeout", default="60s", metavar="T", help="of every wait (default 60s)")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def run(args: GivenOptions) -> int:
    """Measure on this rank, or start the ranks; the exit code."""
    timeout_s = parse_time_s(args.timeout, "--timeout")
    setup = make_setup(args, args.ranks, _text(args.seed))
    if not in_a_job():
        from lanterne.transport.job.launch import launch

        command = args.own_command()
        return launch(command, args.ranks, launcher="mpi" if args.transport == "mpi" else "direct")
    from lanterne.collectives.jobs import init

    with init(transport=args.transport, timeout_s=timeout_s) as comm:
        if comm.world_size != args.ranks:
            raise InputError(f"-n: got {args.ranks}, expected the {comm.world_size} ranks of this job")
        times_s, difference, scheduler = measure(comm, setup, args)
    if comm.rank:
        return 0
    return _report(args, setup, times_s, difference, scheduler)


def _text(seed: int) -> "Text":
    """As many random bytes as any text would do for."""
    import numpy as np

    from lanterne.pipeline.model.text import Text

    return Text(np.random.default_rng(seed).integers(0, 256, 1 << 20).astype(np.uint8), 256)


def measure(comm: "Communicator", setup: Setup, args: argparse.Namespace) -> tuple[dict[str, list[float]], float, str]:
    """({"one process", "pipeline": seconds of each iteration}, the largest relative difference of a loss, scheduler).

    Iterations of the two take turns, the first of each untimed. All ranks call it; the numbers are those of rank 0.
    """
    import numpy as np

    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.plan.problem import Problem
    from lanterne.pipeline.train.trainer import plans
    from lanterne.transport.local import LocalWorld

    planning, starts = planned(comm, setup, args)
    trainer = setup.trainer(comm, planning, layout=setup.layout, starts=starts, sharded=args.zero1)
    one = None
    if comm.rank == 0:
        alone = Communicator(LocalWorld(1).transport(0))
        one = setup.trainer(alone, plans(Problem(1, setup.settings.microbatches, 1, 1, 1), "1f1b"))
    times_s: dict[str, list[float]] = {"one process": [], "pipeline": []}
    difference = 0.0
    for number in range(args.iterations + 1):
        first = None
        if one is not None:
            report.progress(f"iteration {number} of {args.iterations}")
            first = one.iteration()
            check_finite(first)
            for peer in range(1, comm.world_size):
                comm.send(np.zeros(1), peer, tag=TURN)
        else:
            _sleep_until_told(comm)
        comm.barrier()
        second = trainer.iteration()
        check_finite(second, tells=comm.rank == 0)
        if first is not None:
            difference = max(difference, float(np.abs(second.losses / first.losses - 1).max()))
            if number:
                times_s["one process"].append(first.seconds)
                times_s["pipeline"].append(second.seconds)
    report.progress("")
    trainer.close()
    return times_s, difference, planning[0].plan.scheduler


def _sleep_until_told(comm: "Communicator") -> None:
    import numpy as np

    told = comm.start_recv(np.empty(1), 0, tag=TURN)
    while not told.test():
        time.sleep(LOOK_S)
    told.wait()


def _report(
    args: argparse.Namespace, setup: Setup, times_s: Mapping[str, list[float]], difference: float, scheduler: str
) -> int:
    copies, places, parts = setup.layout.shape
    total = setup.settings.microbatches
    ratios = [one / many for one, many in zip(*times_s.values(), strict=True)]
    speedup = statistics.median(ratios)
    most = places * copies * parts * max(setup.microbatches) / (max(setup.microbatches) + places - 1)
    tokens = total * args.rows * args.length
    results = [
        {"contender": name, "time_s": samples, "tokens_per_s": tokens / statistics.median(samples)}
        for name, samples in times_s.items()
    ]
    same = difference <= TOLERANCES[args.dtype]
    shape = {"stages": places, "data_parallel": copies, "tensor_parallel": parts, "microbatches": total}
    document = report.envelope(
        **shape,
        scheduler=scheduler,
        results=results,
        speedup=ratios,
        fair_speedup=most,
        over_fair=speedup / most,
        largest_difference=difference,
        same=same,
    )
    if args.json:
        report.write_json(args.json, document)
    file = sys.stderr if args.json == "-" else sys.stdout
    words = f"{places} stages x {copies} copies x {parts} parts, {total} microbatches, {scheduler}"
    columns = [("", ""), ("iteration", "median"), ("tokens/s", "")]
    rows = [
        (record["contender"], format_time(statistics.median(record["time_s"])), f"{record['tokens_per_s']:.0f}")
        for record in results
    ]
    report.print_table(columns, rows, notes=[words], file=file)
    verdict = "the same" if same else "NOT THE SAME"
    bar = f" (bar {BAR:g})" if args.check else ""
    print(
        f"# {speedup:.3f} times one process: {speedup / most:.2f} of p m / (m + p - 1) = {most:.3f}{bar}; "
        f"losses {verdict}, within {difference:.2g}",
        file=file,
    )
    return int(not same or (args.check and speedup / most < BAR))
