"""StragglAR: the others reduce-scatter while they wait; then each meets the late rank once and all pass on the sums.

In roles: early roles 0 to p - 2 own chunks 0 to p - 2, the last role is the late rank. Powers of two follow algorithm 1
of the paper, other even numbers a matching in every round (its appendix E; see stragglar_matching.py).
"""

import numpy as np

from lanterne.collectives.algorithms.late.stragglar_matching import Copy, Progress, matching_rounds
from lanterne.collectives.algorithms.ring import ring_rounds
from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, Group, late_builder


def stragglar_all_reduce(world_size: int, late_rank: int, progress: Progress | None = None) -> CollectiveSchedule:
    """Ring reduce-scatter among the early ranks; then, with the late rank there, one exchange with it in every round.

    Cost (p = world_size): rounds = 2 * (p - 2) + ceil(log2(p)); load = rounds / (p - 1); join = p - 2 + ceil(log2(p))
    Paper: Devraj et al., StragglAR (arXiv 2505.23523), section 3, algorithm 1 and appendix E; differs: any rank may be
    late, and the matchings of even numbers that are no powers of two reach the rounds of powers of two.

    Args:
        progress: called with one line of text now and then while matchings are computed; None for silence.
    """
    early = world_size - 1
    build = late_builder("stragglar", world_size, early, late_rank)
    build.phase("reduce_scatter")
    ring_rounds(build, early, -1, REDUCE)
    build.phase("join")
    power_of_two = world_size.bit_count() == 1
    rounds = _algorithm_1(world_size) if power_of_two else matching_rounds(world_size, progress)
    for index, copies in enumerate(rounds):
        groups: list[Group] = []
        if index < early:
            groups.append((np.array([early, index]), np.array([index, early]), index, REDUCE))
        if copies:
            src, dst, chunk = np.array(copies).T
            groups.append((src, dst, chunk, COPY))
        build.round(*groups)
    return build.build()


def refuses_odd(world_size: int) -> str | None:
    """Why StragglAR cannot serve `world_size`, or None."""
    if world_size < 2:
        return "expected 2 or more"
    return "expected an even number (late_join does the same for any)" if world_size % 2 else None


def _algorithm_1(world_size: int) -> list[list[Copy]]:
    """The copies (src, dst, chunk) of every round of the join, for a power of two.

    Every early role holds one *active* chunk: finished, and not everywhere yet. In a round the holders of the oldest
    (P) and the holders of all others (Q) pair up and swap, so that the oldest is then everywhere and every other one
    has doubled.
    """
    early, levels = world_size - 1, world_size.bit_length() - 1
    active: dict[int, int] = {}
    rounds: list[list[Copy]] = []
    for index in range(early - 1 + levels):
        copies = _first_copies(index, active, early, levels) if index < levels else _swaps(index, active, early, levels)
        oldest = index - levels
        for _, dst, chunk in copies:
            if active.get(dst, oldest) == oldest:
                active[dst] = chunk
        if index < early:
            active[index] = index
        rounds.append(copies)
    return rounds


def _first_copies(index: int, active: dict[int, int], early: int, levels: int) -> list[Copy]:
    """Phase 1: holders send to roles that have nothing; role index - 1 to the one that must hold its chunk."""
    if index == 0:
        return []
    reserved = range(index, 2 * levels - 1)
    free = [role for role in range(early) if role not in active and role not in reserved]
    copies = [(index - 1, index - 1 + levels, index - 1)]
    return copies + [(src, free.pop(), chunk) for src, chunk in sorted(active.items()) if src != index - 1]


def _swaps(index: int, active: dict[int, int], early: int, levels: int) -> list[Copy]:
    """Phase 2: P and Q pair up; who soon meets the late rank gets the oldest chunks, which run out in time."""
    oldest = index - levels
    holders = sorted(role for role, chunk in active.items() if chunk == oldest and role != index)
    others = sorted((chunk, -role) for role, chunk in active.items() if chunk != oldest and role != index)
    soon = range(index + 1, index + levels + 1)
    pairs = sorted(holders, key=lambda role: (role not in soon, role))
    partners = [(-role, chunk) for chunk, role in others]
    if index >= early:
        partners.append((early, early - 1))
    copies: list[Copy] = []
    for role, (partner, chunk) in zip(pairs, partners, strict=True):
        copies += [(partner, role, chunk)] if partner == early else [(role, partner, oldest), (partner, role, chunk)]
    return copies
