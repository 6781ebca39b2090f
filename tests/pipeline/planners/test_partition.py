"""The layer partitioner against brute force, and its errors."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.pipeline.planners.partition import partition_layers


def brute_force(times, speeds, memory, limits):
    """Least bottleneck over all contiguous partitions that fit, or None."""
    best = None
    for cuts in combinations(range(1, len(times)), len(speeds) - 1):
        starts = (0, *cuts, len(times))
        spans = [slice(start, end) for start, end in pairwise(starts)]
        if any(sum(memory[span]) > limit for span, limit in zip(spans, limits, strict=True)):
            continue
        bottleneck = max(sum(times[span]) / speed for span, speed in zip(spans, speeds, strict=True))
        best = bottleneck if best is None else min(best, bottleneck)
    return best


@st.composite
def cases(draw):
    num_layers = draw(st.integers(1, 9))
    num_stages = draw(st.integers(1, min(num_layers, 4)))

    def whole(count, least, most):
        return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))

    return whole(num_layers, 0, 30), whole(num_stages, 1, 8), whole(num_layers, 0, 5), whole(num_stages, 1, 20)


@settings(deadline=None, max_examples=100)
@given(cases())
def test_it_is_exact(case):
    times, speeds, memory, limits = case
    expected = brute_force(*case)
    if expected is None:
        with pytest.raises(InputError, match="memory: got stages of"):
            partition_layers(times, speeds, memory, limits)
        return
    found = partition_layers(times, speeds, memory, limits)
    assert found.bottleneck == pytest.approx(expected, rel=1e-12)
    assert found.starts[0] == 0 and found.starts[-1] == len(times) and min(found.num_layers) >= 1
    assert all(used <= limit for used, limit in zip(found.stage_sums(memory), limits, strict=True))


def test_a_thousand_layers_on_128_unequal_stages():
    times = [1 + layer % 7 for layer in range(1000)]
    found = partition_layers(times, [1 + stage % 3 for stage in range(128)])
    assert sum(found.num_layers) == 1000 and sum(times) / 255 <= found.bottleneck < sum(times) / 255 + 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [1, 1, 1]), "got 2, expected one or more for each of 3 stages"),
        (([], [1]), "layer times"),
        (([1, -2], [1]), "layer times"),
        (([1, float("nan")], [1]), "layer times"),
        (([1, 2], [0]), "stage speeds"),
        (([1, 2], [1], [1, 1]), "only one of"),
        (([1, 2], [1], [1], [5]), "layer memory: got 1 values, expected 2"),
        (([1, 2], [1], [3, 3], [5]), "memory: got stages of 5, expected room for 2 layers, 6 in all"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        partition_layers(*arguments)
