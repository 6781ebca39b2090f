"""Staged copies on a stand-in for streams: order, chunks, counters that wrap, ends that fail, another process."""

import gc
import hashlib
import os
import subprocess
import sys
import threading
from multiprocessing import shared_memory

import numpy as np
import pytest
from host_runtime import HostRuntime
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError, TransportTimeout
from lanterne.kernels.reduce import prepare
from lanterne.kernels.staging import FLAG_MODULUS, MAX_CHUNKS, Stager, is_reached, pinned_empty
from lanterne.kernels.staging_ring import DeviceEnd, HostEnd, Ring

TIMEOUT_S = 60
SIZES = [0, 1, 7, 8, 9, 24, 1000]


@pytest.fixture
def runtime():
    runtime = HostRuntime()
    yield runtime
    runtime.close()


def message(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def ring_of(chunk_nbytes=8, num_chunks=3):
    return Ring(bytearray(Ring.nbytes_for(chunk_nbytes, num_chunks)), chunk_nbytes, num_chunks)


@settings(deadline=None)
@given(st.integers(0, FLAG_MODULUS - 1), st.integers(0, FLAG_MODULUS // 2 - 1))
def test_counters_compare_cyclically(value, ahead):
    assert is_reached((value + ahead) % FLAG_MODULUS, value)
    assert not is_reached((value - 1 - ahead) % FLAG_MODULUS, value)


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
        assert (first.done_nbytes(), second.done_nbytes()) != (first_done, second_done)
        gate.set()
        while (first.done_nbytes(), second.done_nbytes()) != (first_done, second_done):
            os.sched_yield()
        np.testing.assert_array_equal(first_host[:first_done], device[:first_done])


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
    with pytest.raises(TransportTimeout, match="staged copy of 8 bytes: not done within 0.01 s"):
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


@pytest.mark.parametrize("num_chunks", [1, 2, 5])
@pytest.mark.parametrize("nbytes", SIZES)
def test_device_to_cpu(runtime, nbytes, num_chunks):
    ring = ring_of(num_chunks=num_chunks)
    end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
    for seed in range(3):
        device, got = message(nbytes, seed), np.zeros(nbytes, np.uint8)
        sent = end.send(device.ctypes.data, nbytes)
        delegate.recv(got, TIMEOUT_S)
        assert sent.wait(TIMEOUT_S)
        np.testing.assert_array_equal(got, device)
    end.close()
    end.close()
    assert runtime.pinned == {}


@pytest.mark.parametrize("num_chunks", [1, 2, 5])
@pytest.mark.parametrize("nbytes", SIZES)
def test_cpu_to_device(runtime, nbytes, num_chunks):
    ring = ring_of(num_chunks=num_chunks)
    end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
    for seed in range(3):
        data, device = message(nbytes, seed), np.zeros(nbytes, np.uint8)
        arrived = end.recv(device.ctypes.data, nbytes)
        delegate.send(data, TIMEOUT_S)
        assert arrived.wait(TIMEOUT_S)
        np.testing.assert_array_equal(device, data)
    end.close()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 250])
def test_receive_and_reduce(runtime, count):
    ring = ring_of(chunk_nbytes=8, num_chunks=3)
    end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
    data, out = np.arange(count, dtype=np.float32), np.full(count, 10, np.float32)
    on_cpu = prepare("sum", "float32", 2)

    def kernel(num_elements, *addresses, stream):
        stream.work.put(lambda: on_cpu(num_elements, *addresses))

    arrived = end.recv_reduce(kernel, out.ctypes.data, out.nbytes, 4)
    delegate.send(data, TIMEOUT_S)
    assert arrived.wait(TIMEOUT_S)
    np.testing.assert_array_equal(out, data + 10)
    with pytest.raises(InputError, match="recv_reduce: got 9 bytes in chunks of 8, expected multiples of 4"):
        end.recv_reduce(kernel, out.ctypes.data, 9, 4)
    end.close()


def test_a_full_ring_holds_the_copies_back_but_not_the_sender(runtime):
    ring = ring_of(num_chunks=2)
    end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
    device, compute = message(80), runtime.new_stream()
    sent = end.send(device.ctypes.data, 80, compute)
    assert runtime.record(compute).wait(TIMEOUT_S)
    filled, _ = ring.counters()
    while filled[0] < 2:
        os.sched_yield()
    assert not sent.is_set()
    assert filled[0] == 2
    got = np.zeros(80, np.uint8)
    delegate.recv(got, TIMEOUT_S)
    np.testing.assert_array_equal(got, device)
    assert sent.wait(TIMEOUT_S)
    end.close()


def test_ring_counters_wrap(runtime):
    ring = ring_of(num_chunks=3)
    end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
    start = 3 * (FLAG_MODULUS // 3)
    end._next = delegate._next = start
    for counter in ring.counters():
        counter[0] = start % FLAG_MODULUS
    device, got = message(200), np.zeros(200, np.uint8)
    sent = end.send(device.ctypes.data, 200)
    delegate.recv(got, TIMEOUT_S)
    assert sent.wait(TIMEOUT_S)
    np.testing.assert_array_equal(got, device)
    end.close()


def test_chunks_are_lent_in_place(runtime):
    ring = ring_of()
    end, delegate = DeviceEnd(runtime, ring), HostEnd(ring)
    device, got = message(20), []
    end.send(device.ctypes.data, 20)
    for index, _, size in delegate.pieces(20):
        with delegate.filled_chunk(index, size, TIMEOUT_S) as chunk:
            got.append(bytes(chunk))
    assert b"".join(got) == device.tobytes()
    assert [len(piece) for piece in got] == [8, 8, 4]
    end.close()


def test_an_end_whose_peer_is_gone_times_out_and_frees_the_stream(runtime):
    ring = ring_of()
    with pytest.raises(TransportTimeout, match="ring: chunk 0 to be filled: not done within 0.01 s"):
        HostEnd(ring).recv(np.zeros(8, np.uint8), 0.01)
    sender = HostEnd(ring)
    with pytest.raises(TransportTimeout, match="ring: room for chunk 3"):
        sender.send(np.zeros(100, np.uint8), 0.01)
    waiting = ring_of()
    end = DeviceEnd(runtime, waiting)
    arrived = end.recv(np.zeros(100, np.uint8).ctypes.data, 100)
    with pytest.raises(TransportTimeout, match="work queued before close"):
        end.close(0.05)
    assert arrived.is_set()
    assert runtime.pinned == {}


def test_another_process_drains(runtime):
    memory = shared_memory.SharedMemory(create=True, size=Ring.nbytes_for(4096, 4))
    try:
        end = DeviceEnd(runtime, Ring(memory.buf, 4096, 4))
        device = message(100_000)
        code = (
            "import hashlib, sys, numpy as np; from multiprocessing import shared_memory, resource_tracker\n"
            "from lanterne.kernels.staging_ring import HostEnd, Ring\n"
            "memory = shared_memory.SharedMemory(sys.argv[1])\n"
            "resource_tracker.unregister(memory._name, 'shared_memory')\n"
            "got = np.zeros(100_000, np.uint8); HostEnd(Ring(memory.buf, 4096, 4)).recv(got, 60)\n"
            "sys.stdout.write(hashlib.sha256(got).hexdigest()); sys.stdout.flush(); import os; os._exit(0)"
        )
        end.send(device.ctypes.data, device.nbytes)
        result = subprocess.run([sys.executable, "-c", code, memory.name], capture_output=True, text=True, check=True)
        assert result.stdout == hashlib.sha256(device).hexdigest()
        end.close()
        del end
    finally:
        gc.collect()
        memory.close()
        memory.unlink()


@pytest.mark.parametrize(
    ("make", "message_text"),
    [
        (lambda: ring_of(0, 1), "Ring: got 1 chunks of 0 bytes"),
        (lambda: ring_of(8, 0), "Ring: got 0 chunks of 8 bytes"),
        (lambda: Ring(bytearray(100), 8, 1), "Ring: got 100 bytes of memory, expected 4104"),
        (lambda: pinned_empty(None, 0), "pinned_empty: got 0 bytes"),
        (lambda: Stager(None, 0), "Stager: got chunks of 0 bytes"),
    ],
)
def test_bad_input(make, message_text):
    with pytest.raises(InputError, match=message_text):
        make()
