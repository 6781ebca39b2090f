"""The sorted window agrees with sorting."""

from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.window import SortedWindow


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=60), capacity=st.integers(1, 20))
def test_like_sorting(values, capacity):
    window = SortedWindow(capacity)
    for value in values:
        window.push(value)
    last = values[-capacity:]
    assert list(window.values) == last
    assert len(window) == len(last)
    assert window.median() == median_low(last)
    assert 0.0 <= window.scale() <= max(last) - min(last)


def test_scale_of_a_known_spread():
    window = SortedWindow(101, [float(i) for i in range(101)])
    assert window.scale() == 50 / 1.6330
