"""Confidence intervals of medians: golden numbers of the binomial distribution, and what they promise."""

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.bench.output.spread import median_interval


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"),
    # Tables of the sign test: n, the places from both ends, and what they cover.
    [(1, 0, 0, 0.0), (2, 0, 1, 0.5), (5, 0, 4, 0.9375), (6, 0, 5, 0.96875), (9, 1, 7, 0.9609375), (15, 3, 11, 0.96484)],
)
def test_places_of_tables(n, low, high, coverage):
    found = median_interval([float(i) for i in range(n)][::-1])
    assert (found["low"], found["high"]) == (low, high)
    assert found["coverage"] == pytest.approx(coverage, abs=1e-5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_median_is_inside(samples):
    found = median_interval(samples)
    assert found["low"] <= median(samples) <= found["high"]


def test_it_covers_as_often_as_it_says():
    seeded = random.Random(5)
    intervals = [median_interval([seeded.expovariate(1.0) for _ in range(15)]) for _ in range(2000)]
    inside = sum(found["low"] <= 0.6931 <= found["high"] for found in intervals) / 2000
    assert abs(inside - intervals[0]["coverage"]) < 0.02
