"""A collective over nodes of several ranks, made of a schedule of nodes: inside, across, inside.

The buffer has R *rails*, as many as the largest node has ranks, and `across`, a schedule in which each node is one
rank, runs on every rail at once: chunk k is rail k mod R's chunk k // R, which rank k mod G of a node of G ranks, its
*owner* there, handles for the node. So each rank (each NIC, where each has one) carries a share of what crosses.

Before `across` first needs a chunk at a node, the owner gets the others' contributions, in one round; once it has the
result there, it gives it to the others. Both go on beside what crosses, chunk by chunk: `across` is two rounds longer.

Late ranks, of one node or several: before they come the others of their nodes add up, each chunk at its owner or, where
that is late, at a deputy, and the early nodes do of `across` what needs no late node. When they come they give their
contributions to the owners; a late owner gets its node's sum from the deputy, and gives it the result to spread, so
that its own port inside, which carries all its contributions, is not what all wait for. Deputies take turns, and spread
over a few rounds, so that theirs is not, either.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.schedule.ir import (
    COPY,
    REDUCE,
    CollectiveSchedule,
    Ints,
    LateRank,
    Phase,
    ScheduleBuilder,
    late_set,
)

# The ranks of each node, ascending.
Nodes: TypeAlias = tuple[tuple[int, ...], ...]


# Copies that a deputy gives out in a round, beside one to each rank of what it owns itself.
RELAYED = 2


class Transfers(NamedTuple):
    """Some transfers and the round of each: int arrays of one length."""

    round: Ints
    src: Ints
    dst: Ints
    chunk: Ints
    op: Ints


def num_rails(nodes: Nodes) -> int:
    """R: the size of the largest node."""
    return max(map(len, nodes))


def owners(nodes: Nodes, num_chunks: int) -> Ints:
    """(nodes, num_chunks) the rank that handles each chunk for each node."""
    chunks = np.arange(num_chunks)
    return np.stack([np.array(ranks)[chunks % len(ranks)] for ranks in nodes])


class RailCrossing(NamedTuple):
    """A schedule of nodes on every rail; rounds are those of the schedule.

    Attributes:
        transfers: those between ranks.
        rounds: those rounds in which there are some.
        first, last: (nodes, its chunks) the round that first needs a chunk at a node, their number where none does; the
            last that writes it, -1 where none does. A chunk is needed when it is sent or overwritten; what arrives to
            be added may come before.
    """

    transfers: Transfers
    rounds: Ints
    first: Ints
    last: Ints


def across_rails(across: CollectiveSchedule, nodes: Nodes, num_chunks: int, only: int | None = None) -> RailCrossing:
    """The RailCrossing of `across`; `only`: with the transfers of this node and no others."""
    rails, rounds = num_rails(nodes), across.num_rounds
    index = np.repeat(np.arange(rounds), np.diff(across.offsets))
    first = np.full((len(nodes), across.num_chunks), rounds, np.int64)
    last = np.full((len(nodes), across.num_chunks), -1, np.int64)
    copies = across.op == COPY
    np.minimum.at(first, (across.src, across.chunk), index)
    np.minimum.at(first, (across.dst[copies], across.chunk[copies]), index[copies])
    np.maximum.at(last, (across.dst, across.chunk), index)
    # A result is given out after the last write, with what the node's own ranks have.
    first = np.where(last >= 0, np.minimum(first, last + 1), first)
    used = np.unique(index[across.chunk * rails < num_chunks])
    columns = tuple(column.astype(np.int64) for column in (index, across.src, across.dst, across.chunk, across.op))
    if only is not None:
        mine = (across.src == only) | (across.dst == only)
        columns = tuple(column[mine] for column in columns)
    chunk = (columns[3][:, None] * rails + np.arange(rails)).reshape(-1)
    kept = chunk < num_chunks
    at, src, dst, _, op = (np.repeat(column, rails)[kept] for column in columns)
    owner, chunk = owners(nodes, num_chunks), chunk[kept]
    return RailCrossing(Transfers(at, owner[src, chunk], owner[dst, chunk], chunk, op), used, first, last)


def compose_all_reduce(
    algorithm: str,
    across: CollectiveSchedule,
    nodes: Nodes,
    num_chunks: int,
    late_rank: LateRank = None,
    only: int | None = None,
) -> CollectiveSchedule:
    """The all-reduce over `nodes` of the all-reduce `across`, whose late ranks are the nodes of the late ones.

    Args:
        across: on as many ranks as there are nodes, of at least num_chunks / R chunks. Where all nodes have a late
            rank it has none.
        only: make the transfers of this rank and no others.

    Cost: as `across` with chunks of 1 / (R M), and two rounds; three with late ranks, four where such a one owns.
    """
    late = np.array(late_set(late_rank), np.int64)
    rails, rounds = num_rails(nodes), across.num_rounds
    mine = next((node for node, ranks in enumerate(nodes) if only in ranks), None)
    crossing, crossed, first, last = across_rails(across, nodes, num_chunks, mine)
    join = next((phase.start for phase in across.phases if phase.name == "join"), 0) if len(late) else rounds
    # Round t of `across` is round t + 1 here, from its join on round t + 2, behind what the late ranks bring.
    shift = 1 + (np.arange(rounds + 1) >= join) * bool(len(late))
    parts, used = [crossing._replace(round=crossing.round + shift[crossing.round])], [crossed + shift[crossed]]
    owner = owners(nodes, num_chunks)
    chunks = np.arange(num_chunks)
    for node, ranks in enumerate(nodes):
        needed, done = first[node, chunks // rails], last[node, chunks // rails]
        spread = done + shift[np.maximum(done, 0)] + 1
        members = np.array(ranks)
        early = np.setdiff1d(members, late)
        if len(early) < len(members):
            its = _late_node(members, early, owner[node], chunks * (join + 1) // num_chunks, needed + 1, spread)
            used += [part.round for part in its]
            parts += its
            continue
        gathered = np.minimum(needed, join)
        if len(members) > 1:
            used += [gathered, spread]
        if mine in (None, node):
            parts += [_gather(members, owner[node], gathered), _spread(members, owner[node], spread)]
    found, used_rounds = Transfers(*map(np.concatenate, zip(*parts, strict=True))), np.unique(np.concatenate(used))
    # Nodes of different sizes: one rank may own what several do elsewhere.
    sizes = {len(ranks) for ranks in nodes}
    ports = across.ports * (1 if len(sizes) == 1 else rails) + 2 * (rails - 1)
    build = ScheduleBuilder(
        "all_reduce", algorithm, sum(map(len, nodes)), num_chunks, late_rank=late_rank, ports=max(1, ports), only=only
    )
    if not len(late):
        add_rounds(build, found, used_rounds)
        return build.build()
    is_join, joins = found.round > join, used_rounds > join
    for name, mask, phase in (("reduce_scatter", ~is_join, ~joins), ("join", is_join, joins)):
        build.phase(name)
        add_rounds(build, Transfers(*(column[mask] for column in found)), used_rounds[phase])
    return build.build()


def add_rounds(build: ScheduleBuilder, transfers: Transfers, used: Ints) -> None:
    """Append `transfers` in those rounds that are `used`, ascending."""
    build.rounds(np.searchsorted(used, transfers.round), *transfers[1:], count=len(used))


def _late_node(members: Ints, early: Ints, owner: Ints, before: Ints, joins: Ints, spread: Ints) -> list[Transfers]:
    """What goes on inside a node of which some ranks, those not `early`, are late.

    Args:
        owner, before, joins, spread: by chunk: its owner, and the rounds in which the early ranks add it up, late ones
            bring theirs, and the result is given out.
    """
    chunks = np.arange(len(owner))
    late = np.setdiff1d(members, early)
    owned_late = np.isin(owner, late)
    parts = [_gather(late, owner, joins)]
    if not len(early):
        return [*parts, _spread(members, owner, spread)]
    deputy = np.where(owned_late, early[(chunks // len(members)) % len(early)], owner)
    parts.append(_gather(early, deputy, before))
    mine = chunks[owned_late]
    parts.append(Transfers(joins[mine], deputy[mine], owner[mine], mine, np.full(len(mine), REDUCE)))
    parts.append(Transfers(spread[mine], owner[mine], deputy[mine], mine, np.full(len(mine), COPY)))
    given = _spread(members, deputy, spread)
    kept = given.dst != owner[given.chunk]
    given = Transfers(*(column[kept] for column in given))
    # A deputy gives to RELAYED a round, the next ranks first.
    turn = (np.searchsorted(members, given.dst) - np.searchsorted(members, given.src)) % len(members)
    turn -= turn > (np.searchsorted(members, owner[given.chunk]) - np.searchsorted(members, given.src)) % len(members)
    later = np.where(owned_late[given.chunk], 1 + (turn - 1) // RELAYED, 0)
    return [*parts, given._replace(round=given.round + later)]


def _gather(members: Ints, owner: Ints, index: Ints) -> Transfers:
    """Every chunk from each of `members` to its owner, in round index[chunk]."""
    return _pairs(members, owner, index, REDUCE)


def _spread(members: Ints, owner: Ints, index: Ints) -> Transfers:
    """Every chunk from its owner to each other of `members`, in round index[chunk]."""
    index, other, owner, chunk, op = _pairs(members, owner, index, COPY)
    return Transfers(index, owner, other, chunk, op)


def _pairs(members: Ints, owner: Ints, index: Ints, op: int) -> Transfers:
    member, chunk = np.meshgrid(members, np.arange(len(owner)), indexing="ij")
    others = member != owner[chunk]
    member, chunk = member[others], chunk[others]
    return Transfers(index[chunk], member, owner[chunk], chunk, np.full(len(chunk), op))


def repeated(schedule: CollectiveSchedule, times: int) -> CollectiveSchedule:
    """`schedule` for so many buffers of its own chunks, one after the other, without phases."""
    if times == 1:
        return schedule
    shift = np.repeat(np.arange(times), schedule.num_transfers) * schedule.num_chunks
    starts = np.arange(times)[:, None] * schedule.num_transfers + schedule.offsets[:-1]
    src, dst, chunk, op = (np.tile(at, times) for at in (schedule.src, schedule.dst, schedule.chunk, schedule.op))
    return CollectiveSchedule(
        schedule.collective,
        schedule.algorithm,
        schedule.world_size,
        schedule.num_chunks * times,
        src,
        dst,
        chunk + shift,
        op,
        np.append(starts.reshape(-1), times * schedule.num_transfers),
        (Phase("main", 0, times * schedule.num_rounds),),
        ports=schedule.ports,
    )


class Roles(NamedTuple):
    """`rank_of` each role: the nodes one after the other, with late ranks last; the `nodes` in roles."""

    rank_of: tuple[int, ...]
    nodes: Nodes


def roles_with(nodes: Nodes, late_rank: int) -> Roles:
    """The Roles in which the late rank is the last of the last node; alike for ranks of nodes of the same sizes."""
    order = sorted(nodes, key=lambda ranks: late_rank in ranks)
    rank_of = sorted(order[-1], key=lambda rank: rank == late_rank)
    rank_of = [*(rank for ranks in order[:-1] for rank in ranks), *rank_of]
    stops = np.cumsum([0, *map(len, order)]).tolist()
    return Roles(tuple(rank_of), tuple(tuple(range(start, stop)) for start, stop in pairwise(stops)))


def each_alone(world_size: int) -> Nodes:
    """One rank on each node: what is known where nothing is."""
    return tuple((rank,) for rank in range(world_size))


def nodes_with(nodes: Nodes, ranks: Sequence[int]) -> tuple[int, ...]:
    """The nodes that have one of `ranks`, ascending."""
    wanted = set(ranks)
    return tuple(node for node, members in enumerate(nodes) if wanted.intersection(members))
