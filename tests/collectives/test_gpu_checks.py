"""The checks of tests/gpu pass on stand-ins, so that what fails on a GPU is not the check's fault."""

import importlib.util
import sys
import threading
import time
import types
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from device_ranks import over_nccl, staged, synchronize
from verdicts import verdict

TESTS = Path(__file__).resolve().parents[1]


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu_checks = _load(TESTS / "gpu" / "gpu_checks.py")

from lanterne.collectives.late import calls as late  # noqa: E402
from lanterne.kernels.cuda import spin as cuda_delay  # noqa: E402
from lanterne.transport.nccl import watched_communicator as ends  # noqa: E402

# What works on arrays between calls on a stream of its own, or on other libraries' arrays, needs the real ones.
REAL_ONLY = (
    gpu_checks.check_order_on_the_users_stream,
    gpu_checks.check_arrays_with_dlpack_alone,
    gpu_checks.check_foreign_arrays,
    gpu_checks.check_a_capture_by_the_user,
    gpu_checks.check_a_capture_beside_a_call,
    gpu_checks.check_emulated_links_on_streams,
)
COMMON, NCCL = ([check for check in some if check not in REAL_ONLY] for some in (gpu_checks.COMMON, gpu_checks.NCCL))
_rank = threading.local()


class Array(np.ndarray):
    """A NumPy array that is on the device as far as lanterne knows; reading it waits for its rank's stream."""

    @property
    def __cuda_array_interface__(self):
        kept = {name: self.__array_interface__[name] for name in ("shape", "typestr", "data", "strides")}
        return kept | {"version": 3}

    def get(self):
        synchronize(_rank.comm)
        return np.array(self)


def on_device(array):
    return np.ascontiguousarray(array).view(Array)


class Stream:
    def synchronize(self):
        synchronize(_rank.comm)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    cupy = types.ModuleType("cupy")
    cupy.asarray = lambda array: on_device(np.array(array))
    cupy.zeros = lambda *arguments: on_device(np.zeros(*arguments))
    cupy.ones = lambda *arguments: on_device(np.ones(*arguments))
    cupy.full = lambda *arguments: on_device(np.full(*arguments))
    cupy.cuda = types.SimpleNamespace(get_current_stream=Stream)
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def delay(duration_s):
        runtime = _rank.comm.transport.runtime
        runtime.default.put(lambda: time.sleep(duration_s))

    monkeypatch.setattr(cuda_delay, "delay", delay)
    monkeypatch.setattr(late, "LEAST_NORMAL_S", late.LEAST_NORMAL_S)
    monkeypatch.setattr(ends, "ABORT_S", 0.5)


def verdict_of(check):
    def program(comm):
        _rank.comm = comm
        return verdict(check, comm)

    return program


# One rank moves nothing; on three, all algorithms are tried for seconds.
LEFT_OUT = (gpu_checks.check_large, 1), (gpu_checks.check_what_auto_goes_by_can_be_measured, 3)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("check", "world_size"),
    [case for case in product([*COMMON, *NCCL], [1, 3]) if case not in LEFT_OUT],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_over_nccl(check, world_size):
    assert over_nccl(world_size, verdict_of(check)) == [None] * world_size


@pytest.mark.timing  # one of them goes by who is late
@pytest.mark.parametrize("check", COMMON, ids=lambda check: check.__name__)
def test_staged(check):
    assert staged(3, verdict_of(check)) == [None] * 3
