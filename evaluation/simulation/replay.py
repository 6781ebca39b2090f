"""Replay a simulated job step by step, from its seed or a seed file, and shrink it to fewer events that fail alike.

  ./run evaluate replay 4711
  ./run evaluate replay 4711 --shrink --out small.json
  ./run evaluate replay small.json --last 200
  ./run evaluate replay 4711 --grow --shrink --last 40
  ./run evaluate replay 4711 --errands --last 40

Each line is a step: when, on the clock of the simulated world, which process, and what. It is the same each time. A
seed of another version of the simulation stands for something else, and is refused.
"""

import argparse
from collections.abc import Sequence

from evaluation.simulation.scenario import VERSION, read
from evaluation.simulation.simulate import quiet
from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("seed", metavar="SEED", help="a number, or a file that `./run evaluate simulate --out` wrote")
    parser.add_argument("--last", type=whole(0), metavar="N", help="print the last N steps only (default: all)")
    parser.add_argument("--shrink", action="store_true", help="first find fewer events and calls that fail alike")
    parser.add_argument("--grow", action="store_true", help="a seed of `./run evaluate simulate --grow`")
    parser.add_argument("--errands", action="store_true", help="a seed of `./run evaluate simulate --errands`")
    parser.add_argument("--out", metavar="FILE", help="write the seed file of what was replayed")
    parser.add_argument("--json", metavar="FILE", help="write the steps as JSON ('-': standard output)")


def run(args: argparse.Namespace) -> int:
    """Replay and print; the exit code."""
    if args.grow or args.errands:
        is_number = args.seed.isascii() and args.seed.isdigit()
        if not is_number or args.out or (args.errands and (args.grow or args.shrink)):
            got = f"{args.seed!r}{' and --out' * bool(args.out)}"
            raise InputError(f"--grow, --errands: got {got}, expected a number, without --out")
        return replay_growing(args) if args.grow else replay_errand(args)
    # They load much.
    from evaluation.simulation.shrink import fails_alike, kind_of, shrink
    from evaluation.simulation.world import run as run_world

    scenario, last = read(args.seed), args.last
    with quiet():
        outcome = run_world(scenario, traced=True)
        if args.shrink and outcome.problems:
            scenario = shrink(scenario, fails_alike(frozenset(map(kind_of, outcome.problems))))
            outcome = run_world(scenario, traced=True)
    if args.out:
        report.write_json(args.out, scenario.to_json())
    if args.json:
        steps = [{"at_s": at_s, "process": who, "what": what} for at_s, who, what in outcome.trace]
        document = report.envelope(simulation_version=VERSION, scenario=scenario.to_json())
        report.write_json(args.json, document | {"problems": list(outcome.problems), "steps": steps})
    if args.json != "-":
        print_steps(outcome.trace, last)
        print(f"seed {scenario.seed}: {scenario.ranks} ranks over {scenario.transport}")
        print("calls:  " + ", ".join(f"{kind} of {count}" for kind, count in scenario.calls))
        print("events: " + ("; ".join(map(str, scenario.events)) or "none"))
        print("\n".join(outcome.problems) or f"all is well after {outcome.seconds:.3f} s and {outcome.steps} steps")
    return int(bool(outcome.problems))


def replay_growing(args: argparse.Namespace) -> int:
    """Replay and print a job that grows; the exit code."""
    from evaluation.simulation.growing import run as run_growing
    from evaluation.simulation.shrink import kind_of, shrink_growing

    seed = int(args.seed)
    with quiet():
        outcome = run_growing(seed, traced=True)
        if args.shrink and outcome.problems:
            without = shrink_growing(seed, frozenset(map(kind_of, outcome.problems)))
            outcome = run_growing(seed, without=without, traced=True)
    if args.json:
        steps = [{"at_s": at_s, "process": who, "what": what} for at_s, who, what in outcome.trace]
        about = {"seed": seed, "events": list(outcome.events), "problems": list(outcome.problems)}
        report.write_json(args.json, report.envelope(simulation_version=VERSION) | about | {"steps": steps})
    if args.json != "-":
        print_steps(outcome.trace, args.last)
        print(f"seed {seed}: {outcome.ranks} ranks, {outcome.taken_in} taken in, {outcome.epochs} epochs")
        print("events: " + ("; ".join(outcome.events) or "none"))
        print("\n".join(outcome.problems) or f"all is well after {outcome.seconds:.3f} s and {outcome.steps} steps")
    return int(bool(outcome.problems))


def replay_errand(args: argparse.Namespace) -> int:
    """Replay and print an errand; the exit code."""
    from evaluation.simulation.errands.stories import run as run_story

    with quiet():
        outcome = run_story(int(args.seed), traced=True)
    if args.json:
        steps = [{"at_s": at_s, "process": who, "what": what} for at_s, who, what in outcome.trace]
        about = {"seed": outcome.seed, "errand": outcome.name, "problems": list(outcome.problems)}
        report.write_json(args.json, report.envelope(simulation_version=VERSION) | about | {"steps": steps})
    if args.json != "-":
        print_steps(outcome.trace, args.last)
        print(f"seed {outcome.seed}: the errand {outcome.name}, of {outcome.clients} clients")
        print("\n".join(outcome.problems) or f"all is well after {outcome.seconds:.3f} s and {outcome.steps} steps")
    return int(bool(outcome.problems))


def print_steps(trace: Sequence[tuple[float, str, str]], last: int | None) -> None:
    """Print the steps of a run, the `last` of them only, and an empty line."""
    for at_s, who, what in trace if last is None else trace[len(trace) - last :]:
        print(f"{at_s:12.6f} {who:<8} {what}")
    print()
