"""Study what a late rank costs on a cluster, with every algorithm: by the model and by flows that share its links.

  lanterne study topology dgx-8x8 --late 3 --plot late.png
  lanterne study topology cluster.json --late 3,7 --nbytes 64MiB,1GiB --json study.json
  lanterne study topology dgx-1x8 --late 3 --nbytes 4KiB,16KiB,64KiB,256KiB,1MiB      where does an early start pay?
  lanterne study topology dgx-one-nic-8x8 --late all           every position of the late rank, beside the optimum

Nothing is measured. A cluster is a file or a preset with its size (docs/topology.md), of up to 4,096 ranks. Columns:

  together      all ranks start at once: time until the last has finished
  late          from the late rank's arrival to the end, when it comes so late that all work without it is done
  ... flows     the same by the simulator of flows, which shares every link max-min fairly; up to 1,024 ranks. Both have
                whole rounds, and where those of a ring overlap, the part of their starts that is not beside bytes
  over bound    late by flows (or the model), over what bytes alone take at the narrowest place
  pays from     from this delay on it is better than the best algorithm that waits for all

`auto` is what a communicator would choose on such links; it waits for all where that is predicted to take less. With
--late all, for each kind of position: the better late-rank algorithm with the chunk count that the model chooses, and
the best of all chunk counts near it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lanterne.bench.output.options import add_json, add_plot
from lanterne.bench.output.report import envelope, print_table, progress, write_json
from lanterne.bench.output.units import format_count, format_nbytes, format_time, parse_nbytes
from lanterne.bench.topology.outcomes import auto_of, judged_s, outcomes, over
from lanterne.errors import InputError

if TYPE_CHECKING:
    from lanterne.collectives.schedule.ir import LateRank
    from lanterne.collectives.topology.topology import Topology

MAX_RANKS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=["topology"], help="with a FILE or PRESET behind it")
    parser.add_argument("cluster", nargs="?", metavar="FILE|PRESET", help="ranks and links, such as dgx-8x8")
    parser.add_argument(
        "--late", default="", metavar="R,...", help="who comes late; `all`: every rank in turn (default: the last)"
    )
    parser.add_argument("--nbytes", default="", metavar="SIZE,...", help="buffer sizes (default: 1GiB)")
    parser.add_argument("--algorithm", default="all", metavar="A,A,...", help="default: all that can be used")
    add_json(parser, "all numbers")
    add_plot(parser, "what is exposed over the delay")


def run(args: argparse.Namespace) -> int:
    if args.cluster is None:
        raise InputError("study: got no cluster, expected `topology` and a file or a preset such as dgx-8x8")
    from lanterne.collectives.topology.presets import find_topology

    topology = find_topology(args.cluster)
    if topology.world_size > MAX_RANKS:
        raise InputError(f"study: got {topology.world_size} ranks, expected at most {MAX_RANKS}")
    sizes = [parse_nbytes(text, "--nbytes") for text in (args.nbytes or "1GiB").split(",")]
    if args.late == "all":
        if args.plot:
            raise InputError("--plot: got it with --late all, expected one late rank to draw")
        return _run_positions(args, topology, sizes)
    return _run_late(args, topology, sizes, _late_of(args.late, topology))


def _late_of(text: str, topology: Topology) -> LateRank:
    ranks = text.split(",") if text else [str(topology.world_size - 1)]
    found = []
    for each in ranks:
        if not each.strip().isdigit() or int(each) >= topology.world_size:
            raise InputError(f"--late: got {each!r}, expected ranks from 0 to {topology.world_size - 1}, or all")
        found.append(int(each))
    if len(set(found)) != len(found) or len(found) >= topology.world_size:
        raise InputError(f"--late: got {text}, expected different ranks, not all of them")
    return found[0] if len(found) == 1 else tuple(sorted(found))


# -- one cluster, one late rank


def _run_late(args: argparse.Namespace, topology: Topology, sizes: Sequence[int], late: LateRank) -> int:
    from lanterne.collectives.topology.port_bounds import bound_s
    from lanterne.collectives.topology.topology_json import to_document

    results = []
    for nbytes in sizes:
        found = outcomes(topology, nbytes, late, args.algorithm)
        bounds = bound_s(topology, nbytes), bound_s(topology, nbytes, late=True)
        results.append(
            {
                "nbytes": nbytes,
                "late_rank": late,
                "bound_s": bounds[0],
                "late_bound_s": bounds[1],
                "auto": auto_of(topology, nbytes, late, found),
                "algorithms": [each._asdict() for each in found],
            }
        )
    progress("")
    document = envelope(topology=to_document(topology), results=results)
    if args.plot:
        from lanterne.bench.topology.outcome_plot import plot

        plot(args.plot, topology.name, results)
    if args.json:
        write_json(args.json, document)
    if args.json != "-":
        _print_late(topology, results)
    return 0


def _print_late(topology: Topology, results: Sequence[dict[str, Any]]) -> None:
    columns = [("size", ""), ("algorithm", ""), ("chunks", ""), ("rounds", "")]
    columns += [(what, by) for what in ("together", "late") for by in ("model", "flows")]
    columns += [("over bound", ""), ("pays from", "")]
    rows: list[list[object]] = []
    for result in results:
        size, auto = format_nbytes(result["nbytes"]), result["auto"]
        waits = [each for each in result["algorithms"] if not each["ideal_delay_s"]]
        least_s = min((judged_s(each, "together") for each in waits), default=None)
        told = f"auto: {auto['together']}, then {auto['late']}"
        times = "", format_time(auto["together_s"]), "", format_time(auto["late_s"])
        rows.append([size, told, "", "", *times, over(auto["late_s"], result["late_bound_s"]), ""])
        for each in result["algorithms"]:
            late_s = judged_s(each, "late")
            rows.append(
                [
                    size,
                    each["algorithm"],
                    each["num_chunks"],
                    each["rounds"],
                    format_time(each["together_s"]),
                    format_time(each["together_flows_s"]),
                    format_time(each["late_s"]),
                    format_time(each["late_flows_s"]),
                    over(late_s, result["late_bound_s"]),
                    format_time(pays_from_s(each, least_s)),
                ]
            )
    late, nodes = results[0]["late_rank"], format_count(len(topology.nodes), "node")
    bounds = ", ".join(
        f"{format_nbytes(row['nbytes'])}: {format_time(row['bound_s'])}, {format_time(row['late_bound_s'])} late"
        for row in results
    )
    notes = [
        f"{topology.name}: {nodes}, {topology.world_size} ranks, late: {_listed(late)}",
        "model and flows, nothing measured; late: from its arrival to the end, when it comes late enough",
        f"by bytes alone no all-reduce takes less than, of {bounds}",
    ]
    print_table(columns, rows, notes=notes, left=(0, 1))


def pays_from_s(outcome: dict[str, Any], least_s: float | None) -> float | None:
    """The delay from which on an algorithm that need not wait beats `least_s`, of the best that does; None: never."""
    if not outcome["ideal_delay_s"] or least_s is None or judged_s(outcome, "late") > least_s:
        return None
    return max(0.0, judged_s(outcome, "together") - least_s)


def _listed(late: LateRank) -> str:
    return ", ".join(map(str, late)) if isinstance(late, tuple) else f"rank {late}"


# -- every position of the late rank


def _run_positions(args: argparse.Namespace, topology: Topology, sizes: Sequence[int]) -> int:
    from lanterne.bench.topology.positions import print_positions, study_positions
    from lanterne.collectives.topology.topology_json import to_document

    results = study_positions(topology, sizes)
    progress("")
    if args.json:
        write_json(args.json, envelope(topology=to_document(topology), results=results))
    if args.json != "-":
        print_positions(topology, results)
    return 0
