"""Pieces of training state: each goes once to each rank that needs and lacks it, and both ends agree on the order."""

import time

import numpy as np
import pytest

from lanterne.pipeline.train.state import _moved_pieces


@pytest.mark.parametrize("seed", range(20))
def test_both_ends_find_the_same_messages_and_each_piece_comes_once(seed):
    rng = np.random.default_rng(seed)
    ranks, parts, pieces = 5, 9, 12
    holders, has = rng.integers(0, ranks, parts), rng.random((parts, pieces)) < 0.4
    has[rng.integers(0, parts), :] = True
    needs = [rng.random(pieces) < 0.5 for _ in range(ranks)]
    found = [list(_moved_pieces(rank, needs, holders, has)) for rank in range(ranks)]
    for to, needed in enumerate(needs):
        for source in range(ranks):
            sent, received = (
                [(at, given.tolist()) for one, other, at, given in found[end] if (one, other) == (source, to)]
                for end in (source, to)
            )
            assert sent == received and all(np.all(has[at][given]) and holders[at] == source for at, given in sent)
        came = np.sum([given for _, other, _, given in found[to] if other == to] or [np.zeros(pieces)], axis=0)
        np.testing.assert_array_equal(came, needed & ~has[holders == to].any(axis=0))


def test_a_thousand_ranks_find_their_messages_soon():
    ranks = 1000
    holders, has = np.repeat(np.arange(ranks), 3), np.eye(3 * ranks, dtype=bool)
    needs = [has[3 * (rank - 1) : 3 * rank].any(axis=0) if rank else has[-3:].any(axis=0) for rank in range(ranks)]
    started_s = time.thread_time()
    found = list(_moved_pieces(5, needs, holders, has))
    assert time.thread_time() - started_s < 2.0
    assert [(source, to) for source, to, _, _ in found] == [(4, 5)] * 3 + [(5, 6)] * 3
