"""What surrounds the GPU kernels: the checks, the launch geometry, the errors without a GPU. Arrays are stand-ins."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import InputError, Unavailable
from lanterne.kernels import arrays
from lanterne.kernels.cuda import numba_kernels
from lanterne.kernels.cuda import reduce_on_device as cuda_reduce
from lanterne.kernels.cuda.reduce_on_device import (
    BLOCKS_PER_MULTIPROCESSOR,
    MOST_NUMBA_INPUTS,
    Kernel,
    check_arrays,
    head_count,
    implementation_of,
    num_blocks,
)
from lanterne.kernels.cuda.source import THREADS_PER_BLOCK, VECTOR_NBYTES
from lanterne.kernels.dtypes import DTYPES, find_dtype
from lanterne.kernels.reduce import reduce

FLOAT32 = DTYPES["float32"]


def device_array(address=0x1000, count=8, dtype="float32", device=0):
    dtype = np.dtype(dtype)
    return SimpleNamespace(
        data=SimpleNamespace(ptr=address),
        device=SimpleNamespace(id=device),
        shape=(count,),
        size=count,
        dtype=dtype,
        nbytes=count * dtype.itemsize,
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]), st.integers(0, 100))
def test_heads_end_at_a_boundary_shared_by_all(elements, nbytes, count):
    addresses = [element * nbytes for element in elements]
    head = head_count(addresses, nbytes, count)
    assert 0 <= head <= count
    if head < count:
        assert all((address + head * nbytes) % VECTOR_NBYTES == 0 for address in addresses)
        assert head * nbytes < VECTOR_NBYTES


@settings(deadline=None)
@given(st.integers(1, 1 << 33), st.integers(0, 15), st.sampled_from([1, 2, 4, 8]), st.integers(1, 200))
def test_blocks_cover_the_work_and_fit_the_device(count, head, nbytes, num_multiprocessors):
    head = min(head, count)
    blocks = num_blocks(count, head, nbytes, num_multiprocessors)
    assert 1 <= blocks <= num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR
    if blocks < num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR:
        assert blocks * THREADS_PER_BLOCK >= (count - head) * nbytes // VECTOR_NBYTES


def test_kernels_launch_with_head_and_blocks():
    launches = []
    kernel = Kernel(4, 2, 132, lambda *arguments: launches.append(arguments))
    kernel(0, 0x1004, 0x2004)
    assert launches == []
    kernel(1000, 0x1004, 0x2004, 3.0, stream="s")
    assert launches == [(1, 1000, 3, (0x1004, 0x2004, 3.0), "s")]
    kernel(1000, 0x1004, 0x2008, 3.0)
    assert launches[1] == (4, 1000, 1000, (0x1004, 0x2008, 3.0), None)


BAD = {
    "devices": (device_array(0x2000, device=1), "input 0: got an array on device 1, expected device 0"),
    "shape": (device_array(0x2000, count=4), r"input 0: got shape \(4,\), expected that of the output, \(8,\)"),
    "dtype": (device_array(0x2000, dtype="int32"), "input 0: got dtype int32, expected that of the output, float32"),
    "address": (device_array(0x2002), "input 0: got address 0x2002, expected a multiple of 4 for float32"),
    "overlap": (device_array(0x1010), "input 0: overlaps the output by part"),
}


@pytest.mark.parametrize("case", BAD)
def test_arrays_that_cannot_be_reduced_together(case):
    array, message = BAD[case]
    with pytest.raises(InputError, match=message):
        check_arrays([device_array(), array], FLOAT32, None)


def test_arrays_that_can():
    check_arrays([device_array(), device_array(), device_array(0x1020), device_array(0x0FE0)], FLOAT32, None)


def test_implementations(monkeypatch):
    monkeypatch.delenv("LANTERNE_CUDA_KERNELS", raising=False)
    assert implementation_of() == "cuda-c"
    assert implementation_of("numba") == "numba"
    monkeypatch.setenv("LANTERNE_CUDA_KERNELS", "numba")
    assert implementation_of() == "numba"
    with pytest.raises(InputError, match="implementation: got 'thrust', expected one of cuda-c, numba"):
        implementation_of("thrust")


def fake_cupy(num_devices=1, error=None):
    """As much of CuPy as `require_device` asks."""

    class CUDARuntimeError(RuntimeError):
        pass

    def get_device_count():
        if error:
            raise CUDARuntimeError(error)
        return num_devices

    runtime = SimpleNamespace(getDeviceCount=get_device_count, CUDARuntimeError=CUDARuntimeError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), ndarray=type("ndarray", (), {}))


@pytest.mark.parametrize(
    ("cupy", "message"),
    [
        (
            fake_cupy(error="cudaErrorInsufficientDriver: CUDA driver version is insufficient"),
            "no driver is loaded, or it is older",
        ),
        (
            fake_cupy(error="cudaErrorNoDevice: no CUDA-capable device is detected"),
            "check nvidia-smi and CUDA_VISIBLE_DEVICES",
        ),
        (fake_cupy(error="cudaErrorUnknown: unknown error"), "check that nvidia-smi works"),
        (fake_cupy(num_devices=0), "CUDA: no device"),
    ],
)
def test_no_device_is_said(monkeypatch, cupy, message):
    monkeypatch.setattr(arrays, "import_cupy", lambda: cupy)
    with pytest.raises(Unavailable, match=message):
        cuda_reduce.prepare("sum", "float32", 2)


def test_a_device_is_found(monkeypatch):
    monkeypatch.setattr(arrays, "import_cupy", lambda: fake_cupy(2))
    assert arrays.require_device() == 2


def test_device_arrays_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    arrays.import_cupy.cache_clear()
    foreign = SimpleNamespace(
        __cuda_array_interface__={"data": (256, False), "shape": (4,), "typestr": "<f4", "version": 3}
    )
    with pytest.raises(Unavailable, match=r"CuPy: .*install lanterne"):
        reduce("sum", foreign, foreign)


def test_device_and_host_arrays_do_not_mix(monkeypatch):
    foreign = SimpleNamespace(
        __cuda_array_interface__={"data": (256, False), "shape": (4,), "typestr": "<f4", "version": 3}
    )
    with pytest.raises(InputError, match="input 0: got a device array, expected host memory like the others"):
        reduce("sum", np.zeros(4, np.float32), foreign)
    adopted = SimpleNamespace(flags=SimpleNamespace(c_contiguous=True), **vars(device_array()))
    fake = fake_cupy()
    fake.asarray = lambda x: adopted
    monkeypatch.setattr(arrays, "import_cupy", lambda: fake)
    with pytest.raises(InputError, match="input 0: got ndarray on the host, expected device memory like the others"):
        reduce("sum", foreign, np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("dtype", "op", "num_inputs", "expected"),
    [
        ("float32", "sum", MOST_NUMBA_INPUTS, "numba"),
        ("float32", "sum", MOST_NUMBA_INPUTS + 1, "cuda-c"),
        # Complex numbers are added as floats, and multiplied as pairs, which Numba's kernels do not have.
        ("complex64", "sum", 2, "numba"),
        ("complex64", "prod", 2, "cuda-c"),
    ],
)
def test_whose_kernel_it_is(monkeypatch, dtype, op, num_inputs, expected):
    made = []
    monkeypatch.setattr(numba_kernels, "fold_launcher", lambda *_: made.append("numba"))
    monkeypatch.setattr(cuda_reduce, "_raw_launcher", lambda *_: made.append("cuda-c"))
    monkeypatch.setattr(cuda_reduce, "_load", lambda *_: None)
    monkeypatch.setattr(cuda_reduce, "_num_multiprocessors", lambda _: 1)
    kernel = cuda_reduce._fold_kernel.__wrapped__(op, find_dtype(dtype), num_inputs, "numba", 0)
    assert made == [expected] and kernel.num_arrays == num_inputs + 1
    cuda_reduce._fold_kernel.cache_clear()
