"""CPU waits: never early, and the clock decides."""

import time

import pytest

from lanterne.errors import InputError
from lanterne.kernels.cpu import delay as module
from lanterne.kernels.cpu.delay import delay, measure_delay, wait_until


class Clock:
    """A monotonic clock that advances by `tick_s` per look, and that records sleeps."""

    def __init__(self, tick_s):
        self.now_s, self.tick_s, self.sleeps, self.yields = 100.0, tick_s, [], 0

    def monotonic(self):
        self.now_s += self.tick_s
        return self.now_s

    def sleep(self, duration_s):
        self.sleeps.append(duration_s)
        self.now_s += duration_s

    def sched_yield(self):
        self.yields += 1


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(1e-6)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "os", clock)
    return clock


@pytest.mark.parametrize("duration_s", [0.0, 1e-5, 1e-3, 0.02])
def test_never_early(duration_s):
    start = time.monotonic()
    delay(duration_s)
    assert time.monotonic() - start >= duration_s


def test_long_waits_sleep_and_then_spin(clock):
    wait_until(101.0)
    assert clock.sleeps == [pytest.approx(1.0 - module.SPIN_S, abs=1e-5)]
    assert 101.0 <= clock.now_s < 101.0 + 3e-6
    assert clock.yields > 10


def test_short_waits_only_spin(clock):
    wait_until(100.0 + module.SPIN_S / 2)
    assert clock.sleeps == []


@pytest.mark.parametrize("duration_s", [0.0, -1.0])
def test_passed_deadlines_return_at_once(clock, duration_s):
    delay(duration_s)
    assert clock.sleeps == []
    assert clock.now_s < 100.0 + 1e-5


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf"), -float("inf")])
def test_no_deadline(deadline_s):
    with pytest.raises(InputError, match="expected a finite number"):
        wait_until(deadline_s)


def test_measured_accuracy():
    accuracy = measure_delay(2e-3, num_samples=5)
    assert len(accuracy.error_s) == 5
    assert 0 <= min(accuracy.error_s) <= accuracy.median_s <= accuracy.max_s
    with pytest.raises(InputError, match="got 0 samples"):
        measure_delay(1e-3, 0)
