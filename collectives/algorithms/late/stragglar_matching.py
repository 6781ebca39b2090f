"""StragglAR's rounds for even numbers that are no powers of two: matchings in which both partners gain a chunk.

The paper computes a maximum-weight matching anew in each round. Here the early ranks play the turning roles of
late_join (join_siteswap.py), so that one perfect matching of the roles serves all rounds with the late rank, and
the weights of the q - 1 last matchings prefer what join_tail.py prefers. That reaches n - 2 + q rounds, q =
ceil(log2 n), where matching round by round needs up to 8 more.
"""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from lanterne.collectives.algorithms.late.join_siteswap import arrange, level_profiles
from lanterne.collectives.algorithms.late.join_tail import chunk_scarcity, lacked_after_injection
from lanterne.collectives.schedule.ir import Ints
from lanterne.errors import LanterneError, need_package

# Source, destination, and chunk or tau.
Copy: TypeAlias = tuple[int, int, int]
Pair: TypeAlias = tuple[int, int]
# Called with a line of text now and then.
Progress: TypeAlias = Callable[[str], object]

_SEEDS, _TAILS = 5000, 4


def matching_rounds(world_size: int, progress: Progress | None = None) -> list[list[Copy]]:
    """The copies (src, dst, chunk) of every round of the join, in early roles; the last role is the late rank.

    Args:
        world_size: even, 6 or more.
        progress: called with a line of text now and then; None for silence.

    Raises:
        Unavailable: networkx, which makes the matchings, is missing.
        LanterneError: no try succeeds.
    """
    need_package("networkx", f"stragglar of {world_size} ranks, no power of two")
    age, pairs, tail = _template(world_size, progress)
    early = world_size - 1
    partners = [*pairs, *((j, i) for i, j in pairs)]
    rounds = []
    for now in range(early):
        copies = [((now + i) % early, (now + j) % early, now - int(age[j])) for i, j in partners]
        rounds.append([copy for copy in copies if copy[2] >= 0])
    # Role r of the last exchange is early role (r + early - 1) mod early; the late rank, number `early`, stays itself.
    last = [(role + early - 1) % early for role in range(early)] + [early]
    return rounds + [[(last[src], last[dst], early - 1 - tau) for src, dst, tau in copies] for copies in tail]


@lru_cache(maxsize=32)
def _template(world_size: int, progress: Progress | None) -> tuple[Ints, list[Pair], list[list[Copy]]]:
    """(age that each role receives, pairs of roles, last rounds of (source, destination, tau)); kept."""
    profiles = level_profiles(world_size)
    for seed in range(_SEEDS):
        choice = random.Random(seed)
        age = arrange(profiles[seed % len(profiles)], world_size, choice)
        age_of_role, pairs = _pair_roles(age)
        if pairs is None:
            continue
        for attempt in range(_TAILS):
            if progress:
                progress(f"stragglar, {world_size} ranks: siteswap {seed + 1}, last rounds {attempt + 1}")
            tail = _last_rounds(age, choice)
            if tail is not None:
                return age_of_role, pairs, tail
    raise LanterneError(f"stragglar: found no matchings for {world_size} ranks in {_SEEDS} tries")


def _pair_roles(age: Ints) -> tuple[Ints, list[Pair] | None]:
    """(age that each role receives, pairs of the roles but 0 that hold what the other receives, or None)."""
    import networkx

    early = len(age)
    roles = np.arange(early)
    age_of_role = np.zeros_like(age)
    age_of_role[(roles - age) % early] = age
    # gives[i, j]: role j holds the chunk of the age that role i receives.
    gives = age[(roles + age_of_role[:, None]) % early] < age_of_role[:, None]
    swap = gives & gives.T
    swap[0] = swap[:, 0] = False
    if not swap[1:].any(axis=1).all():
        return age_of_role, None
    graph: Any = networkx.Graph()
    graph.add_edges_from(np.argwhere(np.triu(swap)).tolist())
    pairs = networkx.max_weight_matching(graph, maxcardinality=True)
    return age_of_role, sorted(pairs) if 2 * len(pairs) == early - 1 else None


def _last_rounds(age: Ints, choice: random.Random) -> list[list[Copy]] | None:
    """The q - 1 matchings after the last exchange, as (source, destination, tau) in roles; None if this try fails."""
    world_size = len(age) + 1
    lacked: Ints = np.append(lacked_after_injection(age), 0)
    rounds = []
    for rounds_left in reversed(range((world_size - 1).bit_length() - 1)):
        copies = _matching(lacked, world_size, rounds_left, choice)
        if copies is None:
            return None
        for _, destination, tau in copies:
            lacked[destination] &= ~(1 << tau)
        rounds.append(copies)
    return rounds


def _matching(lacked: Ints, world_size: int, rounds_left: int, choice: random.Random) -> list[Copy] | None:
    """One perfect matching in which every early role gains a chunk, of greatest weight; None where there is none.

    A chunk is worth more the fewer hold it, above all where it cannot reach all by doubling otherwise, and less to a
    role that already holds scarce ones.
    """
    import networkx

    taus = np.arange(int(lacked.max()).bit_length())
    lacks = (lacked[:, None] >> taus & 1).astype(bool)
    holders = world_size - lacks.sum(axis=0)
    scarcity = chunk_scarcity(holders, world_size)
    urgent = np.maximum(0, -(-world_size // 2**rounds_left) - holders) / holders
    worth = 1000 + 2 * world_size / (holders + 1) + 50 * urgent - scarcity * (~lacks @ scarcity)[:, None]
    graph: Any = networkx.Graph()
    best: dict[Pair, Pair] = {}
    for i in range(world_size - 1):
        gain = np.where(lacks[i] & ~lacks, worth[i], -1)
        give = np.where(lacks & ~lacks[i], worth, -1)
        takes, gives = gain.argmax(axis=1), give.argmax(axis=1)
        weight = gain.max(axis=1) + give.max(axis=1)
        for j in range(i + 1, world_size):
            # The late rank, the last role, lacks nothing.
            both = gain[j, takes[j]] >= 0 and (give[j, gives[j]] >= 0 or j == world_size - 1)
            if both:
                best[i, j] = int(takes[j]), int(gives[j])
                graph.add_edge(i, j, weight=int(100 * weight[j] * (1 + 0.002 * choice.random())))
    pairs = networkx.max_weight_matching(graph, maxcardinality=True)
    if 2 * len(pairs) < world_size:
        return None
    copies: list[Copy] = []
    for i, j in map(sorted, pairs):
        tau_i, tau_j = best[i, j]
        copies += [(j, i, tau_i)] if j == world_size - 1 else [(j, i, tau_i), (i, j, tau_j)]
    reached = holders + np.bincount([tau for *_, tau in copies], minlength=len(taus))
    return copies if (reached * 2**rounds_left >= world_size).all() else None
