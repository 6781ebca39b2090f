"""Recursive halving and doubling: partners at distances p/2, ..., 1 and back. Best for powers of two."""

import numpy as np

from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, ScheduleBuilder, distinct
from lanterne.collectives.schedule.passes import reverse


def rhd_all_reduce(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Halving reduce-scatter, doubling all-gather; beyond a power of two, groups of 3 and 4 ranks first become pairs.

    Cost (p = world_size, f = 2 ** floor(log2(p))): rounds = 2 * log2(f) + 2 * (p > f); load = 2 * (f - 1) / f + (p > f)
    Paper: Rabenseifner 2004; Rabenseifner and Traeff 2004 (3-2 elimination); StragglAR (arXiv 2505.23523), appendix F;
    differs: groups of four too, so that every p that is no power of two costs the same as the even ones of the paper.
    """
    size = 2 ** (world_size.bit_length() - 1)
    build = ScheduleBuilder("all_reduce", "rhd", world_size, size, only=only)
    distances = _halves(size)
    build.phase("fold")
    if size < world_size:
        _eliminate(build, world_size, size // 2, REDUCE)
        # Which was the exchange over the largest distance, too.
        distances = distances[1:]
    build.phase("reduce_scatter")
    for distance in distances:
        _exchange(build, size, distance, REDUCE)
    build.phase("all_gather")
    for distance in reversed(distances):
        _exchange(build, size, distance, COPY)
    build.phase("unfold")
    if size < world_size:
        _eliminate(build, world_size, size // 2, COPY)
    return build.build()


def rhd_all_gather(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Recursive doubling: partners at distances 1, 2, 4, ... exchange all that they hold.

    Cost (p = world_size): rounds = log2(p); load = (p - 1) / p
    Paper: Thakur, Rabenseifner and Gropp 2005.
    """
    build = ScheduleBuilder("all_gather", "rhd", world_size, world_size, only=only)
    for distance in reversed(_halves(world_size)):
        _exchange(build, world_size, distance, COPY)
    return build.build()


def rhd_reduce_scatter(world_size: int, *, only: int | None = None) -> CollectiveSchedule:
    """Recursive halving: partners at distances p/2, p/4, ... exchange the half that the other will own.

    Cost (p = world_size): rounds = log2(p); load = (p - 1) / p
    Paper: Thakur, Rabenseifner and Gropp 2005.
    """
    return reverse(rhd_all_gather(world_size, only=only), "reduce_scatter")


def refuses_other_than_powers_of_two(world_size: int) -> str | None:
    """Why recursive halving or doubling cannot serve `world_size`, or None."""
    return None if world_size.bit_count() == 1 else "expected a power of two (bruck does the same for any number)"


def _halves(size: int) -> list[int]:
    return [size >> level for level in range(1, size.bit_length())]


def _exchange(build: ScheduleBuilder, size: int, distance: int, op: int) -> None:
    """One round with the partner at `distance`: of the 2 * distance chunks around the pair each sends half.

    A rank that reduces sends its partner's half, one that copies its own.
    """
    mine = build.mine(size)
    ranks = distinct(mine, mine ^ distance)[:, None]
    half = ranks // distance if op == COPY else (ranks ^ distance) // distance
    build.round((ranks, ranks ^ distance, half * distance + np.arange(distance), op))


def _eliminate(build: ScheduleBuilder, world_size: int, half: int, op: int) -> None:
    """Two rounds in which each of size / 2 groups of 2 to 4 ranks leaves a half of the sums at its first two ranks.

    Group i is ranks i, i + size / 2, i + size and i + 3 size / 2, as far as they exist. COPY is REDUCE backwards.

    Args:
        half: size / 2.
    """
    first = distinct(build.mine(world_size) % half)[:, None]
    low, high = np.arange(half), np.arange(half, 2 * half)
    threes = first[(first + 2 * half < world_size) & (first + 3 * half >= world_size)][:, None]
    fours = first[first + 3 * half < world_size][:, None]
    others = np.setdiff1d(first, threes)[:, None]
    rounds = [
        [
            (first, first + half, high),
            (others + half, others, low),
            (threes + 2 * half, threes, low),
            (fours + 2 * half, fours + 3 * half, high),
            (fours + 3 * half, fours + 2 * half, low),
        ],
        [
            (threes + half, threes, low),
            (threes + 2 * half, threes + half, high),
            (fours + 2 * half, fours, low),
            (fours + 3 * half, fours + half, high),
        ],
    ]
    if op == COPY:
        rounds = [[(dst, src, chunk) for src, dst, chunk in groups] for groups in reversed(rounds)]
    for groups in rounds:
        build.round(*((src, dst, chunk, op) for src, dst, chunk in groups))
