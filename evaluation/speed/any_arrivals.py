"""any_arrival on drawn arrivals: how far above what ports allow, and how long a round takes to make.

  ./run evaluate speed.any_arrivals --ranks 8 --vectors 1000 --seed 1
  ./run evaluate speed.any_arrivals --ranks 4 --file vectors.json        a JSON list of arrivals, in s/rate

Messages have no latency here, and all rounds are equally long. Every schedule is checked. The bound is the linear
program of docs/any-arrivals.md, solved for each vector; x = multiples of s/rate after the last arrival.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.collectives.algorithms.late.any_arrival import MAX_RANKS, any_arrival_all_reduce, arrival_rounds
from lanterne.collectives.algorithms.late.any_arrival_rounds import Planner
from lanterne.collectives.schedule.check_schedule import check
from lanterne.errors import InputError
from lanterne.transport.board.arrival_bound import after_merges

# Spans of arrivals that are spread evenly at random, and the mean of gaps that are exponential.
SPANS, MEAN_GAP = (0.5, 1.1, 2.2), 0.35


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    args = build_parser().parse_args(argv)
    try:
        found = measure(vectors_of(args))
    except InputError as error:
        print(f"any_arrivals: {error}", file=sys.stderr)
        return 2
    report.tell(args.json, report.envelope(**found), show)
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of main."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate speed.any_arrivals", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=whole(2), default=8, metavar="N", help=f"2 to {MAX_RANKS} (default 8)")
    parser.add_argument("--vectors", type=whole(1), default=1000, metavar="K", help="to draw (default 1000)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the draws (default 0)")
    parser.add_argument("--file", metavar="FILE", help="arrivals from a JSON list of lists, in place of draws")
    parser.add_argument("--json", metavar="FILE", help="write the figures of each vector ('-': standard output)")
    return parser


def vectors_of(args: argparse.Namespace) -> list[NDArray[np.float64]]:
    """Return the arrivals that are asked for, in s/rate.

    Raises:
        InputError: no such file, or no arrivals in it; too many ranks.
    """
    if args.file is None:
        if args.ranks > MAX_RANKS:
            raise InputError(f"--ranks: got {args.ranks}, expected 2 to {MAX_RANKS}")
        rng = np.random.default_rng(args.seed)
        return [draw(rng, args.ranks) for _ in range(args.vectors)]
    try:
        vectors = [np.array(vector, float) for vector in json.loads(Path(args.file).read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--file: got {args.file}, expected a JSON list of lists of numbers ({error})") from None
    for vector in vectors:
        if vector.ndim != 1 or not 2 <= len(vector) <= MAX_RANKS or not (vector >= 0).all():
            raise InputError(f"--file: got arrivals {vector}, expected 2 to {MAX_RANKS} numbers, none negative")
    return vectors


def draw(rng: np.random.Generator, ranks: int) -> NDArray[np.float64]:
    """Return arrivals in s/rate: spread evenly at random, by exponential gaps, or the last two late together."""
    span = rng.choice(SPANS)
    kind = rng.integers(3)
    if kind == 0:
        return np.asarray(rng.random(ranks) * span)
    if kind == 1:
        return np.asarray(rng.permutation(np.cumsum(rng.exponential(MEAN_GAP, ranks))))
    return np.r_[np.zeros(ranks - 2), span, span + 0.1]


def measure(vectors: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
    """Return, by vector, x, the bound and the x of a ring; and the time of a round of the most ranks, in s."""
    records = []
    for number, vector in enumerate(vectors):
        report.progress(f"vector {number + 1}/{len(vectors)}")
        bound = after_merges(len(vector), most_merges(vector))
        ring = 2 * (len(vector) - 1) / len(vector)
        records.append({"arrivals": vector.tolist(), "x": after_last(vector), "bound": bound, "ring": ring})
    report.progress("")
    return {"vectors": records, "round_s": round_s(max(map(len, vectors)))}


def after_last(arrivals: NDArray[np.float64]) -> float:
    """Return the x of the checked schedule, if each round takes as long as a chunk."""
    ranks = len(arrivals)
    chunks = any_arrival_all_reduce(ranks).num_chunks
    rounds = arrival_rounds(arrivals.tolist(), 1 / chunks)
    schedule = check(any_arrival_all_reduce(ranks, chunks, rounds)).schedule
    waits = sorted(arrivals)[1] + max(rounds.joins) / chunks - max(arrivals)
    return float(waits + (schedule.num_rounds - max(first for _, first in schedule.joins)) / chunks)


def most_merges(arrivals: NDArray[np.float64]) -> float:
    """Return the most merges of an element before the last arrival: transfers of each gap by the rank that came later.

    The linear program whose greedy form is transport/board/arrival_bound.py.
    """
    at = sorted(arrivals)
    solver = pywraplp.Solver.CreateSolver("GLOP")
    gaps = [(present, at[present] - at[present - 1]) for present in range(2, len(at))]
    merges = {(gap, late): solver.NumVar(0, solver.infinity(), "") for gap, _ in gaps for late in range(1, gap)}
    for present, length in gaps:
        for first in range(1, present + 1):
            if first >= 2:
                solver.Add(sum(merges[present, late] for late in range(1, first)) <= first * length)
            if first < present:
                outside = sum(merges[present, late] for late in range(first, present))
                solver.Add(outside <= 2 * (present - first) * length)
    for first in range(2, len(at)):
        solver.Add(sum(each for (_, late), each in merges.items() if late < first) <= first - 1)
    solver.Maximize(sum(merges.values()))
    assert solver.Solve() == pywraplp.Solver.OPTIMAL, "merging nothing is feasible, and merges are bounded"
    return float(solver.Objective().Value())


def round_s(ranks: int) -> float:
    """Return the time of the compiled automaton for one round, all ranks being there, in s."""
    chunks, times_s = any_arrival_all_reduce(ranks).num_chunks, []
    for _ in range(5):
        planner = Planner(ranks, chunks)
        for _ in range(ranks):
            planner.arrive()
        began_s = time.perf_counter()
        while not planner.is_done:
            planner.round()
        times_s.append((time.perf_counter() - began_s) / planner.number)
    return min(times_s)


def show(document: dict[str, Any], stream: Any) -> None:
    """Print the table of `measure`."""
    records = document["vectors"]
    over = [record["x"] / record["bound"] for record in records]
    over_ring = [record["x"] / record["ring"] for record in records]
    row = [len(records), *(f"{value:.3f}" for value in (statistics.median(over), max(over)))]
    row += [f"{statistics.median(over_ring):.3f}", f"{1e3 * document['round_s']:.3f}"]
    columns = [("vectors", ""), ("over the bound", "median"), ("", "worst"), ("over a ring", "median"), ("round", "ms")]
    report.print_table(columns, [row], left=(), file=stream)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
