"""Staging on a real GPU: bytes, order, flags, and messages that delegates send while they are copied."""

import numpy as np
import pytest

import lanterne
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.kernels.cuda.spin import delay
from lanterne.kernels.staging import Stager, pinned_empty
from lanterne.pipeline.device.device_stage import cuda_device
from lanterne.pipeline.planes.plane_makers import make_plane

TIMEOUT_S = 60
SIZES = [1, 4095, 1 << 20, (5 << 20) + 3]


@pytest.fixture
def runtime(cupy):
    return CudaRuntime()


def message(cupy, nbytes, seed=0):
    return cupy.asarray(np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8))


@pytest.mark.parametrize("nbytes", SIZES)
def test_there_and_back(cupy, runtime, nbytes):
    stager = Stager(runtime)
    device, back, host = message(cupy, nbytes), cupy.zeros(nbytes, np.uint8), pinned_empty(runtime, nbytes)
    down = stager.to_host(host, device.data.ptr)
    down.wait(TIMEOUT_S)
    np.testing.assert_array_equal(host, device.get())
    up = stager.to_device(back.data.ptr, host)
    up.hold(cupy.cuda.get_current_stream())
    assert bool((back == device).all())
    up.wait(TIMEOUT_S)


def test_copies_follow_the_stream_that_makes_the_data(cupy, runtime):
    stager, compute = Stager(runtime), runtime.new_stream()
    host = pinned_empty(runtime, 1 << 22)
    device = cupy.zeros(1 << 20, np.float32)
    cupy.cuda.Device().synchronize()
    with compute:
        for _ in range(200):
            device += 1
    copy = stager.to_host(host, device.data.ptr, compute)
    copy.wait(TIMEOUT_S)
    assert (host.view(np.float32) == 200).all()


@pytest.mark.parametrize("options", [{}, {"rails": ("tcp",), "queues": 2}], ids=["one host", "tcp"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_delegates_carry_what_the_device_made(cupy, nbytes, options):
    """Both ways at once, twice: in memory that the other rank maps, or by processes that send what has landed."""
    shape, dtype = (nbytes,), np.dtype(np.uint8)

    def exchange(comm, device, plane, seed):
        peer = 1 - comm.rank
        receive = plane.receive(shape, dtype, peer)
        plane.send(device.fill(plane.lend(shape, dtype, peer), message(cupy, nbytes, 2 * seed + comm.rank)), peer)
        buffer = receive.wait()
        right = bool((device.fetch(buffer) == message(cupy, nbytes, 2 * seed + peer)).all())
        plane.release(buffer)
        plane.finish()
        return right

    def job(comm):
        # Of each rank its own: the default stream is one for all threads.
        with cupy.cuda.Stream(non_blocking=True), make_plane("delegate", comm, **options) as plane:
            device = cuda_device(comm)
            plane.stage_on(device)
            return [exchange(comm, device, plane, seed) for seed in range(2)]

    assert lanterne.spawn(2, job, timeout_s=TIMEOUT_S) == [[True, True]] * 2


def test_a_copy_that_waits_does_not_hold_other_streams(cupy, runtime):
    """Nor the CPU, nor a copy the other way; what is copied is what the stream made in the end."""
    stager, slow, fast = Stager(runtime), runtime.new_stream(), runtime.new_stream()
    device, up = cupy.zeros(1 << 20, np.uint8), cupy.zeros(1 << 20, np.uint8)
    down_host, up_host = (pinned_empty(runtime, 1 << 20) for _ in range(2))
    up_host[:] = 7
    # Kernels are loaded at their first launch, which may wait for all streams.
    for stream in (slow, fast):
        delay(0.0, stream)
        with stream:
            device.fill(1)
            assert int(up.min()) == 0, stream
    cupy.cuda.Device().synchronize()
    delay(0.5, slow)
    with slow:
        device.fill(9)
    down = stager.to_host(down_host, device.data.ptr, slow)
    copy = stager.to_device(up.data.ptr, up_host, fast)
    copy.hold(fast)
    with fast:
        assert int(up.min()) == 7
    assert not down.test()
    down.wait(TIMEOUT_S)
    assert (down_host == 9).all()
