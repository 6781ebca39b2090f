"""Every position of the late rank on a topology: what the model chooses, beside the best chunk count near it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lanterne.bench.output.report import print_table, progress
from lanterne.bench.output.units import format_nbytes, format_time
from lanterne.bench.topology.outcomes import StudyOutcome, over, study_one
from lanterne.errors import InputError

if TYPE_CHECKING:
    from lanterne.collectives.topology.topology import Topology

# Chunk counts beside the chosen one, as its multiples, that are tried for the optimum.
COUNTS = (0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0)


def study_positions(topology: Topology, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A record for each size and kind of position."""
    from lanterne.collectives.late.options import late_names
    from lanterne.collectives.topology.port_bounds import bound_s

    names = late_names(topology)
    results = []
    for nbytes in sizes:
        for ranks in positions(topology):
            progress(f"{format_nbytes(nbytes)}, rank {ranks[0]} late")
            tried = [
                each for name in names if (each := study_one(topology, nbytes, ranks[0], name, flows=False)) is not None
            ]
            if not tried:
                raise InputError(f"study: got {topology.world_size} ranks, whose schedules are too large to make")
            chosen = min(tried, key=lambda each: each.late_s)
            near = (optimum(topology, nbytes, ranks[0], each) for each in tried)
            best = min(near, key=lambda each: each.late_s)
            results.append(
                {
                    "nbytes": nbytes,
                    "late_ranks": list(ranks),
                    "bound_s": bound_s(topology, nbytes, late=True),
                    "chosen": chosen._asdict(),
                    "optimum": best._asdict(),
                    "over_optimum": chosen.late_s / best.late_s,
                }
            )
    return results


def print_positions(topology: Topology, results: Sequence[dict[str, Any]]) -> None:
    """Print them for people."""
    columns = [("size", ""), ("late", ""), ("algorithm", ""), ("chunks", ""), ("late", "model"), ("optimum", "model"),
               ("chunks", "optimum"), ("over optimum", ""), ("over bound", "")]  # fmt: skip
    rows = [
        [
            format_nbytes(row["nbytes"]),
            _in_short(row["late_ranks"]),
            row["chosen"]["algorithm"],
            row["chosen"]["num_chunks"],
            format_time(row["chosen"]["late_s"]),
            format_time(row["optimum"]["late_s"]),
            row["optimum"]["num_chunks"],
            f"{row['over_optimum']:.3f}",
            over(row["chosen"]["late_s"], row["bound_s"]),
        ]
        for row in results
    ]
    notes = [
        f"{topology.name}: {len(topology.nodes)} nodes, {topology.world_size} ranks, each late in turn",
        "by the model; ranks whose places are alike are in one row",
    ]
    print_table(columns, rows, notes=notes, left=(0, 1, 2))


def positions(topology: Topology) -> list[tuple[int, ...]]:
    """The ranks in groups of those that it makes no difference among to be late."""
    from lanterne.collectives.algorithms.hierarchical.compose import roles_with

    groups: dict[Topology, list[int]] = {}
    for rank in range(topology.world_size):
        groups.setdefault(_normal(topology.of_ranks(roles_with(topology.nodes, rank).rank_of)), []).append(rank)
    return [tuple(ranks) for ranks in groups.values()]


def _normal(topology: Topology) -> Topology:
    """`topology` with its links in the order of their ranks."""
    links = []
    for each in topology.links:
        order = sorted(range(len(each.shared_by)), key=each.shared_by.__getitem__)
        slowdown = tuple(each.slowdown[number] for number in order) if each.slowdown else ()
        links.append(replace(each, shared_by=tuple(each.shared_by[number] for number in order), slowdown=slowdown))
    return replace(topology, nodes=tuple(sorted(topology.nodes)), links=tuple(links))


def optimum(topology: Topology, nbytes: int, late: int, chosen: StudyOutcome) -> StudyOutcome:
    """The best StudyOutcome of the algorithm of `chosen` over chunk counts near its own, by the model."""
    from lanterne.collectives.algorithms.hierarchical.compose import num_rails

    assert chosen.num_chunks is not None, "it has some"
    grain = 1 if topology.is_flat else num_rails(topology.nodes)
    counts = {max(grain, round(chosen.num_chunks * factor / grain) * grain) for factor in COUNTS}
    tried = (study_one(topology, nbytes, late, chosen.algorithm, count, flows=False) for count in sorted(counts))
    return min((each for each in tried if each is not None), key=lambda each: each.late_s)


def _in_short(ranks: Sequence[int]) -> str:
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks[:4])) + (f" ... ({len(ranks)})" if len(ranks) > 4 else "")
