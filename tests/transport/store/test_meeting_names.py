"""Which meetings are over, and which are given up, as their names say."""

import pytest

from lanterne.transport.store.meeting_names import ends, is_over, to_agree, to_shrink


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [
        (b"0/agree/9", b"0/agree/10", True),
        (b"0/agree/10", b"0/agree/9", False),
        (b"0/agree/9", b"0/agree/9", False),
        (b"0/agree/9", b"1/agree/10", False),
        (b"0/agree/9", b"0/grow/10", False),
        (b"0/shrink", b"0/shrink", False),
        (b"0/agree/x", b"0/agree/10", False),
        (b"9", b"10", False),
    ],
)
def test_meetings_of_a_series_are_over_once_the_next_is(name, other, expected):
    assert is_over(name, other) == expected


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [
        (to_shrink("0"), to_agree("0", 12), True),
        (to_shrink("0.s/3:1"), to_agree("0.s/3:1", 1), True),
        (to_shrink("0"), to_agree("0.s/3:1", 1), False),
        (to_shrink("0.s/3:1"), to_agree("0", 1), False),
        (to_shrink("0"), to_shrink("0"), False),
        (to_agree("0", 2), to_agree("0", 1), False),
        ("lanterne/begin", to_agree("0", 1), False),
        (to_shrink("0"), "0/grow/1", False),
    ],
)
def test_who_shrinks_a_communicator_comes_to_none_of_its_agreements_more(name, other, expected):
    assert ends(name.encode(), other.encode()) == expected
