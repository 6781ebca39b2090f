"""The stand-ins by themselves, through CuPy: `tests/host_cuda/run -m pytest tests/host_cuda/checks.py`.

What tests/gpu passes over is not repeated: here is what they refuse, and what CUDA leaves undefined.
"""

import re
import subprocess
import sys
import threading
import time
from contextlib import suppress

import cupy
import numpy as np
import pytest
from cupy.cuda import nccl, runtime
from cupy_backends.cuda.libs import cublas

from lanterne.errors import TransportError, TransportTimeout
from lanterne.transport.nccl.binding import make_communicator
from lanterne.transport.nccl.nccl4py import load_nccl4py

Error = runtime.CUDARuntimeError
COPY_TO_HOST, COPY_ANY = 2, 4
THREAD_LOCAL, RELAXED = 1, 2
# What a communicator that does not block may take to start.
START_S = 20.0


def kernel(body, parameters="int* out"):
    return cupy.RawKernel(f'extern "C" __global__ void kernel({parameters}) {{ {body} }}', "kernel")


def run_python(source):
    """What a Python of its own says on stderr: failures of a device last."""
    prelude = "import cupy\nfrom cupy.cuda import runtime\nfrom checks import kernel\n"
    folder = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", prelude + source], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stderr


# -- memory


def test_memory_is_not_zero_at_first_and_has_an_end():
    memory = cupy.cuda.memory.Memory(4096)
    host = np.zeros(4096, np.uint8)
    runtime.memcpy(host.ctypes.data, memory.ptr, 4096, COPY_TO_HOST)
    assert set(host) == {0xCD}
    with pytest.raises(Error, match="InvalidValue"):
        runtime.memcpy(host.ctypes.data, memory.ptr + 1, 4096, COPY_TO_HOST)
    with pytest.raises(Error, match="MemoryAllocation"):
        runtime.malloc(1 << 50)


def test_freed_memory_is_nobodys():
    address = runtime.malloc(4096)
    runtime.free(address)
    with pytest.raises(Error, match="InvalidValue"):
        runtime.memset(address, 0, 1)
    with pytest.raises(Error, match="InvalidValue"):
        runtime.free(address)


def test_host_memory_is_registered_once():
    array = np.zeros(1 << 16, np.uint8)
    runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
    with pytest.raises(Error, match="AlreadyRegistered"):
        runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
    runtime.hostUnregister(array.ctypes.data)
    with pytest.raises(Error, match="NotRegistered"):
        runtime.hostUnregister(array.ctypes.data)


# -- streams, events, captures


@pytest.fixture
def stream():
    stream = cupy.cuda.Stream(non_blocking=True)
    yield stream
    stream.synchronize()


def closed(stream):
    """A function that lets the stream go on, which waits for it until then."""
    opened = threading.Event()
    stream.launch_host_func(lambda _: opened.wait(30), None)
    return opened.set


def test_work_waits_for_its_stream_and_pinned_memory_is_read_late(stream):
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(4), np.int32, 1)
    pageable = np.ones(1, np.int32)
    pinned[0] = 1
    out = cupy.zeros(2, np.int32)
    cupy.cuda.Device().synchronize()
    gate = closed(stream)
    runtime.memcpyAsync(out.data.ptr, pinned.ctypes.data, 4, COPY_ANY, stream.ptr)
    runtime.memcpyAsync(out.data.ptr + 4, pageable.ctypes.data, 4, COPY_ANY, stream.ptr)
    pinned[0] = pageable[0] = 2
    assert not stream.done
    gate()
    stream.synchronize()
    assert out.get().tolist() == [2, 1]


def test_an_event_is_pending_until_its_stream_comes_to_it(stream):
    gate = closed(stream)
    event = stream.record(cupy.cuda.Event(disable_timing=True))
    other = cupy.cuda.Stream(non_blocking=True)
    other.wait_event(event)
    assert not event.done and not other.done
    gate()
    other.synchronize()
    assert event.done
    with pytest.raises(Error, match="InvalidResourceHandle"):
        cupy.cuda.get_elapsed_time(event, event)


def test_a_graph_runs_what_was_captured_each_time(stream):
    count = cupy.zeros(1, np.int32)
    add = kernel("out[0] += 1;")
    add.compile()
    cupy.cuda.Device().synchronize()
    other = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(THREAD_LOCAL)
        add((1,), (1,), (count,))
        other.wait_event(stream.record())
        with other:
            add((1,), (1,), (count,))
        stream.wait_event(other.record())
        graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert count.get()[0] == 6


@pytest.mark.parametrize("breaks", [lambda stream: stream.synchronize(), lambda stream: runtime.malloc(16)])
def test_what_waits_breaks_a_capture(stream, breaks):
    stream.begin_capture(THREAD_LOCAL)
    with pytest.raises(Error, match="StreamCaptureUnsupported"):
        breaks(stream)
    with pytest.raises(Error, match="StreamCaptureInvalidated"):
        stream.end_capture()


def test_a_capture_ends_only_once_all_streams_have_joined(stream):
    other, memory = cupy.cuda.Stream(non_blocking=True), cupy.cuda.memory.Memory(4)
    stream.begin_capture(RELAXED)
    other.wait_event(stream.record())
    runtime.memsetAsync(memory.ptr, 0, 4, other.ptr)
    with pytest.raises(Error, match="StreamCaptureUnjoined"):
        stream.end_capture()


# -- kernels


def test_threads_of_a_block_meet_and_shuffle():
    body = """
    __shared__ int values[64];
    values[threadIdx.x] = threadIdx.x;
    __syncthreads();
    int value = values[63 - threadIdx.x];
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    out[threadIdx.x] = value;
    """
    out = cupy.zeros(64, np.int32)
    kernel(body)((1,), (64,), (out,))
    assert out.get().tolist() == [sum(range(32, 64))] * 32 + [sum(range(32))] * 32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_products_and_sums_are_numpys(dtype):
    a, b = np.arange(12, dtype=dtype).reshape(3, 4), np.arange(8, dtype=dtype).reshape(4, 2)
    assert (cupy.asarray(a) @ cupy.asarray(b)).get().tolist() == (a @ b).tolist()
    assert cupy.asarray(a).sum(axis=0).get().tolist() == a.sum(axis=0).tolist()


def test_cublas_refuses_what_is_too_narrow():
    memory, one = cupy.zeros(16, np.float32), np.ones(1, np.float32)
    address, factor = memory.data.ptr, one.ctypes.data
    handle = cupy.cuda.Device().cublas_handle
    with pytest.raises(cublas.CUBLASError):
        cublas.sgemm(handle, 0, 0, 4, 4, 4, factor, address, 3, address, 4, factor, address, 4)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "kernel('if (threadIdx.x) __syncthreads();\\n else __syncthreads();')((1,), (2,), (cupy.zeros(1, 'i'),))",
            "others at",
        ),
        ("kernel('out[1 << 20] = 1;')((1,), (1,), (cupy.zeros(1, 'i'),))", "IllegalAddress"),
        ("import numpy; kernel('', 'long long p')((1,), (1,), (numpy.zeros(1 << 20).ctypes.data,))", "not pinned"),
        ("kernel('assert(false);')((1,), (1,), (cupy.zeros(1, 'i'),))", "Assert"),
    ],
)
def test_what_fails_a_device(source, message):
    told = run_python(f"{source}\nruntime.deviceSynchronize()")
    assert message in told and "CUDARuntimeError" in told


def failing_kernel(seed, monkeypatch):
    """What is said of the first of many kernels that fails, where one in twenty does, and its number."""
    monkeypatch.setenv("HOST_CUDA_SEED", str(seed))
    monkeypatch.setenv("HOST_CUDA_FAIL_PER_MILLION", "50000")
    program = """
add, stream, count = kernel("out[0] += 1;"), cupy.cuda.Stream(non_blocking=True), cupy.cuda.memory.Memory(4)
runtime.memset(count.ptr, 0, 4)
for number in range(1000):
    add((1,), (1,), (count.ptr,), stream=stream)
    try:
        stream.synchronize()
    except runtime.CUDARuntimeError as error:
        raise SystemExit(f"number {number}: {error}")
"""
    said = run_python(program)
    return said, next(line for line in said.splitlines() if line.startswith("number"))


def test_kernels_fail_by_chance_and_with_a_seed_alike(monkeypatch):
    (said, first), (_, again), (_, other) = (failing_kernel(seed, monkeypatch) for seed in (3, 3, 4))
    assert "by chance" in said and "LaunchFailure" in first
    assert first == again != other


def test_source_that_nvrtc_refuses():
    with pytest.raises(cupy.cuda.compiler.CompileException, match="nothing_of_that_name"):
        kernel("out[0] = nothing_of_that_name;").compile()


# -- NCCL: ranks are threads on one device


def on_ranks(size, work, monkeypatch, library=nccl, may_share="1", absent=()):
    """What work(communicator, rank, stream) returns or raises on each rank but those `absent`."""
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", may_share)
    unique_id, results = library.get_unique_id(), [None] * size

    def rank_thread(rank):
        communicator = None
        try:
            communicator = make_communicator(library, size, unique_id, rank, START_S)
            results[rank] = work(communicator, rank, cupy.cuda.Stream(non_blocking=True))
        except (nccl.NcclError, TransportError) as error:
            results[rank] = error
        finally:
            if communicator:
                communicator.abort()

    ranks = [rank for rank in range(size) if rank not in absent]
    threads = [threading.Thread(target=rank_thread, args=(rank,), name=f"rank {rank}", daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), thread.name
    return results


# NCCL through CuPy, and through nccl4py, which does not block: how each tells of an invalid usage.
BINDINGS = {"cupy": "INVALID_USAGE", "nccl4py": "invalid usage .*: it reduces"}


def load(binding):
    return nccl if binding == "cupy" else load_nccl4py()


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("size", [1, 3])
def test_all_reduce_and_messages(size, binding, monkeypatch):
    library = load(binding)

    def work(communicator, rank, stream):
        x, out = cupy.full(5, rank + 1, np.float32), cupy.zeros(5, np.float32)
        runtime.deviceSynchronize()
        communicator.allReduce(x.data.ptr, out.data.ptr, 5, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        library.groupStart()
        communicator.send(out.data.ptr, 5, nccl.NCCL_FLOAT32, (rank + 1) % size, stream.ptr)
        communicator.recv(x.data.ptr, 5, nccl.NCCL_FLOAT32, (rank - 1) % size, stream.ptr)
        library.groupEnd()
        stream.synchronize()
        return x.get().tolist()

    assert on_ranks(size, work, monkeypatch, library=library) == [[size * (size + 1) / 2] * 5] * size


@pytest.mark.parametrize("binding", BINDINGS)
def test_what_differs_between_ranks_is_an_error_of_both(binding, monkeypatch):
    def work(communicator, rank, stream):
        x = cupy.zeros(8, np.float32)
        runtime.deviceSynchronize()
        communicator.allReduce(x.data.ptr, x.data.ptr, 4 + rank, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        for _ in range(1000):
            communicator.check_async_error()
            time.sleep(0.01)

    assert all(re.search(BINDINGS[binding], str(error)) for error in on_ranks(2, work, monkeypatch, load(binding)))


def test_ranks_share_a_device_only_where_that_is_allowed(monkeypatch):
    results = on_ranks(2, lambda *_: None, monkeypatch, may_share="0")
    assert all("INVALID_USAGE" in str(error) for error in results)


# -- what does not block


def test_a_start_up_to_which_a_rank_does_not_come_ends(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "START_S", 0.2)
    (error, _) = on_ranks(2, lambda *_: None, monkeypatch, load_nccl4py(), absent=[1])
    assert isinstance(error, TransportTimeout), error


def test_an_abort_ends_a_first_message_that_nobody_answers(monkeypatch):
    over = threading.Event()

    def work(communicator, rank, stream):
        x = cupy.zeros(8, np.float32)
        runtime.deviceSynchronize()
        if rank == 1:
            return over.wait(20)
        threading.Timer(0.2, communicator.abort).start()
        try:
            return communicator.send(x.data.ptr, 8, nccl.NCCL_FLOAT32, 1, stream.ptr)
        finally:
            over.set()

    error, was_over = on_ranks(2, work, monkeypatch, load_nccl4py())
    assert "was aborted" in str(error) and was_over


def test_survivors_shrink_what_they_have(monkeypatch):
    """Amid a call to which one does not come; the smaller one computes, and ends in order."""

    def work(communicator, rank, stream):
        x = cupy.full(5, rank + 1, np.float32)
        runtime.deviceSynchronize()
        communicator.allReduce(x.data.ptr, x.data.ptr, 5, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        stream.synchronize()
        if rank == 1:
            return "fell"
        with suppress(TransportError):
            communicator.allReduce(x.data.ptr, x.data.ptr, 5, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        communicator.revoke()
        stream.synchronize()
        smaller = communicator.shrink([1], START_S)
        x.fill(rank + 1)
        runtime.deviceSynchronize()
        smaller.allReduce(x.data.ptr, x.data.ptr, 5, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        stream.synchronize()
        with pytest.raises(Exception, match="InvalidUsage"):
            communicator.allReduce(x.data.ptr, x.data.ptr, 5, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        smaller.destroy()
        return x.get().tolist()

    results = on_ranks(3, work, monkeypatch, load_nccl4py())
    assert results == [[4.0] * 5, "fell", [4.0] * 5]
