"""Plans as words: on each rank a row of letters, the k-th of a letter being its k-th microbatch.

A letter is a kind and a stage: kind * num_stages + stage, kinds F, B, W by their index. Microbatches of one route are
alike, so doing each letter's in order costs nothing; what is left to choose is the word. Backwards are split.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanterne.pipeline.plan.action import FUSED, KINDS, Action
from lanterne.pipeline.plan.costs import Costs, Floats, Ints
from lanterne.pipeline.plan.plan import KIND, PARTS, STAGE, Plan
from lanterne.pipeline.planners.list_schedule import B, F, W

PIECES = {KINDS.index(whole): tuple(KINDS.index(kind) for kind in pieces) for whole, pieces in FUSED.items()}
NONE = -1


class Letters(NamedTuple):
    """A problem on a placement by letter, as arrays that compiled code reads.

    Attributes, (num_letters,) if not said otherwise:
        rank, total: the rank that runs a letter and how often.
        before: the letter of which the rank must have run as many, NONE for an F.
        target: the letter whose message it sends, NONE for none; waits: whether it waits for one.
        link: that the message occupies, NONE for none; int64.
        duration: as in Costs, the mean over microbatches; occupancy, alloc, free: as in Costs.
        took: (num_samples, num_letters, microbatches or 1): how long the k-th of a letter takes; 1: all alike.
        latency: (num_samples, num_letters): the nominal ones, or sampled ones.
        gather, reduce: data-parallel time before the first of an F and after the last of a W.
        capacity: (num_ranks,).
        num_links, shared: how many links, and whether ranks share one.
    """

    rank: Ints
    total: Ints
    before: Ints
    target: Ints
    waits: Ints
    link: Ints
    duration: Floats
    took: Floats
    occupancy: Floats
    alloc: Floats
    free: Floats
    latency: Floats
    gather: Floats
    reduce: Floats
    capacity: Floats
    num_links: int
    shared: int


def letters_of(table: Costs) -> Letters:
    """The Letters of the Costs `table`."""
    placement, stages = table.placement, table.placement.num_stages
    stage = np.arange(stages)
    route = stage // placement.route_length
    first = table.id(np.array([F, B, W])[:, None], stage, np.minimum(route, table.microbatches - 1)).reshape(-1)
    counts = [len(placement.microbatches_of(s, table.microbatches)) for s in range(stages)]
    target, waits = np.full((3, stages), NONE), np.zeros((3, stages), np.int64)
    for kind, step in ((F, 1), (B, -1)):
        for sender in range(stages):
            receiver = placement.step(sender, step)
            if receiver is not None:
                target[kind, sender] = kind * stages + receiver
                waits[kind, receiver] = 1
    none = np.zeros(stages)
    duration, took = table.duration[first], table.duration[first][None, :, None].copy()
    if table.problem.microbatch_lengths is not None:
        # By [letter][turn]; where a route has a turn less its last one counts twice, which nothing reads.
        turns = np.arange(max(counts))[None, :] * placement.num_routes + route[:, None]
        turns = np.minimum(turns, table.microbatches - 1)
        kinds = np.array([F, B, W])[:, None, None]
        took = table.duration[table.id(kinds, stage[:, None], turns)].reshape(1, 3 * stages, -1)
        duration = took[0].mean(axis=1)
    capacity = np.array(table.problem.limits.capacity) * (1 + 1e-9)
    return Letters(
        rank=np.tile(table.stage_rank, 3).astype(np.int64),
        total=np.tile(np.array(counts, np.int64), 3),
        before=np.concatenate([np.full(stages, NONE), F * stages + stage, B * stages + stage]).astype(np.int64),
        target=target.reshape(-1).astype(np.int64),
        waits=waits.reshape(-1),
        link=table.link[first].astype(np.int64),
        duration=duration,
        took=took,
        occupancy=table.occupancy[first],
        alloc=table.alloc[first],
        free=table.free[first],
        latency=table.latency[first][None, :].copy(),
        gather=np.concatenate([table.all_gather, none, none]),
        reduce=np.concatenate([none, none, table.reduce]),
        capacity=np.where(np.isfinite(capacity), capacity, 1e300),
        num_links=table.num_links,
        shared=int(table.shared),
    )


def with_messages(letters: Letters) -> Letters:
    """`letters` with a rank more for each link: what it runs are the messages of the ranks that share it.

    So their order is part of the words, and the k-th of a sending letter is the k-th of its message's. Links of one
    sender stay as they are. Message letters come behind the others, their ranks behind the ranks.
    """
    ranks, count = len(letters.capacity), len(letters.rank)
    senders = shared_senders(letters)
    messages = count + np.arange(len(senders))
    target, link, latency, occupancy = (
        each.copy() for each in (letters.target, letters.link, letters.latency, letters.occupancy)
    )
    target[senders], link[senders], latency[:, senders], occupancy[senders] = messages, NONE, 0.0, 0.0

    def longer(own: NDArray[Any], more: object) -> NDArray[Any]:
        filled = np.empty((*own.shape[:-1], count + len(senders)), own.dtype)
        filled[..., :count], filled[..., count:] = own, more
        return filled

    return Letters(
        rank=longer(letters.rank, ranks + letters.link[senders]),
        total=longer(letters.total, letters.total[senders]),
        before=longer(letters.before, NONE),
        target=longer(target, letters.target[senders]),
        waits=longer(letters.waits, 1),
        link=longer(link, NONE),
        duration=longer(letters.duration, letters.occupancy[senders]),
        took=_more_letters(letters.took, letters.occupancy[senders]),
        occupancy=longer(occupancy, 0.0),
        alloc=longer(letters.alloc, 0.0),
        free=longer(letters.free, 0.0),
        latency=longer(latency, letters.latency[:, senders]),
        gather=longer(letters.gather, 0.0),
        reduce=longer(letters.reduce, 0.0),
        capacity=np.concatenate([letters.capacity, np.full(letters.num_links, 1e300)]),
        num_links=letters.num_links,
        shared=0,
    )


def _more_letters(took: Floats, more: Floats) -> Floats:
    samples, _, turns = took.shape
    return np.concatenate([took, np.broadcast_to(more[:, None], (samples, len(more), turns))], axis=1)


def shared_senders(letters: Letters) -> Ints:
    """The letters that send over links that ranks share, ascending; each sends over one."""
    sends = np.flatnonzero(letters.occupancy > 0)
    links = letters.link[sends]
    shared = [link for link in np.unique(links).tolist() if len(np.unique(letters.rank[sends[links == link]])) > 1]
    return np.asarray(sends[np.isin(links, shared)], np.int64)


def words_with_messages(words: Ints, letters: Letters, start: Floats) -> Ints:
    """`words` and those of the links for `with_messages(letters)`, in which messages go in the order of sending.

    Args:
        start: (num_ranks, word_length) times of the actions.
    """
    senders = shared_senders(letters)
    most = np.bincount(letters.link[senders], letters.total[senders], letters.num_links)
    longest = max(words.shape[1], int(most.max()))
    found = np.full((len(words) + letters.num_links, longest), NONE, np.int64)
    found[: len(words), : words.shape[1]] = words
    rank, at = np.nonzero(np.isin(words, senders))
    sending = words[rank, at]
    order = np.lexsort((rank, start[rank, at] + letters.duration[sending]))
    sending = sending[order]
    message = len(letters.rank) + np.searchsorted(senders, sending)
    for link in np.unique(letters.link[senders]).tolist():
        own = message[letters.link[sending] == link]
        found[len(words) + link, : len(own)] = own
    return found


def word_length(letters: Letters) -> int:
    """Length of the longest rank's word."""
    return int(np.bincount(letters.rank, letters.total).max())


def words_of(plan: Plan, letters: Letters) -> Ints:
    """(num_ranks, word_length) of a plan whose actions are whole; NONE behind the end of a word.

    A fused backward becomes a B and its W: that can only end sooner and never holds more memory.
    """
    words = np.full((len(plan.offsets) - 1, word_length(letters)), NONE, np.int64)
    stages = plan.placement.num_stages
    for rank, (start, stop) in enumerate(zip(plan.offsets[:-1], plan.offsets[1:], strict=True)):
        kinds, on = plan.columns[KIND, start:stop].tolist(), plan.columns[STAGE, start:stop].tolist()
        word = [part * stages + s for kind, s in zip(kinds, on, strict=True) for part in PIECES.get(kind, (kind,))]
        words[rank, : len(word)] = word
    return words


def plan_of(words: Ints, table: Costs, scheduler: str) -> Plan:
    """The Plan that `words` spell; of words with messages, one with their order."""
    placement, orders = table.placement, []
    for word in words[: placement.num_ranks]:
        ids = np.zeros(np.count_nonzero(word != NONE), np.int64)
        for letter in np.unique(word[word != NONE]).tolist():
            kind, stage = divmod(letter, placement.num_stages)
            at = np.flatnonzero(word == letter)
            each = np.array(placement.microbatches_of(stage, table.microbatches))
            ids[at] = table.id(kind, stage, 0) + each
        orders.append(ids.tolist())
    plan = Plan.from_ids(orders, placement, table.microbatches, scheduler)
    return replace(plan, message_order=tuple(_message_order(words[placement.num_ranks :], table)))


def _message_order(words: Ints, table: Costs) -> Iterator[tuple[Action, ...]]:
    """The messages of each link in the order of its word."""
    stages = table.placement.num_stages
    senders = shared_senders(letters_of(table)) if len(words) else np.empty(0, np.int64)
    for word in words:
        order, counts = [], dict.fromkeys(senders.tolist(), 0)
        for message in word[word != NONE].tolist():
            sender = int(senders[message - 3 * stages])
            kind, stage = divmod(sender, stages)
            microbatch = table.placement.microbatches_of(stage, table.microbatches)[counts[sender]]
            order.append(Action(KINDS[kind], stage, microbatch))
            counts[sender] += 1
        if order:
            yield tuple(order)


def has_parts(plan: Plan) -> bool:
    """Whether a plan has split actions, which no word spells."""
    return bool((plan.columns[PARTS] > 1).any())
