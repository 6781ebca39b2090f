"""Times of a device by the host's clock: anchors, and what was queued before the first."""

import time
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from lanterne.kernels.cuda import clock as clocks
from lanterne.kernels.cuda.clock import DeviceClock


class Device:
    """Its clock goes `rate` times as fast as the host's, from another zero; `slow`: it does not answer."""

    def __init__(self, offset_s, rate=1.0, slow=False):
        self.offset_s, self.rate, self.slow = offset_s, rate, slow

    def new_stream(self):
        return "its own"

    def record(self, stream, *, timed=False):
        assert stream == "its own" and timed
        return self.at(time.monotonic())

    def at(self, time_s):
        return SimpleNamespace(at_s=self.offset_s + self.rate * time_s)

    def is_done(self, event):
        return not self.slow

    def elapsed_s(self, start, stop):
        return stop.at_s - start.at_s


@given(st.floats(-1e4, 1e4), st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_events_are_told_by_the_hosts_clock(offset_s, before_s, after_s):
    device = Device(offset_s)
    clock = DeviceClock(device)
    assert clock.anchor()
    now_s = time.monotonic()
    for queued_s, at_s in ((now_s, now_s + after_s), (now_s - before_s - 1.0, now_s - before_s)):
        assert abs(clock.time_s(device.at(at_s), queued_s) - at_s) <= clock.error_s + 1e-6, (queued_s, at_s)


def test_no_event_is_told_from_before_it_was_queued():
    device = Device(0.0)
    clock = DeviceClock(device)
    assert clock.anchor()
    now_s = time.monotonic() + 1.0
    assert clock.time_s(device.at(now_s - 0.5), now_s) == now_s


def test_anchors_are_taken_anew_so_that_clocks_may_drift(monkeypatch):
    monkeypatch.setattr(clocks, "ANCHOR_S", 0.0)
    device = Device(50.0, rate=1.01)
    clock = DeviceClock(device)
    assert clock.anchor()
    first_error_s = clock.error_s
    time.sleep(0.02)
    assert clock.anchor() and 0 < clock.error_s < float("inf") and first_error_s < float("inf")
    now_s = time.monotonic()
    # By the first anchor it would be 0.2 ms off.
    assert abs(clock.time_s(device.at(now_s), now_s) - now_s) <= clock.error_s + 0.01 * 0.01


def test_a_device_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(clocks, "ANCHOR_LIMIT_S", 0.01)
    clock = DeviceClock(Device(0.0, slow=True))
    assert not clock.anchor() and clock.error_s == float("inf")
