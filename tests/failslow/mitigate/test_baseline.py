"""What an iteration says of ranks and links, against what is usual."""

import pytest

from lanterne.failslow.mitigate.baseline import Baseline, baseline, blamed_and_idle, evidence, still_slow
from lanterne.failslow.mitigate.decision import ControllerSettings, Seen
from lanterne.failslow.mitigate.strategies import Arrangement, Slowness

HOME = Arrangement((((0,), (1,)), ((2,), (3,))), (4, 4))
UNIT_S = 10e-3
USUAL = Baseline(0.1, (UNIT_S, UNIT_S), 1e-3, (2e-3, 2e-3), (4e-3, 4e-3))
WELL, BLAMED = Slowness({}, {}), Slowness({3: 2.0}, {(0, 1): 40e-3})


def seen(factors=(1, 1, 1, 1), links=None, group_s=2e-3, tested=None):
    compute_s = {rank: factor * UNIT_S for rank, factor in enumerate(factors) if factor is not None}
    return Seen(7, 0.1, compute_s, links or {}, {rank: (5.0, 5.0 + group_s) for rank in range(4)}, tested or {})


def judged(one, slow=WELL):
    return evidence(one, USUAL, HOME, slow, ControllerSettings())


@pytest.mark.parametrize("factor, found, suspect", [(1.1, False, False), (1.2, True, False), (2.0, True, True)])
def test_a_rank_is_slow_against_its_own_health_and_the_others(factor, found, suspect):
    said = judged(seen((1, 1, factor, 1)))
    assert ("rank 2" in said.found) == found and ("rank 2" in said.well) == (not found)
    assert not found or said.found["rank 2"] == (pytest.approx(factor), suspect)
    assert {"rank 0", "rank 1", "rank 3"} <= said.well


def test_who_said_nothing_is_neither_well_nor_slow_and_what_all_share_is_nobodys():
    said = judged(seen((1, None, 2, 1)))
    assert "rank 1" not in said.well and "rank 1" not in said.found
    assert not judged(seen((2, 2, 2, 2))).found


@pytest.mark.parametrize(
    "bounds, slow, well, found",
    [
        ((0.5e-3, 2e-3), WELL, True, False),
        ((30e-3, 41e-3), WELL, False, True),
        ((-float("inf"), 20e-3), BLAMED, False, False),
        ((-float("inf"), 9e-3), BLAMED, True, False),
        ((-float("inf"), 9e-3), WELL, False, False),
        ((39e-3, 41e-3), BLAMED, False, True),
    ],
)
def test_a_link_is_judged_only_by_what_its_bounds_say(bounds, slow, well, found):
    said = judged(seen(links={(0, 1): bounds}), slow)
    assert ("link 0-1" in said.well, "link 0-1" in said.found) == (well, found)


def test_a_slow_all_reduce_suspects_the_links_of_its_group():
    said = judged(seen(group_s=42e-3))
    assert {name: one[1] for name, one in said.found.items()} == {"link 0-2": True, "link 1-3": True}
    assert said.found["link 0-2"][0] == pytest.approx(20e-3)
    # Of 10 ms a microbatch, 3 make a link slow, beyond what an all-reduce takes now and then.
    assert {"link 0-2", "link 1-3"} <= judged(seen(group_s=6.9e-3)).well
    assert {"link 0-2", "link 1-3"} <= judged(seen(group_s=7.1e-3)).found.keys()


@pytest.mark.parametrize("factor, well", [(1.05, True), (1.9, False)])
def test_a_rank_that_is_out_is_judged_by_its_test(factor, well):
    said = judged(seen((1, 1, 1, None), tested={3: factor}), BLAMED)
    assert ("rank 3" in said.well) == well and ("rank 3" in said.found) != well


def test_blamed_links_that_carry_nothing_are_probed():
    slow = Slowness({}, {(0, 1): 0.1, (0, 2): 0.1, (0, 3): 0.1, (1, 2): 0.1})
    assert blamed_and_idle(HOME, slow) == ((0, 3), (1, 2))
    assert blamed_and_idle(Arrangement((((0,), (1,)),), (8,)), slow) == ((0, 2), (0, 3), (1, 2))


def test_a_baseline_needs_every_place():
    groups_s = [2e-3] * 8 + [5e-3, 90e-3]
    healthy = [seen(links={(0, 1): (1e-3, 1e-3)}, group_s=group_s) for group_s in groups_s]
    usual, most = pytest.approx((2e-3, 2e-3)), pytest.approx((5e-3, 5e-3))
    assert baseline(healthy, HOME) == Baseline(0.1, (UNIT_S, UNIT_S), 1e-3, usual, most)
    assert baseline([seen((1, None, 1, None))] * 5, HOME) is None


@pytest.mark.parametrize(
    ("factors", "before", "still"),
    [
        ((1, 1, 1, 2), {3: 2.0}, {3: 2.0}),
        ((1, 1, 1, 1), {3: 2.0}, {}),
        ((1, 1, 1, 1.35), {3: 2.0}, {}),
        ((1, 1, 1, 1.5), {3: 2.0}, {3: 2.0}),
        ((5, 5, 5, 5), {3: 2.0}, {}),
        ((2, 2, 2, 2), dict.fromkeys(range(4), 2.0), dict.fromkeys(range(4), 2.0)),
        ((1, 1, 1, None), {3: 2.0}, {}),
    ],
)
def test_who_was_slow_is_so_still_if_nearer_to_that_than_to_the_others(factors, before, still):
    several = [seen(factors), seen(factors), seen((1, 9, 1, None))]
    assert still_slow(several, HOME, before, (4.0, 4.0)) == still


def test_what_is_slow_from_the_start_does_not_count_as_usual_work():
    one = seen((1, 1, 1, 2))
    assert baseline([one] * 3, HOME).work_s == pytest.approx((UNIT_S, 1.5 * UNIT_S))
    assert baseline([one] * 3, HOME, {3: 2.0}).work_s == pytest.approx((UNIT_S, UNIT_S))
