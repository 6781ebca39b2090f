"""Actions: words, parsing, and what needs what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.errors import ScheduleError
from lanterne.pipeline.plan.action import KINDS, Action, dependencies
from lanterne.pipeline.plan.placement import bidirectional, unidirectional, wave


@given(st.sampled_from(KINDS), st.integers(0, 999), st.integers(0, 9999), st.integers(1, 9), st.integers(0, 9))
def test_parse_is_the_inverse_of_str(kind, stage, microbatch, part, more):
    action = Action(kind, stage, microbatch, part, part + more)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (Action("F", 2, 0), "F2.0"),
        (Action("W", 2, 0, 1, 4), "W2.0.1/4"),
        (Action("BW", 11, 3), "BW11.3"),
        (Action("W", 0, 1, 4, 4), "W0.1.4/4"),
    ],
)
def test_words(action, word):
    assert str(action) == word
    assert Action.parse(word) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F",
        "F2",
        "X2.0",
        "F2.0.1",
        "F2.0.0/4",
        "F2.0.5/4",
        "F-1.0",
        "F2.0 ",
        "f2.0",
        "F2.0.1/0",
        "F9999999999.0",
        7,
        None,
    ],
)
def test_what_is_no_action_is_said(text):
    with pytest.raises(ScheduleError, match="action"):
        Action.parse(text)


@pytest.mark.parametrize(
    ("word", "placement", "needs"),
    [
        ("F0.3", unidirectional(3), []),
        ("F2.3", unidirectional(3), ["F1.3"]),
        ("B2.3", unidirectional(3), ["F2.3"]),
        ("B1.3", unidirectional(3), ["F1.3", "B2.3"]),
        ("BW1.3", unidirectional(3), ["F1.3", "B2.3"]),
        ("W1.3", unidirectional(3), ["B1.3"]),
        ("B3.0", wave(2), ["F3.0"]),
        ("F2.0", wave(2), ["F1.0"]),
        ("F3.1", bidirectional(3), []),
        ("B2.0", bidirectional(3), ["F2.0"]),
        ("B4.1", bidirectional(3), ["F4.1", "B5.1"]),
        ("B1.3.2/3", unidirectional(3), ["B1.3.1/3"]),
        ("B1.3.1/3", unidirectional(3), ["F1.3", "B2.3"]),
    ],
)
def test_dependencies(word, placement, needs):
    assert [str(action) for action in dependencies(Action.parse(word), placement)] == needs
