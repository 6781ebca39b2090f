"""Benchmarked collectives on device arrays, on stand-ins: right results, eager and captured, and what is refused."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from device_ranks import has_gpu, over_nccl, synchronize
from nccl_ranks import HostArray

from lanterne.bench.collective.device_case import DeviceCase, timed_on_device
from lanterne.bench.collective.measure import measure
from lanterne.errors import Unavailable
from lanterne.kernels.cuda.clock import DeviceClock

ROOT = Path(__file__).resolve().parents[3]


class HostMemory:
    """The verbs of CudaMemory on stand-ins."""

    def __init__(self, comm):
        self.comm = comm
        self.clock = DeviceClock(comm.transport.runtime)

    def put(self, array):
        return HostArray(array.copy())

    def fill(self, array, byte):
        array.values.view(np.uint8)[...] = byte

    def copy(self, out, array):
        out.values[...] = array.values

    def get(self, array):
        return array.values

    def num_different(self, array, other):
        return int(np.count_nonzero(array.values != other.values))

    def timed(self, queue):
        return timed_on_device(self.comm.transport.runtime, self.clock, queue, self.synchronize)

    def synchronize(self):
        synchronize(self.comm)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    "collective", ["all_reduce", "reduce_scatter", "broadcast", "all_gather", "reduce", "all_to_all"]
)
def test_right_results_are_counted_so(collective, graph):
    def program(comm):
        case = DeviceCase(comm, collective, 30_000, np.dtype("float32"), "sum", graph, HostMemory(comm))
        measured = measure(case, comm.algorithms(collective), iterations=1, warmup=1)
        captured = len(case._captured)
        case.close()
        return {name: wrong for name, (_, _, wrong) in measured.items()}, captured

    for wrong, captured in over_nccl(3, program):
        assert set(wrong.values()) == {0}, wrong
        assert captured == (len(set(wrong) - {"native"}) if graph else 0), (wrong, captured)


def test_wrong_results_are_counted_too():
    def program(comm):
        case = DeviceCase(comm, "all_reduce", 100, np.dtype("float32"), "sum", False, HostMemory(comm))
        case.call("ring")
        case.out.values[comm.rank] += 1
        return case.wrong()

    assert over_nccl(3, program) == [1] * 3


def test_times_are_of_the_device_and_not_of_the_queueing():
    """A call that takes the CPU long to queue takes the device no longer; one that waits there does."""

    def program(comm):
        case = DeviceCase(comm, "all_reduce", 100, np.dtype("float32"), "sum", False, HostMemory(comm))
        case.call("ring")
        runtime, memory = comm.transport.runtime, case._memory
        spans_s = []
        for hold_s in (0.0, 0.2):
            # What is before the call on the stream is no part of it.
            runtime.default.put(partial(time.sleep, 0.2))

            def queue(hold_s=hold_s):
                runtime.default.put(partial(time.sleep, hold_s))
                time.sleep(0.1)

            start_s, end_s = memory.timed(queue)
            spans_s.append(end_s - start_s)
        return spans_s

    for quick_s, slow_s in over_nccl(2, program):
        assert quick_s < slow_s and slow_s > 0.19, (quick_s, slow_s)


def test_a_device_that_tells_no_times_is_an_error():
    clock = SimpleNamespace(anchor=lambda limit_s: False)
    with pytest.raises(Unavailable, match="device 3: no time of an event"):
        timed_on_device(SimpleNamespace(device_id=3), clock, lambda: None, lambda: None)


def lanterne(*arguments):
    command = [sys.executable, "-m", "lanterne", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--transport", "nccl"],
        ["--graph", "--device", "cuda", "--transport", "mpi"],
        ["--graph", "--device", "cuda", "--transport", "nccl", "--warmup", "0"],
        ["--device", "cuda", "--transport", "local"],
    ],
)
def test_bad_input(arguments):
    result = lanterne("bench", "all_reduce", "-n", "2", *arguments)
    assert result.returncode == 2, result.stderr
    assert "expected" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here: tests/gpu has the benchmark")
@pytest.mark.parametrize("transport", ["nccl", "mpi"])
def test_without_a_gpu(transport):
    result = lanterne("bench", "all_reduce", "-n", "2", "--device", "cuda", "--transport", transport)
    assert result.returncode == 3, result.stderr
    assert ("CuPy" in result.stderr or "CUDA" in result.stderr) and result.stderr.count("\n") == 1
