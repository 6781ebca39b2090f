"""Matrix products: exact, and wrong ones found."""

from types import SimpleNamespace

import numpy as np
import pytest

from lanterne.errors import InputError, Unavailable
from lanterne.kernels import gemm
from lanterne.kernels.arrays import require_device


@pytest.mark.parametrize("dtype", gemm.DTYPES["cpu"])
@pytest.mark.parametrize("size", [1, 2, 63, 300])
def test_products_on_the_cpu_are_exact(size, dtype):
    multiply, wrong_rows = gemm.product(size, dtype)
    multiply()
    assert wrong_rows() == 0


@pytest.mark.parametrize("place", [(0, 0), (40, 7), (62, 62)])
def test_one_wrong_element_is_found(place):
    a, b = gemm.matrices(63)
    c = a.astype(np.float64) @ b.astype(np.float64)
    assert gemm.count_wrong_rows(c.sum(axis=1)) == 0
    c[place] += 1
    assert gemm.count_wrong_rows(c.sum(axis=1)) == 1
    c[place] = np.nan
    assert gemm.count_wrong_rows(c.sum(axis=1)) == 1


def test_rows_are_told_apart():
    a, b = gemm.matrices(64)
    sums = a.astype(np.int64) @ b.sum(axis=1, dtype=np.int64)
    assert len(set(sums.tolist())) > 2
    assert gemm.count_wrong_rows(np.roll(sums, 1).astype(float)) > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "tpu"}, "device: got 'tpu', expected cpu or cuda"),
        ({"dtype": "float16"}, "gemm on cpu: got dtype 'float16', expected one of float32, float64"),
        ({"dtype": "int8", "device": "cuda"}, "expected one of float16, bfloat16, float32, float64"),
        ({"size": 0}, "got size 0"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        gemm.product(**{"size": 8, "dtype": "float32"} | arguments)


def test_products_are_made_on_the_device_they_were_prepared_on(monkeypatch):
    """By any thread: validation computes beside transfers in one of its own, whose current device is the first."""
    entered = []

    class Device:
        def __init__(self):
            self.id = 3

        def __enter__(self):
            entered.append(self.id)

        def __exit__(self, *error):
            entered.append(None)

        def synchronize(self):
            pass

    class Stream:
        def use(self):
            assert entered[-1] == 3, "CuPy refuses the stream of another device than the current one"

        def synchronize(self):
            pass

    class Array(np.ndarray):
        def get(self):
            return np.asarray(self)

    def on_device(array):
        return array.view(Array)

    users = Stream()
    cuda = SimpleNamespace(
        Device=Device, Stream=lambda non_blocking: Stream(), get_current_stream=lambda: users, cublas=None
    )
    cupy = SimpleNamespace(cuda=cuda, asarray=on_device, empty_like=np.empty_like, matmul=np.matmul, float64=np.float64)
    monkeypatch.setattr(gemm, "require_device", lambda: 4)
    monkeypatch.setattr(gemm, "import_cupy", lambda: cupy)
    multiply, wrong_rows = gemm.product(64, "float32", "cuda")
    multiply()
    assert wrong_rows() == 0 and entered == [3, None, 3, None]


def test_no_gpu_is_named():
    try:
        require_device()
    except Unavailable:
        with pytest.raises(Unavailable, match=r"CuPy|CUDA"):
            gemm.product(64, "float32", "cuda")
    else:
        multiply, wrong_rows = gemm.product(64, "float32", "cuda")
        multiply()
        assert wrong_rows() == 0
