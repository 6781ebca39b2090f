"""What is learned of a job's bursts: their rate, whether they go on, their heights."""

from math import exp, log

import pytest

from lanterne.failslow.detect.bursts import MEAN_HEIGHT, USUAL_RATE, USUAL_SHARE, Bursts, usual_height_density


def learned(pattern, repeats=50, scale=1e-6):
    """Bursts after `repeats` of `pattern`, whose zeros are ordinary rows."""
    bursts = Bursts()
    for _ in range(repeats):
        for height in pattern:
            bursts.see(height, scale)
            bursts.pass_rows(1)
    return bursts


def test_of_a_new_job_nothing_is_known():
    assert (Bursts().rate, Bursts().share_going_on) == (USUAL_RATE, USUAL_SHARE)
    assert Bursts().height_density(0.3) == pytest.approx(exp(-0.5) / MEAN_HEIGHT)


@pytest.mark.parametrize("rows_between", [4, 9, 49])
def test_the_rate_is_learned(rows_between):
    single = learned([0.3] + [0] * rows_between, 100)
    assert single.rate == pytest.approx(1 / (rows_between + 1), rel=0.3)
    assert single.share_going_on < USUAL_SHARE / 2


def test_a_quiet_job_has_few():
    assert learned([0] * 10).rate < 0.003


@pytest.mark.parametrize("length", [1, 2, 3])
def test_whether_bursts_go_on_is_learned(length):
    assert learned([0.3] * length + [0] * 6).share_going_on == pytest.approx((length - 1) / length, abs=0.12)


def test_the_usual_height_becomes_likely_and_others_unlikely():
    bursts = learned([log(1.5)] + [0] * 10)
    assert bursts.height_density(log(1.5)) > 3 * usual_height_density(log(1.5))
    assert bursts.height_density(1.5) < usual_height_density(1.5) / 3
    assert bursts.height_density(-0.1) == 0.0


def test_what_noise_explains_is_no_burst():
    assert learned([0.03] + [0] * 10, scale=0.03).rate < 0.005


def test_heights_have_a_density():
    bursts = learned([0.2, 0, 0.7, 0, 0, 3.0, 0])
    step = 0.001
    assert sum(bursts.height_density(step * (i + 0.5)) * step for i in range(9000)) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("repeats", [300, 2000])
def test_old_heights_are_forgotten_in_any_number(repeats):
    """Weights grow with every burst and begin anew when they are large: nothing of it may be seen."""
    bursts, other = learned([0.2] + [0] * 10, repeats), learned([2.0] + [0] * 10, repeats)
    for _ in range(repeats):
        bursts.see(2.0, 1e-6)
        bursts.end()
    assert bursts.height_density(2.0) == pytest.approx(other.height_density(2.0), rel=0.1)
    assert bursts.height_density(0.2) == pytest.approx(other.height_density(0.2), rel=0.1)
