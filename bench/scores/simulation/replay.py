"""Replay a simulated job step by step, from its seed or a seed file, and shrink it to fewer events that fail alike.

  lanterne replay 4711
  lanterne replay 4711 --shrink --out small.json
  lanterne replay small.json --last 200

Each line is a step: when, on the clock of the simulated world, which process, and what. It is the same each time. A
seed of another version of the simulation stands for something else, and is refused.
"""

import argparse

from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.bench.scores.simulation.scenario import VERSION, read
from lanterne.bench.scores.simulation.simulate import quiet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("seed", metavar="SEED", help="a number, or a file that `lanterne simulate --out` wrote")
    parser.add_argument("--last", type=whole(0), metavar="N", help="print the last N steps only (default: all)")
    parser.add_argument("--shrink", action="store_true", help="first find fewer events and calls that fail alike")
    parser.add_argument("--out", metavar="FILE", help="write the seed file of what was replayed")
    parser.add_argument("--json", metavar="FILE", help="write the steps as JSON ('-': standard output)")


def run(args: argparse.Namespace) -> int:
    """Replay and print; the exit code."""
    # They load much.
    from lanterne.bench.scores.simulation.shrink import fails_alike, kind_of, shrink
    from lanterne.bench.scores.simulation.world import run as run_world

    scenario = read(args.seed)
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
        steps_shown = outcome.trace if args.last is None else outcome.trace[len(outcome.trace) - args.last :]
        for at_s, who, what in steps_shown:
            print(f"{at_s:12.6f} {who:<8} {what}")
        print(f"\nseed {scenario.seed}: {scenario.ranks} ranks over {scenario.transport}")
        print("calls:  " + ", ".join(f"{kind} of {count}" for kind, count in scenario.calls))
        print("events: " + ("; ".join(map(str, scenario.events)) or "none"))
        print("\n".join(outcome.problems) or f"all is well after {outcome.seconds:.3f} s and {outcome.steps} steps")
    return int(bool(outcome.problems))
