"""What a move is told to lead to, against the words rotated and simulated whole."""

import itertools

import numpy as np
import pytest

from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import PLACEMENTS, make_placement
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.annealing import orders_of, scratch, simulate_words
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.moves import (
    backwards,
    index_word,
    index_words,
    is_feasible,
    least_span,
    moved,
    senders_of,
)
from lanterne.pipeline.planners.words import letters_of, words_of
from lanterne.pipeline.simulate.compiled import run_in_order


class Indexed:
    """Words with all that is known of their places and times."""

    def __init__(self, words, letters):
        self.words, self.letters = words, letters
        self.lengths = (words >= 0).sum(axis=1)
        times, progress = scratch(letters)
        self.span = simulate_words(letters, orders_of(words), 0, times, progress)
        self.times = times
        self.sender = senders_of(letters)
        self.turn, self.held = np.zeros(words.shape, np.int64), np.zeros(words.shape)
        self.place = np.zeros((len(letters.total), letters.total.max()), np.int64)
        index_words(words, letters, self.turn, self.place, self.held)
        self.tails, _ = scratch(letters)
        if self.span < 1e300:
            back = words.copy()
            for rank, size in enumerate(self.lengths):
                back[rank, :size] = words[rank, :size][::-1]
            run_in_order(backwards(letters, self.sender), orders_of(back), self.tails, progress)

    def ended(self, rank, i):
        return self.times.ended[self.letters.operations.first[self.words[rank, i]] + self.turn[rank, i]]

    def tail(self, rank, i):
        letter = self.words[rank, i]
        last = self.letters.operations.first[letter] + self.letters.total[letter] - 1
        return self.tails.ended[last - self.turn[rank, i]]

    def feasible(self, rank):
        size = self.lengths[rank]
        return is_feasible(self.words[rank, :size], self.turn[rank, :size], size, self.letters, 0.0)


def indexed(placement, **options):
    problem = Problem(4, 7, [100, 120, 90, 110], 113, 87, [50, 0, 170], max_inflight_activations=5, **options)
    placement = make_placement(placement, 4)
    letters = letters_of(costs(problem, placement))
    return Indexed(words_of(crosspipe(problem, placement=placement, weight_parts=1), letters), letters)


def rotated(word, lo, cut, hi):
    return np.concatenate([word[:lo], word[cut:hi], word[lo:cut], word[hi:]])


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("options", [{}, {"link_bandwidth": [2, 1, 2], "message_nbytes": 60}], ids=["latency", "both"])
def test_every_move_is_told_as_the_whole_words_show_it(placement, options):
    known, counts = indexed(placement, **options), {1: np.zeros(3, int), 2: np.zeros(3, int)}
    order, turns, ends = np.empty(8, np.int64), np.empty(8, np.int64), np.empty(8)
    for rank, size in enumerate(known.lengths.tolist()):
        for lo, cut in itertools.combinations(range(size), 2):
            for hi in range(cut + 1, min(lo + 7, size) + 1):
                count = hi - lo
                moved(known.words[rank], known.turn[rank], lo, count, cut - lo, order, turns)
                words = known.words.copy()
                words[rank, :size] = rotated(known.words[rank, :size], lo, cut, hi)
                after = Indexed(words, known.letters)
                segment = slice(lo, hi)
                assert (order[:count] == words[rank, segment]).all(), (rank, lo, cut, hi)
                assert (turns[:count] == after.turn[rank, segment]).all(), (rank, lo, cut, hi)
                fits = is_feasible(order, turns, count, known.letters, known.held[rank, lo])
                assert fits == after.feasible(rank), (rank, lo, cut, hi)
                if not fits or after.span >= 1e300:
                    continue
                clock = known.ended(rank, lo - 1) if lo else 0.0
                rest = known.tail(rank, hi) if hi < size else 0.0
                given = known.sender, clock, rest, known.times.arrival, known.tails.ended, ends
                least = least_span(order, turns, count, known.letters, *given)
                wrong = least > after.span * (1 + 1e-12)
                short = max(least, known.span) < after.span * (1 - 1e-12)
                counts[min(cut - lo, hi - cut, 2)] += 1, wrong, short
                # What lies before the segment is as it was; what is known of the rest follows from that.
                own = known.turn[rank].copy(), known.place.copy(), known.held[rank].copy()
                index_word(words[rank], known.letters, lo, hi, *own)
                whole = after.turn[rank], after.place, after.held[rank]
                assert all(map(np.allclose, own, whole)), (rank, lo, cut, hi)
    # It may be more than comes of it where a path leaves the moved letters and comes back, as where two routes meet (at
    # most 4 % of letters that move alone, 8 % of several), and less where links queue.
    for size, most in ((1, 0.05), (2, 0.1)):
        told, wrong, short = counts[size]
        assert told > 150 and wrong <= most * told and short <= 0.1 * told, (size, counts)
