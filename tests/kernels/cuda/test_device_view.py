"""Device arrays of any library, by the protocols they speak."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.kernels.cuda import device_view
from lanterne.kernels.cuda.device_view import DeviceView, stream_address, view_device

# DLPack's code of bfloat16.
BFLOAT = 4


def fake(shape, typestr="<f4", strides=None, address=4096, readonly=False, **more):
    interface = {"shape": shape, "typestr": typestr, "strides": strides, "data": (address, readonly), "version": 3}
    return SimpleNamespace(__cuda_array_interface__=interface | more)


@pytest.mark.parametrize(
    ("shape", "strides", "size"),
    [
        ((), None, 1),
        ((7,), None, 7),
        ((7,), (4,), 7),
        ((2, 3), (12, 4), 6),
        ((2, 1, 3), (12, 999, 4), 6),
        ((0, 3), (12, 4), 0),
    ],
)
def test_contiguous_arrays(shape, strides, size):
    view = view_device(fake(shape, strides=strides))
    assert (view.address, view.size, view.nbytes, view.dtype) == (4096, size, 4 * size, np.dtype("f4"))
    assert view_device(view) is view
    assert view_device(SimpleNamespace(__cuda_array_interface__=view.__cuda_array_interface__)).size == size


@pytest.mark.parametrize(("shape", "strides"), [((7,), (8,)), ((2, 3), (4, 8)), ((3, 2), (16, 4))])
def test_others_are_refused(shape, strides):
    with pytest.raises(InputError, match="x: got a non-contiguous array of shape"):
        view_device(fake(shape, strides=strides), "x")


def test_what_is_no_number_or_not_on_a_device():
    with pytest.raises(InputError, match="got elements"):
        view_device(fake((3,), typestr="|V16"))
    with pytest.raises(InputError, match="x: got ndarray on the host"):
        view_device(np.zeros(3), "x")


def test_bfloat16_streams_and_readonly():
    array = fake((4,), typestr="<V2", stream=77, readonly=True)
    array.dtype = "bfloat16"
    view = view_device(array)
    assert (view.element, view.dtype, view.nbytes, view.stream, view.readonly) == ("bfloat16", np.uint16, 8, 77, True)


def capsule(array, code):
    """An unversioned DLPack capsule of `array` whose elements are said to be of the kind `code`."""
    made = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    ctypes.c_uint8.from_address(pointer(made, b"dltensor") + 20).value = code
    return made


class OnHost:
    """What NumPy takes a capsule from."""

    def __init__(self, made):
        self._made = made

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        return self._made


def test_bfloat16_by_dlpack_alone(monkeypatch):
    """CuPy, which takes it from there, refuses it without a package of its own."""
    bits = np.arange(4, dtype=np.uint16)
    array = SimpleNamespace(
        dtype="bfloat16", __dlpack__=lambda stream, **_: capsule(bits, BFLOAT), __dlpack_device__=lambda: (2, 0)
    )

    def from_dlpack(x):
        host = np.from_dlpack(OnHost(x.__dlpack__(stream=1, max_version=(1, 0), copy=None)))
        return fake(host.shape, host.dtype.str, address=host.ctypes.data)

    monkeypatch.setattr(device_view, "import_cupy", lambda: SimpleNamespace(from_dlpack=from_dlpack))
    view = view_device(array)
    assert (view.element, view.dtype, view.size, view.address) == ("bfloat16", np.uint16, 4, bits.ctypes.data)


@pytest.mark.parametrize(
    ("module", "named", "expected"),
    [
        ("torch", None, 7),
        ("numba_cuda.numba.cuda.cudadrv.devicearray", None, 1),
        ("numba.cuda.cudadrv.devicearray", None, 1),
        ("numba.cuda.cudadrv.devicearray", 77, 77),
        ("others", None, None),
    ],
)
def test_the_stream_of_an_array_that_does_not_name_it(monkeypatch, module, named, expected):
    """A copy from the host to the device may be under way still when Numba's call returns."""
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=7)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    array = type("Array", (), {"__module__": module, "device": "cuda:0"})()
    array.__cuda_array_interface__ = fake((4,), stream=named).__cuda_array_interface__
    assert view_device(array).stream == expected


def test_streams_of_every_library():
    for stream in (
        1234,
        SimpleNamespace(ptr=1234),
        SimpleNamespace(cuda_stream=1234),
        SimpleNamespace(handle=SimpleNamespace(value=1234)),
        SimpleNamespace(__cuda_stream__=lambda: (0, 1234)),
    ):
        assert stream_address(stream) == 1234, stream
    with pytest.raises(InputError, match="stream: got str, expected a CUDA stream"):
        stream_address("fast")


def test_views_are_plain_values():
    view = DeviceView(64, 3, np.dtype("i8"))
    assert (view.nbytes, view.readonly, view.element) == (24, False, None)
