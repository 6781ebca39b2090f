"""Device arrays through the Communicator, on stand-ins: over nccl on streams, elsewhere through pinned memory."""

import random
import threading
import time

import numpy as np
import pytest
from device_ranks import PATHS, over_nccl, same, synchronize
from nccl_ranks import HostArray, Job

from lanterne.collectives.algorithms.catalogue import ALGORITHMS
from lanterne.collectives.communicator import core_of
from lanterne.collectives.execute import arguments
from lanterne.collectives.execute.compile_program import compile_program
from lanterne.collectives.execute.plans import checked_schedule
from lanterne.collectives.execute.rank_program import Message
from lanterne.collectives.late import calls as late
from lanterne.errors import InputError, TransportTimeout
from lanterne.kernels.dtypes import PremulSum

LINES = [line for line in ALGORITHMS if line[0] != "barrier"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("collective", "algorithm"), LINES, ids=lambda value: value)
def test_every_algorithm(path, collective, algorithm):
    def program(comm):
        for count in (0, 1, 7, 30_000):
            same(comm, collective, count, algorithm=algorithm)

    assert PATHS[path](4, program) == [None] * 4


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", ["ring", "rhd", "allpairs", "late_join", "tree"])
def test_world_sizes(path, world_size, algorithm):
    if world_size == 1 and algorithm == "late_join":
        pytest.skip("late_join needs two ranks, as its registry line says")

    def program(comm):
        same(comm, "all_reduce", 5003, algorithm=algorithm)

    assert PATHS[path](world_size, program) == [None] * world_size


@pytest.mark.parametrize("seed", range(4))
def test_streams_that_stall_at_random_change_nothing(seed):
    """Each stream pauses before some of what it is given: what lacks an event or a group reads too early."""
    job = Job(5)
    for rank, runtime in enumerate(job.runtimes):
        draw, new_stream = random.Random(f"{seed} {rank}"), runtime.new_stream

        def stalling(draw=draw, new_stream=new_stream):
            stream = new_stream()
            put = stream.put

            def put_late(item):
                delay_s = draw.choice((0, 0, 0, 0.002, 0.006))
                put((lambda: (time.sleep(delay_s), item())) if delay_s and stream.captured is None else item)

            stream.put = put_late
            return stream

        runtime.new_stream = stalling

    def program(comm):
        for algorithm, chunks in (("ring", None), ("late_join", 2), ("late_join", 9), ("rhd", None), ("late_chain", 3)):
            for segment_nbytes in (None, 4096):
                same(comm, "all_reduce", 9001, algorithm=algorithm, num_chunks=chunks, segment_nbytes=segment_nbytes)

    assert over_nccl(5, program, job=job) == [None] * 5


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "mean"])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint32"])
def test_ops_and_dtypes(path, op, dtype):
    if op == "mean" and dtype in ("int8", "uint32"):
        pytest.skip("mean is of floats")

    def program(comm):
        same(comm, "all_reduce", 4099, op=op, dtype=dtype, algorithm="ring")

    assert PATHS[path](3, program) == [None] * 3


@pytest.mark.parametrize("path", PATHS)
def test_ops_of_bits_truth_and_complex_numbers(path):
    cases = [(op, dtype) for op in ("band", "bxor", "land", "lxor") for dtype in ("int8", "uint64")]
    cases += [("sum", "complex64"), ("avg", "complex128")]

    def program(comm):
        for op, dtype in cases:
            same(comm, "all_reduce", 1031, op=op, dtype=dtype, algorithm="ring")
        x, out = HostArray(np.full(1031, comm.rank + 2 + 1j)), HostArray(np.zeros(1031, complex))
        comm.all_reduce(x, out, "prod", algorithm="ring")
        synchronize(comm)
        assert (out.values == (2 + 1j) * (3 + 1j) * (4 + 1j)).all()

    assert PATHS[path](3, program) == [None] * 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_premul_sum_leaves_the_input_as_it_is(path, dtype):
    """The copy is made on the call's stream, after what that was given before."""

    def program(comm):
        stored = "uint16" if dtype == "bfloat16" else dtype
        x, out = HostArray(np.zeros(1000, stored)), HostArray(np.zeros(1000, stored))
        one = np.array(1.0, np.float32).view(np.uint32) >> 16 if dtype == "bfloat16" else 1
        comm.transport.runtime.default.put(lambda: (time.sleep(0.05), x.values.fill(one)))
        comm.all_reduce(x, out, PremulSum(comm.rank + 2), dtype=dtype, algorithm="ring")
        synchronize(comm)
        found = (out.values.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else out.values
        assert (found == 2 + 3 + 4).all() and (x.values == one).all()
        bools = HostArray(np.ones(4, bool))
        with pytest.raises(InputError, match="multiply: got bool"):
            comm.all_reduce(bools, bools, PremulSum(2))

    assert PATHS[path](3, program) == [None] * 3


class Foreign:
    """An array as another library has it: `dtype` in its own words, bfloat16 as it stands in the interface."""

    def __init__(self, values, dtype, typestr):
        self.values, self.dtype, self._typestr = values, dtype, typestr

    @property
    def __cuda_array_interface__(self):
        address = self.values.__array_interface__["data"]
        return {"data": address, "shape": self.values.shape, "typestr": self._typestr, "strides": None, "version": 3}


@pytest.mark.parametrize(
    ("dtype", "typestr", "stored", "one", "three"),
    [
        ("torch.float32", "<f4", "float32", 1.0, 3.0),
        # 3 is 0x4040, and 1 is 0x3f80.
        ("torch.bfloat16", "<V2", "uint16", 0x3F80, 0x4040),
        ("bfloat16", "<V2", "uint16", 0x3F80, 0x4040),
        ("float16", "<f2", "float16", 1.0, 3.0),
    ],
)
def test_arrays_of_other_libraries_are_read_and_written_where_they_lie(dtype, typestr, stored, one, three):
    def program(comm):
        runtime, taken = comm.transport.runtime, []
        x = Foreign(np.full(10_000, one, stored), dtype, typestr)
        out = Foreign(np.zeros(10_000, stored), dtype, typestr)
        comm.all_reduce(x, out, algorithm="allpairs")
        synchronize(comm)
        # Scratch is there from now on: nothing is made for an array any more, and none is copied.
        empty, copy = runtime.empty, runtime.copy
        runtime.empty = lambda *arguments: taken.append(arguments) or empty(*arguments)
        runtime.copy = lambda *arguments: taken.append(arguments) or copy(*arguments)
        out.values.fill(0)
        comm.all_reduce(x, out, algorithm="allpairs")
        synchronize(comm)
        assert (out.values == three).all() and (x.values == one).all()
        return taken

    assert over_nccl(3, program) == [[]] * 3


def test_calls_are_checked_once_for_arrays_of_the_same_layout(monkeypatch):
    checked, resolve = [], arguments._resolve
    monkeypatch.setattr(arguments, "_resolve", lambda *given: checked.append(given) or resolve(*given))

    def program(comm):
        def summed(count=1000, dtype=np.float32, in_place=False, **options):
            x, out = HostArray(np.full(count, 2, dtype)), HostArray(np.zeros(count, dtype))
            before = len(checked)
            comm.all_reduce(x, x if in_place else out, algorithm="ring", **options)
            synchronize(comm)
            assert ((x if in_place else out).values == (2 if options else 2 * comm.world_size)).all()
            return len(checked) - before

        # Of the first call nothing is kept: there is no device yet to look arrays up on.
        summed()
        kinds = ({}, {"count": 1001}, {"dtype": np.int32}, {"in_place": True}, {"op": "max"})
        assert [summed(**kind) for kind in kinds] == [1] * 5
        assert [summed(**kind) for kind in kinds] == [0] * 5
        both = np.zeros(1500, np.float32)
        with pytest.raises(InputError, match="overlap in part"):
            comm.all_reduce(HostArray(both[:1000]), HostArray(both[500:]), algorithm="ring")

    assert over_nccl(1, program) == [None]


def test_a_call_that_is_queued_is_not_waited_for(monkeypatch):
    """Whoever would look after it again would ask the host transport of what others have told: a call of the system."""

    def program(comm):
        x, out, looks = HostArray(np.ones(100, np.float32)), HostArray(np.zeros(100, np.float32)), []
        # The first of each agrees with the others, and connects.
        for algorithm in ("ring", "native"):
            comm.all_reduce(x, out, algorithm=algorithm)
            synchronize(comm)
        core, progress = core_of(comm), core_of(comm).progress
        monkeypatch.setattr(core, "progress", lambda: looks.append(threading.current_thread()) or progress())
        for algorithm in ("ring", "native"):
            comm.all_reduce(x, out, algorithm=algorithm)
        assert threading.current_thread() not in looks
        synchronize(comm)
        assert (out.values == comm.world_size).all()

    assert over_nccl(2, program) == [None] * 2


def test_a_queued_call_asks_the_device_nothing():
    """An answer takes microseconds, and that of a call that has just been queued is no."""

    def program(comm):
        x, out, askers = HostArray(np.ones(100, np.float32)), HostArray(np.zeros(100, np.float32)), []
        captured = comm.capture("all_reduce", x, out, algorithm="ring")
        runtime, is_done = comm.transport.runtime, comm.transport.runtime.is_done
        runtime.is_done = lambda event: askers.append(threading.current_thread()) or is_done(event)
        comm.all_reduce(x, out, algorithm="ring")
        captured.launch()
        assert threading.current_thread() not in askers
        synchronize(comm)
        assert (out.values == comm.world_size).all()

    assert over_nccl(2, program) == [None] * 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("segment_nbytes", [4096, 10_000, 1 << 20])
def test_segments_overlap_and_stay_right(path, segment_nbytes):
    def program(comm):
        for _ in range(3):
            same(comm, "all_reduce", 60_000, algorithm="ring", segment_nbytes=segment_nbytes)
            same(comm, "all_reduce", 50_001, algorithm="late_chain", segment_nbytes=segment_nbytes)

    assert PATHS[path](4, program) == [None] * 4


@pytest.mark.parametrize("path", PATHS)
def test_in_place_and_many_calls_without_a_wait(path):
    def program(comm):
        x = HostArray(np.full(3000, comm.rank + 1, np.float32))
        for _ in range(12):
            comm.all_reduce(x, x, algorithm="ring", op="max")
            comm.all_reduce(x, x, algorithm="rhd")
        synchronize(comm)
        return set(x.values.tolist())

    assert PATHS[path](4, program) == [{4.0**13}] * 4


@pytest.mark.parametrize("path", PATHS)
def test_ordered_on_the_users_stream(path):
    """What the stream makes before the call is reduced; what it does afterwards sees the result."""

    def program(comm):
        runtime = comm.transport.runtime
        stream = runtime.new_stream()
        x, out, seen = HostArray(np.zeros(100, np.float32)), HostArray(np.zeros(100, np.float32)), []
        comm.all_reduce(x, out, stream=stream, algorithm="ring")
        stream.put(lambda: time.sleep(0.05 * (comm.rank + 1)))
        stream.put(lambda: x.values.fill(comm.rank + 1))
        comm.all_reduce(x, out, stream=stream, algorithm="ring")
        stream.put(lambda: seen.append(out.values.copy()))
        assert runtime.record(stream).wait(20)
        return seen[0].tolist()

    assert PATHS[path](3, program) == [[6.0] * 100] * 3


def test_the_cpu_does_not_wait_for_streams():
    def program(comm):
        x, out = HostArray(np.ones(100, np.float32)), HostArray(np.zeros(100, np.float32))
        comm.all_reduce(x, out, algorithm="ring")
        gate = threading.Event()
        comm.transport.runtime.default.put(gate.wait)
        request = comm.start_all_reduce(x, out, algorithm="ring")
        comm.all_reduce(x, out, algorithm="ring")
        queued = not request.test()
        gate.set()
        request.wait()
        synchronize(comm)
        return queued, float(out.values[0])

    assert over_nccl(3, program) == [(True, 3.0)] * 3


@pytest.mark.parametrize("path", PATHS)
def test_messages(path):
    def program(comm):
        n, me = comm.world_size, comm.rank
        out, into = HostArray(np.full(1000, me, np.float32)), HostArray(np.zeros(1000, np.float32))
        if me == 0:
            comm.send(out, 1)
            comm.recv(into, n - 1)
        else:
            comm.recv(into, me - 1)
            comm.send(out, (me + 1) % n)
        comm.send_recv(out, into, me ^ 1) if n == 2 else None
        synchronize(comm)
        return float(into.values[0])

    assert PATHS[path](3, program) == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("path", PATHS)
def test_send_recv_is_one_group(path):
    def program(comm):
        out, into = HostArray(np.full(300_000, comm.rank, np.float32)), HostArray(np.zeros(300_000, np.float32))
        comm.send_recv(out, into, 1 - comm.rank)
        synchronize(comm)
        return set(into.values.tolist())

    assert PATHS[path](2, program) == [{1.0}, {0.0}]


@pytest.mark.parametrize("path", PATHS)
def test_sub_groups(path):
    def program(comm):
        child = comm.split(comm.rank % 2)
        x, out = HostArray(np.full(5000, comm.rank, np.float32)), HostArray(np.zeros(5000, np.float32))
        child.all_reduce(x, out, algorithm="ring")
        comm.all_reduce(out, out, algorithm="ring")
        synchronize(comm)
        child.close()
        return float(out.values[0])

    assert PATHS[path](5, program) == [6.0 * 3 + 4.0 * 2] * 5


def test_native_is_nccls_own():
    def program(comm):
        assert comm.algorithms("all_reduce")[-1] == "native"
        for op in ("sum", "max"):
            same_as = HostArray(np.full(1000, comm.rank + 1, np.float32))
            out = HostArray(np.zeros(1000, np.float32))
            comm.all_reduce(same_as, out, algorithm="native", op=op)
            synchronize(comm)
            assert (out.values == (6 if op == "sum" else 3)).all(), op
        with pytest.raises(InputError, match="native over nccl: got host arrays"):
            comm.all_reduce(np.zeros(3), np.zeros(3), algorithm="native")

    assert over_nccl(3, program) == [None] * 3


def test_native_of_another_size_may_connect_anew_and_waits_no_longer_than_its_timeout():
    """NCCL takes another algorithm there, and returns only once all ranks have come."""

    def program(comm):
        x, y = (HostArray(np.ones(count, np.float32)) for count in (10, 100_000))
        comm.all_reduce(x, x, algorithm="native")
        synchronize(comm)
        if comm.rank == 0:
            comm.transport.host.barrier(20.0)
            return None
        try:
            comm.all_reduce(y, y, algorithm="native")
        except TransportTimeout as error:
            return str(error)
        finally:
            comm.transport.host.barrier(20.0)

    none, text = over_nccl(2, program, timeout_s=0.5)
    assert none is None and "no message from or to rank 0 within 0.5 s" in text


def test_chunks_are_cut_at_pages():
    checked = checked_schedule("all_reduce", "late_join", 5)
    for count, segment in ((100_000, 1 << 30), (100_001, 20_000), (700, 1 << 30), (1_000_003, 65_536)):
        lengths = set()
        for rank in range(5):
            program = compile_program(checked, rank, count, 4, segment_nbytes=segment, align=1024)
            lengths |= {action.nbytes for action in program.actions if type(action) is Message}
        short = {nbytes for nbytes in lengths if nbytes % 4096}
        # Only what ends with the buffer is no multiple.
        assert all((count * 4 - nbytes) % 4096 == 0 for nbytes in short), lengths


@pytest.mark.parametrize("path", PATHS)
def test_late_ranks_are_found_by_their_streams(monkeypatch, path):
    """The late rank's Python calls in time; its stream comes late, and that is what counts."""
    monkeypatch.setattr(late, "LEAST_NORMAL_S", 0.0)

    def program(comm):
        runtime = comm.transport.runtime
        x, out = HostArray(np.full(400_000, comm.rank + 1, np.float32)), HostArray(np.zeros(400_000, np.float32))
        for turn in range(4):
            out.values.fill(0)
            if comm.rank == 2:
                runtime.default.put(lambda: time.sleep(0.25))
            comm.all_reduce(x, out)
            synchronize(comm)
            assert (out.values == 10).all(), turn
        return comm.arrivals().to_json()

    first, *others = PATHS[path](4, program)
    assert isinstance(first, dict), first
    assert all(other == first for other in others)
    assert first["calls"] == 4 and first["begun_early"] >= 3, first
    assert first["last"][2] >= 3, first


@pytest.mark.parametrize("path", PATHS)
def test_bad_arrays(path):
    def program(comm):
        runtime = comm.transport.runtime
        x, y = HostArray(np.zeros(8, np.float32)), HostArray(np.zeros(8, np.float32))
        comm.all_reduce(x, y, algorithm="ring")
        far, paged = HostArray(np.zeros(8, np.float32)), HostArray(np.zeros(8, np.float32))
        runtime.elsewhere.update({far.values.ctypes.data: 5, paged.values.ctypes.data: -1})
        odd = HostArray(np.zeros(33, np.uint8)[1:].view(np.float32))
        frozen = HostArray(np.zeros(8, np.float32), readonly=True)
        part = HostArray(np.zeros(16, np.float32))
        overlapping = HostArray(part.values)
        overlapping.values = part.values[4:12]
        for given, out, message in (
            (x, far, r"all_reduce: out_array: got an array on device 5, expected device \d, this rank's own"),
            (x, paged, "out_array: got an address in host memory, expected one on device"),
            (odd, x, "in_array: got elements of 4 bytes at address 0x"),
            (x, np.zeros(8, np.float32), "out_array: got ndarray on the host, expected device memory"),
            (np.zeros(8, np.float32), x, "in_array|out_array: got a device array, expected host memory"),
            (x, frozen, "read-only out_array"),
            (x, HostArray(np.zeros(9, np.float32)), "out_array of 9 elements, expected 8"),
            (x, HostArray(np.zeros(8, np.float64)), "out_array of float64, expected float32"),
        ):
            with pytest.raises(InputError, match=message):
                comm.all_reduce(given, out, algorithm="ring")
        with pytest.raises(InputError, match="expected None"):
            comm.all_reduce(np.zeros(3), np.zeros(3), stream=runtime.default)
        comm.all_reduce(x, y, algorithm="ring")
        synchronize(comm)

    assert PATHS[path](2, program) == [None] * 2


def test_host_arrays_go_beside_them():
    def program(comm):
        same(comm, "all_reduce", 1000, algorithm="ring")
        out = np.zeros(3)
        comm.all_reduce(np.ones(3), out)
        comm.barrier()
        return out.tolist()

    assert over_nccl(3, program) == [[3.0] * 3] * 3
