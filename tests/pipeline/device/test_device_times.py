"""Times of actions on a device, on a stand-in for streams whose work is sleeping threads."""

import time

import numpy as np
import pytest
from device_profile import DelayStage, check_times
from host_runtime import HostRuntime

from lanterne.errors import LanterneError, TransportTimeout
from lanterne.pipeline.device.device_times import DeviceTimes, until_done


def queue_delay(duration_s, stream):
    stream.put(lambda: time.sleep(duration_s))


@pytest.fixture
def runtime():
    runtime = HostRuntime()
    yield runtime
    runtime.close()


@pytest.mark.parametrize("scheduler", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("own", [False, True], ids=["current stream", "stream"])
def test_times_are_those_of_the_device(runtime, scheduler, own):
    check_times(runtime, runtime.new_stream() if own else None, queue_delay, scheduler)


def test_a_kernel_that_hangs_is_a_named_error(runtime):
    runtime.default.put(lambda: runtime.closing.wait(20.0))
    with pytest.raises(TransportTimeout, match=r"device 0: what a stage has queued was not done within 0\.05 s"):
        until_done(runtime, runtime.record(runtime.default), 0.05)


def test_all_else_is_the_stage_itself(runtime):
    stage = DelayStage(queue_delay, runtime.default)
    stage.input_shape, stage.dtype = (2, 3), np.dtype(np.float32)
    watched = DeviceTimes(runtime).watch(stage)
    assert (watched.input_shape, watched.dtype, watched.losses) == ((2, 3), np.float32, {})


def test_failed_work_is_an_error_and_not_a_wait(runtime):
    times = DeviceTimes(runtime)
    times.watch(DelayStage(queue_delay, runtime.default)).forward(0)
    runtime.fault = "an illegal address"
    with pytest.raises(LanterneError, match="an illegal address"):
        times.durations_s(None)
