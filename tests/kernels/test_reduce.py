"""Reductions on the CPU against oracles that do one operation at a time."""

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.kernels.dtypes import DTYPES
from lanterne.kernels.reduce import divide, fold, prepare, reduce

INTS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint")]
SIZES = [0, 1, 3, 63, 64, 65, 257, 1000]
STEP = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("num_inputs", [1, 2, 3, 7])
@pytest.mark.parametrize("op", STEP)
@pytest.mark.parametrize("dtype", INTS)
def test_integers_are_exact(op, dtype, num_inputs, count):
    rng = np.random.default_rng(count)
    info = np.iinfo(dtype)
    arrays = [rng.integers(info.min, info.max, count, dtype, endpoint=True) for _ in range(num_inputs + 1)]
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected = STEP[op](expected, array)
    reduce(op, *arrays)
    np.testing.assert_array_equal(arrays[0], expected)
