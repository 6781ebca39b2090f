"""late_join: an all-reduce that ends as few rounds after the late rank's last chunk as is possible.

The early ranks first sum among themselves, chunk c on the early rank c mod (p - 1), its owner. When the late rank comes
it meets the owner of one chunk after another, and every finished chunk spreads by doubling while the next are met. All
early ranks play the same part in turn (see join_siteswap.py), so that any chunk count will do.
"""

from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np

from lanterne.collectives.algorithms.late.chain import add_chain_join, add_chain_reduce
from lanterne.collectives.algorithms.late.join_siteswap import Siteswap, find_siteswap
from lanterne.collectives.algorithms.late.join_tail import Tail, find_tail
from lanterne.collectives.schedule.ir import (
    COPY,
    REDUCE,
    CollectiveSchedule,
    Group,
    Ints,
    ScheduleBuilder,
    late_builder,
)

Template: TypeAlias = tuple[Siteswap, Tail]

_TRIES = 400
# Of so few ranks what `search_template` finds: the seed; of each round of the tail sources, destinations and taus, a
# hexadecimal digit each. Their jobs then need no OR-Tools, and not the 0.1 s and the 10 MB that loading it takes.
FOUND: dict[int, tuple[int, str]] = {
    4: (0, "031-120-001"),
    5: (0, "0432-3210-0012 3421-1032-0123"),
    6: (0, "05431-43120-00112 05431-12043-00123"),
    7: (0, "065412-152304-001123 015236-234015-000112"),
    8: (0, "0726134-1345260-0011222 0137245-2456013-0000111"),
    9: (0, "08473612-12365407-00112233 01267834-34650127-00011124 23054718-57201346-00122334"),
    10: (0, "094837125-125364087-001122334 012953867-634870152-000011122 230154769-572601348-001122334"),
    11: (0, "0a49368125-1258749360-0011222333 012a549836-3498670152-0000111122 23a0459617-5672301498-0001122334"),
    12: (
        0,
        "0b3a6291457-6214578309a-00112223344 062b134a578-5713896240a-00001111223 05764138b29-489a0571362-00001112234",
    ),
    13: (
        1,
        "0c3b27a91456-1249568b7a30-001122223333 "
        "012c349b5678-563978a2401b-000011112224 "
        "0156947832ab-478ab0156329-000001111234",
    ),
    14: (
        1,
        "0d7c269b13458-123b458a697c0-0011222233333 "
        "012d37cb45689-456b89a037c12-0000111122223 "
        "12456d3780b9a-3789ac124560b-0000001111124",
    ),
    15: (
        0,
        "0e3d28ac145679-1245679b8ac30d-00112222333334 "
        "012e345d6789ab-6789abc2345d01-00001111222222 "
        "0167892345abce-345abcd0167892-00000001111113",
    ),
    16: (
        0,
        "0f6e35bd124789a-124789ac35bd6e0-001122223333333 "
        "012f467e3589abc-3589abcd467e012-000011112222222 "
        "0123589f467abcd-467abcde0123589-000000001111111",
    ),
}


def late_join_all_reduce(
    world_size: int, late_rank: int, num_chunks: int | None = None, *, only: int | None = None
) -> CollectiveSchedule:
    """Reduce-scatter among the early ranks; then num_chunks - 1 + ceil(log2(p)) rounds with the late rank.

    Default chunk count p - 1. With fewer, only the owners collect sums, by a halving reduce instead of a ring.

    Cost (p = world_size, m = num_chunks): join = m - 1 + ceil(log2(p)); join_load = join / m
    Paper: after StragglAR (arXiv 2505.23523), which reaches the same number for powers of two and m = p - 1; the lower
    bound: the late rank's last chunk leaves it in round m - 1 at the earliest, and those who know it at most double in
    a round.
    """
    early = world_size - 1
    num_chunks = num_chunks or early
    template = join_template(world_size) if world_size > 3 else None
    note = "" if template or world_size <= 3 else f"{no_template(world_size)}: a chain takes its place"
    build = late_builder("late_join", world_size, num_chunks, late_rank, note=note, only=only)
    if note:
        add_chain_reduce(build, early, num_chunks)
        add_chain_join(build, early, num_chunks)
        return build.build()
    build.phase("reduce_scatter")
    add_owner_reduce(build, early, num_chunks)
    build.phase("join")
    add_join(build, world_size, num_chunks, template)
    return build.build()


@lru_cache(maxsize=128)
def join_template(world_size: int) -> Template | None:
    """(Siteswap, tail) for `world_size` >= 4 ranks, or None where no try succeeds; kept for the next call.

    None, too, of more ranks than FOUND has where OR-Tools is missing; so all ranks of a job have it, or none.
    """
    if world_size not in FOUND:
        return search_template(world_size)
    seed, rounds = FOUND[world_size]
    siteswap = find_siteswap(world_size, seed)
    assert siteswap is not None, "it was found with this seed"
    parts = (np.array([int(digit, 16) for digit in part]) for part in rounds.replace("-", " ").split())
    return siteswap, list(zip(parts, parts, parts, strict=True))


def search_template(world_size: int) -> Template | None:
    """What `join_template` has, searched for with OR-Tools, without which it is None."""
    if find_spec("ortools") is None:
        return None
    for seed in range(_TRIES):
        siteswap = find_siteswap(world_size, seed)
        if siteswap is not None:
            tail = find_tail(siteswap.age, seed)
            if tail is not None:
                return siteswap, tail
    return None


def no_template(world_size: int) -> str:
    """Why join_template gave none."""
    why = f"found for {world_size} ranks" if find_spec("ortools") else "without OR-Tools (pip install ortools)"
    return f"no late_join template {why}"


def early_rounds(world_size: int, num_chunks: int) -> tuple[int, float]:
    """(rounds, chunks of a message, on average) of `add_owner_reduce`."""
    early = world_size - 1
    if num_chunks >= early:
        return early - 1, -(-num_chunks // early)
    rounds = (early - 1).bit_length()
    return rounds, max(1.0, num_chunks / rounds)


def add_owner_reduce(build: ScheduleBuilder, early: int, num_chunks: int) -> None:
    """Append rounds after which role c mod `early` holds the sum of chunk c over all early roles.

    A ring where every role owns something; else the fewest rounds, halving, with the owners spread evenly.
    """
    chunks = np.arange(num_chunks)
    if num_chunks >= early:
        mine = build.mine(early)
        # In round i role h holds the chunks c with c + 1 + i = h, modulo the roles.
        holder = np.union1d(mine, (mine - 1) % early)[:, None]
        turn, lap = np.arange(early - 1)[:, None, None], np.arange(-(-num_chunks // early))
        index, holder, chunk = np.broadcast_arrays(turn, holder, (holder - 1 - turn) % early + early * lap)
        real = chunk < num_chunks
        src = holder[real]
        build.rounds(index[real], src, (src + 1) % early, chunk[real], REDUCE, count=early - 1)
        return
    # Seats around a circle: owner c sits at seat c * early // num_chunks, the others between them.
    seat = chunks * early // num_chunks
    role_at = np.empty(early, np.int64)
    role_at[seat] = chunks
    role_at[np.setdiff1d(np.arange(early), seat)] = np.arange(num_chunks, early)
    mine = build.mine(early)
    # By chunk and role of these, how far the role's seat is from that of the chunk's owner.
    distance = (np.argsort(role_at)[mine][:, None] - seat) % early
    reach = early
    while reach > 1:
        # Before the round the sum of chunk c lies on the `reach` seats from its owner's on; the upper ones fold down.
        kept = -(-reach // 2)
        upper = distance if len(mine) == early else np.concatenate([distance, distance + kept])
        real = (kept <= upper) & (upper < reach)
        chunk, upper = np.broadcast_to(chunks, real.shape)[real], upper[real]
        at = seat[chunk] + upper
        build.round((role_at[at % early], role_at[(at - kept) % early], chunk, REDUCE))
        reach = kept


def add_join(build: ScheduleBuilder, world_size: int, num_chunks: int, template: Template | None) -> None:
    """Append the num_chunks - 1 + ceil(log2(world_size)) rounds of the join, in roles, the last one late."""
    early = world_size - 1
    if world_size == 2:
        chunks = np.arange(num_chunks)
        build.rounds(
            np.repeat(chunks, 2), np.tile([1, 0], num_chunks), np.tile([0, 1], num_chunks), np.repeat(chunks, 2), REDUCE
        )
    elif world_size == 3:
        for groups in _three_ranks(num_chunks):
            build.round(*groups)
    else:
        assert template is not None
        _turning_rounds(build, early, num_chunks, template)


def _turning_rounds(build: ScheduleBuilder, early: int, num_chunks: int, template: Template) -> None:
    siteswap, tail = template
    time = np.arange(num_chunks)[:, None]
    owner = time % early
    place = _places(build.mine(early), time, siteswap)
    chunk = time - siteswap.age_of_role[place]
    real = (chunk >= 0) & (place > 0)
    index, place = np.broadcast_to(time, real.shape)[real], place[real]
    dst, src = (index + place) % early, (index + siteswap.source[place]) % early
    build.rounds(
        np.concatenate([time[:, 0], time[:, 0], index]),
        np.concatenate([np.full(num_chunks, early), owner[:, 0], src]),
        np.concatenate([owner[:, 0], np.full(num_chunks, early), dst]),
        np.concatenate([time[:, 0], time[:, 0], chunk[real]]),
        np.concatenate([np.full(2 * num_chunks, REDUCE), np.full(len(src), COPY)]),
    )
    # Role r of the last exchange is early role (r + num_chunks - 1) mod early; the late rank stays itself.
    last = np.append((np.arange(early) + num_chunks - 1) % early, early)
    for source, destination, tau in tail:
        real = tau < num_chunks
        build.round((last[source[real]], last[destination[real]], num_chunks - 1 - tau[real], COPY))


def _places(mine: Ints, time: Ints, siteswap: Siteswap) -> Ints:
    """(num_chunks, k) the places that receive in each round, seen from who meets the late rank: those of `mine`.

    Of one role, its own place and the one that it sends to, 0 where it sends to none.
    """
    early = len(siteswap.source)
    if len(mine) == early:
        return np.broadcast_to(np.arange(1, early), (len(time), early - 1))
    receiver = np.zeros(early, np.int64)
    receiver[siteswap.source[1:]] = np.arange(1, early)
    at = (mine - time) % early
    return np.concatenate([at, receiver[at]], axis=1)


def _three_ranks(num_chunks: int) -> Iterator[list[Group]]:
    """The groups of every round for two early roles, 0 and 1, and the late one, 2.

    With three ranks an idle early one could not be fed while the other exchanges. Instead it sends its sum of the next
    chunk
    ahead: the late rank adds, and hands out finished chunks from chunk 1 on. Chunk 0 it gets back at the end.
    """
    if num_chunks == 1:
        yield [(2, 0, 0, REDUCE), (0, 2, 0, REDUCE)]
        yield [(0, 1, 0, COPY)]
        return
    for t in range(num_chunks):
        met, other = t % 2, 1 - t % 2
        groups: list[Group] = [(2, met, t, COPY if t else REDUCE)]
        if t >= 2:
            groups.append((met, other, t - 2, COPY))
        if t + 1 < num_chunks:
            groups.append((other, 2, t + 1, REDUCE))
        elif other == 0:
            groups.append((0, 2, 0, COPY))
        yield groups
    last, other = num_chunks - 1, num_chunks % 2
    if other == 1:
        # Role 0 met the late rank last and is free to give chunk 0 back, since the late rank sends the last chunk on.
        yield [(2, 1, last, COPY), (1, 0, last - 1, COPY), (0, 2, 0, COPY)]
    else:
        yield [(1, 0, last, COPY), (0, 1, last - 1, COPY)]


def refuses_one(world_size: int) -> str | None:
    """Why no rank can be late among `world_size`, or None."""
    return None if world_size > 1 else "expected 2 or more"
