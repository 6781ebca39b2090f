"""Plans as words: on each rank a row of letters, the k-th of a letter being its k-th microbatch.

A letter is a kind and a stage: kind * num_stages + stage, kinds F, B, W by their index. Microbatches of one route are
alike, so doing each letter's in order costs nothing; what is left to choose is the word. Backwards are split.
"""

from typing import NamedTuple

import numpy as np

from lanterne.pipeline.plan.action import FUSED, KINDS
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
        duration, occupancy, alloc, free: as in Costs.
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
    capacity = np.array(table.problem.limits.capacity) * (1 + 1e-9)
    return Letters(
        rank=np.tile(table.stage_rank, 3).astype(np.int64),
        total=np.tile(np.array(counts, np.int64), 3),
        before=np.concatenate([np.full(stages, NONE), F * stages + stage, B * stages + stage]).astype(np.int64),
        target=target.reshape(-1).astype(np.int64),
        waits=waits.reshape(-1),
        link=table.link[first].astype(np.int64),
        duration=table.duration[first],
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
    """The Plan that `words` spell."""
    placement, orders = table.placement, []
    for word in words:
        ids = np.zeros(np.count_nonzero(word != NONE), np.int64)
        for letter in np.unique(word[word != NONE]).tolist():
            kind, stage = divmod(letter, placement.num_stages)
            at = np.flatnonzero(word == letter)
            each = np.array(placement.microbatches_of(stage, table.microbatches))
            ids[at] = table.id(kind, stage, 0) + each
        orders.append(ids.tolist())
    return Plan.from_ids(orders, placement, table.microbatches, scheduler)


def has_parts(plan: Plan) -> bool:
    """Whether a plan has split actions, which no word spells."""
    return bool((plan.columns[PARTS] > 1).any())
