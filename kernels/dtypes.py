"""The element types that lanterne reduces: names, sizes and kinds, in one table.

A dtype is named by a string ("float32"); "bfloat16" has no NumPy dtype of its own, so its arrays are either of the
ml_dtypes package's type or plain uint16 with `dtype="bfloat16"` said beside them.
"""

import functools
from dataclasses import dataclass
from typing import Any

from lanterne.errors import InputError, one_of

OPS = ("sum", "prod", "min", "max", "mean")


@dataclass(frozen=True, eq=False)
class Dtype:
    """An element type: `name`, `nbytes` per element, `kind` ("float", "int", "uint" or "bool"). One object each."""

    name: str
    nbytes: int
    kind: str


DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype("float16", 2, "float"),
        Dtype("bfloat16", 2, "float"),
        Dtype("float32", 4, "float"),
        Dtype("float64", 8, "float"),
        *(Dtype(f"int{8 * nbytes}", nbytes, "int") for nbytes in (1, 2, 4, 8)),
        *(Dtype(f"uint{8 * nbytes}", nbytes, "uint") for nbytes in (1, 2, 4, 8)),
        Dtype("bool", 1, "bool"),
    )
}

# What a named dtype may be stored as when the array's own dtype has another name.
_STORED_AS = {"bfloat16": ("uint16", "int16")}


def find_dtype(name: object) -> Dtype:
    """The Dtype called `name`: a string, a NumPy or ml_dtypes dtype or scalar type, a torch dtype, or a Dtype.

    Raises:
        InputError: no such dtype.
    """
    try:
        return _find_dtype(name)
    except (KeyError, TypeError):
        raise InputError(f"dtype: {one_of(name, DTYPES)}") from None


@functools.cache
def _find_dtype(name: object) -> Dtype:
    if isinstance(name, Dtype):
        return name
    if not getattr(name, "isnative", True):
        raise InputError(f"dtype: got {name!r}, expected the byte order of this machine")
    return DTYPES[getattr(name, "name", None) or getattr(name, "__name__", None) or str(name).removeprefix("torch.")]


def dtype_of(array: Any, dtype: object = None, what: str = "array") -> Dtype:
    """The Dtype of `array`'s elements; with `dtype`, that one, if the array can hold it.

    Raises:
        InputError: `dtype` is unknown, or names another type than the array's.
    """
    if dtype is None:
        return find_dtype(array.dtype)
    wanted = find_dtype(dtype)
    stored = find_dtype(array.dtype).name
    if stored != wanted.name and stored not in _STORED_AS.get(wanted.name, ()):
        raise InputError(f"{what}: got dtype {stored}, expected {wanted.name}")
    return wanted


def check_op(op: str, dtype: Dtype) -> None:
    """Raise unless reductions by `op` are defined for the Dtype `dtype`.

    Raises:
        InputError: unknown op; sum, prod or mean of bool; mean of integers, whose sums overflow and whose quotients are
            not integers.
    """
    if op not in OPS:
        raise InputError(f"op: {one_of(op, OPS)}")
    if dtype.kind == "bool" and op not in ("min", "max"):
        raise InputError(f"op: got {op} of bool, expected min (and), max (or), or an integer dtype")
    if op == "mean" and dtype.kind != "float":
        raise InputError(f"op: got mean of {dtype.name}, expected a floating dtype (or sum, divided as you see fit)")
