"""Rebalancing: optimal by brute force, exact at scale, gradients unchanged."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.failslow.mitigate.rebalance import gradient_weights, rebalance, refine


def brute_force(times, microbatches, multiple_of, stages):
    """The smallest makespan over every distribution."""
    counts = range(multiple_of, microbatches + 1, multiple_of)
    return min(
        max((m + stages - 1) * t for m, t in zip(counts_of, times, strict=True))
        for counts_of in product(counts, repeat=len(times))
        if sum(counts_of) == microbatches
    )


@example(times=[13.484552486298295], extra=2, multiple_of=1, stages=1)
@settings(max_examples=150, deadline=None)
@given(
    times=st.lists(st.one_of(st.integers(1, 6).map(float), st.floats(0.05, 20.0)), min_size=1, max_size=4),
    extra=st.integers(0, 6),
    multiple_of=st.integers(1, 3),
    stages=st.integers(1, 4),
)
def test_optimal_by_brute_force(times, extra, multiple_of, stages):
    microbatches = multiple_of * (len(times) + extra)
    balance = rebalance(times, microbatches, multiple_of, stages)
    assert sum(balance.microbatches) == microbatches
    assert all(m >= 1 and m % multiple_of == 0 for m in balance.microbatches)
    assert balance.makespan == max((m + stages - 1) * t for m, t in zip(balance.microbatches, times, strict=True))
    assert balance.makespan == pytest.approx(brute_force(times, microbatches, multiple_of, stages), rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    rises=st.lists(st.lists(st.integers(0, 5), min_size=10, max_size=10), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_refined_is_optimal_under_any_rising_price(rises, counts):
    prices = [np.cumsum([0, *rise]) for rise in rises]
    counts = counts[: len(rises)]

    def makespan(distribution):
        return max(price[count] for price, count in zip(prices, distribution, strict=True))

    refined = refine(counts, lambda group, count: prices[group][min(count, 10)])
    assert sum(refined) == sum(counts) and min(refined) >= 1
    every = product(range(1, 10), repeat=len(counts))
    assert makespan(refined) == min(makespan(each) for each in every if sum(each) == sum(counts))


def slower_by_one(balance, times, stages):
    """Whether no group could take one more unit below the makespan: with integer counts that proves the optimum."""
    return sum(np.maximum(np.ceil(balance.makespan / times - stages + 1 - 1e-9) - 1, 1)) < sum(balance.microbatches)


@pytest.mark.parametrize("groups", [1, 2, 512, 4096])
@pytest.mark.parametrize("stages", [1, 8])
def test_optimal_at_scale(groups, stages):
    times = np.random.default_rng(groups).uniform(0.8, 2.4, groups)
    balance = rebalance(times, 16 * groups, pipeline_stages=stages)
    assert sum(balance.microbatches) == 16 * groups
    assert slower_by_one(balance, times, stages)


def test_golden():
    balance = rebalance([1.0, 1.0, 1.6, 1.0], 64)
    assert (sorted(balance.microbatches), balance.makespan) == ([11, 17, 18, 18], 18.0)
    assert rebalance([1.0, 1.0, 1.6, 1.0], 64, multiple_of=4).makespan == 20.0
    assert rebalance([1.0] * 8, 32).microbatches == (4,) * 8


def test_variance_is_another_optimum():
    """Where the paper's objective is wrong: the least variance is not the least maximum."""
    times, microbatches = (1.0, 1.4, 2.0), 7
    options = [m for m in product(range(1, 6), repeat=3) if sum(m) == microbatches]
    loads = [np.multiply(m, times) for m in options]
    assert rebalance(times, microbatches).makespan == min(load.max() for load in loads)


def test_weights_keep_the_gradient():
    rng = np.random.default_rng(1)
    counts = (3, 5, 1, 7)
    gradients = [rng.normal(size=(m, 4)) for m in counts]
    weights = gradient_weights(counts)
    total = sum(w * g.mean(axis=0) for w, g in zip(weights, gradients, strict=True))
    np.testing.assert_allclose(total, np.concatenate(gradients).mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("times", "microbatches", "multiple_of", "text"),
    [
        ([], 4, 1, "expected one per group"),
        ([1.0, -1.0], 4, 1, "group 1"),
        ([1.0, float("nan")], 4, 1, "group 1"),
        ([1.0, float("inf")], 4, 1, "group 1"),
        ([1.0, 1.0], 1, 1, "at least 2"),
        ([1.0, 1.0], 7, 2, "a multiple of 2"),
        ([1.0, 1.0], 4, 0, "expected 1 or more"),
        (["x"], 4, 1, "expected numbers"),
    ],
)
def test_bad_input(times, microbatches, multiple_of, text):
    with pytest.raises(InputError, match=text):
        rebalance(times, microbatches, multiple_of)


@pytest.mark.parametrize("counts", [(), (3, 0)])
def test_bad_weights(counts):
    with pytest.raises(InputError, match="at least 1 microbatch"):
        gradient_weights(counts)
