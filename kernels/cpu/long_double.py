"""Reductions of long doubles, which have no vectors: NumPy's, on addresses like those of compiled kernels."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.kernels.dtypes import Dtype

_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def long_fold(op: str, dtype: Dtype, count: int, out: int, *inputs: int) -> None:
    """out = in0 op in1 op ...; see jit.fold_function."""
    target, first, *others = (_at(address, count, dtype) for address in (out, *inputs))
    np.copyto(target, first) if not others else _UFUNCS[op](first, others[0], out=target)
    for other in others[1:]:
        _UFUNCS[op](target, other, out=target)


def long_with_number(ufunc: np.ufunc, dtype: Dtype, count: int, out: int, source: int, number: float) -> None:
    """out = in / number, or what else `ufunc` does; see jit.divide_function."""
    ufunc(_at(source, count, dtype), np.longdouble(number), out=_at(out, count, dtype))


def _at(address: int, count: int, dtype: Dtype) -> NDArray[Any]:
    """`count` elements at `address`."""
    memory: Any = (ctypes.c_char * (count * dtype.nbytes)).from_address(address)
    return np.frombuffer(memory, dtype.name, count)
