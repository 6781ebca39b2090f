"""Which module an array belongs to, and how foreign arrays are adopted. Stand-ins play the devices."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from lanterne.errors import InputError, Unavailable
from lanterne.kernels import arrays
from lanterne.kernels.arrays import adopt, array_module, device_array, host_array, is_device_array
from lanterne.kernels.dtypes import DTYPES, check_op, dtype_of, find_dtype


class DLPack:
    """A foreign tensor on a DLPack device; `base` answers for the memory."""

    def __init__(self, device_type, base=None):
        self.device_type, self.base = device_type, base

    def __dlpack_device__(self):
        return self.device_type, 0

    def __dlpack__(self, **options):
        return self.base.__dlpack__(**options)


CUDA_ARRAY = SimpleNamespace(
    __cuda_array_interface__={"data": (256, False), "shape": (4,), "typestr": "<f4", "version": 3}
)


@pytest.mark.parametrize("name", DTYPES)
def test_sizes_match_numpy(name):
    size = 2 if name == "bfloat16" else np.dtype(name).itemsize
    assert DTYPES[name].nbytes == size


@pytest.mark.parametrize("spelling", ["float32", np.float32, np.dtype("f4"), DTYPES["float32"]])
def test_find_dtype(spelling):
    assert find_dtype(spelling) is DTYPES["float32"]


def test_torch_spelling():
    class TorchDtype:
        def __repr__(self):
            return "torch.bfloat16"

    assert find_dtype(TorchDtype()) is DTYPES["bfloat16"]


@pytest.mark.parametrize("spelling", ["float8_e5m2", "complex32", np.dtype("U3"), None, []])
def test_unknown_dtypes(spelling):
    with pytest.raises(InputError, match=r"dtype: got .* expected one of float16, bfloat16"):
        find_dtype(spelling)


def test_find_dtype_rejects_foreign_byte_order():
    foreign = np.dtype("float32").newbyteorder()
    with pytest.raises(InputError, match="expected the byte order of this machine"):
        dtype_of(np.ones(3, foreign))
    assert find_dtype(np.dtype("int8").newbyteorder()) is DTYPES["int8"]


def test_uint16_holds_bfloat16_only_when_told():
    x = np.zeros(3, np.uint16)
    assert dtype_of(x).name == "uint16"
    assert dtype_of(x, "bfloat16").name == "bfloat16"
    with pytest.raises(InputError, match="got dtype uint16, expected float16"):
        dtype_of(x, "float16")


@pytest.mark.parametrize(
    ("op", "name"),
    [("mean", "int8"), ("avg", "uint64"), ("mean", "bool"), ("band", "float32"), ("lor", "float16"), ("xor", "int8")],
)
def test_ops_that_a_dtype_lacks(op, name):
    with pytest.raises(InputError, match=f"op: got '?{op}"):
        check_op(op, DTYPES[name])


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.zeros(2), False),
        (bytearray(2), False),
        (CUDA_ARRAY, True),
        (DLPack(1), False),
        (DLPack(2), True),
        (DLPack(13), True),
    ],
)
def test_is_device_array(x, expected):
    assert is_device_array(x) is expected


def test_a_tensor_that_keeps_gradients_is_refused_in_its_own_words():
    class Tensor:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad. Use var.detach()")

    with pytest.raises(InputError, match=r"array: .* Use var\.detach"):
        is_device_array(Tensor())


def test_host_arrays_share_memory():
    memory = bytearray(8)
    view = host_array(memory)
    view[3] = 7
    assert memory[3] == 7
    array = np.zeros((2, 3))
    assert host_array(array) is array
    tensor = DLPack(1, np.arange(5.0))
    assert host_array(tensor).ctypes.data == tensor.base.ctypes.data


@pytest.mark.parametrize("x", [[1, 2], 3, "abc", None, object()])
def test_no_arrays(x):
    with pytest.raises(InputError, match=r"y: got .*expected an array"):
        host_array(x, "y")


def test_mixed_places():
    with pytest.raises(InputError, match="got a device array, expected host memory"):
        host_array(CUDA_ARRAY)
    with pytest.raises(InputError, match="got ndarray on the host, expected device memory"):
        device_array(np.zeros(3))


def test_contiguity():
    with pytest.raises(InputError, match="non-contiguous array of shape"):
        adopt(np.zeros((4, 4)).T[1:])


def test_modules(monkeypatch):
    assert array_module(np.zeros(2)) is np
    fake = SimpleNamespace(ndarray=type("ndarray", (), {}))
    monkeypatch.setattr(arrays, "import_cupy", lambda: fake)
    assert array_module(CUDA_ARRAY) is fake


def test_foreign_device_arrays_are_adopted(monkeypatch):
    adopted = SimpleNamespace(flags=SimpleNamespace(c_contiguous=True))
    fake = SimpleNamespace(ndarray=type("ndarray", (), {}), asarray=lambda x: adopted, from_dlpack=lambda x: adopted)
    monkeypatch.setattr(arrays, "import_cupy", lambda: fake)
    assert adopt(CUDA_ARRAY) is adopted
    assert adopt(DLPack(2)) is adopted


@pytest.mark.parametrize(("told", "expected"), [(None, "32"), ("8", "8")])
def test_streams_have_queues_of_their_own(monkeypatch, told, expected):
    """In one queue a stream that waits for a rank holds up what that rank waits for. CUDA is told before it starts."""
    environment = {} if told is None else {arrays.CONNECTIONS_VARIABLE: told}
    monkeypatch.setattr(arrays.os, "environ", environment)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    arrays.import_cupy.__wrapped__()
    assert environment == {"CUDA_DEVICE_MAX_CONNECTIONS": expected}


def test_no_cupy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    arrays.import_cupy.cache_clear()
    with pytest.raises(Unavailable, match=r"CuPy: .*install lanterne\[cuda12\] or lanterne\[cuda13\]"):
        array_module(CUDA_ARRAY)


def test_host_work_imports_neither_cupy_nor_numba():
    code = (
        "import sys, numpy as np; from lanterne.kernels.reduce import reduce\n"
        "x = np.ones(9); reduce('sum', x, x.copy())\n"
        "print(x[0], [m for m in ('cupy', 'numba') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["2.0", "[]"]
