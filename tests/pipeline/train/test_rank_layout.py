"""Who is where: parts beside each other, then places, then copies; what does not divide."""

import pytest

from lanterne.errors import InputError
from lanterne.pipeline.train.rank_layout import Layout, make_layout


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


def test_a_layout_tells_where_a_rank_is():
    assert Layout([[[3], [0]], [[2], [1]]]).where(2) == (1, 0, 0)


@pytest.mark.parametrize("wrong", [(((0,), (0,)),), (((1,), (2,)),), ((0, 1),)], ids=str)
def test_a_layout_has_each_rank_once(wrong):
    with pytest.raises(InputError, match="with each rank once"):
        Layout(wrong)
