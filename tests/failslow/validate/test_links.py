"""Link passes: every link of the ring and both trees, both directions, no rank twice in a pass, few passes."""

import pytest

from lanterne.errors import InputError
from lanterne.failslow.validate.links import collective_links, colour_edges, link_passes, split_blame, tree_parents

SIZES = range(2, 65)


def directions(passes):
    return {(src, dst) for batch in passes for a, b in batch for src, dst in ((a, b), (b, a))}


@pytest.mark.parametrize("n", SIZES)
def test_every_link_in_both_directions(n):
    passes = link_passes(range(n))
    needed = {(rank, (rank + 1) % n) for rank in range(n)}
    for tree in (0, 1):
        needed |= {(rank, up) for rank, up in enumerate(tree_parents(n, tree)) if up is not None}
    needed |= {(dst, src) for src, dst in needed}
    assert directions(passes) == needed
    assert len([link for batch in passes for link in batch]) == len(needed) // 2


@pytest.mark.parametrize("n", SIZES)
def test_few_passes_of_disjoint_links(n):
    passes = link_passes(range(n))
    for batch in passes:
        ends = [end for link in batch for end in link]
        assert len(ends) == len(set(ends)), batch
    links = collective_links(n)
    degrees = [sum(rank in link for link in links) for rank in range(n)]
    assert len(passes) <= min(6, max(degrees) + 1)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("tree", [0, 1])
def test_trees_are_binary_trees(n, tree):
    parents = tree_parents(n, tree)
    assert parents.count(None) == 1
    root = parents.index(None)
    assert all(parents.count(rank) <= 2 for rank in range(n))
    for rank in range(n):
        seen = rank
        for _ in range(2 * n.bit_length()):
            seen = parents[seen] if parents[seen] is not None else seen
        assert seen == root, rank


def test_leaves_of_one_tree_are_inner_in_the_other():
    for n in range(4, 65, 2):
        inner = [{up for up in tree_parents(n, tree) if up is not None} for tree in (0, 1)]
        assert not inner[0] & inner[1] - {0, n - 1}, n


def test_golden_tree():
    assert tree_parents(8, 0) == (None, 2, 4, 2, 0, 6, 4, 6)
    assert tree_parents(8, 1) == (1, 3, 1, 7, 5, 3, 5, None)


def test_ranks_are_names():
    assert directions(link_passes([5, 9, 2])) == {(5, 9), (9, 5), (9, 2), (2, 9), (2, 5), (5, 2)}


def test_colouring_needs_vizing():
    """A triangle has degree 2 and needs 3 colours."""
    assert len(colour_edges([(0, 1), (1, 2), (0, 2)])) == 3


@pytest.mark.parametrize("ranks", [(), (3,), (1, 1)])
def test_bad_ranks(ranks):
    with pytest.raises(InputError, match="expected at least 2"):
        link_passes(ranks)


TESTED = directions(link_passes(range(16)))


@pytest.mark.parametrize(
    ("is_slow", "ranks", "links"),
    [
        (lambda link: False, (), ()),
        (lambda link: link == (3, 4), (), ((3, 4),)),
        (lambda link: 5 in link, (5,), ()),
        (lambda link: link[0] == 5, (5,), ()),
    ],
    ids=["nothing", "cable", "card", "card-one-way"],
)
def test_a_card_is_told_from_a_cable(is_slow, ranks, links):
    assert split_blame(TESTED, set(filter(is_slow, TESTED))) == (ranks, links)


def test_an_end_with_one_link_blames_no_card():
    assert split_blame([(0, 1), (1, 0)], {(0, 1)}) == ((), ((0, 1),))
