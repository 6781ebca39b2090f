"""Staging on a real GPU: bytes, order, flags, another process, and ends that fail."""

import hashlib
import mmap
import subprocess
import sys
from multiprocessing import shared_memory

import numpy as np
import pytest

from lanterne.errors import TransportTimeout
from lanterne.kernels.cuda_reduce import IMPLEMENTATIONS, prepare
from lanterne.kernels.cuda_runtime import CudaRuntime
from lanterne.kernels.staging import Stager, pinned_empty
from lanterne.kernels.staging_ring import DeviceEnd, HostEnd, Ring

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


@pytest.mark.parametrize("nbytes", SIZES)
def test_rings_both_ways(cupy, runtime, nbytes):
    for _ in range(2):
        ring = Ring(mmap.mmap(-1, Ring.nbytes_for(1 << 16, 4)), 1 << 16, 4)
        end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
        device, got = message(cupy, nbytes), np.zeros(nbytes, np.uint8)
        end.send(device.data.ptr, nbytes)
        delegate.recv(got, TIMEOUT_S)
        np.testing.assert_array_equal(got, device.get())
        end.close()
        ring = Ring(mmap.mmap(-1, Ring.nbytes_for(1 << 16, 4)), 1 << 16, 4)
        end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
        back = cupy.zeros(nbytes, np.uint8)
        arrived = end.recv(back.data.ptr, nbytes)
        delegate.send(got, TIMEOUT_S)
        runtime.wait_event(arrived, cupy.cuda.get_current_stream())
        assert bool((back == device).all())
        end.close()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_receive_and_reduce(cupy, runtime, implementation):
    ring = Ring(mmap.mmap(-1, Ring.nbytes_for(1 << 16, 4)), 1 << 16, 4)
    end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
    data, out = np.arange(100_001, dtype=np.float32), cupy.full(100_001, 10, np.float32)
    kernel = prepare("sum", "float32", 2, implementation)
    arrived = end.recv_reduce(kernel, out.data.ptr, out.nbytes, 4)
    delegate.send(data, TIMEOUT_S)
    runtime.wait_event(arrived, cupy.cuda.get_current_stream())
    np.testing.assert_array_equal(out.get(), data + 10)
    end.close()


def test_a_waiting_receive_does_not_hold_other_streams(cupy, runtime):
    ring = Ring(mmap.mmap(-1, Ring.nbytes_for(4096, 2)), 4096, 2)
    end = DeviceEnd(runtime, ring)
    target = cupy.zeros(4096, np.uint8)

    def compute():
        return float((cupy.ones(1 << 20, np.float32) * 2).sum())

    # Kernels are loaded at their first launch, which may wait for all streams.
    compute()
    arrived = end.recv(target.data.ptr, 4096)
    assert compute() == 2 << 20
    assert not runtime.is_done(arrived)
    HostEnd(ring).send(np.full(4096, 9, np.uint8), TIMEOUT_S)
    end.close(TIMEOUT_S)
    assert runtime.is_done(arrived)
    assert int(target.min()) == 9


def test_an_end_whose_peer_is_gone_is_closed(cupy, runtime):
    ring = Ring(mmap.mmap(-1, Ring.nbytes_for(4096, 2)), 4096, 2)
    end = DeviceEnd(runtime, ring)
    target = cupy.zeros(40_960, np.uint8)
    end.recv(target.data.ptr, 40_960)
    with pytest.raises(TransportTimeout, match="work queued before close"):
        end.close(0.2)
    cupy.cuda.Device().synchronize()


def test_another_process_drains(cupy, runtime):
    memory = shared_memory.SharedMemory(create=True, size=Ring.nbytes_for(1 << 16, 4))
    try:
        end = DeviceEnd(runtime, Ring(memory.buf, 1 << 16, 4))
        device = message(cupy, 1_000_003)
        code = (
            "import hashlib, os, sys, numpy as np; from multiprocessing import shared_memory, resource_tracker\n"
            "from lanterne.kernels.staging_ring import HostEnd, Ring\n"
            "memory = shared_memory.SharedMemory(sys.argv[1])\n"
            "resource_tracker.unregister(memory._name, 'shared_memory')\n"
            "got = np.zeros(1_000_003, np.uint8); HostEnd(Ring(memory.buf, 1 << 16, 4)).recv(got, 60)\n"
            "sys.stdout.write(hashlib.sha256(got).hexdigest()); sys.stdout.flush(); os._exit(0)"
        )
        end.send(device.data.ptr, device.nbytes)
        result = subprocess.run([sys.executable, "-c", code, memory.name], capture_output=True, text=True, check=True)
        assert result.stdout == hashlib.sha256(device.get()).hexdigest()
        end.close()
        del end
    finally:
        memory.close()
        memory.unlink()
