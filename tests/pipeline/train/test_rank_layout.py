"""Who is where: parts beside each other, then places, then copies; what does not divide."""

import pytest

from lanterne.collectives.topology.presets import find_preset
from lanterne.errors import InputError
from lanterne.pipeline.train.rank_layout import Layout, make_layout, nearest_first


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((8, 2, 2, 2), (2, 2, 2)),
        ((12, 3, None, 2), (2, 3, 2)),
        ((12, None, 3, 1), (3, 4, 1)),
        ((6,), (1, 6, 1)),
        ((1,), (1, 1, 1)),
    ],
)
def test_what_is_not_given_follows(arguments, shape):
    layout = make_layout(*arguments)
    assert layout.shape == shape
    _, places, parts = shape
    for rank in range(arguments[0]):
        copy, place, part = layout.where(rank)
        assert layout.ranks[copy][place][part] == rank == (copy * places + place) * parts + part, rank


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((8, 3), "ranks: got 8 for 3 stages x 1 tensor parts, expected a multiple of 3"),
        ((8, 2, 2), "ranks: got 8 for 2 stages x 2 copies x 1 tensor parts, expected 4"),
        ((8, None, 3, 2), "ranks: got 8 for 3 copies x 2 tensor parts, expected a multiple of 6"),
        ((4, 0), "expected at least 1 of each"),
        ((4, 2, None, 0), "expected at least 1 of each"),
    ],
)
def test_what_does_not_divide(arguments, words):
    with pytest.raises(InputError, match=words):
        make_layout(*arguments)


@pytest.mark.parametrize("wrong", [(((0,), (0,)),), (((1,), (2,)),), ((0, 1),)], ids=str)
def test_a_layout_has_each_rank_once(wrong):
    with pytest.raises(InputError, match="with each rank once"):
        Layout(wrong)


def test_sites_come_before_racks_and_these_before_nodes():
    """Two sites of four nodes of two: a pipeline of two stages crosses the line between the sites once."""
    topology = find_preset("cross-campus-8x2")
    ranks = list(range(16))
    swapped = [rank ^ 9 for rank in ranks]
    assert nearest_first(topology) == ranks
    order = nearest_first(topology.of_ranks(swapped))
    sites = [swapped[rank] // 8 for rank in order]
    assert sites in ([0] * 8 + [1] * 8, [1] * 8 + [0] * 8)
    pairs = [{swapped[one] // 2, swapped[other] // 2} for one, other in zip(order[::2], order[1::2], strict=True)]
    assert all(len(pair) == 1 for pair in pairs)
    layout = make_layout(16, 2, 8, topology=topology)
    assert all(copy[0][0] < 8 <= copy[1][0] for copy in layout.ranks)
