"""The sorted window agrees with sorting."""

from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.detect.window import SortedWindow


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=60), capacity=st.integers(1, 20))
def test_like_sorting(values, capacity):
    window = SortedWindow(capacity)
    for value in values:
        window.push(value)
    last = values[-capacity:]
    assert list(window.values) == last
    assert len(window) == len(last)
    assert window.median() == median_low(last)
    assert window.count_from(last[0]) == sum(value >= last[0] for value in last)
    assert 0.0 <= window.scale() <= max(last) - min(last)


def test_scale_of_a_known_spread():
    window = SortedWindow(101, [float(i) for i in range(101)])
    assert window.scale() == 50 / 1.6330


def test_spikes_do_not_widen_the_core():
    plain, spiky = [i / 50 for i in range(-50, 51)], [i / 50 for i in range(-50, 21)] + [10.0 + i for i in range(30)]
    windows = [SortedWindow(101, values) for values in (plain, spiky)]
    assert windows[0].core_scale() == windows[0].scale()
    assert windows[1].scale() > 3 * windows[0].scale()
    assert windows[1].core_scale() < 2.1 * windows[0].scale()
