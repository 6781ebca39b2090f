"""Placement: the paper's two moves come out, the search is never worse, and it agrees with trying everything."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.failslow.mitigate.grid import best_placement, consolidate, exchanges, stages_needed


def pair(a, b):
    return frozenset((a, b))


def grid_of(devices, stages):
    """The usual grid: `devices` in order, replicas varying fastest."""
    width = len(devices) // stages
    return tuple(tuple(devices[stage * width : (stage + 1) * width]) for stage in range(stages))


def iteration_cost(microbatch_s, microbatches, gradients_s, activations_s, slowdown=None, slow_links=None):
    """A cost function of a grid: 1F1B over stages, then the slowest stage's all-reduce.

    Args:
        microbatch_s: seconds per microbatch of each stage, forward and backward.
        gradients_s: seconds of each stage's all-reduce over healthy links.
        activations_s: seconds that a microbatch's activations and gradients take between two stages.
        slowdown: device -> factor on its compute; slow_links: frozenset of two devices -> factor on its transfers.
    """
    slowdown, slow_links = slowdown or {}, slow_links or {}

    def link(a, b):
        return slow_links.get(frozenset((a, b)), 1.0)

    def cost_s(grid):
        # Replicas meet in the all-reduce, so each stage is as slow as its slowest device.
        paces = [microbatch_s[s] * max(slowdown.get(d, 1.0) for d in devices) for s, devices in enumerate(grid)]
        hops = [
            activations_s * max(link(a, b) for a, b in zip(stage, following, strict=True))
            for stage, following in pairwise(grid)
        ]
        rings = [
            gradients_s[s] * max((link(a, b) for a, b in zip(d, d[1:] + d[:1], strict=True)), default=1.0)
            if len(d) > 1
            else 0.0
            for s, d in enumerate(grid)
        ]
        return sum(paces) + sum(hops) + (microbatches - 1) * max(paces + hops) + max(rings)

    return cost_s


def test_slow_link_leaves_the_data_parallel_group():
    """Paper figure 11: four nodes, the link of a data-parallel pair is congested and ends up in the pipeline."""
    grid = ((0, 1), (2, 3))
    cost_s = iteration_cost((1.0, 1.0), 8, (5.0, 5.0), 0.01, slow_links={pair(2, 3): 4.0})
    best = best_placement(grid, cost_s, slow_links=[(2, 3)])
    assert cost_s(grid) == pytest.approx(9.01 + 20.0)
    # Even better than the figure: no replica uses the link either.
    assert best.cost_s == pytest.approx(9.01 + 5.0)
    assert not any(set(stage) == {2, 3} for stage in best.grid)
    assert len(best.swaps) == 1


def test_stragglers_share_a_stage():
    """Paper figure 12: two stragglers in two stages cost two slow stages, in one stage one."""
    grid = grid_of(range(16), 4)
    cost_s = iteration_cost((1.0,) * 4, 8, (0.5,) * 4, 0.01, slowdown={0: 1.5, 13: 1.5})
    best = best_placement(grid, cost_s, (0, 13))
    assert sum(bool({0, 13} & set(stage)) for stage in best.grid) == 1
    assert best.cost_s < cost_s(grid)


@pytest.mark.parametrize(
    ("stragglers", "stages"), [((0,), 1), ((0, 5, 9, 13), 1), ((0, 5, 9, 13, 15), 2), (tuple(range(16)), 4)]
)
def test_consolidate_in_the_fewest_stages_interior_first(stragglers, stages):
    grid = consolidate(grid_of(range(16), 4), stragglers)
    held = [s for s, stage in enumerate(grid) if set(stage) & set(stragglers)]
    assert len(held) == stages == stages_needed(len(stragglers), 4)
    assert stages > 2 or not {0, 3} & set(held)
    assert sorted(d for stage in grid for d in stage) == list(range(16))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_never_worse_and_near_the_optimum(data):
    grid = grid_of(range(6), 3)
    slowdown = {d: data.draw(st.sampled_from([1.5, 2.0])) for d in data.draw(st.sets(st.integers(0, 5), max_size=2))}
    ends = data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True))
    cost_s = iteration_cost((1.1, 1.0, 1.2), 6, (2.0,) * 3, 0.05, slowdown, {pair(*ends): 3.0})
    best = best_placement(grid, cost_s, sorted(slowdown), [ends])
    everything = min(cost_s((p[:2], p[2:4], p[4:])) for p in permutations(range(6)))
    assert everything - 1e-9 <= best.cost_s <= min(cost_s(grid), 1.02 * everything)
    assert best.cost_s == cost_s(best.grid)


@given(st.permutations(range(8)))
def test_exchanges_lead_there(wanted):
    before, after = grid_of(range(8), 2), grid_of(wanted, 2)
    current = [d for stage in before for d in stage]
    for a, b in exchanges(before, after):
        i, j = current.index(a), current.index(b)
        current[i], current[j] = b, a
    assert current == list(wanted)


def test_nothing_to_gain_moves_nothing():
    grid = grid_of(range(4), 2)
    best = best_placement(grid, iteration_cost((1.0, 1.0), 4, (1.0, 1.0), 0.1), (0, 1))
    assert (best.grid, best.swaps) == (grid, ())


def test_bad_input():
    with pytest.raises(InputError, match="not in the grid"):
        best_placement(grid_of(range(4), 2), lambda grid: 1.0, (9,))
