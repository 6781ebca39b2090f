"""Judge `auto` on random clusters: how much longer its choice takes than the best algorithm by name, by flows.

  ./run evaluate random-clusters --clusters 200 --seed 1

Nobody is late, and one rank is late. Nothing is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lanterne.bench.output.options import add_json, add_seed
from lanterne.bench.output.report import envelope, print_table, progress, write_json
from lanterne.bench.output.units import format_nbytes, format_time, parse_nbytes, whole
from lanterne.bench.topology.outcomes import StudyOutcome, auto_names, lines_on, study_one

if TYPE_CHECKING:
    from lanterne.collectives.topology.topology import Topology

# A schedule is not simulated where the model prices it this much above the best by flows: flows took at least 0.80 of
# the model's time (51 clusters of seed 2).
HOPELESS = 1.25
AUTO_BAR = 1.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clusters", type=whole(1), default=200, metavar="N", help="how many (default 200)")
    parser.add_argument("--nbytes", default="16MiB", metavar="SIZE", help="buffer size (default: 16MiB)")
    add_seed(parser, "the clusters")
    parser.add_argument("--check", action="store_true", help=f"exit 1 if auto is above {AUTO_BAR} anywhere")
    add_json(parser, "all numbers")


def run(args: argparse.Namespace) -> int:
    nbytes, results = parse_nbytes(args.nbytes, "--nbytes"), []
    for number, (topology, late) in enumerate(random_topologies(args.clusters, args.seed)):
        progress(f"{number + 1}/{args.clusters} {topology.name}, {topology.world_size} ranks")
        results.append(judge_auto(topology, nbytes, late))
    progress("")
    if args.json:
        write_json(args.json, envelope(seed=args.seed, nbytes=nbytes, results=results))
    if args.json != "-":
        print_random(args.seed, nbytes, results)
    worst = max(max(row["together_ratio"], row["late_ratio"]) for row in results)
    return int(args.check and worst > AUTO_BAR)


def random_topologies(count: int, seed: int) -> Iterator[tuple[Topology, int]]:
    """Yield `count` clusters of 3 to 16 ranks, drawn from `seed`, each with a late rank."""
    import numpy as np

    from lanterne.collectives.schedule.cost import CostModel
    from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology

    for number in range(count):
        rng = np.random.default_rng([seed, number])
        sizes = [int(rng.integers(1, 5))] * int(rng.integers(2, 9))
        if rng.random() < 0.4:
            sizes = [int(rng.integers(1, 5)) for _ in sizes]
        while sum(sizes) > 16:
            sizes.pop()
        while sum(sizes) < 3 or len(sizes) < 2:
            sizes.append(1)
        ranks = np.arange(sum(sizes)) if rng.random() < 0.5 else rng.permutation(sum(sizes))
        ends = np.cumsum(sizes)
        nodes = tuple(tuple(sorted(part.tolist())) for part in np.split(ranks, ends[:-1]))
        nic_bytes_per_s = 10 ** rng.uniform(8.5, 10.7)
        inside_bytes_per_s = nic_bytes_per_s * 10 ** rng.uniform(0, 1.5)
        alone = tuple((rank,) for rank in range(sum(sizes)))
        shared = nodes if rng.random() < 0.6 else alone
        slowdown = tuple(1.0 if rng.random() < 0.7 else float(rng.choice([1.5, 2, 4])) for _ in shared)
        slowdown = tuple(factor / min(slowdown) for factor in slowdown) if len(set(slowdown)) > 1 else ()
        nic = CostModel(10 ** rng.uniform(-5.5, -4), 1 / nic_bytes_per_s)
        inside = CostModel(10 ** rng.uniform(-6, -5), 1 / inside_bytes_per_s)
        name = f"random {seed}/{number}: {'+'.join(map(str, sizes))}"
        yield (
            Topology(nodes, (LinkClass(INSIDE, inside, alone), LinkClass(NIC, nic, shared, slowdown)), name=name),
            int(rng.integers(sum(sizes))),
        )


def judge_auto(topology: Topology, nbytes: int, late: int) -> dict[str, Any]:
    """Return how much longer the choice of `auto` takes than the best by name, without a late rank and with `late`."""
    lines = (line for line in lines_on(topology) if not line.refuses(topology.world_size) and not line.slow)
    names = [line.name for line in lines]
    priced = [each for name in names if (each := study_one(topology, nbytes, late, name, flows=False)) is not None]
    ordinary, joining = auto_names(topology, nbytes, late)
    row: dict[str, Any] = {"topology": topology.name, "ranks": topology.world_size, "late_rank": late}
    kinds: tuple[tuple[str, str, Callable[[StudyOutcome], float], Callable[[StudyOutcome], float]], ...] = (
        ("together", ordinary, lambda each: each.together_s, lambda each: each.judged_together_s),
        ("late", joining or ordinary, lambda each: each.late_s, lambda each: each.judged_late_s),
    )
    simulated: dict[str, StudyOutcome] = {}
    for kind, name, modelled, judged in kinds:
        for each in sorted(priced, key=lambda each: (each.algorithm != name, modelled(each))):
            least_s = min(map(judged, simulated.values()), default=float("inf"))
            is_hopeful = each.algorithm == name or modelled(each) <= HOPELESS * least_s
            if each.algorithm not in simulated and is_hopeful:
                found = study_one(topology, nbytes, late, each.algorithm)
                assert found is not None, "it was made before"
                simulated[each.algorithm] = found
        best = min(simulated.values(), key=judged)
        row |= {
            f"{kind}_auto": name,
            f"{kind}_auto_s": judged(simulated[name]),
            f"{kind}_best": best.algorithm,
            f"{kind}_best_s": judged(best),
            f"{kind}_ratio": judged(simulated[name]) / judged(best),
        }
    return row


def print_random(seed: int, nbytes: int, results: Sequence[dict[str, Any]]) -> None:
    """Print the 20 worst clusters."""
    columns = [("cluster", ""), ("ranks", ""), ("auto", "together"), ("best", "together"), ("ratio", ""),
               ("auto", "late"), ("best", "late"), ("ratio", "")]  # fmt: skip
    order = sorted(results, key=lambda row: -max(row["together_ratio"], row["late_ratio"]))
    rows = [
        [
            row["topology"],
            row["ranks"],
            *(cell for kind in ("together", "late") for cell in _cells(row, kind)),
        ]
        for row in order[:20]
    ]
    notes = [f"{len(results)} random clusters of seed {seed}, {format_nbytes(nbytes)}, by flows; the 20 worst"]
    for kind in ("together", "late"):
        ratios = sorted(row[f"{kind}_ratio"] for row in results)
        above = sum(ratio > AUTO_BAR for ratio in ratios)
        notes.append(
            f"{kind}: auto over the best by name {ratios[len(ratios) // 2]:.3f} in the middle, {ratios[-1]:.3f} at "
            f"most, above {AUTO_BAR} in {above} of {len(ratios)}"
        )
    print_table(columns, rows, notes=notes)


def _cells(row: dict[str, Any], kind: str) -> tuple[str, str, str]:
    auto, best = (f"{row[f'{kind}_{who}']} {format_time(row[f'{kind}_{who}_s'])}" for who in ("auto", "best"))
    return auto, best, f"{row[f'{kind}_ratio']:.3f}"
