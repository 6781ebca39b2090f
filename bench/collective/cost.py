"""What algorithms cost by the alpha-beta model: over rank counts, sizes and delays of one late rank.

  lanterne cost all_reduce -n 4,8,16,64,256 --nbytes 1GiB --alpha 3us --bandwidth 450GB/s --plot f.png
  lanterne cost all_reduce -n 8 --nbytes 1MiB,64MiB,1GiB --delay 0,1ms,5ms --algorithm ring,stragglar,late_join
  lanterne cost all_reduce -n 4 --algorithm ring,theirs.xml      schedules of files; module:function as well
  lanterne cost all_reduce --topology dgx-8x8 --nbytes 1GiB --algorithm ring,late_join,hier_ring,hier_late_join
  lanterne cost all_reduce --arrivals 0,0.2,0.3,1.1 --algorithm ring,late_join,any_arrival      beside the bound
  lanterne cost all_reduce --arrivals profile.json --nbytes 64M      of a job that `bench --arrivals --json` recorded

Every line is a schedule that was made, checked and priced; nothing is measured. Columns:

  no delay       all ranks start together; time until the last has finished
  ideal          from the late rank's arrival to the end when it comes so late that all work without it is done
  ideal delay    the delay from which on that is so
  critical delay from this delay on it beats the ring (0: always; -: never)
  at TIME        from the late rank's arrival to the end, for each TIME of --delay

With --arrivals, when each rank arrives, in s/rate or as times such as 5ms, or a profile of many calls, a line says when
an algorithm ends after the last arrival; `bound` is what ports allow then, without latency (docs/any-arrivals.md).

Pipelined algorithms take the chunk count that the model likes best. The plot redoes figures 2b, 6c, 7a, 7b and, for
even rank counts that are no powers of two, 9 of the StragglAR paper (arXiv 2505.23523).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from lanterne.bench.collective.schedule import add_arrivals, arrivals_from, model_from, topology_from
from lanterne.bench.output.options import add_json, add_link_model, add_plot
from lanterne.bench.output.report import envelope, print_table, progress, write_json
from lanterne.bench.output.units import format_nbytes, format_time, parse_nbytes, parse_time_s
from lanterne.errors import InputError

if TYPE_CHECKING:
    from lanterne.collectives.algorithms.catalogue import Algorithm
    from lanterne.collectives.auto.predict import Links
    from lanterne.collectives.schedule.ir import CollectiveSchedule


RANKS = "4,8,16,32,64,128,256"
# Of a profile: each takes any_arrival 0.1 s.
MAX_CALLS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("collective", metavar="COLLECTIVE", help="all_reduce, broadcast, ...")
    parser.add_argument("-n", "--ranks", metavar="N,N,...", help=f"default: {RANKS}")
    parser.add_argument("--late-rank", type=int, metavar="R", help="default: the last rank")
    parser.add_argument("--nbytes", default="1GiB", metavar="SIZE,...", help="buffer sizes (default: 1GiB)")
    parser.add_argument("--algorithm", default="all", metavar="A,A,...", help="default: all that can be used")
    add_link_model(parser)
    parser.add_argument("--delay", default="", metavar="TIME,...", help="delays of the late rank to price besides")
    add_arrivals(parser)
    add_json(parser, "all numbers")
    add_plot(parser)


def run(args: argparse.Namespace) -> int:
    from lanterne.collectives.algorithms.catalogue import algorithms_for, find_algorithm
    from lanterne.collectives.auto.predict import fitting, leaf_sets_of, nodes_of_links

    if args.arrivals is not None:
        return run_arrivals(args)
    topology = topology_from(args)
    links = model_from(args) if topology is None else topology
    counts = sorted({_count(text) for text in (args.ranks or RANKS).split(",")})
    ranks = counts if topology is None else [topology.world_size]
    if args.late_rank is not None and not 0 <= args.late_rank < min(ranks):
        raise InputError(f"--late-rank: got {args.late_rank}, expected 0 to {min(ranks) - 1}")
    sizes = sorted({parse_nbytes(text, "--nbytes") for text in args.nbytes.split(",")})
    delays = [parse_time_s(text, "--delay") for text in args.delay.split(",") if text]
    algorithms_for(args.collective)  # It must be one.
    over_nodes = nodes_of_links(links) is not None
    lines = fitting(args.collective, over_nodes, leaf_sets_of(links))
    if args.algorithm != "all":
        lines = tuple(find_algorithm(args.collective, name) for name in args.algorithm.split(","))
    results = [
        record for size in sizes for n in ranks for record in study(lines, n, size, links, delays, args.late_rank)
    ]
    progress("")
    if not results:
        told = ", ".join(map(str, ranks))
        raise InputError(f"cost: got algorithms that cannot be used with {told} ranks, expected one that can")
    if args.plot:
        from lanterne.bench.collective.cost_plot import plot

        plot(args.plot, results)
    document = envelope(results=results, **described(links))
    if args.json:
        write_json(args.json, document)
    if args.json != "-":
        _print(results, delays, links)
    return 0


def run_arrivals(args: argparse.Namespace) -> int:
    """Print, and write, when each algorithm ends after the last of the arrivals that are given, and the bound."""
    from lanterne.collectives.algorithms.catalogue import algorithms_for, find_algorithm

    links = topology_from(args) or model_from(args)
    sizes = sorted({parse_nbytes(text, "--nbytes") for text in args.nbytes.split(",")})
    lines = algorithms_for(args.collective)
    if args.algorithm != "all":
        lines = tuple(find_algorithm(args.collective, name) for name in args.algorithm.split(","))
    results = [
        record
        for nbytes in sizes
        for record in after_arrivals(lines, arrivals_from(args, args.collective, nbytes, links), nbytes, links)
    ]
    progress("")
    if args.json:
        write_json(args.json, envelope(results=results, **described(links)))
    if args.json == "-":
        return 0
    columns = [("size", ""), ("algorithm", ""), ("chunks", ""), ("after the last", ""), ("worst", ""), ("bound", "")]
    columns += [("of the bound", "")]
    rows = [
        [
            *(format_nbytes(record["nbytes"]), record["algorithm"], record["num_chunks"]),
            *(format_time(record[name]) for name in ("exposed_s", "worst_s", "bound_s")),
            f"{record['exposed_s'] / record['bound_s']:.3f}",
        ]
        for record in results
    ]
    calls = f", {results[0]['calls']} of its calls: medians" if results[0]["calls"] > 1 else ""
    note = f"{_in_words(links)}; model, not measured; arrivals {args.arrivals}{calls}"
    print_table(columns, rows, notes=[f"{note}; who expects one late rank, the last"])
    return 0


def after_arrivals(
    lines: Sequence[Algorithm], calls: Sequence[Sequence[float]], nbytes: int, links: Links
) -> list[dict[str, Any]]:
    """Return a record (dict) of each algorithm of `lines` that can be used: when it ends after the last arrival.

    Args:
        calls: by call and rank, the arrivals in s; of more than MAX_CALLS as many, evenly chosen.
    """
    from lanterne.collectives.auto.predict import nodes_of_links
    from lanterne.collectives.late.any_arrivals import bound_s, schedule_for_arrivals
    from lanterne.collectives.schedule.check_schedule import check
    from lanterne.collectives.schedule.cost import price

    ranks, chosen = len(calls[0]), calls[:: -(-len(calls) // MAX_CALLS)]
    least_s = median(bound_s(arrivals_s, nbytes, links) for arrivals_s in chosen)
    records = []
    for line in lines:
        if line.refuses(ranks) or line.leaves or (line.nodes and nodes_of_links(links) is None):
            continue
        progress(f"{line.name}, {ranks} ranks, {len(chosen)} calls")
        schedules = [check(schedule_for_arrivals(line, each, nbytes, links)).schedule for each in chosen]
        exposed_s = [
            price(schedule, nbytes, links, arrivals_s).exposed_s
            for schedule, arrivals_s in zip(schedules, chosen, strict=True)
        ]
        records.append(
            {
                "collective": line.collective,
                "algorithm": line.name,
                "ranks": ranks,
                "nbytes": nbytes,
                "num_chunks": schedules[0].num_chunks,
                "calls": len(chosen),
                "arrivals_s": [list(arrivals_s) for arrivals_s in chosen] if len(chosen) > 1 else list(chosen[0]),
                "exposed_s": median(exposed_s),
                "worst_s": max(exposed_s),
                "bound_s": least_s,
            }
        )
    if not records:
        raise InputError(f"cost: got algorithms that cannot be used with {ranks} ranks, expected one that can")
    return records


def described(links: Links) -> dict[str, Any]:
    """What a document says of `links`."""
    from lanterne.collectives.topology.topology import Topology
    from lanterne.collectives.topology.topology_json import to_document

    if isinstance(links, Topology):
        return {"topology": to_document(links)}
    names = ("alpha_s", "beta_s_per_byte", "gamma_s_per_byte")
    return {name: getattr(links, name) for name in names}


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", text.strip()) or not 1 <= int(text) <= 1024:
        raise InputError(f"-n: got {text!r}, expected rank counts from 1 to 1024, separated by commas")
    return int(text)


def study(
    lines: Sequence[Algorithm],
    ranks: int,
    nbytes: int,
    links: Links,
    delays: Sequence[float] = (),
    late_rank: int | None = None,
) -> list[dict[str, Any]]:
    """One record (dict) per algorithm of `lines` that can be used with `ranks` ranks; see this module's docstring."""
    from lanterne.collectives.algorithms.catalogue import make_schedule
    from lanterne.collectives.auto.predict import chunk_count, nodes_of_links
    from lanterne.collectives.schedule.check_schedule import check
    from lanterne.collectives.schedule.cost import late_start, price

    records: list[dict[str, Any]] = []
    ring_s = None
    nodes = nodes_of_links(links)
    for line in lines:
        if line.refuses(ranks) or (line.nodes and nodes is None):
            continue
        progress(f"{line.name}, {ranks} ranks")
        chunks = chunk_count(line, ranks, nbytes, links, min_chunk_nbytes=1)
        expected = late_rank if line.late else None
        schedule = check(
            make_schedule(line.collective, line.name, ranks, chunks, late_rank=expected, progress=progress, nodes=nodes)
        ).schedule
        together = price(schedule, nbytes, links)
        join = [phase.start for phase in schedule.phases if phase.name == "join"]
        # Whoever is late: by symmetry the last rank stands for it where the algorithm expects nobody.
        late = schedule.late_rank if join else ranks - 1 if late_rank is None else late_rank
        ideal_delay_s = price(before(schedule, join[0]), nbytes, links).makespan_s if join else 0.0
        ideal = price(schedule, nbytes, links, late_start(ranks, late, ideal_delay_s))
        ring_s = together.makespan_s if line.name == "ring" else ring_s
        record: dict[str, Any] = {
            "collective": line.collective,
            "algorithm": line.name,
            "ranks": ranks,
            "nbytes": nbytes,
            "num_chunks": schedule.num_chunks,
            "rounds": together.rounds,
            "load": together.load,
            "time_s": together.makespan_s,
            "ideal_s": ideal.exposed_s,
            "ideal_delay_s": ideal_delay_s,
            "critical_delay_s": None,
            "delay_s": list(delays),
            "exposed_s": [price(schedule, nbytes, links, late_start(ranks, late, d)).exposed_s for d in delays],
        }
        records.append(record)
    for record in records:
        if ring_s is not None and record["ideal_s"] <= ring_s:
            record["critical_delay_s"] = max(0.0, record["time_s"] - ring_s)
    return records


def before(schedule: CollectiveSchedule, stop: int) -> CollectiveSchedule:
    """The rounds before round `stop`, as a schedule that is priced but promises nothing."""
    from dataclasses import replace

    from lanterne.collectives.schedule.ir import Phase

    end = schedule.offsets[stop]
    columns = {name: getattr(schedule, name)[:end] for name in ("src", "dst", "chunk", "op")}
    return replace(schedule, offsets=schedule.offsets[: stop + 1], phases=(Phase("before", 0, stop),), **columns)


def _in_words(links: Links) -> str:
    from lanterne.collectives.topology.topology import Topology

    if isinstance(links, Topology):
        return f"{links.name}: {len(links.nodes)} nodes, {links.world_size} ranks"
    return f"alpha {format_time(links.alpha_s)}, bandwidth {1e-9 / links.beta_s_per_byte:.4g} GB/s"


def _print(results: Sequence[dict[str, Any]], delays: Sequence[float], links: Links) -> None:
    columns = [("ranks", ""), ("algorithm", ""), ("size", ""), ("chunks", ""), ("rounds", "alpha"), ("load", "s beta"),
               ("no delay", ""), ("ideal", ""), ("ideal delay", ""), ("critical delay", "")]  # fmt: skip
    columns += [(f"at {format_time(delay)}", "") for delay in delays]
    rows = [
        [
            str(record["ranks"]),
            record["algorithm"],
            format_nbytes(record["nbytes"]),
            record["num_chunks"],
            record["rounds"],
            f"{record['load']:.4f}",
            format_time(record["time_s"]),
            format_time(record["ideal_s"]),
            format_time(record["ideal_delay_s"]),
            format_time(record["critical_delay_s"]),
            *map(format_time, record["exposed_s"]),
        ]
        for record in results
    ]
    notes = [
        f"{_in_words(links)}; model, not measured",
        "ideal: from the arrival of a late rank to the end, when it comes at the ideal delay or later",
        "critical delay: from it on faster than the ring; -: never",
    ]
    print_table(columns, rows, notes=notes)
