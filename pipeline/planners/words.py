"""Plans as words: on each rank a row of letters, the k-th of a letter being its k-th microbatch.

A letter is a kind and a stage: kind * num_stages + stage, kinds F, B, W by their index. Microbatches of one route are
alike, so doing each letter's in order costs nothing; what is left to choose is the word. Backwards are split.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lanterne.pipeline.plan.action import FUSED, KINDS, Action
from lanterne.pipeline.plan.costs import Costs, Floats, Ints
from lanterne.pipeline.plan.plan import KIND, PARTS, STAGE, Plan
from lanterne.pipeline.simulate.event_loop import FIRST_COME, IN_ORDER, Operations, Orders
from lanterne.pipeline.simulate.program import Program, run_program, shared_senders, with_messages

F, B, W = (KINDS.index(kind) for kind in "FBW")
PIECES = {KINDS.index(whole): tuple(KINDS.index(kind) for kind in pieces) for whole, pieces in FUSED.items()}
NONE = -1


class Letters(NamedTuple):
    """A problem on a placement by letter, as arrays that compiled code reads.

    Where ranks share links, each link is a lane behind the ranks, and what it runs are messages: letters behind the
    others. So their order is part of the words, and the k-th of a sending letter is the k-th of its message's.

    Attributes, (num_letters,) if not said otherwise:
        operations: the letters as rows of the event loop, their runs being microbatches; `duration` is the mean.
        total: how often a letter runs.
        before: the letter of which the rank must have run as many, NONE for an F.
        alloc, free: as in Costs.
        took: (num_samples, num_letters or num_runs): how long each takes; by run where microbatches differ.
        latency: (num_samples, num_letters): the nominal ones, or sampled ones.
        reduce: data-parallel time after the last of a W.
        capacity: (num_lanes,).
        num_ranks: the lanes before those of links.
    """

    operations: Operations
    total: Ints
    before: Ints
    alloc: Floats
    free: Floats
    took: Floats
    latency: Floats
    reduce: Floats
    capacity: Floats
    num_ranks: int


def letters_of(table: Costs) -> Letters:
    """Return the Letters of the Costs `table`."""
    placement, stages = table.placement, table.placement.num_stages
    stage = np.arange(stages)
    route = stage // placement.route_length
    first = table.id(np.array([F, B, W])[:, None], stage, np.minimum(route, table.microbatches - 1)).reshape(-1)
    counts = [len(placement.microbatches_of(s, table.microbatches)) for s in range(stages)]
    source, target = np.full((3, stages), NONE), np.full((3, stages), NONE)
    for kind, step in ((F, 1), (B, -1)):
        for sender in range(stages):
            receiver = placement.step(sender, step)
            if receiver is not None:
                target[kind, sender] = kind * stages + receiver
                source[kind, receiver] = kind * stages + sender
    none = np.zeros(stages)
    duration = table.duration[first]
    took = duration[None, :].copy()
    if table.problem.microbatch_lengths is not None:
        # By [letter][turn]; where a route has a turn less its last one counts twice, which nothing reads.
        turns = np.arange(max(counts))[None, :] * placement.num_routes + route[:, None]
        turns = np.minimum(turns, table.microbatches - 1)
        kinds = np.array([F, B, W])[:, None, None]
        lengths = table.duration[table.id(kinds, stage[:, None], turns)].reshape(3 * stages, -1)
        took, duration = lengths.reshape(1, -1), lengths.mean(axis=1)
    operations = Operations(
        lane=np.tile(table.stage_rank, 3).astype(np.int64),
        source=source.reshape(-1),
        target=target.reshape(-1),
        first=np.arange(3 * stages) * max(counts),
        duration=duration,
        link=table.link[first].astype(np.int64),
        occupancy=table.occupancy[first],
        latency=table.latency[first],
        gather=np.concatenate([table.all_gather, none, none]),
    )
    capacity = np.array(table.problem.limits.capacity) * (1 + 1e-9)
    letters = Letters(
        operations,
        total=np.tile(np.array(counts, np.int64), 3),
        before=np.concatenate([np.full(stages, NONE), F * stages + stage, B * stages + stage]).astype(np.int64),
        alloc=table.alloc[first],
        free=table.free[first],
        took=took,
        latency=operations.latency[None, :],
        reduce=np.concatenate([none, none, table.reduce]),
        capacity=np.where(np.isfinite(capacity), capacity, 1e300),
        num_ranks=placement.num_ranks,
    )
    return _with_messages(letters, table.num_links) if table.shared else letters


def _with_messages(letters: Letters, num_links: int) -> Letters:
    senders = shared_senders(letters.operations)
    operations = with_messages(letters.operations, len(letters.capacity), senders)
    none = np.zeros(len(senders))
    runs = letters.took.shape[1] // len(letters.total)
    took = np.concatenate([letters.took[0], np.repeat(operations.duration[len(letters.total) :], runs)])
    return Letters(
        operations,
        total=np.concatenate([letters.total, letters.total[senders]]),
        before=np.concatenate([letters.before, np.full(len(senders), NONE)]),
        alloc=np.concatenate([letters.alloc, none]),
        free=np.concatenate([letters.free, none]),
        took=took[None, :],
        latency=operations.latency[None, :],
        reduce=np.concatenate([letters.reduce, none]),
        capacity=np.concatenate([letters.capacity, np.full(num_links, 1e300)]),
        num_ranks=letters.num_ranks,
    )


def with_message_words(words: Ints, letters: Letters) -> Ints:
    """Return the ranks' `words` with those of the links: messages go in the order in which they are ready.

    Fewer words than lanes come back where ranks wait for each other for ever.
    """
    ranks, operations = len(words), letters.operations
    lanes = len(letters.capacity)
    if ranks == lanes:
        return words
    totals = np.bincount(operations.lane, letters.total, lanes).astype(np.int64)
    longer = np.full((lanes, max(words.shape[1], int(totals.max()))), NONE)
    longer[:ranks, : words.shape[1]] = words
    first = np.arange(lanes) * longer.shape[1]
    orders = Orders(longer.reshape(-1), first, first + np.concatenate([(words >= 0).sum(axis=1), totals[ranks:]]))
    kinds = np.where(np.arange(lanes) < ranks, IN_ORDER, FIRST_COME)
    duration = letters.took[0]
    ran = run_program(Program(operations._replace(duration=duration), orders, kinds, lanes - ranks))
    return words if ran.left.any() else ran.order.reshape(longer.shape)


def starts_of(words: Ints, letters: Letters, begun: Floats) -> Floats:
    """Return by place in `words` what `begun` has by run; 0 behind a word's end."""
    starts = np.zeros(words.shape)
    for letter, first in enumerate(letters.operations.first.tolist()):
        places = words == letter
        starts[places] = begun[first : first + int(places.sum())]
    return starts


def word_length(letters: Letters) -> int:
    """Return the length of the longest word."""
    return int(np.bincount(letters.operations.lane, letters.total).max())


def words_of(plan: Plan, letters: Letters) -> Ints:
    """Return the (num_ranks, word_length) of a plan whose actions are whole; NONE behind the end of a word.

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
    """Return the Plan that `words` spell, with the order of messages where links have words."""
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
    """Yield the messages of each link in the order of its word."""
    stages = table.placement.num_stages
    source = letters_of(table).operations.source.tolist() if len(words) else []
    for word in words:
        order, counts = [], [0] * (3 * stages)
        for message in word[word != NONE].tolist():
            sender = source[message]
            kind, stage = divmod(sender, stages)
            microbatch = table.placement.microbatches_of(stage, table.microbatches)[counts[sender]]
            order.append(Action(KINDS[kind], stage, microbatch))
            counts[sender] += 1
        if order:
            yield tuple(order)


def has_parts(plan: Plan) -> bool:
    """Return whether a plan has split actions, which no word spells."""
    return bool((plan.columns[PARTS] > 1).any())
