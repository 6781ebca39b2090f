"""Names beside lines: where they stand, and that none covers another."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.bench.output.plots import COLOURS, STYLES, _spread, in_style, label_ends, lift_legends

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.mark.parametrize(
    ("heights", "placed"),
    [
        ([], []),
        ([0.2, 0.8], [0.2, 0.8]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.5, 0.5, 0.62], [0.44, 0.54, 0.64]),
        ([1.0, 1.0], [0.9, 1.0]),
        ([0.0, 0.0], [0.0, 0.1]),
    ],
)
def test_names_move_as_little_as_they_must(heights, placed):
    assert _spread(heights, 0.1) == pytest.approx(placed)


@given(st.lists(st.floats(0, 1), max_size=20).map(sorted))
def test_names_never_touch_and_keep_their_order(heights):
    placed = _spread(heights, 0.05)
    assert all(b - a >= 0.05 - 1e-9 for a, b in itertools.pairwise(placed))
    assert not placed or (placed[0] >= -1e-9 and placed[-1] <= 1 + 1e-9)


def test_each_named_line_has_its_name_in_its_colour():
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    for name, style in zip(("one", "two", "_hidden"), STYLES, strict=False):
        axis.plot([1, 2], [1, 2], label=name, **style)
    label_ends(axis)
    assert [(text.get_text(), text.get_color()) for text in axis.texts] == [("one", COLOURS[0]), ("two", COLOURS[1])]
    assert axis.get_legend() is None


def test_each_colour_is_there_once():
    assert len(set(COLOURS)) == len(COLOURS) == len(STYLES) == 16


def test_legends_are_one_above_the_axes():
    with in_style():
        figure, axes = plt.subplots(1, 2, layout="constrained")
        for axis, names in zip(axes, (("ours", "paper"), ("ours", "peer")), strict=True):
            for name in names:
                axis.plot([0, 1], [0, 1], label=name)
            axis.legend()
        lift_legends(figure)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "paper", "peer"]
    assert [axis.get_legend() for axis in axes] == [None, None]
    bottom = legend.get_window_extent().y0
    assert all(axis.get_window_extent().y1 <= bottom for axis in axes)
    assert axes[0].get_lines()[0].get_color() == COLOURS[0]
    plt.close(figure)


def test_a_figure_without_a_legend_gets_none():
    figure, axis = plt.subplots(layout="constrained")
    axis.plot([0, 1], [0, 1])
    lift_legends(figure)
    assert not figure.legends
    plt.close(figure)
