"""What device arrays must do on a real GPU, as functions of a rank's Communicator: threads (staged), processes (nccl).

`python gpu_checks.py FILE CHECK ...` runs checks over nccl on this rank of a job and appends its verdicts to FILE.RANK
as JSON lines. What these check has been proved on stand-ins; here CUDA, NCCL and CuPy are real.
"""

import ctypes
import faulthandler
import os
import sys
import time
from itertools import permutations

import numpy as np

from lanterne.collectives.algorithms.catalogue import algorithms_for
from lanterne.collectives.auto import trials
from lanterne.collectives.late import calls as late
from lanterne.errors import InputError, TransportError, TransportTimeout
from lanterne.kernels.dtypes import PremulSum

LATE_S = 0.3
# What a job of ranks may take.
JOB_S = float(os.environ.get("LANTERNE_TEST_JOB_S", "120"))

ALL_TRIED_NBYTES = trials.TRIED_NBYTES


def values_of(rank, count, dtype):
    return ((np.arange(count) * 7 + 13 * rank) % 17 - (0 if np.dtype(dtype).kind == "u" else 8)).astype(dtype)


def same(comm, collective, count, dtype="float32", **options):
    """The collective on device arrays gives the bits that it gives on host arrays."""
    import cupy

    n = comm.world_size
    sizes = {"reduce_scatter": (count * n, count), "all_gather": (count, count * n), "all_to_all": (count * n,) * 2}
    size_in, size_out = sizes.get(collective, (count, count))
    source, expected = values_of(comm.rank, size_in, dtype), np.full(size_out, 99, dtype)
    given, out = cupy.asarray(source), cupy.full(size_out, 99, dtype)
    for array_in, array_out in ((given, out), (source, expected)):
        if collective == "broadcast":
            comm.broadcast(array_in, **options)
        else:
            getattr(comm, collective)(array_in, array_out, **options)
    if collective == "broadcast":
        out, expected = given, source
    assert out.get().tobytes() == expected.tobytes(), (collective, count, dtype, options)


def names(comm, collective):
    return [line.name for line in algorithms_for(collective) if not line.refuses(comm.world_size)]


def check_every_all_reduce(comm):
    for name in names(comm, "all_reduce"):
        for count in (0, 1, 1000, 300_001):
            same(comm, "all_reduce", count, algorithm=name)


def check_other_collectives(comm):
    for collective in ("reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"):
        for name in names(comm, collective):
            for count in (1, 10_007):
                same(comm, collective, count, algorithm=name)


def check_ops_and_dtypes(comm):
    for dtype in ("float16", "float64", "int8", "uint32", "int64"):
        for op in ("sum", "prod", "min", "max"):
            same(comm, "all_reduce", 40_003, dtype, op=op, algorithm="ring")
    same(comm, "all_reduce", 40_003, "float32", op="mean", algorithm="ring")


def check_ops_of_bits_truth_and_complex_numbers(comm):
    import cupy

    for op in ("band", "bxor", "land", "lxor"):
        same(comm, "all_reduce", 40_003, "uint8", op=op, algorithm="ring")
    for op in ("sum", "avg", PremulSum(comm.rank + 0.5)):
        same(comm, "all_reduce", 40_003, "complex64", op=op, algorithm="ring")
    x, out = cupy.full(40_003, comm.rank + 2 + 1j, np.complex64), cupy.zeros(40_003, np.complex64)
    comm.all_reduce(x, out, op="prod", algorithm="ring")
    assert set(out.get().tolist()) == {complex(np.prod([rank + 2 + 1j for rank in range(comm.world_size)]))}
    same(comm, "all_reduce", 40_003, "int16", op=PremulSum(comm.rank - 2), algorithm="ring")


def check_segments(comm):
    for segment_nbytes in (4096, 100_000):
        same(comm, "all_reduce", 500_000, algorithm="ring", segment_nbytes=segment_nbytes)


def check_large(comm):
    same(comm, "all_reduce", 4 << 20, algorithm="ring")


def check_order_on_the_users_stream(comm):
    import cupy

    from lanterne.kernels.cuda.spin import delay

    stream = cupy.cuda.Stream(non_blocking=True)
    x, out = cupy.zeros(100_000, np.float32), cupy.zeros(100_000, np.float32)
    comm.all_reduce(x, out, algorithm="ring")
    delay(0.0, stream)
    cupy.cuda.get_current_stream().synchronize()
    delay(0.05 * (1 + comm.rank), stream)
    with stream:
        x.fill(comm.rank + 1)
    comm.all_reduce(x, out, stream=stream, algorithm="ring")
    with stream:
        doubled = out * 2
    stream.synchronize()
    n = comm.world_size
    assert set(doubled.get().tolist()) == {float(n * (n + 1))}


def check_messages(comm):
    import cupy

    if comm.world_size == 1:
        return
    peer = comm.rank ^ 1
    out, into = cupy.full(700_000, comm.rank, np.float32), cupy.zeros(700_000, np.float32)
    if peer < comm.world_size:
        comm.send_recv(out, into, peer)
        assert set(into.get().tolist()) == {float(peer)}
        if comm.rank < peer:
            comm.send(out, peer)
        else:
            comm.recv(into, peer)
            assert set(into.get().tolist()) == {float(peer)}


def check_sub_groups(comm):
    import cupy

    child = comm.split(comm.rank % 2)
    x, out = cupy.full(5000, comm.rank, np.float32), cupy.zeros(5000, np.float32)
    child.all_reduce(x, out, algorithm="ring")
    members = range(comm.rank % 2, comm.world_size, 2)
    assert set(out.get().tolist()) == {float(sum(members))}
    child.close()


class OnlyDlpack:
    """A CuPy array that says where it is by DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OnlyDlpackOfBfloat16(OnlyDlpack):
    """An array of bfloat16, stored as uint16, that says so by DLPack alone."""

    dtype = "bfloat16"

    def __dlpack__(self, **options):
        capsule = self._array.__dlpack__(stream=options["stream"])
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        # The code of bfloat16 in DLPack's DLTensor, after an address and three numbers.
        ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = 4
        return capsule


def check_arrays_with_dlpack_alone(comm):
    import cupy

    # 1.0 and its sums of up to 256 are whole.
    x, out = cupy.full(1000, 0x3F80, np.uint16), cupy.zeros(1000, np.uint16)
    comm.all_reduce(OnlyDlpackOfBfloat16(x), OnlyDlpackOfBfloat16(out), algorithm="ring")
    assert set((out.get().astype(np.uint32) << 16).view(np.float32).tolist()) == {float(comm.world_size)}
    x, out = cupy.full(1000, comm.rank, np.float32), cupy.zeros(1000, np.float32)
    comm.all_reduce(OnlyDlpack(x), OnlyDlpack(out), algorithm="ring")
    assert set(out.get().tolist()) == {float(sum(range(comm.world_size)))}


def check_foreign_arrays(comm):
    from lanterne.kernels.cuda.numba_kernels import load_numba_cuda

    # Not imported by name: with NumPy 2.5 that may need the help it gets there.
    cuda = load_numba_cuda()
    x, out = cuda.to_device(np.ones(1000, np.float32)), cuda.to_device(np.zeros(1000, np.float32))
    comm.all_reduce(x, out, algorithm="ring")
    cuda.synchronize()
    assert (out.copy_to_host() == comm.world_size).all()
    try:
        import torch
    except ImportError:
        return
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(1000, device="cuda", dtype=dtype)
        comm.all_reduce(x, x, algorithm="ring")
        torch.cuda.synchronize()
        assert bool((x == comm.world_size).all()), dtype


def check_late_rank_by_its_stream(comm):
    import cupy

    from lanterne.kernels.cuda.spin import delay

    if comm.world_size < 3:
        return
    late.LEAST_NORMAL_S = 0.0
    x, out = cupy.full(500_000, comm.rank + 1, np.float32), cupy.zeros(500_000, np.float32)
    delay(0.0)
    before = comm.arrivals().to_json()
    for turn in range(3):
        if comm.rank == 1:
            delay(LATE_S)
        comm.all_reduce(x, out)
        cupy.cuda.get_current_stream().synchronize()
        n = comm.world_size
        assert set(out.get().tolist()) == {float(n * (n + 1) // 2)}, turn
    after = comm.arrivals().to_json()
    assert after["last"][1] - before["last"][1] >= 2, after


def check_a_capture_by_the_user(comm):
    """A call on a stream that is being captured is refused; neither the capture nor the communicator is harmed."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    x, out = cupy.ones(1000, np.float32), cupy.zeros(1000, np.float32)
    cupy.cuda.get_current_stream().synchronize()
    stream.begin_capture()
    try:
        comm.all_reduce(x, out, stream=stream, algorithm="ring")
    except InputError as error:
        assert "being captured" in str(error), error
    else:
        raise AssertionError("a call on a captured stream was accepted")
    finally:
        stream.end_capture()
    comm.all_reduce(x, out, stream=stream, algorithm="ring")
    assert set(out.get(stream=stream).tolist()) == {float(comm.world_size)}


def check_bad_arrays(comm):
    import cupy

    x = cupy.zeros(8, np.float32)
    for out, message in (
        (np.zeros(8, np.float32), "expected device memory"),
        (cupy.zeros(9, np.float32), "expected 8"),
        (cupy.zeros((8, 2), np.float32)[:, 0], "non-contiguous"),
    ):
        try:
            comm.all_reduce(x, out, algorithm="ring")
        except InputError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"{message}: was accepted")


# -- over nccl only


def check_captured(comm):
    import cupy

    for name in names(comm, "all_reduce"):
        x, out = cupy.zeros(100_001, np.float32), cupy.zeros(100_001, np.float32)
        captured = comm.capture("all_reduce", x, out, algorithm=name)
        for turn in range(3):
            x[...] = cupy.asarray(values_of(comm.rank + turn, x.size, "float32"))
            captured.launch()
            expected = np.zeros(x.size, np.float32)
            comm.all_reduce(x.get(), expected, algorithm="ring")
            assert out.get().tobytes() == expected.tobytes(), (name, turn)
        captured.close()


LEFT_OPEN = []


def check_a_capture_that_is_left_open(comm):
    """Its graph goes before the communicator, when that is closed or has failed: see test_the_jobs_end."""
    import cupy

    x, out = cupy.full(1000, comm.rank + 1, np.float32), cupy.zeros(1000, np.float32)
    captured = comm.capture("all_reduce", x, out, algorithm="ring")
    captured.launch()
    cupy.cuda.get_current_stream().synchronize()
    assert set(out.get().tolist()) == {float(sum(range(1, comm.world_size + 1)))}
    LEFT_OPEN.append((captured, x, out))


def check_a_capture_beside_a_call(comm):
    """A capture of the user's in CUDA's strictest mode, which torch takes, while a call of ours is looked after."""
    import cupy

    from lanterne.kernels.cuda.spin import delay

    busy, captured = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    x, out, count = cupy.ones(1000, np.float32), cupy.zeros(1000, np.float32), cupy.zeros(1000, np.float32)
    # What a capture needs is loaded.
    count += 1
    delay(0.0, busy)
    comm.all_reduce(x, out, algorithm="ring")
    cupy.cuda.get_current_stream().synchronize()
    busy.synchronize()
    delay(LATE_S, busy)
    comm.all_reduce(x, out, stream=busy, algorithm="ring")
    with captured:
        captured.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        count += 1
        time.sleep(LATE_S / 2)
        graph = captured.end_capture()
        graph.launch()
    captured.synchronize()
    busy.synchronize()
    assert set(count.get().tolist()) == {2.0}
    assert set(out.get().tolist()) == {float(comm.world_size)}


def check_captured_late_rank(comm):
    import cupy

    from lanterne.kernels.cuda.spin import delay

    if comm.world_size < 3:
        return
    late.LEAST_NORMAL_S = 0.0
    x, out = cupy.full(300_000, comm.rank + 1, np.float32), cupy.zeros(300_000, np.float32)
    captured = comm.capture("all_reduce", x, out)
    delay(0.0)
    for late_rank in (1, 0, None):
        if comm.rank == late_rank:
            delay(LATE_S)
        captured.launch()
        cupy.cuda.get_current_stream().synchronize()
        n = comm.world_size
        assert set(out.get().tolist()) == {float(n * (n + 1) // 2)}, late_rank
    captured.close()


def check_native(comm):
    import cupy

    for op in ("sum", "max"):
        x, out = cupy.full(100_000, comm.rank + 1, np.float32), cupy.zeros(100_000, np.float32)
        comm.all_reduce(x, out, algorithm="native", op=op)
        n = comm.world_size
        assert set(out.get().tolist()) == {float(n * (n + 1) // 2 if op == "sum" else n)}, op


def check_what_auto_goes_by_can_be_measured(comm):
    trials.TRIED_NBYTES = (64 << 10,)
    without = os.environ.pop("LANTERNE_TRIALS", None)
    try:
        comm.tuning.learn()
        # Ranks may be threads of one process.
        comm.barrier()
    finally:
        trials.TRIED_NBYTES = ALL_TRIED_NBYTES
        if without is not None:
            os.environ["LANTERNE_TRIALS"] = without
    assert comm.world_size == 1 or (comm.tuning.source in ("measured", "cache") and comm.tuning.model.alpha_s > 0)


def check_emulated_links_on_streams(comm):
    """Messages of a pipeline from GPU to GPU take their links' time, and the CPU goes on meanwhile."""
    from lanterne.pipeline.device.device_stage import cuda_device
    from lanterne.pipeline.planes.plane_makers import make_plane
    from lanterne.transport.shaped import Link

    n, me = comm.world_size, comm.rank
    if n == 1:
        return
    shape, dtype, latency_s, occupied_s = (1 << 20,), np.dtype(np.uint8), 0.05, 0.02
    pairs, peers = list(permutations(range(n), 2)), sorted({(me - 1) % n, (me + 1) % n})
    device = cuda_device(comm)
    runtime = device.runtime
    # Loaded now: with a message under way it may never be.
    device.xp.empty(shape, dtype).fill(0)
    with make_plane("streams", comm, dict.fromkeys(pairs, Link(latency_s, shape[0] / occupied_s))) as plane:
        plane.stage_on(device)
        for turn in range(4):
            if turn == 3:
                for pair in pairs:
                    plane.set_link(*pair, Link())
            # Before the barrier: what is sent after it, by whomever, left later.
            start = runtime.record(device.stream, timed=True)
            comm.barrier()
            receives = [plane.receive(shape, dtype, peer) for peer in peers]
            for peer in peers:
                buffer = plane.lend(shape, dtype, peer)
                buffer.fill(10 * me + turn)
                plane.send(buffer, peer)
            found = [receive.wait() for receive in receives]
            stop = runtime.record(device.stream, timed=True)
            went_on = not runtime.is_done(stop)
            values = [set(array.get().tolist()) for array in found]
            for array in found:
                plane.release(array)
            plane.finish()
            assert values == [{10 * peer + turn} for peer in peers], (turn, values)
            if turn < 3:
                elapsed_s = runtime.elapsed_s(start, stop)
                assert elapsed_s >= 0.98 * (latency_s + occupied_s), (turn, elapsed_s)
            # The first messages connect, and load kernels.
            assert went_on or turn in (0, 3), turn


def fails(call):
    """Whether `call()` raises what ends a communicator."""
    try:
        call()
    except TransportError:
        return True
    return False


def check_survivors_go_on(comm):
    """Last: without a rank that does not come, which learns it; of NCCL's communicator they make a smaller one."""
    import cupy

    x, out = cupy.full(1000, comm.rank + 1, np.float32), cupy.zeros(1000, np.float32)
    comm.all_reduce(x, out, algorithm="ring")
    cupy.cuda.get_current_stream().synchronize()
    if comm.rank == 1:
        assert fails(lambda: comm.recv(np.empty(1), 0))
        return
    assert fails(lambda: comm.start_all_reduce(x, out, algorithm="ring").wait(1.0))
    smaller = comm.shrink(timeout_s=2.0)
    smaller.all_reduce(x, out, algorithm="ring")
    cupy.cuda.get_current_stream().synchronize()
    assert 1 not in smaller.ranks, smaller.ranks
    assert set(out.get().tolist()) == {float(sum(range(1, comm.world_size + 1)) - 2)}
    smaller.close()


def check_a_rank_that_does_not_come(comm):
    """Last: the others' wait ends in time with an error that names it; then every call raises, and closing ends."""
    import cupy

    x = cupy.ones(1000, np.float32)
    comm.all_reduce(x, x, algorithm="ring")
    cupy.cuda.get_current_stream().synchronize()
    if comm.world_size == 1:
        return
    absent = comm.world_size - 1
    if comm.rank == absent:
        # Until the others have raised; what they wait for longer than this is never.
        comm.transport.host.barrier(15.0)
        return
    try:
        comm.start_all_reduce(x, x, algorithm="ring").wait(1.0)
    except TransportError as error:
        assert not isinstance(error, TransportTimeout) or absent in error.peers or comm.rank == 0, error
    else:
        raise AssertionError("the call of an absent rank ended")
    comm.transport.host.barrier(15.0)
    cupy.cuda.get_current_stream().synchronize()


COMMON = [
    check_every_all_reduce,
    check_other_collectives,
    check_ops_and_dtypes,
    check_ops_of_bits_truth_and_complex_numbers,
    check_segments,
    check_large,
    check_order_on_the_users_stream,
    check_messages,
    check_sub_groups,
    check_arrays_with_dlpack_alone,
    check_foreign_arrays,
    check_late_rank_by_its_stream,
    check_a_capture_by_the_user,
    check_bad_arrays,
]
NCCL = [
    check_captured,
    check_a_capture_that_is_left_open,
    check_a_capture_beside_a_call,
    check_captured_late_rank,
    check_native,
    check_what_auto_goes_by_can_be_measured,
    check_emulated_links_on_streams,
    check_a_rank_that_does_not_come,
]
# Of what NVIDIA's binding carries, what is asked of it in ways of its own: the rest is the same whoever calls NCCL.
NCCL4PY = [
    check_every_all_reduce,
    check_messages,
    check_sub_groups,
    check_late_rank_by_its_stream,
    check_captured,
    check_a_capture_that_is_left_open,
    check_a_capture_beside_a_call,
    check_native,
    check_survivors_go_on,
]


def main(report, *checks):
    from verdicts import write_verdicts

    import lanterne

    # Where each thread is, shortly before who waits for this job gives it up.
    faulthandler.dump_traceback_later(max(1.0, JOB_S - 4.0))
    comm = lanterne.init(transport="nccl", timeout_s=30.0)
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        failed = write_verdicts(report, [globals()[check] for check in checks], comm)
    comm.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
