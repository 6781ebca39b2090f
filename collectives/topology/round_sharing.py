"""What the bytes of a round take on links of different rates, where its messages begin together.

On links that are alike a round is over with its busiest link. Where some are slow that is wrong in two ways. A message
that a slow link holds back leaves the rest of its other link to those beside it. And links are shared by messages, not
by bytes: one of two chunks has gone on for half its way when those of one chunk are over, and its slow link, which had
little to do until then, has to take the rest alone. So here the messages of a round share all links max-min fairly, and
share anew when one of them is over.

The law is that of flows (flows.py), the code is not, nor what it is for: rounds do not meet here, so that most of them
are alike and few are worked out.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.ir import Ints
from lanterne.collectives.topology.crossing import CrossedLinks

Numbers = NDArray[np.float64]
# Times and rates that differ by such a part are one.
ALIKE = 1e-9
# The rate of a message that crosses no link with a limit, bytes per s.
ENDLESS = 1e30


class RoundMessages(NamedTuple):
    """Transfers from one rank to another in one round are one message: (messages,) arrays, by round.

    `message_of` is that of each transfer, `bounds` (rounds + 1,) where the messages of each round begin.
    """

    src: Ints
    dst: Ints
    chunks: Ints
    message_of: Ints
    bounds: Ints


def moves_s(crossed: CrossedLinks, messages: RoundMessages, nbytes: float) -> Numbers:
    """(messages,) seconds that the bytes of each take, chunks having `nbytes`."""
    first_like = _first_rounds_like(messages)
    kept = np.flatnonzero(first_like == np.arange(len(first_like)))
    bounds, found = messages.bounds, np.zeros(len(messages.src))
    worked = np.concatenate([np.arange(bounds[each], bounds[each + 1]) for each in kept] or [np.zeros(0, np.int64)])
    its_round = np.repeat(np.arange(len(kept)), (bounds[1:] - bounds[:-1])[kept])
    src, dst = messages.src[worked], messages.dst[worked]
    sizes = np.asarray(messages.chunks[worked] * nbytes, np.float64)
    found[worked] = shared_s(its_round, sizes, *_links_of(crossed, its_round, src, dst, sizes))
    for index, (begin, end) in enumerate(pairwise(bounds.tolist())):
        like = bounds[first_like[index]]
        found[begin:end] = found[like : like + end - begin]
    return found


def messages_of(round_of: Ints, src: Ints, dst: Ints, world_size: int) -> RoundMessages:
    """The RoundMessages of transfers of `world_size` ranks."""
    keys, message_of, chunks = np.unique(
        (round_of * world_size + src) * world_size + dst, return_inverse=True, return_counts=True
    )
    rounds = keys // world_size**2
    bounds = np.searchsorted(rounds, np.arange(int(rounds.max(initial=-1)) + 2))
    return RoundMessages(keys // world_size % world_size, keys % world_size, chunks, message_of, bounds)


def _first_rounds_like(messages: RoundMessages) -> Ints:
    """(rounds,) the first round with the same messages as each."""
    seen: dict[bytes, int] = {}
    columns = np.stack([messages.src, messages.dst, messages.chunks], axis=1)
    found = [
        seen.setdefault(columns[begin:end].tobytes(), index)
        for index, (begin, end) in enumerate(pairwise(messages.bounds.tolist()))
    ]
    return np.array(found, np.int64)


def _links_of(
    crossed: CrossedLinks, round_of: Ints, src: Ints, dst: Ints, nbytes: Numbers
) -> tuple[Ints, Numbers]:
    """(links, capacity) of shared_s for messages of `nbytes` each."""
    columns, capacities, total = [], [np.zeros(0)], 0
    for model, (mask, leaves, enters, size, slowdown) in crossed(src, dst):
        for side in (leaves, enters):
            used, place = np.unique(round_of[mask] * size + side, return_inverse=True)
            slow = slowdown[used % size]
            _, beta = model.alpha_beta(slow * np.bincount(place, nbytes[mask], len(used)))
            column = np.full(len(src), -1, np.int64)
            column[mask] = place + total
            columns.append(column)
            capacities.append(1 / np.maximum(slow * beta, 1 / ENDLESS))
            total += len(used)
    listed = np.stack(columns)
    listed[listed < 0] = total
    return listed, np.append(np.concatenate(capacities), np.inf)


def shared_s(round_of: Ints, nbytes: Numbers, links: Ints, capacity: Numbers) -> Numbers:
    """(messages,) seconds until each is over, where all of a round begin at once.

    Args:
        links: (columns, messages) those that each crosses; no two rounds have one in common but the last of all.
        capacity: of each link, bytes per s; that of the last is without end.
    """
    left, now_s = nbytes.astype(float), np.zeros(1 + int(round_of.max(initial=0)))
    found, under_way = np.zeros(len(nbytes)), np.arange(len(nbytes))
    while len(under_way):
        rates, its_round = _fair_rates(links[:, under_way], capacity), round_of[under_way]
        takes_s, next_s = left[under_way] / rates, np.full(len(now_s), np.inf)
        np.minimum.at(next_s, its_round, takes_s)
        is_over = takes_s <= next_s[its_round] * (1 + ALIKE)
        left[under_way] -= rates * next_s[its_round]
        now_s += np.where(np.isinf(next_s), 0.0, next_s)
        found[under_way[is_over]] = now_s[its_round[is_over]]
        under_way = under_way[~is_over]
    return found


def _fair_rates(links: Ints, capacity: Numbers) -> Numbers:
    """The max-min rates of messages that cross `links`, (columns, messages): the tightest links are shared first."""
    rates, spare = np.zeros(links.shape[1]), capacity.copy()
    waiting = np.arange(links.shape[1])
    while len(waiting):
        its = links[:, waiting]
        users = np.bincount(its.ravel(), minlength=len(spare))
        share = np.full(len(spare), np.inf)
        np.divide(spare, users, out=share, where=users > 0)
        its_share = share[its].min(axis=0)
        # A link is shared now unless one of its messages gets less by another link.
        least = np.full(len(spare), np.inf)
        for column in its:
            np.minimum.at(least, column, its_share)
        is_tight = least >= share * (1 - ALIKE)
        now = (is_tight[its] & (share[its] <= its_share * (1 + ALIKE))).any(axis=0)
        given = np.minimum(its_share[now], ENDLESS)
        rates[waiting[now]] = given
        for column in its[:, now]:
            np.subtract.at(spare, column, given)
        np.maximum(spare, 0.0, out=spare)
        waiting = waiting[~now]
    return rates
