"""Delays on a real GPU: never too short, queued, and shaped streams in order. Accuracy: `./run evaluate gpu`."""

import pytest

from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.kernels.cuda.spin import TIMERS, StreamShaper, calibrate, delay, measure_delay


@pytest.mark.parametrize("timer", [None, *TIMERS])
@pytest.mark.parametrize("duration_s", [20e-6, 1e-3, 20e-3])
def test_never_too_short(cupy, duration_s, timer):
    for elapsed_s in measure_delay(duration_s, 5, timer):
        assert elapsed_s >= duration_s - max(0.02 * duration_s, 5e-6), elapsed_s


def test_long_delays_are_several_kernels(cupy):
    (elapsed_s,) = measure_delay(1.5, 1)
    assert elapsed_s >= 1.49


def test_calibration_is_plausible(cupy):
    calibration = calibrate(0)
    assert 0 < calibration.overhead_s < 1e-3
    assert 1e8 < calibration.clock_hz < 1e10
    assert calibration.tick_ns >= 1


def test_delays_are_queued(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    delay(0.0, stream)
    stream.synchronize()
    delay(0.5, stream)
    assert not stream.done
    stream.synchronize()


def timed(cupy, stream, call):
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    call()
    stop.record(stream)
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) * 1e-3


def test_shaped_bandwidth_and_latency(cupy):
    runtime = CudaRuntime()
    communication, compute = runtime.new_stream(), runtime.new_stream()
    slow = StreamShaper(runtime, latency_s=0.05, bandwidth_bytes_per_s=1e9)
    x, y = cupy.zeros(10_000_000, "u1"), cupy.ones(10_000_000, "u1")
    cupy.cuda.Device().synchronize()

    def send():
        with slow.transfer(x.nbytes, communication) as done:
            runtime.copy(x.data.ptr, y.data.ptr, x.nbytes, communication)
        return done[0]

    assert timed(cupy, communication, send) >= 0.0099
    transfer = send()
    assert timed(cupy, compute, lambda: slow.hold(transfer, compute)) >= 0.045
    transfer = send()
    transfer.event.synchronize()
    delay(0.08, compute)
    # The computation took longer than the latency: nothing is added.
    slow.hold(transfer, compute)
    compute.synchronize()
    assert int(x.min()) == 1
