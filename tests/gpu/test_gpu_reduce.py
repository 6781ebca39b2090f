"""Reductions on a real GPU: every kernel, both implementations, the bits of the CPU."""

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.kernels.cuda.lanes import storage_of
from lanterne.kernels.cuda.numba_kernels import load_numba_cuda
from lanterne.kernels.cuda.reduce_on_device import IMPLEMENTATIONS, divide, fold, prepare, reduce
from lanterne.kernels.cuda.spin import delay
from lanterne.kernels.dtypes import DTYPES
from lanterne.kernels.reduce import divide as any_divide
from lanterne.kernels.reduce import multiply
from lanterne.kernels.reduce import prepare as prepare_host
from lanterne.kernels.reduce import reduce as any_reduce

# A single input is only converted and stored, whatever the op.
CASES = [
    (name, op, num_inputs)
    for name, dtype in DTYPES.items()
    for op in ("sum", "prod", "min", "max")
    for num_inputs in ((1, 2, 7) if op == "max" else (2, 7))
    if dtype.kind != "bool" or op in ("min", "max")
]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def random_bits(dtype, count, seed):
    """(count,) of the storage dtype: half any bit pattern, half zeros, ones, signs and all bits set."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, count * dtype.nbytes, np.uint8).view(f"u{dtype.nbytes}")
    special = np.array([0, 1, 1 << (8 * dtype.nbytes - 1), (1 << 8 * dtype.nbytes) - 1], bits.dtype)
    bits = np.where(rng.random(count) < 0.5, special[rng.integers(0, 4, count)], bits)
    return (bits & 1 if dtype.kind == "bool" else bits).view(storage_of(dtype))


def typed(array, dtype):
    """`array` of storage as the dtype that a user would have."""
    return array if dtype.name == "bfloat16" else array.view(dtype.name)


def host_fold(op, dtype, arrays):
    out = np.zeros_like(arrays[0])
    prepare_host(op, dtype, len(arrays))(out.size, out.ctypes.data, *(array.ctypes.data for array in arrays))
    return out


def same_bits(array, expected):
    return array.get().tobytes() == expected.tobytes()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("name", "op", "num_inputs"), CASES)
def test_the_bits_of_the_cpu(cupy, name, op, num_inputs, implementation):
    dtype = DTYPES[name]
    for count, shifts in ((1, [0] * 8), (1000, [0] * 8), (100_003, [1] * 8), (1001, range(8))):
        hosts = [random_bits(dtype, count + shift, i)[shift:] for i, shift in enumerate(shifts)][: num_inputs + 1]
        devices = []
        for host, shift in zip(hosts, shifts, strict=False):
            memory = cupy.zeros(count + shift, host.dtype)
            memory[shift:] = cupy.asarray(host)
            devices.append(typed(memory[shift:], dtype))
        reduce(op, *devices, dtype=name, implementation=implementation)
        assert same_bits(devices[0], host_fold(op, dtype, hosts)), (count, list(shifts))
        for device, host in zip(devices[1:], hosts[1:], strict=True):
            assert same_bits(device, host), (count, shifts, device, host)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("num_inputs", [9, 13, 20, 63])
def test_many_inputs(cupy, num_inputs, implementation):
    dtype = DTYPES["bfloat16"]
    hosts = [random_bits(dtype, 10_007, i) for i in range(num_inputs)]
    out = cupy.zeros(10_007, np.uint16)
    fold("sum", out, *map(cupy.asarray, hosts), dtype="bfloat16", implementation=implementation)
    assert same_bits(out, host_fold("sum", dtype, hosts))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_more_elements_than_31_bits(cupy, implementation):
    count = (1 << 31) + 5
    out, x = cupy.full(count, 3, np.int8), cupy.full(count, 4, np.int8)
    reduce("sum", out, x, implementation=implementation)
    assert int((out != 7).sum()) == 0


@pytest.mark.parametrize("name", FLOATS)
def test_divide(cupy, name):
    dtype = DTYPES[name]
    host = random_bits(dtype, 10_007, 3)
    device = typed(cupy.asarray(host), dtype)
    divide(device, 7, dtype=name)
    expected = host.copy()
    any_divide(typed(expected, dtype), 7, dtype=name)
    assert same_bits(device, expected)


@pytest.mark.parametrize("name", [*FLOATS, "int8", "uint64"])
def test_multiply(cupy, name):
    dtype, factor = DTYPES[name], 0.3 if name in FLOATS else 3
    host = random_bits(dtype, 10_007, 4)
    source, device = typed(cupy.asarray(host), dtype), typed(cupy.asarray(np.zeros_like(host)), dtype)
    multiply(device, source, factor, dtype=name)
    expected = host.copy()
    multiply(typed(expected, dtype), typed(host, dtype), factor, dtype=name)
    assert same_bits(device, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ordered_on_the_given_stream(cupy, implementation):
    stream = cupy.cuda.Stream(non_blocking=True)
    out, x = cupy.zeros(1 << 20, np.float32), cupy.zeros(1 << 20, np.float32)
    prepare("sum", "float32", 2, implementation)
    delay(0.0, stream)
    cupy.cuda.Device().synchronize()
    # The data comes late on its stream; a reduction on another stream would have read zeros.
    delay(0.05, stream)
    with stream:
        x.fill(1)
    reduce("sum", out, x, implementation=implementation, stream=stream)
    with stream:
        reduce("sum", out, x, implementation=implementation)
    stream.synchronize()
    assert float(out.min()) == float(out.max()) == 2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_captured_in_a_graph(cupy, implementation):
    out, x = cupy.zeros(1000, np.float32), cupy.ones(1000, np.float32)
    kernel = prepare("sum", "float32", 2, implementation)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        kernel(out.size, out.data.ptr, out.data.ptr, x.data.ptr, stream=stream)
        graph = stream.end_capture()
        for _ in range(5):
            graph.launch()
    stream.synchronize()
    assert float(out.min()) == float(out.max()) == 5


def test_the_public_reduce_takes_foreign_arrays(cupy):
    cuda = load_numba_cuda()
    out, x = cuda.to_device(np.ones(100, np.float32)), cuda.to_device(np.full(100, 2, np.float32))
    any_reduce("sum", out, x)
    assert (out.copy_to_host() == 3).all()


def test_torch_tensors(cupy):
    torch = pytest.importorskip("torch", reason="torch is an extra of its own")
    out, x = torch.ones(100, device="cuda"), torch.full((100,), 2.0, device="cuda")
    any_reduce("sum", out, x)
    torch.cuda.synchronize()
    assert (out == 3).all()


def test_arrays_in_different_places(cupy):
    out = cupy.zeros(8, np.float32)
    with pytest.raises(InputError, match="input 0: got ndarray on the host, expected device memory"):
        any_reduce("sum", out, np.zeros(8, np.float32))
    with pytest.raises(InputError, match="input 0: overlaps"):
        any_reduce("sum", out[:4], out[1:5])
    with pytest.raises(InputError, match="input 0: got shape"):
        any_reduce("sum", out, out[:4])


def test_arrays_on_two_devices(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU here; this error is tested with stand-ins in tests/kernels")
    out = cupy.zeros(8, np.float32)
    with cupy.cuda.Device(1):
        x = cupy.zeros(8, np.float32)
    with pytest.raises(InputError, match="input 0: got an array on device 1, expected device 0"):
        any_reduce("sum", out, x)
