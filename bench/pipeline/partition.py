"""Divide a model's layers over pipeline stages on unequal devices, so that the slowest stage is as fast as it can be.

  lanterne pipeline partition --layers 126 --stages 16 --embedding 0.2 --output 1.5
  lanterne pipeline partition --layers 80 --speeds 1,1,2,2 --layer-memory 2GiB --stage-memory 40GiB,40GiB,80GiB,80GiB
  lanterne pipeline partition --times 3ms,2ms,2ms,2ms,2ms,5ms --stages 3

Every stage gets one or more consecutive layers. With --layers, embedding and output stay with the first and the last
layer. The slowest stage is as fast as it can be, and of such partitions this is the most even.
"""

import argparse
import time
from collections.abc import Callable

from lanterne.bench.output import report, units
from lanterne.bench.output.options import add_json
from lanterne.errors import InputError
from lanterne.pipeline.planners.partition import partition_layers

# Beyond these the tables of the search fill the memory.
MOST_LAYERS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    layers = parser.add_mutually_exclusive_group(required=True)
    layers.add_argument("--layers", type=int, metavar="N", help="transformer layers, all alike, each taking 1")
    layers.add_argument(
        "--times", metavar="T1,T2,...", help="or the time of every layer, embedding and output included"
    )
    parser.add_argument("--embedding", type=float, metavar="X", help="time of the embedding, in layers (default 0)")
    parser.add_argument("--output", type=float, metavar="X", help="time of the output layer, in layers (default 0)")
    stages = parser.add_mutually_exclusive_group(required=True)
    stages.add_argument("--stages", type=int, metavar="S", help="stages on equal devices")
    stages.add_argument("--speeds", metavar="V1,V2,...", help="or the speed of each stage's device")
    parser.add_argument("--layer-memory", metavar="SIZE[,...]", help="memory of every layer, one size or one for each")
    parser.add_argument("--stage-memory", metavar="SIZE[,...]", help="memory of every stage's device, likewise")
    add_json(parser, "the answer")


def run(args: argparse.Namespace) -> int:
    """Solve and print; exit code 0."""
    (times, shown), speeds = _layer_times(args), _speeds(args)
    memory = _sizes("--layer-memory", args.layer_memory, len(times))
    limits = _sizes("--stage-memory", args.stage_memory, len(speeds))
    start = time.perf_counter()
    found = partition_layers(times, speeds, memory, limits)
    solve_s = time.perf_counter() - start
    ideal = sum(times) / sum(speeds)
    if args.json:
        content = {
            "starts": list(found.starts),
            "num_layers": list(found.num_layers),
            "stage_times": list(found.stage_times),
        }
        extra = {"bottleneck": found.bottleneck, "ideal": ideal, "solve_s": solve_s}
        report.write_json(args.json, report.envelope(**content, **extra))
    if args.json != "-":
        rows = [
            [
                stage,
                f"{first}-{first + count - 1}",
                count,
                f"{speed:g}",
                shown(taken),
                f"{1 - taken / found.bottleneck:.1%}",
            ]
            for stage, (first, count, speed, taken) in enumerate(
                zip(found.starts[:-1], found.num_layers, speeds, found.stage_times, strict=True)
            )
        ]
        columns = [(name, "") for name in ("stage", "layers", "count", "speed", "time", "idle")]
        report.print_table(columns, rows)
        print(
            f"slowest stage {shown(found.bottleneck)}, {found.bottleneck / ideal - 1:.1%} over perfectly divisible "
            f"layers ({shown(ideal)}); solved in {units.format_time(solve_s)}"
        )
    return 0


def _layer_times(args: argparse.Namespace) -> tuple[list[float], Callable[[float], str]]:
    if args.times is not None:
        if args.embedding is not None or args.output is not None:
            raise InputError("--times: got --embedding or --output too, expected them among the times")
        return units.parse_times(args.times, "--times")
    if not 1 <= args.layers <= MOST_LAYERS:
        raise InputError(f"--layers: got {args.layers}, expected 1 to {MOST_LAYERS}")
    # Embedding and output belong to the first and last transformer layer's stage, not to one of their own.
    times = [1.0] * args.layers
    times[0] += args.embedding or 0.0
    times[-1] += args.output or 0.0
    return times, "{:.4g}".format


def _speeds(args: argparse.Namespace) -> list[float]:
    if args.speeds is None:
        if args.stages < 1:
            raise InputError(f"--stages: got {args.stages}, expected at least 1")
        return [1.0] * args.stages
    try:
        return [float(text) for text in args.speeds.split(",")]
    except ValueError:
        raise InputError(f"--speeds: got {args.speeds!r}, expected numbers such as 1,1,2.5") from None


def _sizes(option: str, given: str | None, count: int) -> list[int] | None:
    if given is None:
        return None
    sizes = [units.parse_nbytes(text, option) for text in given.split(",")]
    if len(sizes) not in (1, count):
        raise InputError(f"{option}: got {len(sizes)} sizes, expected 1 or {count}")
    return sizes * count if len(sizes) == 1 else sizes
