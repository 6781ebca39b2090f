"""Make a collective schedule, prove it, and print its rounds and cost, draw it or export it.

  lanterne schedule all_reduce --algorithm ring -n 8
  lanterne schedule all_reduce --algorithm stragglar -n 8 --late-rank 3 --delay 5ms
  lanterne schedule all_reduce --algorithm ring -n 8 --late-rank 3 --delay 5ms       the same delay for one that waits
  lanterne schedule all_reduce --algorithm ring -n 8 --format json --output ring.json
  lanterne schedule ring.json --format svg --output ring.svg
  lanterne schedule theirs.xml --format json --output theirs.json     MSCCL's programs are read as well as written
  lanterne schedule all_reduce --algorithm hier_ring --topology dgx-2x4 --format chakra --output trace
  lanterne schedule all_reduce --list -n 6
  lanterne schedule all_reduce --algorithm hier_late_join --topology dgx-2x4 --late-rank 7 --delay 5ms
  lanterne schedule all_reduce --algorithm any_arrival --arrivals 0,0.2,0.3,1.1      when each of four ranks arrives

In the table a cell "3>5+" says that the rank sends chunk 3 to rank 5, where it is added; without the plus it
overwrites. The cost is that of the alpha-beta model; its defaults are those of the StragglAR paper (3 us, 450 GB/s).
Every schedule is checked before anything is written: each contribution counted exactly once, no conflicting writes, no
port used twice in a round. Arrivals are in multiples of s/rate, the time of the buffer on a link, or times such as 5ms;
what ports allow is printed with them (docs/any-arrivals.md). Chakra's execution traces, trace.0.et for rank 0, are what
simulators such as ASTRA-sim replay.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from lanterne.bench.collective.arrivals_report import profile_of
from lanterne.bench.output.options import add_link_model
from lanterne.bench.output.report import progress, write_atomically, write_text
from lanterne.bench.output.units import (
    are_bare,
    format_nbytes,
    format_time,
    parse_nbytes,
    parse_rate_bytes_per_s,
    parse_time_s,
)
from lanterne.errors import InputError, one_of

if TYPE_CHECKING:
    from lanterne.collectives.algorithms.catalogue import Algorithm
    from lanterne.collectives.auto.predict import Links
    from lanterne.collectives.schedule.check_schedule import CheckedSchedule
    from lanterne.collectives.schedule.cost import CostModel
    from lanterne.collectives.schedule.ir import CollectiveSchedule
    from lanterne.collectives.topology.topology import Topology

MAX_RANKS = 2048
# Execution traces: a file for each rank.
CHAKRA = "chakra"


# Of --arrivals.
MOST_BUFFERS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="COLLECTIVE|FILE", help="a collective such as all_reduce, or a file: our JSON, MSCCL XML"
    )
    parser.add_argument("--algorithm", metavar="NAME", help="or module:function (default: the first of --list)")
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="number of ranks (default: 8)")
    parser.add_argument("--chunks", type=int, metavar="M", help="number of chunks (default: the algorithm's own)")
    parser.add_argument("--root", type=int, metavar="R", help="root of broadcast and reduce (default: 0)")
    parser.add_argument("--late-rank", type=int, metavar="R", help="the rank that arrives last (default: the last one)")
    parser.add_argument("--nbytes", default="1GiB", metavar="SIZE", help="buffer size (default: 1GiB)")
    add_link_model(parser)
    parser.add_argument("--delay", default="0", metavar="TIME", help="how late the late rank arrives (default: 0)")
    add_arrivals(parser)
    parser.add_argument("--format", choices=(*FORMATS, CHAKRA), default="table", help="default: table")
    parser.add_argument(
        "--output", default="-", metavar="FILE", help="where to write ('-', the default: standard output)"
    )
    parser.add_argument("--list", action="store_true", help="list the algorithms of COLLECTIVE and stop")


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """Add --arrivals."""
    parser.add_argument(
        "--arrivals",
        metavar="A,A,...|FILE",
        help="when each rank arrives, in s/rate or as times such as 5ms; or a profile, of bench --arrivals --json FILE",
    )


def arrivals_from(args: argparse.Namespace, collective: str, nbytes: int, links: Links) -> list[list[float]]:
    """Return the arrivals of --arrivals at all-reduces of `nbytes` in seconds: by call and rank, the first at 0.

    Raises:
        InputError: no numbers, or options beside it that say otherwise.
    """
    from lanterne.collectives.auto.predict import equal_ports
    from lanterne.collectives.topology.topology import Topology

    if collective != "all_reduce" or not nbytes:
        raise InputError(f"--arrivals: got them beside {collective} of {nbytes} bytes, expected an all_reduce of some")
    topology = links if isinstance(links, Topology) else None
    if topology is not None and equal_ports(topology, topology.world_size) is None:
        raise InputError(f"--arrivals: got them beside {topology.name}, expected several nodes with equal links")
    if Path(args.arrivals).suffix == ".json":
        calls = profile_of(args.arrivals, "--arrivals").arrivals_s.tolist()
        if not calls:
            raise InputError(f"--arrivals: got {args.arrivals}, which has no call with the arrivals of all ranks")
    else:
        calls = [_given_arrivals(args, [text.strip() for text in args.arrivals.split(",")], nbytes, links)]
    if topology is not None and topology.world_size != len(calls[0]):
        raise InputError(f"--arrivals: got {len(calls[0])}, expected one for each of {topology.world_size} ranks")
    if args.ranks is not None and str(args.ranks) != str(len(calls[0])):
        raise InputError(f"--arrivals: got {len(calls[0])} beside -n {args.ranks}, expected one for each rank")
    return [[value - min(values) for value in values] for values in calls]


def _usual_arrivals(args: argparse.Namespace, collective: str, nbytes: int, links: Links) -> list[float]:
    """Return the arrivals of --arrivals by rank; of a profile the median of each."""
    return [median(times_s) for times_s in zip(*arrivals_from(args, collective, nbytes, links), strict=True)]


def _given_arrivals(args: argparse.Namespace, texts: Sequence[str], nbytes: int, links: Links) -> list[float]:
    """Return the seconds that `texts` give."""
    from lanterne.collectives.auto.predict import port_pass_s

    if len(texts) < 2:
        raise InputError(f"--arrivals: got {args.arrivals!r}, expected at least two, separated by commas, or FILE.json")
    if are_bare(texts, "--arrivals"):
        unit_s = port_pass_s(links, nbytes)[1]
        for text in texts:
            if not 0 <= float(text) <= MOST_BUFFERS:
                raise InputError(f"--arrivals: got {text!r}, expected multiples of s/rate from 0 to {MOST_BUFFERS}")
        return [float(text) * unit_s for text in texts]
    return [parse_time_s(text, "--arrivals") for text in texts]


def model_from(args: argparse.Namespace) -> CostModel:
    """The CostModel of --alpha, --bandwidth and --gamma."""
    from lanterne.collectives.schedule.cost import CostModel

    gamma = 1 / parse_rate_bytes_per_s(args.gamma, "--gamma") if args.gamma else 0.0
    beta = 1 / parse_rate_bytes_per_s(args.bandwidth, "--bandwidth")
    return CostModel(parse_time_s(args.alpha, "--alpha"), beta, gamma)


def topology_from(args: argparse.Namespace) -> Topology | None:
    """The Topology of --topology, a file or a preset; None without it.

    Raises:
        InputError: neither, or a number of ranks beside it.
    """
    if args.topology is None:
        return None
    from lanterne.collectives.topology.presets import find_topology

    topology = find_topology(args.topology)
    if args.ranks is not None and str(args.ranks) != str(topology.world_size):
        raise InputError(f"-n: got {args.ranks} beside a topology of {topology.world_size} ranks, expected none")
    return topology


def run(args: argparse.Namespace) -> int:
    from lanterne.collectives.algorithms.catalogue import algorithms_for
    from lanterne.collectives.schedule.check_schedule import check
    from lanterne.collectives.schedule.contracts import CONTRACTS

    topology = topology_from(args)
    arrivals_s = None
    if args.arrivals is not None and args.what in CONTRACTS:
        links = topology or model_from(args)
        arrivals_s = _usual_arrivals(args, args.what, parse_nbytes(args.nbytes, "--nbytes"), links)
    ranks = 8 if args.ranks is None else args.ranks
    if topology is not None or arrivals_s is not None:
        ranks = topology.world_size if topology is not None else len(arrivals_s or ())
    if not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"-n: got {ranks}, expected 1 to {MAX_RANKS}")
    if args.list:
        return _list(algorithms_for(args.what), ranks)
    if args.what in CONTRACTS:
        schedule = _make(args, ranks, topology, arrivals_s)
    elif Path(args.what).suffix or Path(args.what).exists():
        schedule = _read(args, topology)
    else:
        raise InputError(f"collective: {one_of(args.what, CONTRACTS)} or a file")
    checked = check(schedule)
    if args.format == CHAKRA:
        return _write_traces(checked, parse_nbytes(args.nbytes, "--nbytes"), args.output)
    text = FORMATS[args.format](checked, args, topology)
    if args.output == "-":
        write_text(text)
    else:
        write_atomically(args.output, text.encode())
    return 0


def _make(
    args: argparse.Namespace, ranks: int, topology: Topology | None, arrivals_s: Sequence[float] | None
) -> CollectiveSchedule:
    """Return the schedule of the algorithm that the options name."""
    from lanterne.collectives.algorithms.catalogue import algorithms_for, find_algorithm, make_schedule
    from lanterne.collectives.late.any_arrivals import schedule_for_arrivals

    name = args.algorithm or algorithms_for(args.what)[0].name
    nodes = None if topology is None else topology.nodes
    # An algorithm that expects no late rank can be priced with one.
    line = find_algorithm(args.what, name)
    late_rank = args.late_rank if line.late else None
    if arrivals_s is not None:
        nbytes = parse_nbytes(args.nbytes, "--nbytes")
        schedule = schedule_for_arrivals(line, arrivals_s, nbytes, topology or model_from(args), args.chunks)
    else:
        schedule = make_schedule(args.what, name, ranks, args.chunks, args.root, late_rank, progress, nodes=nodes)
    progress("")
    return schedule


def _read(args: argparse.Namespace, topology: Topology | None) -> CollectiveSchedule:
    """Return the schedule of the file that the options name."""
    from lanterne.collectives.schedule.formats.read_schedule import read_schedule

    for option in ("algorithm", "ranks", "chunks", "root"):
        if getattr(args, option) is not None:
            raise InputError(f"--{option}: got one beside {args.what}, which says its own")
    schedule = read_schedule(args.what)
    if schedule.late_rank is not None and args.late_rank not in (None, schedule.late_rank):
        raise InputError(f"--late-rank: got {args.late_rank} beside {args.what}, which expects {schedule.late_rank}")
    if topology is not None and schedule.world_size != topology.world_size:
        raise InputError(
            f"{args.what}: got {schedule.world_size} ranks, and a topology of {topology.world_size}, expected as many"
        )
    return schedule


def _write_traces(checked: CheckedSchedule, nbytes: int, prefix: str) -> int:
    from lanterne.collectives.schedule.formats.export_chakra import to_chakra

    if prefix == "-":
        raise InputError(f"--output: got none for {CHAKRA}, expected how the names of the ranks' files begin")
    for rank, trace in enumerate(to_chakra(checked, nbytes)):
        write_atomically(f"{prefix}.{rank}.et", trace)
    return 0


def _list(lines: Sequence[Algorithm], ranks: int) -> int:
    rows = [
        (line.name, f"not for {ranks} ranks: {why}" if (why := line.refuses(ranks)) else line.summary) for line in lines
    ]
    width = max(len(name) for name, _ in rows)
    write_text("".join(f"{name.ljust(width)}  {summary}\n" for name, summary in rows))
    return 0


def _table(checked: CheckedSchedule, args: argparse.Namespace, topology: Topology | None) -> str:
    from lanterne.collectives.schedule.cost import price
    from lanterne.collectives.schedule.draw import draw_text
    from lanterne.collectives.schedule.ir import MAX_DRAWN

    schedule, links = checked.schedule, model_from(args) if topology is None else topology
    nbytes = parse_nbytes(args.nbytes, "--nbytes")
    start_s, since, beyond = _start(args, schedule, nbytes, topology)
    cost = price(schedule, nbytes, links, start_s)
    lines = [
        f"{schedule.name}: {schedule.num_rounds} rounds, {schedule.num_chunks} chunks, "
        f"{schedule.num_transfers} transfers"
    ]
    lines += [f"note: {schedule.note}"] if schedule.note else []
    scratch = checked.scratch_chunks
    lines.append(f"scratch {scratch} chunk{'s' * (scratch != 1)}, ports {schedule.ports}, checked")
    adding = f" + {cost.added:.4g} s gamma" if links.gamma_s_per_byte else ""
    lines.append(f"cost {cost.rounds} alpha + {cost.load:.4g} s beta{adding} in lockstep; s = {format_nbytes(nbytes)}")
    when = f", from {since} {format_time(cost.exposed_s)}{beyond}" if since else ""
    lines.append(f"time {format_time(cost.makespan_s)}{when}")
    if schedule.num_transfers <= MAX_DRAWN:
        drawing = "3>5+: chunk 3 goes to rank 5, where it is added; without the plus it is overwritten there\n\n"
        drawing += draw_text(schedule, width=shutil.get_terminal_size((120, 24)).columns)
    else:
        drawing = f"({schedule.num_transfers} transfers, too many to draw; --format json writes them)\n"
    return "\n".join(lines) + "\n\n" + drawing


def _start(
    args: argparse.Namespace, schedule: CollectiveSchedule, nbytes: int, topology: Topology | None
) -> tuple[Sequence[float], str, str]:
    """Return when each rank starts in seconds, the last arrival in words ("" for none), and its bound in words."""
    from lanterne.collectives.schedule.cost import late_start

    if args.arrivals is not None:
        from lanterne.collectives.late.any_arrivals import bound_s

        links = topology or model_from(args)
        arrivals_s = _usual_arrivals(args, schedule.collective, nbytes, links)
        least_s = bound_s(arrivals_s, nbytes, links)
        return arrivals_s, "the last arrival", f"; ports allow {format_time(least_s)}"
    late, delay_s = (
        args.late_rank if schedule.late_rank is None else schedule.late_rank,
        parse_time_s(args.delay, "--delay"),
    )
    if isinstance(late, int) and not 0 <= late < schedule.world_size:
        raise InputError(f"--late-rank: got {late}, expected 0 to {schedule.world_size - 1}")
    if late is None and delay_s:
        late = schedule.world_size - 1
    since = "the late rank's arrival" if late == schedule.late_rank else f"the arrival of rank {late}, late"
    return late_start(schedule.world_size, late, delay_s).tolist(), since if late is not None else "", ""


def _json(checked: CheckedSchedule, *_: object) -> str:
    from lanterne.collectives.schedule.formats.export_json import to_json

    return json.dumps(to_json(checked.schedule)) + "\n"


def _svg(checked: CheckedSchedule, *_: object) -> str:
    from lanterne.collectives.schedule.draw import draw_svg
    from lanterne.collectives.schedule.ir import MAX_DRAWN

    if checked.schedule.num_transfers > MAX_DRAWN:
        raise InputError(f"svg: got {checked.schedule.num_transfers} transfers, expected at most {MAX_DRAWN}")
    return draw_svg(checked.schedule)


def _msccl_xml(checked: CheckedSchedule, *_: object) -> str:
    from lanterne.collectives.schedule.formats.export_msccl import to_msccl_xml

    return to_msccl_xml(checked)


def _mscclpp_json(checked: CheckedSchedule, *_: object) -> str:
    from lanterne.collectives.schedule.formats.export_mscclpp import to_mscclpp_plan

    return json.dumps(to_mscclpp_plan(checked)) + "\n"


# (schedule, options, topology) -> text. Only a format that prices reads the options of prices.
Format: TypeAlias = "Callable[[CheckedSchedule, argparse.Namespace, Topology | None], str]"
FORMATS: dict[str, Format] = {
    "table": _table,
    "json": _json,
    "svg": _svg,
    "msccl-xml": _msccl_xml,
    "mscclpp-json": _mscclpp_json,
}
