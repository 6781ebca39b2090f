"""Words for more microbatches from words for fewer: a period in the middle of them goes on for longer.

Between its beginning and its end a good plan repeats itself, every microbatch or every few. Where each rank's word has
a stretch with each of its letters equally often, it can be done once more: memory is afterwards as before it.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.planners.annealing import orders_of, scratch, simulate_words
from lanterne.pipeline.planners.words import Letters


@njit(cache=True)
def repeat_period(words: Ints, start: Floats, letters: Letters, turns: int, copies: int, longer: Ints) -> float:
    """Return the least makespan of `words` with `copies` more of a period of `turns` of each letter; else 1e300.

    All ranks' stretches begin at about one time, each of the times at which that of the rank with the fewest can.

    Args:
        start: (num_ranks, word_length), when the actions of `words` start.
        letters: of the problem with so many more microbatches.
        longer: overwritten with the longer words.

    Cost: a simulation for each time, some 100 at most.
    """
    num_ranks = words.shape[0]
    lengths, sizes = np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64)
    num_letters = len(letters.total)
    for letter in range(num_letters):
        sizes[letters.operations.lane[letter]] += turns
    begins = np.zeros(words.shape, np.bool_)
    fewest, least = 0, words.shape[1] + 1
    for rank in range(num_ranks):
        while lengths[rank] < words.shape[1] and words[rank, lengths[rank]] >= 0:
            lengths[rank] += 1
        found = _find_periods(words[rank], lengths[rank], sizes[rank], turns, num_letters, begins[rank])
        if found < least:
            fewest, least = rank, found
    best = 1e300
    if least == 0:
        return best
    times, progress = scratch(letters)
    tried = np.empty(longer.shape, np.int64)
    for begin in range(lengths[fewest]):
        if not begins[fewest, begin]:
            continue
        tried[:] = -1
        for rank in range(num_ranks):
            at = _nearest(begins[rank], start[rank], lengths[rank], start[fewest, begin])
            _repeat(words[rank], lengths[rank], at, sizes[rank], copies, tried[rank])
        span = simulate_words(letters, orders_of(tried), 0, times, progress)
        if span < best:
            best = span
            longer[:] = tried
    return best


@njit(cache=True)
def _find_periods(word: Ints, length: int, size: int, turns: int, num_letters: int, begins: NDArray[np.bool_]) -> int:
    """Mark in `begins` where stretches of `size` begin that have each letter `turns` times; return how many."""
    count, over, found = np.zeros(num_letters, np.int64), 0, 0
    for i in range(length):
        count[word[i]] += 1
        over += int(count[word[i]] > turns)
        if i >= size:
            over -= int(count[word[i - size]] > turns)
            count[word[i - size]] -= 1
        # No letter is there too often, so each is there as often as it should be.
        if i >= size - 1 and over == 0:
            begins[i - size + 1] = True
            found += 1
    return found


@njit(cache=True)
def _nearest(begins: NDArray[np.bool_], start: Floats, length: int, time: float) -> int:
    """Return the place in `begins` that starts nearest to `time`."""
    at, least = -1, 1e300
    for i in range(length):
        if begins[i] and abs(start[i] - time) < least:
            at, least = i, abs(start[i] - time)
    return at


@njit(cache=True)
def _repeat(word: Ints, length: int, at: int, size: int, copies: int, longer: Ints) -> None:
    """Write `word` with its stretch of `size` at `at` done `copies` times more."""
    for i in range(at):
        longer[i] = word[i]
    for i in range(at, at + size * (copies + 1)):
        longer[i] = word[at + (i - at) % size]
    for i in range(at + size, length):
        longer[i + size * copies] = word[i]
