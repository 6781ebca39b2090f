"""`lanterne info --topology`: nodes, ranks and links, as they were found under a launcher, or as a file has them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from lanterne.bench.output import report
from lanterne.bench.output.units import format_count, format_rate, format_time
from lanterne.errors import InputError
from lanterne.transport.job.bootstrap import in_a_job

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.collectives.topology.topology import LinkClass, Ranks, Topology

# Lines of the picture; what is beyond is told in one.
MAX_LINES = 60
Item = TypeVar("Item")
# Bytes of the message by which a rate is told, where rates depend on sizes.
LARGE_NBYTES = 1e9


def run(args: argparse.Namespace) -> int:
    """Find the topology that --topology says, or that this job has; print and write it. The exit code."""
    if args.topology:
        from lanterne.collectives.topology.presets import find_topology

        return tell(find_topology(args.topology), "given", args.json)
    if not in_a_job():
        raise InputError(
            "info --topology: got no job to look at, expected a launcher around it (mpiexec -n 8 lanterne info "
            "--topology), or a file or preset behind it"
        )
    from lanterne.collectives.jobs import init

    with init() as communicator:
        topology, source = found(communicator)
        return tell(topology, source, args.json) if communicator.rank == 0 else 0


def found(communicator: Communicator) -> tuple[Topology, str]:
    """(what `communicator` goes by, "measured", "cache", "given" or "none"); of equal links, hosts with those.

    Raises:
        InputError: nothing was measured.
    """
    from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology, nodes_of

    tuning = communicator.tuning
    if tuning.topology is not None:
        return tuning.topology, tuning.source
    if tuning.model is None:
        raise InputError("info --topology: got a job without a cost model, expected more than one rank")
    nodes = nodes_of(communicator.hosts)
    kinds = [INSIDE] * (len(nodes) < communicator.world_size) + [NIC] * (len(nodes) > 1)
    ports = tuple((rank,) for rank in range(communicator.world_size))
    links = tuple(LinkClass(kind, tuning.model, ports) for kind in kinds)
    return Topology(nodes, links, tuning.model.gamma_s_per_byte, "equal links"), tuning.source


def tell(topology: Topology, source: str, json_file: str | None) -> int:
    """Print `topology` as a table and a picture, or write it as JSON. The exit code."""
    from lanterne.collectives.topology.topology_json import to_document

    if json_file:
        report.write_json(json_file, report.envelope(source=source, topology=to_document(topology)))
    if json_file != "-":
        rows = [row for links in topology.links for row in _rows(topology, links)]
        columns = [("class", ""), ("links", ""), ("shared by", ""), ("start", ""), ("rate", ""), ("slowest", "")]
        nodes = format_count(len(topology.nodes), "node")
        notes = [f"{topology.name} ({source}): {nodes}, {topology.world_size} ranks"]
        if source in ("measured", "cache"):
            notes.append("rates of large messages, one way; a message takes the starts of all classes that it crosses")
        report.print_table(columns, rows, notes=notes, left=(0, 2))
        print()
        lines = list(picture(topology))
        for line in lines[:MAX_LINES]:
            print(line)
        if len(lines) > MAX_LINES:
            print(f"... and {len(lines) - MAX_LINES} lines more; --json writes all")
    return 0


def _rows(topology: Topology, links: LinkClass) -> Iterator[Sequence[object]]:
    """The table's row of a class."""
    rate = _rate(links)
    sizes = sorted({len(ranks) for ranks in links.shared_by})
    number: object = len(links.shared_by)
    if not sizes:
        number, shared = sum(len(ranks) * (len(ranks) - 1) for ranks in topology.nodes), "a pair"
    else:
        shared = "one rank" if sizes == [1] else f"{' or '.join(map(str, sizes))} ranks"
    slowest = rate / max(links.slowdown, default=1.0)
    yield links.kind, number, shared, format_time(links.model.alpha_s), format_rate(rate), format_rate(slowest)


def _rate(links: LinkClass, link: int | None = None) -> float:
    """Bytes per s of the fastest link of a class, or of one of them."""
    seconds = float(links.model.message_s(LARGE_NBYTES)) - links.model.alpha_s
    slow = links.slowdown[link] if link is not None and links.slowdown else 1.0
    return LARGE_NBYTES / max(seconds * slow, 1e-12)


def picture(topology: Topology) -> Iterator[str]:
    """The topology as a tree, a line for each: trunks, the nodes behind them, and what ranks share on them."""
    from lanterne.collectives.topology.topology import TRUNK

    # Narrower sides are within wider ones.
    trunks = [links for links in topology.links if links.kind == TRUNK]
    yield f"{topology.name}: {topology.world_size} ranks"
    trunks.sort(key=lambda each: -max(map(len, each.shared_by)))
    yield from _below(topology, trunks, tuple(range(topology.world_size)), "")


def _below(topology: Topology, trunks: Sequence[LinkClass], ranks: Ranks, indent: str) -> Iterator[str]:
    """The lines of what is behind a trunk: the trunks of the next level, or the nodes."""
    if trunks:
        level, *deeper = trunks
        sides = [(number, side) for number, side in enumerate(level.shared_by) if set(side) <= set(ranks)]
        if sides:
            for last, (number, side) in _marked(sides):
                yield f"{indent}{_branch(last)} trunk {format_rate(_rate(level, number))}: {ranks_in_short(side)}"
                yield from _below(topology, deeper, side, indent + _bar(last))
            return
        yield from _below(topology, deeper, ranks, indent)
        return
    members = set(ranks)
    nodes = [(number, node) for number, node in enumerate(topology.nodes) if members.issuperset(node)]
    # Nodes in a row that look alike are drawn once.
    told: list[tuple[list[int], list[str]]] = []
    for number, node in nodes:
        lines = [_link_line(topology, links, node) for links in topology.links if links.kind != "trunk"]
        if told and told[-1][1] == lines and len(topology.nodes[told[-1][0][0]]) == len(node):
            told[-1][0].append(number)
        else:
            told.append(([number], lines))
    for last, (numbers, lines) in _marked(told):
        first = topology.nodes[numbers[0]]
        if len(numbers) == 1:
            title = f"node {numbers[0]}: {ranks_in_short(first)}"
        else:
            title = f"nodes {numbers[0]} to {numbers[-1]}, alike: {ranks_in_short(first)}, ..."
        yield f"{indent}{_branch(last)} {title}"
        shown = [line for line in lines if line]
        for end, line in _marked(shown):
            yield f"{indent}{_bar(last)}{_branch(end)} {line}"


def _link_line(topology: Topology, links: LinkClass, node: Ranks) -> str:
    """What a node has of a class, alike for nodes that are."""
    if not links.shared_by:
        return f"{links.kind} {format_rate(_rate(links))} a pair" if len(node) > 1 else ""
    mine = [(number, ranks) for number, ranks in enumerate(links.shared_by) if set(ranks) <= set(node)]
    if not mine or (links.kind == "inside" and len(node) == 1):
        return ""
    rates = sorted({_rate(links, number) for number, _ in mine}, reverse=True)
    told = ", ".join(format_rate(rate) for rate in rates)
    sizes = {len(ranks) for _, ranks in mine}
    if sizes == {1}:
        return f"{links.kind} {told} a rank"
    if len(mine) == 1:
        return f"{links.kind} {told} for all"
    return f"{len(mine)} x {links.kind} {told}, {' or '.join(map(str, sorted(sizes)))} ranks each"


def _marked(items: Sequence[Item]) -> Iterator[tuple[bool, Item]]:
    """Each item, with whether it is the last."""
    return ((index == len(items) - 1, item) for index, item in enumerate(items))


def _branch(last: bool) -> str:
    return "└─" if last else "├─"


def _bar(last: bool) -> str:
    return "   " if last else "│  "


def ranks_in_short(ranks: Sequence[int]) -> str:
    """ "ranks 0 to 3" and the like."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:6]))}" + (f", ... ({len(ranks)})" if len(ranks) > 6 else "")
