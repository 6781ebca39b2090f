"""A compiled list scheduler for one stage per rank, and the rules that `best` tries with it.

A rank that is free looks at what has come, what fits in memory, and what it knows to be on the way.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numba import njit

from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.planners.words import Letters

B_FIRST, ALTERNATE, BY_LEAD = range(3)


class Rule(NamedTuple):
    """How a free rank chooses.

    Attributes:
        leads: (num_ranks,), F begun less B begun that BY_LEAD, and any rule before its first B, aims at.
        limit: whether no F may go beyond that.
        prefer: B_FIRST; ALTERNATE, F after a B and B after an F; or BY_LEAD, F below the lead and B from it on.
        room_first: when memory keeps the preferred F out, a W that makes room goes before a B.
        gap: W fills a gap that is at least this share of it.
        patience: wait for the preferred kind if it comes within this share of the other's duration.
        most_waiting: with so many W waiting, a W comes first.
    """

    leads: Ints
    limit: bool
    prefer: int
    room_first: bool
    gap: float
    patience: float
    most_waiting: int


def rules(leads: Sequence[Ints], most: int) -> list[Rule]:
    """All combinations, the most promising first, at most `most` of them; `leads` are lead vectors to try."""
    shapes = [
        *product((True,), (ALTERNATE, B_FIRST, BY_LEAD), (True, False), (0.0, 1.0, 0.5), (0.0, 0.4), (10**9,)),
        *product((False,), (ALTERNATE, B_FIRST, BY_LEAD), (True, False), (0.0, 1.0, 0.5), (0.0, 0.4), (10**9,)),
        *product((True,), (ALTERNATE, BY_LEAD), (True,), (0.0, 1.0), (0.0,), (2, 4)),
    ]
    return [Rule(lead, *shape) for shape in shapes for lead in leads][:most]


@njit(cache=True)
def list_words(letters: Letters, rule: Rule, words: Ints) -> bool:
    """Fill `words`, (num_ranks, 3 * microbatches), by `rule`; whether that was possible.

    Cost: O(A num_ranks) for A actions, about 60 ns each at 8 ranks.
    """
    ranks = len(letters.capacity)
    count = np.zeros((3, ranks), np.int64)
    total = letters.total[0]
    arrival = np.full((2, ranks, total), 1e300)
    for kind in range(2):
        for rank in range(ranks):
            if not letters.waits[kind * ranks + rank]:
                arrival[kind, rank, :] = letters.gather[rank] if kind == 0 else 0.0
    used, size = np.zeros(ranks), np.zeros(ranks, np.int64)
    wake, asleep = np.zeros(ranks), np.zeros(ranks, np.bool_)
    link_free, last = np.zeros(letters.num_links + 1), np.zeros(ranks, np.int64)
    instant = 1e-9 * letters.duration.max()
    while True:
        rank = int(np.argmin(wake))
        now = wake[rank]
        if now >= 1e300:
            break
        kind, until = _choose(letters, rule, rank, now + instant, count, arrival, used[rank], last[rank])
        asleep[rank] = kind < 0
        if kind < 0:
            wake[rank] = until
            continue
        letter = kind * ranks + rank
        k = count[kind, rank]
        count[kind, rank] = k + 1
        words[rank, size[rank]] = letter
        size[rank] += 1
        if kind < 2:
            last[rank] = kind
        used[rank] += letters.alloc[letter] - letters.free[letter]
        ends = now + letters.duration[letter]
        wake[rank] = ends if size[rank] < 3 * total else 1e300
        target = letters.target[letter]
        if target >= 0:
            if letters.occupancy[letter] > 0.0:
                link = letters.link[letter]
                link_free[link] = max(link_free[link], ends) + letters.occupancy[letter]
                ends = link_free[link]
            ends += letters.latency[0, letter]
            receiver = letters.rank[target]
            arrival[kind, receiver, k] = ends
            if asleep[receiver]:
                wake[receiver] = min(wake[receiver], ends)
    return size.min() == 3 * total


@njit(cache=True)
def _choose(
    letters: Letters, rule: Rule, rank: int, now: float, count: Ints, arrival: Floats, used: float, last: int
) -> tuple[int, float]:
    """(kind, 0) to start, or (-1, when to look again; 1e300 if only a new message can change anything)."""
    ranks, total = len(letters.capacity), letters.total[0]
    forwards, backwards, weights = count[0, rank], count[1, rank], count[2, rank]
    room = letters.capacity[rank] - used
    lead = forwards - backwards
    comes_forward = arrival[0, rank, forwards] if forwards < total else 1e300
    comes_backward = arrival[1, rank, backwards] if backwards < forwards else 1e300
    waiting = backwards - weights
    reserve = letters.alloc[ranks + rank]
    fits_forward = room >= letters.alloc[rank] + reserve and not (rule.limit and lead >= rule.leads[rank])
    if room < reserve:
        comes_backward = 1e300
    if rule.prefer == 1 and backwards > 0:
        wants_forward = last == 1
    elif rule.prefer == 0 and backwards > 0:
        wants_forward = False
    else:
        wants_forward = lead < rule.leads[rank]
    if waiting > 0:
        blocked = wants_forward and comes_forward <= now and not fits_forward and lead < rule.leads[rank]
        if waiting >= rule.most_waiting or (blocked and rule.room_first) or room < reserve:
            return 2, 0.0
    if not fits_forward:
        comes_forward = 1e300
    first, second = (comes_forward, comes_backward) if wants_forward else (comes_backward, comes_forward)
    wanted = 0 if wants_forward else 1
    if first <= now:
        return wanted, 0.0
    other = 1 - wanted
    patient = first <= now + rule.patience * letters.duration[other * ranks + rank]
    if second <= now and not patient:
        return other, 0.0
    soonest = first if patient else min(first, second)
    if waiting > 0 and soonest - now >= rule.gap * letters.duration[2 * ranks + rank]:
        return 2, 0.0
    return -1, soonest
