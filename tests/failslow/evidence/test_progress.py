"""One rule names the ranks that others wait for, from two numbers of each rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.evidence.progress import Progress, odd_calls, roots, stall


def of(*pairs):
    return {rank: Progress(*pair) for rank, pair in enumerate(pairs)}


@pytest.mark.parametrize(
    ("ranks", "kind", "behind", "waiting"),
    [
        (of((9, 11), (7, 9), (9, 11)), "inside", (1,), (0, 2)),
        (of((6, 7), (6, 6), (6, 7)), "missing", (1,), (0, 2)),
        (of((11, 11), (10, 11), (10, 10)), "missing", (2,), (1,)),
        (of((5, 6), (5, 6)), "call", (), (0, 1)),
        (of((5, 9), (3, 3), (6, 6)), "missing", (1,), (0,)),
    ],
)
def test_the_oldest_call_that_does_not_end_names_who_is_behind(ranks, kind, behind, waiting):
    found = stall(ranks, {})
    assert (found.kind, found.behind, found.waiting) == (kind, behind, waiting)


def test_nobody_is_behind_where_nobody_is_inside_a_call():
    assert stall(of((5, 5), (4, 4)), {}) is None
    assert stall({}, {}) is None


def test_a_root_that_has_left_its_call_blames_nobody():
    ranks = of((11, 11), (10, 11), (10, 11))
    assert stall(ranks, {}, is_rooted=True).behind == ()
    assert stall(ranks, {}).behind == (1, 2)


def test_a_call_that_differs_is_named_and_a_tie_is_one():
    ranks = of((4, 5), (4, 5), (4, 5))
    odd = stall(ranks, {0: "a", 1: "b", 2: "a"})
    assert (odd.kind, odd.behind, odd.waiting, odd.is_tie) == ("order", (1,), (0, 2), False)
    two = stall(of((4, 5), (4, 5)), {0: "a", 1: "b"})
    assert (two.behind, two.is_tie) == ((0, 1), True)
    assert odd_calls({0: "a", 1: "a"}) == ([], False)


def test_waits_are_followed_to_their_ends():
    assert roots({1, 2}, {3: {2}, 2: {1}, 0: {1}}) == {1}
    assert roots({1, 2}, {1: {2}, 2: {1}}) == {1, 2}
    assert roots({1, 2}, {1: {-1}}) == {1, 2}, "what 1 waits for is not known"
    assert roots((), {0: {1}}) == set()


@given(
    waits=st.dictionaries(st.integers(0, 6), st.frozensets(st.integers(0, 6), max_size=3), max_size=7),
    behind=st.frozensets(st.integers(0, 6), min_size=1),
)
def test_every_chain_ends_at_a_root(waits, behind):
    found = roots(behind, waits)
    assert found and found <= behind
    for rank in behind - found:
        reached, todo = set(), [rank]
        while todo:
            ahead = set(waits.get(todo.pop(), ())) - reached
            reached |= ahead
            todo += ahead
        assert reached & found, "who is not named waits for one that is"
