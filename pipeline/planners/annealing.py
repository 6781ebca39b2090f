"""Compiled loops over words (see words): their simulation, and the search among their neighbours.

Compiled by Numba when this module is imported the first time, and kept on disk: some seconds once per machine.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.planners.loops import inner
from lanterne.pipeline.planners.moves import (
    index_word,
    index_words,
    is_feasible,
    least_span,
    moved,
    senders_of,
    tails,
)
from lanterne.pipeline.planners.words import Letters

# How many places letters move at most.
REACH = 6
# How many letters in a row move at most.
LONGEST = 4


@njit(cache=True)
def simulate_words(
    words: Ints, letters: Letters, sample: int, arrival: Floats, start: Floats, came: Floats, ended: Floats
) -> float:
    """The makespan of `words`; 1e300 where ranks wait for each other for ever.

    The same times as the simulator finds: ranks run as far as they go, or, where ranks share a link, in order of ends.

    Args:
        sample: row of the durations and latencies; of the first where there is one.
        arrival: (num_letters, microbatches), overwritten: when the k-th of a letter may start.
        start, ended: (num_ranks, word_length), overwritten.
        came: (num_ranks, word_length), overwritten: when what each action waited for was there.

    Cost: about 10 ns per action.
    """
    num_ranks, length = words.shape
    num_letters = len(letters.rank)
    for letter in range(num_letters):
        fill = -1.0 if letters.waits[letter] else 0.0
        for k in range(arrival.shape[1]):
            arrival[letter, k] = fill
    count = np.zeros(num_letters, np.int64)
    at = np.zeros(num_ranks, np.int64)
    clock = np.zeros(num_ranks)
    lane = np.zeros(num_ranks)
    busy_until = np.zeros(letters.num_links + 1)
    finished = np.zeros(num_letters)
    stack = np.arange(num_ranks)
    waiting = np.zeros(num_ranks, np.bool_)
    depth = len(words)
    took = letters.took[min(sample, len(letters.took) - 1)]
    latency = letters.latency[min(sample, len(letters.latency) - 1)]
    varied = took.shape[1] > 1
    while True:
        if letters.shared:
            rank = _ends_first(words, letters, took, at, arrival, count, clock)
            if rank < 0:
                break
        else:
            if depth == 0:
                break
            depth -= 1
            rank = stack[depth]
        waiting[rank] = False
        while at[rank] < length and words[rank, at[rank]] >= 0:
            i = at[rank]
            letter = words[rank, i]
            k = count[letter]
            ready = arrival[letter, k]
            if ready < 0.0:
                waiting[rank] = True
                break
            if k == 0 and letters.gather[letter] > 0.0:
                lane[rank] += letters.gather[letter]
                ready = max(ready, lane[rank])
            begins = max(clock[rank], ready)
            start[rank, i], came[rank, i] = begins, ready
            now = begins + took[letter, k if varied else 0]
            ended[rank, i] = now
            clock[rank], at[rank], count[letter] = now, i + 1, k + 1
            finished[letter] = now
            target = letters.target[letter]
            if target >= 0:
                leaves = now
                if letters.occupancy[letter] > 0.0:
                    used = letters.link[letter]
                    leaves = max(busy_until[used], now) + letters.occupancy[letter]
                    busy_until[used] = leaves
                arrival[target, k] = leaves + latency[letter]
                receiver = letters.rank[target]
                if not letters.shared and waiting[receiver]:
                    waiting[receiver] = False
                    stack[depth] = receiver
                    depth += 1
            if letters.shared:
                break
    makespan = 0.0
    for rank in range(num_ranks):
        if at[rank] < length and words[rank, at[rank]] >= 0:
            return 1e300
        makespan = max(makespan, clock[rank])
    return max(makespan, _end_of_reductions(letters, finished, lane))


@inner
def _ends_first(
    words: Ints, letters: Letters, took: Floats, at: Ints, arrival: Floats, count: Ints, clock: Floats
) -> int:
    """The rank whose next action, which may start, ends first; -1 if none may."""
    rank, soonest = -1, 1e300
    for other in range(words.shape[0]):
        if at[other] < words.shape[1] and words[other, at[other]] >= 0:
            letter = words[other, at[other]]
            ready = arrival[letter, count[letter]]
            if ready >= 0.0:
                turn = count[letter] if took.shape[1] > 1 else 0
                ends = max(ready, clock[other]) + took[letter, turn]
                if ends < soonest:
                    rank, soonest = other, ends
    return rank


@njit(cache=True)
def _end_of_reductions(letters: Letters, finished: Floats, lane: Floats) -> float:
    """When the last data-parallel reduction ends, a rank's one after the other as its stages finish."""
    last = 0.0
    done = np.zeros(len(finished), np.bool_)
    for _ in range(len(finished)):
        first = -1
        for letter in range(len(finished)):
            # A route without microbatches has nothing to reduce.
            waits = letters.reduce[letter] > 0.0 and letters.total[letter] > 0 and not done[letter]
            if waits and (first < 0 or finished[letter] < finished[first]):
                first = letter
        if first < 0:
            break
        done[first] = True
        rank = int(letters.rank[first])
        lane[rank] = max(lane[rank], finished[first]) + letters.reduce[first]
        last = max(last, lane[rank])
    return last


@njit(cache=True)
def score(
    words: Ints, letters: Letters, quantile: float, arrival: Floats, start: Floats, came: Floats, ended: Floats
) -> tuple[float, float]:
    """(what the search minimises, the makespan): with samples, half the makespans' quantile and half their mean.

    The quantile of a few samples alone would be fitted to them. If it is below 0 the mean alone counts. A little
    of the mean end of the ranks is added, which leads over plateaus.
    """
    samples = max(letters.latency.shape[0], letters.took.shape[0])
    spans = np.empty(samples)
    for sample in range(samples):
        spans[sample] = simulate_words(words, letters, sample, arrival, start, came, ended)
        if spans[sample] >= 1e300:
            return 1e300, 1e300
    if samples == 1:
        span = spans[0]
    elif quantile < 0.0:
        span = spans.mean()
    else:
        span = (np.sort(spans)[min(int(np.ceil(quantile * samples)), samples) - 1] + spans.mean()) / 2
    ends = 0.0
    for rank in range(words.shape[0]):
        last = words.shape[1] - 1
        while last >= 0 and words[rank, last] < 0:
            last -= 1
        if last >= 0:
            ends += ended[rank, last]
    return span + 0.01 * ends / words.shape[0], span


@inner
def critical_path(
    words: Ints,
    lengths: Ints,
    letters: Letters,
    sender: Ints,
    turn: Ints,
    place: Ints,
    came: Floats,
    ended: Floats,
    path: Ints,
) -> int:
    """Write the (rank, position) pairs of a longest chain of waiting into `path`, last first; return how many."""
    rank, i, latest = -1, -1, -1.0
    for other in range(words.shape[0]):
        last = lengths[other] - 1
        if last >= 0:
            ends = ended[other, last] + letters.reduce[words[other, last]]
            if ends > latest:
                rank, i, latest = other, last, ends
    size = 0
    while rank >= 0 and size < path.shape[0]:
        path[size, 0], path[size, 1] = rank, i
        size += 1
        before = ended[rank, i - 1] if i > 0 else 0.0
        if came[rank, i] > before or (i == 0 and came[rank, i] > 0.0):
            sends = sender[words[rank, i]]
            if sends < 0:
                break
            rank, i = letters.rank[sends], place[sends, turn[rank, i]]
        elif i > 0:
            i -= 1
        else:
            break
    return size


@inner
def _next(state: NDArray[np.uint64]) -> float:
    """One step of xorshift64*: a float in [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@inner
def _drawn_move(state: NDArray[np.uint64], i: int, length: int, blocks: float) -> tuple[int, int, int]:
    """(lo, cut, hi): what lies from `lo` up to `cut` changes places with what follows up to `hi`.

    The letter at `i` comes earlier, what lies before it goes behind, or it goes on; for `blocks`, see anneal.
    """
    reach = 1 + int(REACH * _next(state) ** 2)
    size = 1
    if blocks > 0.0 and _next(state) < blocks:
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
    blocks: float,
) -> tuple[Ints, float, int]:
    """(the best words found, their makespan, steps done): simulated annealing along the critical path.

    A letter on the path moves to before those that keep it waiting, or the one before it moves behind it, alone or with
    those next to it; now and then any letter moves. Moves that break the rank's order or memory are not tried; those
    that `least_span` tells to be too long are not simulated.

    Args:
        steps: moves tried; hot, cold: first and last temperature, in units of time; bound: stops at this makespan.
        blocks: the share of moves in which letters in a row move together. Where memory is full a letter alone can
            hardly move, but a B and the W that makes room for what follows can.
    """
    num_ranks, length = words.shape
    sender = senders_of(letters)
    arrival, start, came, ended = _scratch(letters, num_ranks, length)
    # What the words as they are led to; the others are of a move that is tried.
    old_arrival, old_start, old_came, old_ended = _scratch(letters, num_ranks, length)
    path = np.empty((num_ranks * length, 2), np.int64)
    turn, held = np.zeros((num_ranks, length), np.int64), np.zeros((num_ranks, length))
    tail = np.zeros((num_ranks, length))
    place = np.zeros(arrival.shape, np.int64)
    most = REACH + LONGEST
    order, turns, ends = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    undone = np.empty(most, np.int64)
    lengths = np.zeros(num_ranks, np.int64)
    for rank in range(num_ranks):
        while lengths[rank] < length and words[rank, lengths[rank]] >= 0:
            lengths[rank] += 1
    state = np.empty(1, np.uint64)
    state[0] = np.uint64(88172645463325252) + np.uint64(seed) * np.uint64(7046029254386353131)
    words = words.copy()
    best = words.copy()
    cost, span = score(words, letters, quantile, old_arrival, old_start, old_came, old_ended)
    best_span = span
    index_words(words, letters, turn, place, held)
    size = critical_path(words, lengths, letters, sender, turn, place, old_came, old_ended, path)
    # Of samples one says little of the others.
    is_single = letters.latency.shape[0] == 1 and letters.took.shape[0] == 1
    if is_single:
        tails(words, lengths, letters, sender, turn, place, tail)
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
        lo, cut, hi = _drawn_move(state, i, lengths[rank], blocks)
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
            clock = old_ended[rank, lo - 1] if lo > 0 else 0.0
            after = tail[rank, hi] if hi < lengths[rank] else 0.0
            least = least_span(order, turns, count, letters, sender, clock, after, old_arrival, place, tail, ends)
            # The mean end of the ranks hardly moves.
            if least + cost - span > limit:
                continue
        undone[:count] = word[lo:hi]
        word[lo:hi] = order[:count]
        found, found_span = score(words, letters, quantile, arrival, start, came, ended)
        if found > limit:
            word[lo:hi] = undone[:count]
            continue
        cost, span = found, found_span
        old_arrival, arrival = arrival, old_arrival
        old_came, came = came, old_came
        old_ended, ended = ended, old_ended
        if span < best_span * (1 - 1e-12):
            best_span = span
            best[:] = words
        index_word(word, letters, lo, hi, turn[rank], place, held[rank])
        size = critical_path(words, lengths, letters, sender, turn, place, old_came, old_ended, path)
        if is_single:
            tails(words, lengths, letters, sender, turn, place, tail)
    return best, best_span, step


@njit(cache=True)
def _scratch(letters: Letters, num_ranks: int, length: int) -> tuple[Floats, Floats, Floats, Floats]:
    """What simulate_words writes: arrival, start, came, ended."""
    arrival = np.empty((len(letters.rank), letters.total.max()))
    return arrival, np.zeros((num_ranks, length)), np.zeros((num_ranks, length)), np.zeros((num_ranks, length))
