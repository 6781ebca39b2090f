"""What differs from what the plan is for, and how often it must, so that noise does not make plans flap."""

import numpy as np
import pytest

from lanterne.pipeline.adapt.estimate import estimate, planned_delay
from lanterne.pipeline.adapt.findings import FindingWatch, IterationNoise, findings, pair_tolerances
from lanterne.pipeline.adapt.link_delay import LinkDelay
from lanterne.pipeline.adapt.profile import Profile
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check

BASE = Problem(4, 12, 0.01, 0.01, 0.01)
TOLERANCE = {(0, 1): 0.01, (1, 2): 0.01, (2, 3): 0.01}
NOISE = IterationNoise(0.001)
FLOOR_S = NOISE.delay_s
FIRST, SECOND = Suspect.link(0, 1), Suspect.link(1, 2)


def profile(links=None, forward_s=(0.01,) * 4, iteration=0):
    """The Profile of an iteration: links (i, j) -> a delay that was seen or a LinkDelay, 0 elsewhere."""
    delays = {pair: 0.0 for i in range(3) for pair in ((i, i + 1), (i + 1, i))} | (links or {})
    seen = {pair: d if isinstance(d, LinkDelay) else LinkDelay(d, d, 0.0, 5) for pair, d in delays.items()}
    other_s = np.full(4, 0.01)
    durations_s = {"F": np.array(forward_s), "B": other_s, "W": other_s, "BW": np.full(4, np.nan)}
    return Profile(iteration, np.zeros(4), np.ones(4), durations_s, seen, np.zeros(4))


def find(seen, assumed=BASE, tolerance=None):
    return findings(seen, BASE, assumed, TOLERANCE if tolerance is None else tolerance, NOISE)


def both(i, delay):
    return {(i, i + 1): delay, (i + 1, i): delay}


def test_equation_1_is_the_threshold():
    checked = check(plan(BASE, "zb_h2"), BASE)
    assert pair_tolerances(checked, BASE) == pytest.approx({(i, i + 1): 0.01 for i in range(3)})
    assert find(profile(both(1, 0.0109))) == {}
    assert find(profile(both(1, 0.0112))) == {"link 1-2": +1}


def test_a_placement_that_equation_1_is_not_about_tolerates_nothing():
    assert pair_tolerances(check(plan(BASE, "zb_v"), BASE), BASE) == {}
    assert find(profile(both(1, 0.0012)), tolerance={}) == {"link 1-2": +1}


def test_relief_and_more_of_the_same():
    slow = estimate([profile(both(1, 0.020))], BASE, BASE, FLOOR_S)
    tolerance = TOLERANCE | {(1, 2): 0.020}
    assert find(profile(both(1, 0.020)), slow, tolerance) == {}
    assert find(profile(both(1, 0.013)), slow, tolerance) == {"link 1-2": -1}
    assert find(profile(), slow, tolerance) == {"link 1-2": -1}
    assert find(profile(both(1, 0.040)), slow, tolerance) == {"link 1-2": +1}
    assert find(profile(both(1, LinkDelay(-0.01, 0.030))), slow, tolerance) == {}


def test_slow_ranks():
    assert find(profile(forward_s=(0.01, 0.01, 0.016, 0.01))) == {"rank 2": +1}
    assert find(profile(forward_s=(0.01, 0.01, 0.013, 0.01))) == {}


def test_findings_must_recur():
    watch = FindingWatch()
    noise = [{FIRST: 1}, {}, {FIRST: 1}, {FIRST: -1}, {SECOND: 1}, {FIRST: 1}]
    assert [watch.update(i, found) for i, found in enumerate(noise)] == [{}] * 6
    assert watch.update(6, {FIRST: 1}) == {FIRST: 1}
    assert [watch.update(i, {FIRST: -1}) for i in (7, 8, 9)] == [{}, {}, {FIRST: -1}]


def test_a_change_for_one_link_does_not_put_off_another():
    watch = FindingWatch()
    assert watch.update(0, {FIRST: 1}) == {}
    assert watch.update(1, {FIRST: 1, SECOND: 1}) == {FIRST: 1}
    watch.restart({FIRST})
    assert watch.update(2, {FIRST: 1, SECOND: 1}) == {SECOND: 1}


def test_relief_takes_longer_where_a_link_flaps():
    watch, taken = FindingWatch(), []
    iteration = 0
    for _ in range(4):
        for sign in (+1, -1):
            count = 0
            while not watch.update(iteration, {FIRST: sign}):
                iteration, count = iteration + 1, count + 1
            watch.restart({FIRST})
            if sign < 0:
                taken.append(count + 1)
    assert taken == [3, 6, 12, 24]


def test_estimates_are_medians_and_heal_exactly():
    seen = [profile(both(1, value)) for value in (0.020, 0.5, 0.022)]
    problem = estimate(seen, BASE, BASE, FLOOR_S)
    assert planned_delay(problem, 1, 2) == (pytest.approx(0.022), 0)
    assert planned_delay(problem, 0, 1) == (0, 0)
    assert estimate([profile(both(1, 0.0009))], BASE, problem, FLOOR_S) is BASE


def test_estimates_keep_what_nothing_contradicts():
    slow = estimate([profile(both(1, 0.020))], BASE, BASE, FLOOR_S)
    assert estimate([profile(both(1, LinkDelay(-0.01, 0.030)))], BASE, slow, FLOOR_S) == slow
    fell = estimate([profile(both(1, LinkDelay(0.004, 0.012)))], BASE, slow, FLOOR_S)
    assert planned_delay(fell, 1, 2) == (pytest.approx(0.012), 0)
    assert estimate([profile(both(1, LinkDelay(-0.01, 0.012)))], BASE, slow, FLOOR_S) is BASE


def test_noise_is_learned_and_forgotten():
    noise, random = IterationNoise(0.001), np.random.default_rng(3)
    for _ in range(40):
        noise.add(profile(both(1, abs(random.normal()) * 0.004), forward_s=0.01 * np.exp(0.2 * random.normal(size=4))))
    assert noise.delay_s((0, 1)) == 0.001 and 0.005 < noise.delay_s((2, 1)) < 0.015
    assert 0.2 < noise.duration(2) < 0.7
    seen = profile(both(1, 0.014))
    assert findings(seen, BASE, BASE, TOLERANCE, noise) == {} and find(seen) == {"link 1-2": +1}
    noise.forget(SECOND)
    noise.forget(Suspect.rank(2))
    assert noise.delay_s((1, 2)) == 0.001 and noise.duration(2) == 0


@pytest.mark.parametrize(("before", "behind"), [(1, 6), (4, 6), (20, 6), (3, 1), (1, 3)])
def test_a_step_is_no_noise(before, behind):
    noise = IterationNoise(0.001)
    for delay_s in [0.0] * before + [0.02] * behind:
        noise.add(profile(both(1, delay_s)))
    assert noise.delay_s((1, 2)) == 0.001
