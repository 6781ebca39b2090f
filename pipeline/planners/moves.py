"""Effect of a move in a rank's word, estimated from the few letters that it shifts, without simulating the whole.

A move takes one letter or a few in a row to another place; those between shift. Whether the rank may do so, and how
long the plan gets at least, depend on these alone: on when what they wait for has come, and on how much is left to do
after each (its tail). That is the usual estimate of job-shop scheduling: paths that leave the rank and come back to a
letter that has moved are left out, so it is seldom above what a simulation finds, and mostly equal.

Paper: Taillard 1994, "Parallel taboo search techniques for the job shop scheduling problem", section 2.2.
"""

import numpy as np
from numba import njit

from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.planners.words import Letters
from lanterne.pipeline.simulate.compiled import inner
from lanterne.pipeline.simulate.event_loop import Operations


@njit(cache=True)
def senders_of(letters: Letters) -> Ints:
    """Return (num_letters,): the letter whose message each waits for from another rank; -1 for none."""
    lane, source = letters.operations.lane, letters.operations.source
    sender = np.full(len(lane), -1, np.int64)
    for letter in range(len(lane)):
        if source[letter] >= 0 and lane[source[letter]] != lane[letter]:
            sender[letter] = source[letter]
    return sender


@njit(cache=True)
def backwards(letters: Letters, sender: Ints) -> Operations:
    """Return the operations with time reversed: each begins when what waits for it has ended, in any order on a link.

    When the k-th last run of a letter ends there, is how long it takes at least from its start to the end of the plan.
    """
    given, took, count = letters.operations, letters.took[0], len(letters.total)
    target, latency = np.full(count, -1, np.int64), np.zeros(count)
    source = np.full(count, -1, np.int64)
    for letter in range(count):
        if sender[letter] >= 0:
            target[letter], source[sender[letter]] = sender[letter], letter
            latency[letter] = given.occupancy[sender[letter]] + letters.latency[0, sender[letter]]
    if len(took) > count:
        took = took.copy()
        for letter in range(count):
            first, stop = given.first[letter], given.first[letter] + letters.total[letter]
            took[first:stop] = took[first:stop][::-1].copy()
    none = np.zeros(count)
    return Operations(given.lane, source, target, given.first, took, given.link, none, latency, none)


@inner
def index_words(words: Ints, letters: Letters, turn: Ints, place: Ints, held: Floats) -> None:
    """Write an index of `words` by place and by letter.

    Args:
        turn: (num_ranks, word_length): how many of the letter lie before.
        place: (num_letters, microbatches): where the k-th of a letter is.
        held: (num_ranks, word_length): memory before the action.
    """
    for rank in range(words.shape[0]):
        index_word(words[rank], letters, 0, words.shape[1], turn[rank], place, held[rank])


@inner
def index_word(word: Ints, letters: Letters, lo: int, hi: int, turn: Ints, place: Ints, held: Floats) -> None:
    """Write the same for one rank's places from `lo` up to, without, `hi`; the places before are known."""
    for i in range(lo, hi):
        letter = word[i]
        if letter < 0:
            break
        k, before = 0, i - 1
        while before >= 0 and word[before] != letter:
            before -= 1
        if before >= 0:
            k = turn[before] + 1
        turn[i] = k
        place[letter, k] = i
        held[i] = 0.0 if i == 0 else held[i - 1] + letters.alloc[word[i - 1]] - letters.free[word[i - 1]]


@inner
def moved(word: Ints, turn: Ints, lo: int, count: int, by: int, order: Ints, turns: Ints) -> None:
    """Write letters and turns of the `count` places from `lo` on as they are once rotated to the left `by` places.

    So the `by` letters at `lo` go behind the others.
    """
    for j in range(count):
        i = lo + (j + by) % count
        letter = word[i]
        order[j] = letter
        # Of one letter the first is always of the first microbatch.
        first, before = turn[i], 0
        for other in range(lo, lo + count):
            if word[other] == letter:
                first = min(first, turn[other])
        for other in range(j):
            before += int(order[other] == letter)
        turns[j] = first + before


@inner
def is_feasible(order: Ints, turns: Ints, size: int, letters: Letters, held: float) -> bool:
    """Return whether `size` letters in this order keep B after F, W after B, and their rank's memory, `held` before."""
    capacity = letters.capacity[letters.operations.lane[order[0]]]
    for j in range(size):
        letter = order[j]
        held += float(letters.alloc[letter])
        if held > capacity:
            return False
        held -= float(letters.free[letter])
        before = letters.before[letter]
        for later in range(j + 1, size):
            if order[later] == before and turns[later] == turns[j]:
                return False
    return True


@inner
def least_span(
    order: Ints,
    turns: Ints,
    size: int,
    letters: Letters,
    sender: Ints,
    clock: float,
    after: float,
    arrival: Floats,
    tail: Floats,
    ends: Floats,
) -> float:
    """Return the length of the longest path through `size` letters in this order.

    Args:
        clock: when their rank is free for them.
        after: the tail of what follows them on their rank.
        arrival: by run, of the words as they are; tail: likewise, but by run from the last; see `backwards`.
        ends: overwritten.
    """
    first, target, occupancy = letters.operations.first, letters.operations.target, letters.operations.occupancy
    took, latency = letters.took[0], letters.latency[0]
    varies = len(took) > len(letters.total)
    for j in range(size):
        letter = order[j]
        run = first[letter] + turns[j]
        if sender[letter] >= 0:
            clock = max(clock, float(arrival[run]))
        clock += float(took[run if varies else letter])
        ends[j] = clock
    span = 0.0
    for j in range(size - 1, -1, -1):
        letter = order[j]
        to = target[letter]
        if to >= 0 and sender[to] >= 0:
            there = tail[first[to] + letters.total[to] - 1 - turns[j]]
            after = max(after, float(occupancy[letter] + latency[letter] + there))
        span = max(span, float(ends[j]) + after)
        after += float(took[first[letter] + turns[j] if varies else letter])
    return span
