"""Simulate jobs from seeds: ranks, store and network under one clock, with deaths and cuts; see what breaks.

  ./run evaluate simulate --seeds 20
  ./run evaluate simulate --seeds 10000 --jobs 2 --json runs.json
  ./run evaluate simulate --first 4711 --seeds 1 --transport tcp --out .
  ./run evaluate simulate --grow --seeds 50
  ./run evaluate simulate --part --seeds 50
  ./run evaluate simulate --part --one-way --seeds 50

A seed decides all: how many ranks (4 to 8), over local or tcp, their calls, what befalls whom and when, and the order
of everything. Ranks are the ordinary code, one thread each, of which one runs at a time. It must hold of each seed:
nobody waits for ever, no element is wrong, whoever fell first is named by all that can know it, nothing is sent twice,
nothing is written after its call has returned, and nothing stays open. `evaluate replay SEED` shows one step by step.
With --grow the seeds are others: ranks that were killed come back, spares and new ones come, stores die, paths and
hosts are cut off, in both directions or one; and all that live must agree who they are, in which order, and on what
they have computed. With --part they are of jobs on three or more hosts, of which a minority falls or is cut off, the
store's host too: all others go on, name one that fell, and nobody else goes on. With --one-way beside it what is cut
is one direction of paths: nothing comes from hosts, or to them, or from one host to one other.
"""

import argparse
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from evaluation.simulation.scenario import TRANSPORTS, VERSION, draw
from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.errors import InputError
from lanterne.transport.job.guard import set_parent_death_signal

if TYPE_CHECKING:
    from evaluation.simulation.growing import GrowthOutcome

# Seeds that a process takes at a time.
PORTION = 20
# What came of some seeds: one document for each.
Portion: TypeAlias = Callable[[range, str | None], list[dict[str, Any]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--seeds", type=whole(1), default=300, metavar="N", help="how many (default 300)")
    parser.add_argument("--first", type=whole(0), default=0, metavar="SEED", help="the first of them (default 0)")
    parser.add_argument("--transport", choices=TRANSPORTS, help="only this one (default: as the seed says)")
    parser.add_argument("--grow", action="store_true", help="jobs that take ranks in, over tcp")
    parser.add_argument("--part", action="store_true", help="jobs on three or more hosts, of which a minority is lost")
    parser.add_argument("--errands", action="store_true", help="short ones: what stores, boards and groups answer")
    parser.add_argument("--one-way", action="store_true", help="with --part: paths are cut in one direction only")
    parser.add_argument("--jobs", type=whole(1), metavar="J", help="processes (default: one for each core)")
    parser.add_argument("--stop", action="store_true", help="at the first portion with a seed that fails")
    parser.add_argument("--out", metavar="FOLDER", help="write a file of each seed that fails, for `evaluate replay`")
    parser.add_argument("--json", metavar="FILE", help="write what came of each seed as JSON ('-': standard output)")


def run(args: argparse.Namespace) -> int:
    """Run the seeds, and print those that fail; the exit code."""
    if args.out and not Path(args.out).is_dir():
        raise InputError(f"--out: got {args.out!r}, expected a folder that exists")
    kinds = args.grow + args.part + args.errands
    if kinds and (args.out or args.transport or kinds > 1):
        raise InputError("--grow, --part, --errands: got --out, --transport or several, expected one without those")
    if args.one_way and not args.part:
        raise InputError("--one-way: got it without --part, expected both")
    started_s, results = time.perf_counter(), []
    part = one_way_portion if args.one_way else part_portion
    other = errand_portion if args.errands else simulate_portion
    what = grow_portion if args.grow else part if args.part else other
    for portion in simulate(args.first, args.seeds, args.transport, args.jobs or os.cpu_count() or 1, what):
        results += portion
        report.progress(f"{len(results)} of {args.seeds} seeds, {sum(bool(each['problems']) for each in results)} fail")
        if args.stop and any(each["problems"] for each in portion):
            break
    report.progress("")
    failing = [each for each in results if each["problems"]]
    for each in failing if args.out else ():
        Path(args.out, f"seed-{each['seed']}.json").write_text(json.dumps(each["scenario"], indent=1) + "\n")
    took_s = time.perf_counter() - started_s
    if args.json:
        document = report.envelope(simulation_version=VERSION, took_s=took_s, results=results)
        report.write_json(args.json, document)
    if args.json != "-":
        columns = [("seed", ""), ("transport", ""), ("ranks", ""), ("simulated", "s"), ("steps", ""), ("problem", "")]
        rows = [
            (
                str(each["seed"]),
                each["scenario"]["transport"],
                str(each["scenario"]["ranks"]),
                f"{each['simulated_s']:.2f}",
                str(each["steps"]),
                each["problems"][0],
            )
            for each in failing
        ]
        if rows:
            report.print_table(columns, rows, left=(1, 5))
        rate = len(results) / took_s
        print(f"{len(results)} seeds, {len(failing)} fail; {took_s:.1f} s, {rate:.1f} seeds a second")
        if args.grow:
            taken_in = sum(each["taken_in"] for each in results)
            print(f"{taken_in} ranks were taken in, in {sum(each['epochs'] for each in results)} epochs")
        elif failing and not args.part:
            more = " --errands" if args.errands else ""
            print(f"`./run evaluate replay {failing[0]['seed']}{more}` shows the first step by step")
    return int(bool(failing))


def simulate(first: int, seeds: int, transport: str | None, jobs: int, what: Portion) -> Iterator[list[dict[str, Any]]]:
    """What came of the seeds from `first` on, a portion at a time, in order; `what` simulates one."""
    portions = [range(at, min(at + PORTION, first + seeds)) for at in range(first, first + seeds, PORTION)]
    if jobs == 1 or len(portions) == 1:
        yield from (what(portion, transport) for portion in portions)
        return
    tie = (signal.SIGKILL, os.getpid())
    with ProcessPoolExecutor(jobs, get_context("spawn"), set_parent_death_signal, tie) as pool:
        try:
            yield from pool.map(what, portions, [transport] * len(portions))
        finally:
            pool.shutdown(cancel_futures=True)


def simulate_portion(portion: range, transport: str | None) -> list[dict[str, Any]]:
    """What came of each seed of `portion`."""
    from evaluation.simulation.world import run as run_world  # It loads much.

    found = []
    with quiet():
        for seed in portion:
            outcome = run_world(draw(seed, transport))
            found.append(
                {
                    "seed": seed,
                    "problems": list(outcome.problems),
                    "digest": outcome.digest,
                    "simulated_s": outcome.seconds,
                    "steps": outcome.steps,
                    "scenario": outcome.scenario.to_json(),
                }
            )
    return found


def grow_portion(portion: range, transport: str | None) -> list[dict[str, Any]]:
    """As `simulate_portion`, of jobs that grow."""
    from evaluation.simulation.growing import run as run_growing

    return _outcomes(portion, run_growing)


def part_portion(portion: range, transport: str | None) -> list[dict[str, Any]]:
    """As `simulate_portion`, of jobs of which a minority is lost."""
    from evaluation.simulation.parting import run as run_parting

    return _outcomes(portion, run_parting)


def one_way_portion(portion: range, transport: str | None) -> list[dict[str, Any]]:
    """As `part_portion`, of jobs of which paths are cut in one direction."""
    from evaluation.simulation.parting import run as run_parting

    return _outcomes(portion, partial(run_parting, one_way=True))


def errand_portion(portion: range, transport: str | None) -> list[dict[str, Any]]:
    """As `simulate_portion`, of errands, whose name is told in place of a transport's."""
    from evaluation.simulation.errands.stories import run as run_story

    found = []
    with quiet():
        for seed in portion:
            outcome = run_story(seed)
            known = {"problems": list(outcome.problems), "simulated_s": outcome.seconds}
            about = {"scenario": {"transport": outcome.name, "ranks": outcome.clients}}
            found.append({name: getattr(outcome, name) for name in ("seed", "digest", "steps")} | known | about)
    return found


def _outcomes(portion: range, run_seed: "Callable[[int], GrowthOutcome]") -> list[dict[str, Any]]:
    found = []
    with quiet():
        for seed in portion:
            outcome = run_seed(seed)
            known = {"problems": list(outcome.problems), "simulated_s": outcome.seconds}
            about = {"scenario": {"transport": "tcp", "ranks": outcome.ranks}}
            names = ("seed", "digest", "steps", "taken_in", "epochs")
            found.append({name: getattr(outcome, name) for name in names} | known | about)
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """While it lasts nothing is logged: what simulated ranks log is in their errors."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
