"""The steady state of late_join: at which age every early rank receives a chunk, and from whom.

Roles turn: in round t early rank r plays role (r - t) mod N, N = n - 1. Role 0 exchanges chunk t with the late rank;
role j != 0 receives the chunk of age `age_of_role[j]`, that is chunk t - age, from role `source[j]`. The rank d places
after a chunk's owner receives it at age a(d), a(0) = 0; each role receives one chunk a round exactly if d -> d - a(d)
mod N is a
permutation: a juggling siteswap. With sum a(d) = N (q - 1), q = ceil(log2 n), every rank lacks q - 1 chunks once the
last one has met the late rank, as many as there are rounds left.
"""

import heapq
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lanterne.collectives.schedule.ir import Ints

_PROFILES = 4


@dataclass(frozen=True)
class Siteswap:
    """The steady state for one number of ranks.

    Attributes: `age`: (N,) a(d); `age_of_role`: (N,) the age that role j receives; `source`: (N,) the role it receives
    from (its own number for role 0, whose partner is the late rank).
    """

    age: Ints
    age_of_role: Ints
    source: Ints


def find_siteswap(world_size: int, seed: int) -> Siteswap | None:
    """A Siteswap for `world_size` >= 4 ranks, or None if this seed finds none.

    Cost (p = world_size): about 2 p steps.
    Paper: arrangement after M. Hall 1952, "A combinatorial problem on abelian groups".
    """
    profiles = level_profiles(world_size)
    choice = random.Random(seed)
    age = arrange(profiles[seed % len(profiles)], world_size, choice)
    source = assign_sources(age, choice)
    if source is None:
        return None
    early = np.arange(len(age))
    age_of_role = np.zeros_like(age)
    age_of_role[(early - age) % len(age)] = age
    return Siteswap(age, age_of_role, source)


@lru_cache(maxsize=1024)
def level_profiles(world_size: int) -> list[list[int]]:
    """The few best lists l, best first: l[a - 1] ranks receive a chunk at age a.

    Before age a X_a = 1 + l_1 + ... + l_(a-1) early ranks hold it; X at most doubles, and sums to 2 N, which is what
    makes every rank lack q - 1 chunks. X doubles up to age q - 2; of the three values that follow those are best whose
    largest growth is smallest, so that not every holder has to send.
    """
    early, q = world_size - 1, (world_size - 1).bit_length()
    if world_size == 2**q:
        return [[2**a for a in range(q - 1)] + [2 ** (q - 1) - 1]]
    head = [2**a for a in range(q - 2)]
    last, total = head[-1] if head else 1, 2 * early - sum(head)
    found = []
    for x in range(last, 2 * last + 1):
        for y in range(max(x, -(-(total - x) // 3)), 2 * x + 1):
            z = total - x - y
            if y <= z <= min(2 * y, early) and early <= 2 * z:
                found.append((max(x / last, y / x, z / y, early / z), -x, -y, z))
    best = [[*head, -x, -y, z, early] for _, x, y, z in heapq.nsmallest(_PROFILES, found)]
    return [np.trim_zeros(np.diff(holders), "b").tolist() for holders in best]


def arrange(levels: list[int], world_size: int, choice: random.Random) -> Ints:
    """Ages a(0), ..., a(N - 1) with a(0) = 0 and levels[i] times age i + 1, such that d - a(d) mod N is a permutation.

    From all ages q - 1 (a rotation) two ages change at a time, their sum staying the same: one becomes a wanted age,
    the other takes the residual. The wanted age goes to the freed position; whatever has its landing moves to the other
    freed position, and so on until a landing is free.
    """
    early, common = world_size - 1, (world_size - 1).bit_length() - 1
    wanted = [0] + [age for age, count in enumerate(levels, start=1) for _ in range(count)]
    below = [age for age in wanted if age < common]
    above = [age for age in wanted if age > common]
    choice.shuffle(below)
    choice.shuffle(above)
    age = [common] * early
    at_landing: list[int | None] = [(landing + common) % early for landing in range(early)]
    residual, place = common, 0
    candidates: list[int] = []
    while len(below) + len(above) > 1:
        target = (below if (residual <= common and below) or not above else above).pop()
        other = place
        while other == place or age[other] != common:
            # Evictions move ages about, so that a position with the common age may lose it and another get it.
            if not candidates:
                candidates = [d for d in range(early) if age[d] == common]
                choice.shuffle(candidates)
            other = candidates.pop()
        residual += common - target
        place = _insert(age, at_landing, place, other, target, residual, early)
    start = age.index(0)
    return np.array(age[start:] + age[:start])


def _insert(
    age: list[int], at_landing: list[int | None], place: int, other: int, target: int, residual: int, early: int
) -> int:
    """Put `target` at `place`, evicting as needed, and `residual` at the position left free; return that."""
    for freed in (place, other):
        at_landing[(freed - age[freed]) % early] = None
    moving = target
    while True:
        landing = (place - moving) % early
        evicted = at_landing[landing]
        age[place], at_landing[landing] = moving, place
        if evicted is None:
            break
        moving, place, other = age[evicted], other, evicted
    age[other] = residual
    at_landing[(other - residual) % early] = other
    return other


def assign_sources(age: Ints, choice: random.Random) -> Ints | None:
    """The role that each role receives from, or None where not all can be served.

    Every role but 0 sends one chunk that it holds, each age as often as it is received.
    Role s holds the chunk of age a exactly if a((s + a) mod N) < a.
    """
    early = len(age)
    roles = np.arange(early)
    ages: list[int] = np.unique(age[1:]).tolist()
    room = {a: int((age[1:] == a).sum()) for a in ages}
    holds: dict[int, list[bool]] = {a: (age[(roles + a) % early] < a).tolist() for a in ages}
    senders: dict[int, list[int]] = {a: [] for a in ages}
    for role in sorted(range(1, early), key=lambda role: (sum(holds[a][role] for a in ages), choice.random())):
        if not _seat(role, senders, room, holds):
            return None
    source = np.arange(early)
    receivers = {a: ((np.flatnonzero(age == a) - a) % early).tolist() for a in ages}
    for a in ages:
        source[receivers[a]] = senders[a]
    return source


def _seat(role: int, senders: dict[int, list[int]], room: dict[int, int], holds: dict[int, list[bool]]) -> bool:
    """Give `role` an age to send, moving others along a shortest chain where all are full; False if impossible."""
    came_from: dict[int, tuple[int, int] | None] = {a: None for a in senders if holds[a][role]}
    queue = list(came_from)
    for a in queue:
        if len(senders[a]) < room[a]:
            free = a
            while step := came_from[free]:
                before, moved = step
                senders[before].remove(moved)
                senders[free].append(moved)
                free = before
            senders[free].append(role)
            return True
        for b in senders:
            if b not in came_from:
                seated = next((other for other in senders[a] if holds[b][other]), None)
                if seated is not None:
                    came_from[b] = (a, seated)
                    queue.append(b)
    return False
