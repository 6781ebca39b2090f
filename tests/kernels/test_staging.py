"""Staged copies on a stand-in for streams: order, chunks, counters that wrap, copies that never come."""

import gc
import os
import threading

import numpy as np
import pytest
from host_runtime import HostRuntime
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError, TransportError, TransportTimeout
from lanterne.kernels.chunks import CHUNK_NBYTES, FLAG_MODULUS, MAX_CHUNKS, chunk_nbytes_of, landed_nbytes
from lanterne.kernels.staging import Stager, pinned_empty

TIMEOUT_S = 60
SIZES = [0, 1, 7, 8, 9, 24, 1000]


@pytest.fixture
def runtime():
    runtime = HostRuntime()
    yield runtime
    runtime.close()


def message(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


@settings(deadline=None)
@given(st.integers(0, FLAG_MODULUS - 1), st.integers(0, 40), st.integers(0, 40 * CHUNK_NBYTES))
def test_what_has_landed_by_a_counter_that_wraps(first, copied, nbytes):
    size = chunk_nbytes_of(nbytes)
    num_chunks = -(-nbytes // size)
    assert num_chunks <= MAX_CHUNKS and (size == CHUNK_NBYTES or num_chunks > MAX_CHUNKS // 2)
    here = landed_nbytes((first + copied) % FLAG_MODULUS, first, nbytes, size)
    assert here == min(nbytes, copied * size)
    assert (here == nbytes) is (copied >= num_chunks)
    # Messages before it are being copied still.
    assert landed_nbytes((first - 1 - copied) % FLAG_MODULUS, first, nbytes, size) == 0


@pytest.mark.parametrize("nbytes", SIZES)
def test_there_and_back(runtime, nbytes):
    stager = Stager(runtime, chunk_nbytes=8)
    device, back = message(nbytes), np.zeros(nbytes, np.uint8)
    host = np.zeros(nbytes, np.uint8)
    down = stager.to_host(host, device.ctypes.data)
    down.wait(TIMEOUT_S)
    np.testing.assert_array_equal(host, device)
    assert down.done_nbytes() == nbytes
    up = stager.to_device(back.ctypes.data, host)
    up.wait(TIMEOUT_S)
    np.testing.assert_array_equal(back, device)


def test_a_copy_that_has_failed_is_an_error(runtime):
    """Its flag is never written."""
    stager = Stager(runtime)
    runtime.default.put(lambda: runtime.closing.wait(TIMEOUT_S))
    # The copy is made when the stand-in ends.
    host, device = np.zeros(8, np.uint8), message(8)
    runtime.held = stager, host, device
    copy = stager.to_host(host, device.ctypes.data)
    assert not copy.test()
    runtime.fault = "cudaErrorIllegalAddress"
    with pytest.raises(TransportError, match="device 0: cudaErrorIllegalAddress"):
        copy.wait(TIMEOUT_S)


def test_copies_follow_the_stream_that_makes_the_data_and_do_not_hold_it(runtime):
    stager = Stager(runtime, chunk_nbytes=8)
    device, host, gate = np.zeros(20, np.uint8), np.zeros(20, np.uint8), threading.Event()
    compute = runtime.new_stream()
    compute.work.put(gate.wait)
    compute.work.put(lambda: device.fill(7))
    copy = stager.to_host(host, device.ctypes.data, compute)
    later = runtime.record(compute)
    assert not copy.test()
    assert copy.done_nbytes() == 0
    gate.set()
    copy.wait(TIMEOUT_S)
    assert later.wait(TIMEOUT_S)
    assert (host == 7).all()


def test_hold_orders_a_stream_behind_the_copy(runtime):
    stager = Stager(runtime, chunk_nbytes=8)
    device, host, compute, seen = np.zeros(20, np.uint8), message(20), runtime.new_stream(), []
    copy = stager.to_device(device.ctypes.data, host)
    copy.hold(compute)
    compute.work.put(lambda: seen.append(device.copy()))
    assert runtime.record(compute).wait(TIMEOUT_S)
    np.testing.assert_array_equal(seen[0], host)


def test_progress_is_per_chunk_and_per_message(runtime):
    stager = Stager(runtime, chunk_nbytes=8)
    gates = [threading.Event() for _ in range(4)]
    release = iter(gates)
    copy = runtime.copy
    runtime.copy = lambda dst, src, nbytes, stream: (
        stream.work.put(next(release).wait),
        copy(dst, src, nbytes, stream),
    )
    device, first_host, second_host = message(20), np.zeros(20, np.uint8), np.zeros(3, np.uint8)
    first = stager.to_host(first_host, device.ctypes.data)
    second = stager.to_host(second_host, device.ctypes.data)
    for gate, first_done, second_done in zip(gates, (8, 16, 20, 20), (0, 0, 0, 3), strict=True):
        assert (first.done_nbytes(), second.done_nbytes()) != (first_done, second_done), (gate, first_done, second_done)
        gate.set()
        while (first.done_nbytes(), second.done_nbytes()) != (first_done, second_done):
            os.sched_yield()
        np.testing.assert_array_equal(first_host[:first_done], device[:first_done], err_msg=f"after {first_done} B")


@pytest.mark.parametrize(("nbytes", "num_chunks"), [(8 * MAX_CHUNKS, MAX_CHUNKS), (8 * MAX_CHUNKS + 1, 9), (999, 16)])
def test_large_messages_go_in_few_chunks(runtime, nbytes, num_chunks):
    stager = Stager(runtime, chunk_nbytes=8)
    device, host = message(nbytes), np.zeros(nbytes, np.uint8)
    copy = stager.to_host(host, device.ctypes.data)
    copy.wait(TIMEOUT_S)
    np.testing.assert_array_equal(host, device)
    assert stager._to_host.num_chunks == num_chunks
    assert copy.chunk_nbytes % 8 == 0


def test_counters_of_a_stager_wrap(runtime):
    stager = Stager(runtime, chunk_nbytes=8)
    lane = stager._to_host
    lane.num_chunks = FLAG_MODULUS - 2
    lane.flag[0] = FLAG_MODULUS - 2
    device, host = message(100), np.zeros(100, np.uint8)
    copy = stager.to_host(host, device.ctypes.data)
    copy.wait(TIMEOUT_S)
    np.testing.assert_array_equal(host, device)
    assert lane.flag[0] == 11


def test_a_copy_that_never_comes_times_out(runtime):
    stager = Stager(runtime, chunk_nbytes=8)
    compute, gate = runtime.new_stream(), threading.Event()
    compute.work.put(gate.wait)
    copy = stager.to_host(np.zeros(8, np.uint8), message(8).ctypes.data, compute)
    with pytest.raises(TransportTimeout, match=r"staged copy of 8 bytes: not done within 0\.01 s"):
        copy.wait(0.01)
    gate.set()
    copy.wait(TIMEOUT_S)


def test_pinned_memory_is_unpinned_when_it_dies(runtime):
    array = pinned_empty(runtime, 10000)
    view = array[5:].view(np.uint8)
    assert array.ctypes.data % 4096 == 0
    assert runtime.pinned == {array.ctypes.data: 10000}
    del array
    gc.collect()
    assert len(runtime.pinned) == 1
    del view
    gc.collect()
    assert runtime.pinned == {}


@pytest.mark.parametrize(
    ("make", "message_text"),
    [
        (lambda: pinned_empty(None, 0), "pinned_empty: got 0 bytes"),
        (lambda: Stager(None, 0), "Stager: got chunks of 0 bytes"),
    ],
)
def test_bad_input(make, message_text):
    with pytest.raises(InputError, match=message_text):
        make()
