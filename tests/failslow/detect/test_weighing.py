"""When suspects are weighed, and which are sure to be another level."""

import pytest

from lanterne.failslow.detect.level import Level
from lanterne.failslow.detect.weighing import Weighing


@pytest.fixture
def level():
    return Level(64, [0.01 * (row % 3 - 1) for row in range(64)])


def test_many_suspects_are_weighed_less_often():
    weighing = Weighing()
    assert [rows for rows in range(1, 41) if weighing.is_due(rows, 100 + rows)] == [
        *range(5, 17), 18, 20, 22, 24, 27, 30, 33, 37,
    ]  # fmt: skip


@pytest.mark.parametrize("height", [0.12, 0.5])
def test_a_level_above_and_where_it_begins(level, height):
    rows = [height + 0.005 * (row % 2) for row in range(8)]
    assert Weighing().slower(rows, level, 0.0) == 0
    assert Weighing().slower([0.0, -0.01, *rows], level, 0.0) == 2
    assert not Weighing().is_faster(rows, level, 0.0)


def test_bursts_of_two_heights_are_no_level(level):
    assert Weighing().slower([0.3] * 3 + [0.6] * 3, level, 0.0) is None


def test_a_level_below(level):
    assert Weighing().is_faster([-0.2 + 0.005 * (row % 2) for row in range(16)], level, 0.0)
    assert not Weighing().is_faster([0.01 * (row % 3 - 1) for row in range(16)], level, 0.0)
