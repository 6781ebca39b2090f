"""Compiled loops over words (see words): their simulation, and the search among their neighbours.

Compiled by Numba when this module is imported the first time, and kept on disk: some seconds once per machine.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.planners.moves import (
    backwards,
    index_word,
    index_words,
    is_feasible,
    least_span,
    moved,
    senders_of,
)
from lanterne.pipeline.planners.words import Letters
from lanterne.pipeline.simulate.compiled import inner, run
from lanterne.pipeline.simulate.event_loop import Operations, Orders, Progress, Times

# How many places letters move at most.
REACH = 6
# How many letters in a row move at most, and in what share of the moves several do. Where memory is full a letter alone
# can hardly move, but a B and the W that makes room for what follows can.
LONGEST, BLOCK_SHARE = 4, 0.3


@njit(cache=True)
def orders_of(words: Ints) -> Orders:
    """Return the Orders of `words`, which share their memory."""
    lanes, length = words.shape
    first = np.arange(lanes) * length
    stop = first.copy()
    for lane in range(lanes):
        while stop[lane] < first[lane] + length and words[lane, stop[lane] - first[lane]] >= 0:
            stop[lane] += 1
    return Orders(words.reshape(-1), first, stop)


@njit(cache=True)
def scratch(letters: Letters) -> tuple[Times, Progress]:
    """Return what simulate_words fills, and its working memory."""
    rows, lanes = len(letters.total), len(letters.capacity)
    runs, links = rows * letters.operations.first[1], letters.operations.link.max() + 1
    times = Times(np.zeros(runs), np.zeros(runs), np.zeros(runs))
    whole, clocks = np.zeros((3, lanes), np.int64), np.zeros((2, lanes))
    asleep, count, busy = np.zeros(lanes, np.bool_), np.zeros(rows, np.int64), np.zeros(links)
    return times, Progress(whole[0], whole[1], clocks[0], clocks[1], asleep, whole[2], count, busy)


@njit(cache=True)
def simulate_words(letters: Letters, orders: Orders, sample: int, times: Times, progress: Progress) -> float:
    """Return the makespan of words; 1e300 where ranks wait for each other for ever.

    Args:
        orders: see orders_of.
        sample: row of the durations and latencies; of the first where there is one.
        times, progress: see scratch; overwritten.

    Cost: about 6 ns per action.
    """
    given = letters.operations
    took = letters.took[min(sample, len(letters.took) - 1)]
    latency = letters.latency[min(sample, len(letters.latency) - 1)]
    operations = Operations(
        given.lane, given.source, given.target, given.first, took, given.link, given.occupancy, latency, given.gather
    )
    run(operations, orders, times, progress, None, None)
    makespan = 0.0
    for lane in range(len(orders.stop)):
        if progress.at[lane] < orders.stop[lane]:
            return 1e300
        makespan = max(makespan, float(progress.clock[lane]))
    return max(makespan, float(_end_of_reductions(letters, times.ended, progress)))


@inner
def _end_of_reductions(letters: Letters, ended: Floats, progress: Progress) -> float:
    """Return when the last data-parallel reduction ends, a rank's one after the other as its stages finish.

    Args:
        ended: by run.
        progress: after the run, whose `gathered` and `count` are overwritten.
    """
    free, left, last = progress.gathered, progress.count, 0.0
    lane, first = letters.operations.lane, letters.operations.first
    while True:
        soonest, finished = -1, 1e300
        for letter in range(len(left)):
            # A route without microbatches has nothing to reduce.
            if letters.reduce[letter] > 0.0 and left[letter] > 0:
                ends = float(ended[first[letter] + left[letter] - 1])
                if ends < finished:
                    soonest, finished = letter, ends
        if soonest < 0:
            return last
        left[soonest] = 0
        rank = lane[soonest]
        free[rank] = max(float(free[rank]), finished) + float(letters.reduce[soonest])
        last = max(last, float(free[rank]))


@njit(cache=True)
def score(letters: Letters, orders: Orders, quantile: float, times: Times, progress: Progress) -> tuple[float, float]:
    """Return (what the search minimises, the makespan).

    With samples it minimises half the makespans' quantile and half their mean: the quantile of a few samples alone
    would be fitted to them. If it is below 0 the mean alone counts. A little of the mean end of the ranks is added,
    which leads over plateaus.
    """
    samples = max(letters.latency.shape[0], letters.took.shape[0])
    spans = np.empty(samples)
    for sample in range(samples):
        spans[sample] = simulate_words(letters, orders, sample, times, progress)
        if spans[sample] >= 1e300:
            return 1e300, 1e300
    if samples == 1:
        span = spans[0]
    elif quantile < 0.0:
        span = spans.mean()
    else:
        span = (np.sort(spans)[min(int(np.ceil(quantile * samples)), samples) - 1] + spans.mean()) / 2
    return span + 0.01 * progress.clock.sum() / len(progress.clock), span


@njit(cache=True)
def score_words(words: Ints, letters: Letters, quantile: float) -> tuple[float, float]:
    """Return the score of `words`: for Python, from which a call takes a microsecond per array."""
    times, progress = scratch(letters)
    return score(letters, orders_of(words), quantile, times, progress)


@inner
def critical_path(
    words: Ints, lengths: Ints, letters: Letters, sender: Ints, turn: Ints, place: Ints, times: Times, path: Ints
) -> int:
    """Write the (rank, position) pairs of a longest chain of waiting into `path`, last first; return how many."""
    first, lane = letters.operations.first, letters.operations.lane
    rank, i, latest = -1, -1, -1.0
    for other in range(words.shape[0]):
        last = lengths[other] - 1
        if last >= 0:
            letter = words[other, last]
            ends = times.ended[first[letter] + turn[other, last]] + letters.reduce[letter]
            if ends > latest:
                rank, i, latest = other, last, ends
    size = 0
    while rank >= 0 and size < path.shape[0]:
        path[size, 0], path[size, 1] = rank, i
        size += 1
        before = times.ended[first[words[rank, i - 1]] + turn[rank, i - 1]] if i > 0 else 0.0
        letter = words[rank, i]
        if times.begun[first[letter] + turn[rank, i]] > before:
            sends = sender[letter]
            if sends < 0:
                break
            rank, i = lane[sends], place[sends, turn[rank, i]]
        elif i > 0:
            i -= 1
        else:
            break
    return size


@inner
def _next(state: NDArray[np.uint64]) -> float:
    """Return a random float in [0, 1): one step of xorshift64*."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@inner
def _drawn_move(state: NDArray[np.uint64], i: int, length: int) -> tuple[int, int, int]:
    """Draw (lo, cut, hi): letters from `lo` up to `cut` change places with those that follow up to `hi`.

    The letter at `i` moves forward, what lies before it moves behind, or it moves back; several may move together.
    """
    reach = 1 + int(REACH * _next(state) ** 2)
    size = 1
    if _next(state) < BLOCK_SHARE:
        size += 1 + int((LONGEST - 1) * _next(state))
    kind = _next(state)
    if kind < 0.4:
        lo, cut, hi = i - reach, i, i + size
    elif kind < 0.7:
        lo, cut, hi = i - size, i, i + reach
    else:
        lo, cut, hi = i, i + size, i + size + reach
    return max(lo, 0), min(cut, length), min(hi, length)


@njit(cache=True)
def anneal(
    words: Ints,
    letters: Letters,
    quantile: float,
    steps: int,
    hot: float,
    cold: float,
    bound: float,
    seed: int,
) -> tuple[Ints, float, int]:
    """Return (the best words found, their makespan, steps done) of simulated annealing along the critical path.

    A letter on the path moves to before those that keep it waiting, or the one before it moves behind it, alone or with
    those next to it; now and then any letter moves. Moves that break the rank's order or memory are not tried; those
    that `least_span` tells to be too long are not simulated.

    Args:
        steps: moves tried; hot, cold: first and last temperature, in units of time; bound: stops at this makespan.
    """
    num_ranks, length = words.shape
    words = words.copy()
    best = words.copy()
    orders = orders_of(words)
    lengths = orders.stop - orders.first
    sender = senders_of(letters)
    first = letters.operations.first
    # What the words as they are led to; the others are of a move that is tried.
    known, progress = scratch(letters)
    tried, _ = scratch(letters)
    path = np.empty((num_ranks * length, 2), np.int64)
    turn, held = np.zeros((num_ranks, length), np.int64), np.zeros((num_ranks, length))
    place = np.zeros((len(letters.total), first[1]), np.int64)
    most = REACH + LONGEST
    order, turns, ends = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    undone = np.empty(most, np.int64)
    state = np.empty(1, np.uint64)
    state[0] = np.uint64(88172645463325252) + np.uint64(seed) * np.uint64(7046029254386353131)
    cost, span = score(letters, orders, quantile, known, progress)
    best_span = span
    index_words(words, letters, turn, place, held)
    size = critical_path(words, lengths, letters, sender, turn, place, known, path)
    # Of samples one says little of the others.
    is_single = letters.latency.shape[0] == 1 and letters.took.shape[0] == 1
    reverse = words.copy()
    for rank in range(num_ranks):
        reverse[rank, : lengths[rank]] = words[rank, : lengths[rank]][::-1]
    reverse_orders, reverse_operations = orders_of(reverse), backwards(letters, sender)
    tails, _ = scratch(letters)
    if is_single:
        run(reverse_operations, reverse_orders, tails, progress, None, None)
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    heat = hot
    step = 0
    while step < steps and best_span > bound:
        step += 1
        heat *= cooling
        if size == 0 or _next(state) < 0.1:
            rank = int(_next(state) * num_ranks)
            i = int(_next(state) * lengths[rank])
        else:
            chosen = int(_next(state) * size)
            rank, i = path[chosen, 0], path[chosen, 1]
        lo, cut, hi = _drawn_move(state, i, lengths[rank])
        if cut <= lo or hi <= cut:
            continue
        word, count = words[rank], hi - lo
        if count == 2 and word[lo] == word[cut]:
            continue
        moved(word, turn[rank], lo, count, cut - lo, order, turns)
        if not is_feasible(order, turns, count, letters, held[rank, lo]):
            continue
        limit = cost - heat * np.log(1.0 - _next(state))
        if is_single:
            clock, after = 0.0, 0.0
            if lo > 0:
                clock = known.ended[first[word[lo - 1]] + turn[rank, lo - 1]]
            if hi < lengths[rank]:
                after = tails.ended[first[word[hi]] + letters.total[word[hi]] - 1 - turn[rank, hi]]
            least = least_span(order, turns, count, letters, sender, clock, after, known.arrival, tails.ended, ends)
            # The mean end of the ranks hardly moves.
            if least + cost - span > limit:
                continue
        undone[:count] = word[lo:hi]
        word[lo:hi] = order[:count]
        found, found_span = score(letters, orders, quantile, tried, progress)
        if found > limit:
            word[lo:hi] = undone[:count]
            continue
        cost, span = found, found_span
        known, tried = tried, known
        if span < best_span * (1 - 1e-12):
            best_span = span
            best[:] = words
        index_word(word, letters, lo, hi, turn[rank], place, held[rank])
        size = critical_path(words, lengths, letters, sender, turn, place, known, path)
        if is_single:
            for j in range(lo, hi):
                reverse[rank, lengths[rank] - 1 - j] = word[j]
            run(reverse_operations, reverse_orders, tails, progress, None, None)
    return best, best_span, step
